//go:build !race

package macos

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// facts are what a played Mac is. Its commands read and change them.
type facts struct {
	System, MacOS, Arm64 string
	UID                  int
	MemoryMiB, Wired     int64
	FreeMiB              int64
	Sleep                int
	Battery, FileVault   bool
	Firewall             int
	BlockAll             bool
	Allowed              []string
	// Users and Groups by record, such as "/Users/_metalfleet", with their keys.
	Records map[string]map[string]string
	// Daemons that launchd has loaded, by label.
	Daemons map[string]*daemon
	// LeavesAfter is how often launchd still names a daemon after its bootout.
	LeavesAfter int
	// Owners are folders that belong to another account than root, by the end of their path.
	Owners map[string]int
	// AgentDies: what launchd starts ends at once.
	AgentDies bool
	// Engines are real processes of the test that ps shows as the account's.
	Engines []int
	// FailAt is the number of the change that fails, counted from 1; Changes
	// is how many were tried.
	FailAt, Changes int
}

type daemon struct {
	Program string
	PID     int
	Leaving int // more than 0: it was booted out and ends after that many checks
	Looks   int
}

const label = "dev.metalfleet.agent"

// played is a Mac of which nothing is real but the files.
type played struct {
	t       *testing.T
	dir     string // commands, facts and log, next to the disk
	disk    string
	archive string
}

// shared are the commands that a Mac has as Linux does, with the flags that both
// know and the script may use.
func shared() map[string]string {
	return map[string]string{
		"awk": "-v", "basename": "", "cat": "", "chmod": "", "cmp": "-s", "cp": "-p", "dirname": "", "find": "", "grep": "-q", "mkdir": "-p",
		"mktemp": "-d", "readlink": "", "rm": "-f -rf", "rmdir": "", "sed": "-n", "tail": "-n", "tr": "-d", "wc": "-l", "sh": "",
	}
}

func newMac(t *testing.T, change ...func(*facts)) *played {
	t.Helper()
	m := &played{t: t, dir: t.TempDir()}
	m.disk, m.archive = filepath.Join(m.dir, "disk"), filepath.Join(m.dir, "archive")
	for _, dir := range []string{"usr/local", "Library/LaunchDaemons", "Library/Logs", "var/run"} {
		m.must(os.MkdirAll(filepath.Join(m.disk, dir), 0o755))
	}
	m.must(os.MkdirAll(m.bin(), 0o755))
	for name, flags := range shared() {
		real, err := exec.LookPath(name)
		m.must(err)
		m.write(filepath.Join(m.bin(), name), fmt.Sprintf(`#!/bin/sh
for a in "$@"; do
  case $a in
    -) ;;
    -*) case " %s " in *" $a "*) ;; *) echo "%s: no flag $a that a Mac knows too" >&2; exit 64 ;; esac ;;
    *) break ;;
  esac
done
exec %s "$@"
`, flags, name, real), 0o755)
	}
	m.write(filepath.Join(m.bin(), "sleep"), "#!/bin/sh\nexit 0\n", 0o755)
	self, err := os.Executable()
	m.must(err)
	for name := range commands() {
		m.must(os.Symlink(self, filepath.Join(m.bin(), name)))
	}
	f := facts{
		System: "Darwin", MacOS: "15.3.1", Arm64: "1", MemoryMiB: 65536, FreeMiB: 200 << 10, LeavesAfter: 2,
		Records: map[string]map[string]string{
			"/Users/_other": {"UniqueID": "399", "PrimaryGroupID": "20"}, "/Groups/staff": {"PrimaryGroupID": "20"}, "/Groups/_other": {"PrimaryGroupID": "398"},
		},
		Daemons: map[string]*daemon{},
	}
	for _, c := range change {
		c(&f)
	}
	m.must(save(m.dir, f))
	m.pack("v1.0.0")
	return m
}

func (m *played) bin() string { return filepath.Join(m.dir, "bin") }

