package pool

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"metalfleet.dev/metalfleet/agent/memory"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/metal/kv/cold/disk"
)

// maxSocketPath is what darwin's sockaddr_un holds, less the closing NUL.
const maxSocketPath = 103

// maxLogBytes is how large one engine's log grows before it is set aside, and overrunLogBytes
// before the next poll sees that the engine fills the disk with it.
const maxLogBytes, overrunLogBytes = 8 << 20, 256 << 20

// files are the folders for the files of engines.
type files struct {
	run, logs string
	// state is the agent's folder, if run does not lie in it.
	state string
}

// engineFiles are those of one engine.
type engineFiles struct {
	socket, config, log string
}

// newFiles makes the folders, for this user alone. Sockets lie in the state
// folder unless its path is too long for a socket's.
func newFiles(stateDir string) (files, error) {
	stateDir, err := filepath.Abs(stateDir)
	if err != nil {
		return files{}, fmt.Errorf("state folder: %w", err)
	}
	f := files{run: filepath.Join(stateDir, "run"), logs: filepath.Join(stateDir, "logs")}
	longest := f.engine(memory.Key{UID: "any", Epoch: 1}, 999_999).socket
	if len(longest) > maxSocketPath {
		f.run, f.state = filepath.Join("/tmp", "metalfleet-"+shortHash(stateDir)), stateDir
	}
	for _, dir := range []string{f.run, f.logs} {
		if err := privateDir(dir); err != nil {
			return files{}, err
		}
	}
	return f, nil
}

// restore makes the folders again that are gone: people free full disks, and systems empty /tmp,
// where another user may have made one of that name since.
func (f files) restore() error {
	if _, err := os.Lstat(f.logs); errors.Is(err, os.ErrNotExist) {
		if err := privateDir(f.logs); err != nil {
			return err
		}
	}
	return privateDir(f.run)
}

// privateDir makes a folder of mode 0700, and refuses one that is another
// user's, open to others, or a link.
func privateDir(dir string) error {
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("create folder for engines: %w", err)
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return fmt.Errorf("inspect folder for engines: %w", err)
	}
	owner := os.Geteuid()
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		owner = int(st.Uid)
	}
	if !info.IsDir() || info.Mode().Perm() != 0o700 || owner != os.Geteuid() {
		return fmt.Errorf("cannot use folder %s for engines: it is %s of user %d, want a folder of mode 0700 of user %d; remove it, or choose another state folder with --state", dir, info.Mode(), owner, os.Geteuid())
	}
	return nil
}

func shortHash(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:6])
}

// engine names the files of one load of one replica and epoch.
func (f files) engine(k memory.Key, load int64) engineFiles {
	name := v1alpha1.EngineFile(k.UID, k.Epoch) + "-" + strconv.FormatInt(load, 10)
	return f.named(name)
}

func (f files) named(name string) engineFiles {
	log, _, _ := strings.Cut(name, "-") // one log per replica, over all loads
	return engineFiles{
		socket: filepath.Join(f.run, name+".sock"),
		config: filepath.Join(f.run, name+".json"),
		log:    filepath.Join(f.logs, log+".log"),
	}
}

// arguments are those that an engine is started with.
func (f files) arguments(e engineFiles) []string {
	args := []string{"serve", "--socket", e.socket, "--config", e.config}
	if f.state != "" {
		args = append(args, "--state", f.state)
	}
	return args
}

// remove deletes socket and configuration; the log stays for a person to read,
// until sweepLogs.
func (f engineFiles) remove() {
	_ = removeAny(f.socket)
	_ = os.Remove(f.config)
}

// removeAny removes what an engine may have put in place of its socket: also a folder that is not empty, or what must
// not be removed by its flags.
func removeAny(path string) error {
	err := os.Remove(path)
	if err == nil || errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if info, err := os.Lstat(path); err == nil && info.Mode()&os.ModeSymlink == 0 {
		clearFlags(path)
	}
	return os.RemoveAll(path)
}

// keepOnly removes all from the folder of sockets that is not of these engines.
func (f files) keepOnly(engines []engineFiles) (err error) {
	names, err := os.ReadDir(f.run)
	for _, name := range names {
		at := filepath.Join(f.run, name.Name())
		if !slices.ContainsFunc(engines, func(e engineFiles) bool { return at == e.socket || at == e.config }) {
			err = errors.Join(err, removeAny(at))
		}
	}
	return err
}

// logBytes is what a log takes of the disk: its size, or the space that was allocated for it in
// advance, of which its size shows nothing.
func logBytes(info os.FileInfo) int64 { return max(info.Size(), disk.Allocated(info)) }

// boundLog sets a log that grew too large aside as NAME.1 and empties it, also if it cannot be
// set aside. The engine appends, so it continues at the beginning. It returns what it took of the disk.
func boundLog(path string) (bytes int64, err error) {
	info, err := os.Stat(path)
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("inspect engine log: %w", err)
	}
	if bytes = logBytes(info); bytes <= maxLogBytes {
		return bytes, nil
	}
	in, err := os.OpenFile(path, os.O_RDWR|syscall.O_NONBLOCK, 0) // its engine may have a lease
	if err != nil {
		return bytes, fmt.Errorf("open engine log: %w", err)
	}
	defer in.Close()
	out, err := os.OpenFile(path+".1", os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err == nil {
		_, err = io.Copy(out, io.LimitReader(in, 4*maxLogBytes))
		err = errors.Join(err, out.Close())
	}
	if err = errors.Join(err, in.Truncate(0)); err != nil {
		return bytes, fmt.Errorf("set engine log aside: %w", err)
	}
	return bytes, nil
}
