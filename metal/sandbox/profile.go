package sandbox

import (
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// changes are what an engine may do to its files: make, write, rename and remove them. By flags, modes and access
// lists the agent could not remove them, and extended attributes take space that nothing counts.
const changes = "file-write-create file-write-data file-write-unlink"

// mlock is the number of a system call of Darwin: the kernel takes no locked page of a file back.
const mlock = "203"

// profile is r in the profile language of macOS, where the last rule that
// matches decides. It refuses by name instead of allowing by name: which
// services Metal needs differs between chips and releases of macOS, while an
// engine never needs what is refused here.
func profile(r Rules, program string) string {
	var b strings.Builder
	line := func(parts ...string) { b.WriteString(strings.Join(parts, " ") + "\n") }
	line("(version 1)")
	line("(allow default)")
	line(`(deny network-outbound)`)
	line(`(deny network-bind (local ip "*:*"))`)
	line(`(deny network-inbound (local ip "*:*"))`)
	line("(deny process-exec)")
	line("(allow process-exec", "(literal", quoted(program)+"))")
	line("(deny process-fork)")
	line("(deny signal (target others))")
	// By these the agent and other engines would get less of the processor and of the disk.
	line("(deny system-sched)")
	line("(deny process-info-setcontrol (target others))")
	// Memory of these counts at no process, or outlives it. What the system shares may be read.
	line("(deny ipc-posix* ipc-sysv* file-lock)")
	line("(allow ipc-posix-shm-read*)")
	line("(deny syscall-unix (syscall-number", mlock+"))")
	// Nor is Darwin's folder of compiled kernels written, which all engines share and nothing bounds: Metal compiles
	// them at each start.
	line("(deny file-write*)")
	// By a second name in a folder that may be written, any file could be read.
	line("(deny file-link file-clone)")
	// By these another process, without a sandbox, would do it.
	line("(deny job-creation lsopen appleevent-send mach-priv-task-port)")
	line(`(allow file-write-data (literal "/dev/null"))`)
	// What belongs to people and to the agent, and other models.
	secrets := append([]string{"/Users", "/Volumes", "/private/tmp", "/private/var/root", "/usr/local", "/Library/Logs"}, stateFolder(r)...)
	for _, path := range r.Read {
		secrets = append(secrets, around(path)...)
	}
	for _, path := range r.Write {
		secrets = append(secrets, filepath.Dir(path))
	}
	for _, secret := range secrets {
		line("(deny file-read*", "(subpath", quoted(secret)+"))")
	}
	for _, path := range append([]string{filepath.Dir(program)}, r.Read...) { // its libraries lie there
		line("(allow file-read*", "(subpath", quoted(path)+"))")
	}
	for _, path := range r.Write {
		line("(allow file-read*", changes, "(subpath", quoted(path)+"))")
		// The folder itself is the agent's: no other may take its place.
		line("(deny file-write-create file-write-unlink", "(literal", quoted(path)+"))")
	}
	line("(allow file-read*", changes, "(literal", quoted(r.Socket)+"))")
	// Nothing bounds a file there, or a folder that is moved there, and it would outlive the engine.
	line("(deny file-write-create (require-all", "(literal", quoted(r.Socket)+")", "(require-any (vnode-type REGULAR-FILE) (vnode-type DIRECTORY))))")
	// Others, which are not confined, could follow one.
	line("(deny file-write-create (vnode-type SYMLINK))")
	return b.String()
}

// around is the folder in which the models of others may lie next to a model: the highest above it
// that has nothing of the system.
func around(path string) []string {
	system := []string{
		"/Applications", "/Library", "/Library/Apple", "/Library/Application Support", "/Library/Caches", "/Library/ColorSync",
		"/Library/Developer", "/Library/Extensions", "/Library/Frameworks", "/Library/GPUBundles", "/Library/Preferences",
		"/System", "/System/Cryptexes", "/System/Library", "/System/Volumes", "/System/Volumes/Data", "/System/Volumes/Preboot",
		"/bin", "/dev", "/etc", "/private", "/private/etc", "/private/preboot", "/private/var", "/private/var/db", "/private/var/run",
		"/private/var/select", "/sbin", "/usr", "/usr/bin", "/usr/lib", "/usr/libexec", "/usr/sbin", "/usr/share", "/var",
	}
	if strings.HasPrefix(path, "/private/var/folders/") { // the account's temporary files
		return nil
	}
	parts := strings.Split(path, "/")
	for n := 2; n < len(parts); n++ {
		if top := strings.Join(parts[:n], "/"); !slices.Contains(system, top) {
			return []string{top}
		}
	}
	return nil
}

// stateFolder is the agent's, in which it keeps its identity: the socket lies
// in its folder "run", unless that path would be too long.
func stateFolder(r Rules) []string {
	if r.State != "" {
		return []string{r.State}
	}
	if run := filepath.Dir(r.Socket); filepath.Base(run) == "run" {
		return []string{filepath.Dir(run)}
	}
	return nil
}

// quoted is a path as a string of the profile language.
func quoted(path string) string { return strconv.Quote(path) }

// resolved follows links, because a profile is compared with real paths.
func resolved(r Rules) (out Rules, err error) {
	for _, path := range r.Read {
		real, err := filepath.EvalSymlinks(path)
		if err != nil {
			return Rules{}, fmt.Errorf("sandbox: %w", err)
		}
		out.Read = append(out.Read, real)
	}
	for _, path := range r.Write {
		// An engine may have put a link in place of the folder itself.
		out.Write = append(out.Write, filepath.Join(existing(filepath.Dir(path)), filepath.Base(path)))
	}
	if r.State != "" {
		if out.State, err = filepath.EvalSymlinks(r.State); err != nil {
			return Rules{}, fmt.Errorf("sandbox: %w", err)
		}
	}
	folder, err := filepath.EvalSymlinks(filepath.Dir(r.Socket))
	if err != nil {
		return Rules{}, fmt.Errorf("sandbox: %w", err)
	}
	out.Socket = filepath.Join(folder, filepath.Base(r.Socket))
	return out, nil
}

// existing follows the links of the part of a path that exists: a disk that is away, or full,
// ends no engine.
func existing(path string) string {
	real, err := filepath.EvalSymlinks(path)
	if parent := filepath.Dir(path); err != nil && parent != path {
		return filepath.Join(existing(parent), filepath.Base(path))
	} else if err != nil {
		return path
	}
	return real
}