func (m *played) must(err error) {
	m.t.Helper()
	if err != nil {
		m.t.Fatal(err)
	}
}

func (m *played) write(path, text string, mode os.FileMode) {
	m.t.Helper()
	m.must(os.MkdirAll(filepath.Dir(path), 0o755))
	m.must(os.WriteFile(path, []byte(text), mode))
	m.must(os.Chmod(path, mode))
}

// pack lays out what an archive of that version holds; the programs are scripts.
func (m *played) pack(version string) {
	m.t.Helper()
	m.must(os.RemoveAll(m.archive))
	for name, text := range map[string]string{
		"agent":  "#!/bin/sh\ncase $1 in\n  --version) echo agent " + version + " ;;\n  join) [ \"$2 $3 $4\" = '--token-file - --state' ] && cat >\"$5/account.json\" ;;\n  *) exit 1 ;;\nesac\n",
		"engine": "#!/bin/sh\necho engine " + version + "\n", "selftest.sh": "#!/bin/bash\n",
	} {
		m.write(filepath.Join(m.archive, name), text, 0o755)
	}
	for name, text := range map[string]string{"libmlx.dylib": "mlx " + version, "mlx.metallib": "kernels", "VERSION": version + "\n", "LICENSE": "licence", "NOTICE": "notice"} {
		m.write(filepath.Join(m.archive, name), text, 0o644)
	}
	for _, name := range []string{"install.sh", "dev.metalfleet.agent.plist", "dev.metalfleet.wired-limit.plist"} {
		b, err := os.ReadFile(config(name))
		m.must(err)
		m.write(filepath.Join(m.archive, name), string(b), 0o644)
	}
	m.sum()
}

// sum writes the checksums of the archive's files.
func (m *played) sum() {
	m.t.Helper()
	files, err := os.ReadDir(m.archive)
	m.must(err)
	var sums strings.Builder
	for _, f := range files {
		if f.Name() != "SHA256SUMS" {
			fmt.Fprintf(&sums, "%s  %s\n", digest(m.t, filepath.Join(m.archive, f.Name())), f.Name())
		}
	}
	m.write(filepath.Join(m.archive, "SHA256SUMS"), sums.String(), 0o644)
}

func digest(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%x", sha256.Sum256(b))
}

// install runs the archive's script. It returns what it said on both streams
// and its exit code.
func (m *played) install(stdin string, args ...string) (said string, code int) {
	m.t.Helper()
	return m.with("sh", stdin, filepath.Join(m.archive, "install.sh"), args...)
}

func (m *played) with(shell, stdin, script string, args ...string) (said string, code int) {
	m.t.Helper()
	path, err := exec.LookPath(shell)
	m.must(err)
	m.must(os.RemoveAll(filepath.Join(m.dir, "log")))
	c := exec.Command(path, append([]string{script}, args...)...)
	c.Dir, c.Stdin = m.dir, strings.NewReader(stdin)
	c.Env = []string{"PATH=" + m.bin(), "TMPDIR=" + m.dir, "METALFLEET_TEST=1", "METALFLEET_TEST_ROOT=" + m.disk, "PLAYED_MAC=" + m.dir}
	out, err := c.CombinedOutput()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		m.t.Fatal(err)
	}
	if left, err := filepath.Glob(filepath.Join(m.dir, "metalfleet.*")); err != nil || len(left) > 0 {
		m.t.Errorf("left behind: %q (%v)", left, err)
	}
	if _, err := os.Lstat(m.at("var/run/metalfleet-install.lock")); err == nil {
		m.t.Error("the lock is left behind")
	}
	return string(out), c.ProcessState.ExitCode()
}

// mustInstall is install where it has to do.
func (m *played) mustInstall(args ...string) string {
	m.t.Helper()
	said, code := m.install("", append([]string{"--yes"}, args...)...)
	if code != 0 {
		m.t.Fatalf("exit code %d:\n%s", code, said)
	}
	return said
}

// joined is a Mac on which the version is installed already: a copy of one on
// which it was installed once.
func joined(t *testing.T, change ...func(*facts)) *played {
	t.Helper()
	template.Lock()
	if template.dir == "" {
		m := newMac(t)
		m.mustInstall("--join", m.token(), "--advertise", "studio.example:7443")
		dir, err := os.MkdirTemp("", "played")
		m.must(err)
		template.dir = dir
		m.copyTo(dir, m.dir)
	}
	template.Unlock()
	m := &played{t: t, dir: t.TempDir()}
	m.disk, m.archive = filepath.Join(m.dir, "disk"), filepath.Join(m.dir, "archive")
	m.copyTo(m.dir, template.dir)
	for _, c := range change {
		m.change(c)
	}
	return m
}

// template is the Mac that joined copies; TestMain removes it.
var template struct {
	sync.Mutex
	dir string
}

func (m *played) copyTo(to, from string) {
	m.t.Helper()
	if out, err := exec.Command("cp", "-a", from+"/.", to).CombinedOutput(); err != nil {
		m.t.Fatalf("%v: %s", err, out)
	}
}

const secret = "mfj1.a-token-no-one-else-may-see"

// token is a file that holds one.
func (m *played) token() string {
	path := filepath.Join(m.dir, "studio.token")
	m.write(path, secret, 0o600)
	return path
}

func (m *played) at(path string) string { return filepath.Join(m.disk, path) }

func (m *played) read(path string) string {
	m.t.Helper()
	b, err := os.ReadFile(m.at(path))
	m.must(err)
	return string(b)
}

func (m *played) facts() facts {
	m.t.Helper()
	f, err := load(m.dir)
	m.must(err)
	return f
}

func (m *played) change(c func(*facts)) {
	m.t.Helper()
	f := m.facts()
	c(&f)
	m.must(save(m.dir, f))
}

// log is every command line of the last run that a played command saw.
func (m *played) log() []string {
	b, err := os.ReadFile(filepath.Join(m.dir, "log"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	m.must(err)
	return strings.Split(strings.TrimSpace(string(b)), "\n")
}

// picture is everything that a run could have changed: each file of the disk
// with mode and content, and the facts but for counters and pids.
func (m *played) picture() string {
	m.t.Helper()
	lines := map[string]string{}
	m.must(filepath.WalkDir(m.disk, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		i, err := d.Info()
		if err != nil {
			return err
		}
		what := ""
		switch {
		case i.Mode()&fs.ModeSymlink != 0:
			if what, err = os.Readlink(path); err != nil {
				return err
			}
		case i.Mode().IsRegular():
			what = digest(m.t, path)
		}
		lines[strings.TrimPrefix(path, m.disk)] = i.Mode().String() + " " + what
		return nil
	}))
	f := m.facts()
	f.FailAt, f.Changes = 0, 0
	for _, d := range f.Daemons {
		d.PID, d.Looks = 1, 0
	}
	b, err := json.MarshalIndent(f, "", " ")
	m.must(err)
	var out strings.Builder
	for _, path := range slices.Sorted(maps.Keys(lines)) {
		fmt.Fprintln(&out, path, lines[path])
	}
	return out.String() + string(b)
}

func load(dir string) (facts, error) {
	var f facts
	b, err := os.ReadFile(filepath.Join(dir, "facts"))
	if err == nil {
		err = json.Unmarshal(b, &f)
	}
	return f, err
}

func save(dir string, f facts) error {
	b, err := json.Marshal(f)
	if err != nil {
		return err
	}
	file := filepath.Join(dir, "facts")
	if old, err := os.ReadFile(file); err == nil && string(old) == string(b) {
		return nil
	}
	if err := os.WriteFile(file+".new", b, 0o644); err != nil {
		return err
	}
	return os.Rename(file+".new", file)
}

// alive reports whether a process of the test still runs.
func alive(pid int) bool { return syscall.Kill(pid, 0) == nil }
