//go:build !race

package macos

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const state = "usr/local/var/metalfleet"

func TestInstallMakesADaemonThatRuns(t *testing.T) {
	m := newMac(t)
	models := "Users/Shared/models & more"
	m.must(os.MkdirAll(m.at(models), 0o755))
	said := m.mustInstall("--join", m.token(), "--advertise=studio.example:7443", "--model-root", "/"+models, "--agent-flag", "--hub-endpoint=https://hub.example")
	f := m.facts()
	if user := f.Records["/Users/_metalfleet"]; user["UserShell"] != "/usr/bin/false" || user["UniqueID"] != "397" || user["IsHidden"] != "1" || user["Password"] != "*" ||
		user["PrimaryGroupID"] != f.Records["/Groups/_metalfleet"]["PrimaryGroupID"] {
		t.Errorf("the account is %v, its group %v", user, f.Records["/Groups/_metalfleet"])
	}
	p := readPlist(t, m.at("Library/LaunchDaemons/"+label+".plist"))
	want := []string{"/usr/local/metalfleet/current/agent", "run", "--state=/usr/local/var/metalfleet", "--grace=2m",
		"--advertise=studio.example:7443", "--model-root=/" + models, "--hub-endpoint=https://hub.example"}
	if !slices.Equal(p.ProgramArguments, want) {
		t.Errorf("the daemon is %q", p.ProgramArguments)
	}
	if d := f.Daemons[label]; d == nil || d.Program != "/usr/local/metalfleet/versions/v1.0.0/agent" {
		t.Errorf("launchd runs %+v", d)
	}
	if got := m.read(state + "/account.json"); got != secret {
		t.Errorf("the agent was given the token %q", got)
	}
	if i, err := os.Stat(m.at(state)); err != nil || i.Mode().Perm() != 0o700 {
		t.Errorf("state folder: %v, %v", i.Mode(), err)
	}
	if !slices.Contains(m.log(), "chown -h _metalfleet:_metalfleet "+m.at(state)) || !slices.Contains(m.log(), "chown root:wheel "+m.at("Library/LaunchDaemons/"+label+".plist")) {
		t.Errorf("owners: %q", m.log())
	}
	if i, err := os.Stat(m.at("Library/Logs/metalfleet/agent.log")); err != nil || i.Mode().Perm() != 0o640 {
		t.Errorf("the log is not for administrators to read: %v, %v", i, err)
	}
	for _, file := range []string{"agent", "engine", "install.sh"} {
		if i, err := os.Stat(m.at("usr/local/metalfleet/current/" + file)); err != nil || i.Mode().Perm() != 0o755 {
			t.Errorf("%s: %v, %v", file, i, err)
		}
	}
	if !slices.ContainsFunc(m.log(), func(l string) bool {
		return strings.HasPrefix(l, "xattr -c "+m.at("usr/local/metalfleet/versions/.new/agent"))
	}) {
		t.Error("what a browser marked stays marked, and macOS does not start it")
	}
	for _, words := range []string{"changes:", "create the account", "point /usr/local/metalfleet/current to v1.0.0", "--advertise=studio.example:7443", "join the fleet"} {
		if !strings.Contains(said, words) {
			t.Errorf("it does not say %q:\n%s", words, said)
		}
	}
	if strings.Contains(said+strings.Join(m.log(), "\n"), secret) {
		t.Error("the token is in the list of processes, or was printed")
	}
	if f.Sleep != 0 || f.Wired != 0 || f.Allowed != nil {
		t.Errorf("other settings were changed: %+v", f)
	}
}

func TestInstallAgainChangesNothing(t *testing.T) {
	m := joined(t)
	was, changes := m.picture(), m.facts().Changes
	said := m.mustInstall()
	if m.picture() != was || m.facts().Changes != changes || !strings.Contains(said, "nothing to change") {
		t.Errorf("%d changes:\n%s", m.facts().Changes-changes, said)
	}
	// From where it was installed, too.
	if said, code := m.with("sh", "", m.at("usr/local/metalfleet/current/install.sh"), "--yes"); code != 0 || !strings.Contains(said, "nothing to change") {
		t.Errorf("exit code %d:\n%s", code, said)
	}
}

func TestInstallWithBashAsMacsHaveIt(t *testing.T) {
	m := newMac(t)
	file := filepath.Join(m.archive, "install.sh")
	for _, shell := range []string{"bash", "dash"} {
		path, err := exec.LookPath(shell)
		m.must(err)
		wrapper := filepath.Join(m.dir, "shell.sh")
		m.write(wrapper, "exec "+path+map[string]string{"bash": " --posix", "dash": ""}[shell]+" "+file+` "$@"`, 0o755)
		if said, code := m.with("sh", secret, wrapper, "--yes", "--join=-"); code != 0 {
			t.Errorf("%s: exit code %d:\n%s", shell, code, said)
		}
		if got := m.read(state + "/account.json"); got != secret {
			t.Errorf("%s: the agent was given the token %q", shell, got)
		}
		if said, code := m.with("sh", "", wrapper, "--uninstall", "--purge", "--yes"); code != 0 {
			t.Errorf("%s: exit code %d:\n%s", shell, code, said)
		}
	}
}

func TestUpgradeKeepsIdentityFlagsAndWeights(t *testing.T) {
	m := joined(t)
	m.write(m.at(state+"/weights/file"), "weights", 0o600)
	for _, version := range []string{"v1.1.0", "v1.2.0"} {
		m.pack(version)
		said := m.mustInstall()
		for _, words := range []string{"running requests finish first", "to " + version + " (currently "} {
			if !strings.Contains(said, words) {
				t.Errorf("it does not say %q:\n%s", words, said)
			}
		}
	}
	if m.read(state+"/account.json") != secret || m.read(state+"/weights/file") != "weights" {
		t.Error("identity or weights are gone")
	}
	if d := m.facts().Daemons[label]; d == nil || d.Program != "/usr/local/metalfleet/versions/v1.2.0/agent" {
		t.Errorf("launchd runs %+v", d)
	}
	if p := readPlist(t, m.at("Library/LaunchDaemons/"+label+".plist")); !slices.Contains(p.ProgramArguments, "--advertise=studio.example:7443") {
		t.Errorf("the daemon is %q", p.ProgramArguments)
	}
	versions, err := filepath.Glob(m.at("usr/local/metalfleet/versions/*"))
	if err != nil || len(versions) != 2 || filepath.Base(versions[0]) != "v1.1.0" {
		t.Errorf("versions kept: %q", versions)
	}
}

func TestAFlagReplacesTheOneOfItsName(t *testing.T) {
	m := joined(t)
	m.mustInstall("--advertise", "other.example", "--agent-flag=--verbose")
	if got := m.read("usr/local/etc/metalfleet/agent.flags"); got != "--advertise=other.example\n--verbose\n" {
		t.Errorf("flags:\n%s", got)
	}
}

// refusal is a run of install.sh that must change nothing.
type refusal struct {
	facts  func(*facts)
	before func(*played)
	args   []string
	bare   bool // args are all; else --yes and --join with a token are added
	locked bool // another install.sh holds the lock
	stdin  string
	want   string // in what it says
}

func (c refusal) run(t *testing.T) {
	m := newMac(t, func(f *facts) {
		if c.facts != nil {
			c.facts(f)
		}
	})
	if c.before != nil {
		c.before(m)
	}
	args := c.args
	if !c.bare {
		args = append([]string{"--yes", "--join", m.token()}, args...)
	}
	was := m.picture()
	install := func() (string, int) { return m.install(c.stdin, args...) }
	if c.locked {
		install = func() (string, int) { return m.withLock(args) }
	}
	said, code := install()
	if code == 0 || !strings.Contains(said, c.want) {
		t.Errorf("exit code %d, want one about %q:\n%s", code, c.want, said)
	}
	if m.picture() != was || m.facts().Changes > 0 {
		t.Errorf("something was changed: %q", m.log())
	}
	if strings.Contains(said, secret) {
		t.Errorf("the token is repeated:\n%s", said)
	}
}

func TestWhatWouldNotWorkIsRefusedBeforeAnythingChanges(t *testing.T) {
	for name, c := range map[string]refusal{
		"old macOS":                            {facts: func(f *facts) { f.MacOS = "13.7.2" }, want: "macOS 13.7.2 is too old: MLX needs macOS 14"},
		"macOS of no number":                   {facts: func(f *facts) { f.MacOS = "" }, want: "is too old"},
		"Intel":                                {facts: func(f *facts) { f.Arm64 = "" }, want: "Intel"},
		"no Mac":                               {facts: func(f *facts) { f.System = "Linux" }, want: "not a Mac"},
		"not root":                             {facts: func(f *facts) { f.UID = 501 }, want: "sudo sh install.sh"},
		"a full disk":                          {facts: func(f *facts) { f.FreeMiB = 500 }, want: "the disk has 500 MiB free, but the programs need 1024"},
		"no token":                             {args: []string{"--yes"}, bare: true, want: "kubectl metalfleet join-token NAME"},
		"a token as argument":                  {args: []string{"--yes", "--join", secret}, bare: true, want: "the process list"},
		"a token as a word":                    {args: []string{"--yes", secret}, want: "unknown argument"},
		"an empty token":                       {args: []string{"--yes", "--join", "-"}, bare: true, want: "no token on standard input"},
		"a question and a token on one stream": {args: []string{"--join", "-"}, stdin: secret, bare: true, want: "add --yes"},
		"a damaged file":                       {before: func(m *played) { m.write(filepath.Join(m.archive, "libmlx.dylib"), "damaged", 0o644) }, want: "files of the archive are damaged"},
		"a missing file":                       {before: func(m *played) { m.must(os.Remove(filepath.Join(m.archive, "mlx.metallib"))) }, want: "mlx.metallib is not in the folder of install.sh"},
		"a version that leads elsewhere": {before: func(m *played) {
			m.write(filepath.Join(m.archive, "VERSION"), "../../../etc", 0o644)
			m.sum()
		}, want: "does not contain a version"},
		"an engine that does not start": {before: func(m *played) {
			m.write(filepath.Join(m.archive, "engine"), "#!/bin/sh\necho dyld: symbol not found >&2\nexit 134\n", 0o755)
			m.sum()
		}, want: "engine --version does not print v1.0.0 on this Mac, but an error: dyld: symbol not found"},
		"a limit that leaves nothing":    {args: []string{"--wired-limit-mb", "65000"}, want: "want at most 59392"},
		"a limit that is no number":      {args: []string{"--wired-limit-mb", "60g"}, want: "want a number of MiB"},
		"a model root that is not there": {args: []string{"--model-root", "/nowhere"}, want: "the folder does not exist"},
		"a model root that is no path":   {args: []string{"--model-root", "models"}, want: "an absolute path"},
		"a flag of the plist":            {args: []string{"--agent-flag", "--state=/x"}, want: "--state cannot be set here"},
		"a declared Mac":                 {args: []string{"--agent-flag", "--mac=chip=M1"}, want: "--mac cannot be set here"},
		"a flag that is none":            {args: []string{"--agent-flag", "verbose"}, want: "not a flag of the agent"},
		"a flag of two lines":            {args: []string{"--agent-flag", "--hub-endpoint=a\n--grace=9h"}, want: "a single line"},
		"a flag in the file":             {before: func(m *played) { m.write(m.at("usr/local/etc/metalfleet/agent.flags"), "--grace=9h\n", 0o644) }, want: "--grace cannot be set here"},
		"a flag without its value":       {args: []string{"--advertise"}, want: "requires a value"},
		"purge alone":                    {args: []string{"--purge"}, want: "requires --uninstall"},
		"a join and an uninstall":        {args: []string{"--uninstall", "--keep-awake"}, bare: true, want: "--uninstall can be combined only with"},
		"another install.sh":             {before: func(m *played) { m.must(os.Mkdir(m.at("var/run/metalfleet-install.lock"), 0o755)) }, locked: true, want: "another install.sh is running"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.run(t)
		})
	}
}

// withLock is install where a lock of another run lies and stays.
func (m *played) withLock(args []string) (string, int) {
	m.t.Helper()
	c := exec.Command("sh", append([]string{filepath.Join(m.archive, "install.sh")}, args...)...)
	c.Env = []string{"PATH=" + m.bin(), "TMPDIR=" + m.dir, "METALFLEET_TEST=1", "METALFLEET_TEST_ROOT=" + m.disk, "PLAYED_MAC=" + m.dir}
	out, _ := c.CombinedOutput()
	return string(out), c.ProcessState.ExitCode()
}

func TestWhatAPersonShouldKnowIsSaid(t *testing.T) {
	for name, c := range map[string]struct {
		facts     func(*facts)
		want, not string
	}{
		"a Mac that sleeps":          {facts: func(f *facts) { f.Sleep = 15 }, want: "sleeps after 15 minutes and then leaves the fleet", not: "sleep: never"},
		"a Mac that does not":        {facts: func(f *facts) { f.Sleep = 0 }, want: "sleep: never", not: "leaves the fleet"},
		"a notebook":                 {facts: func(f *facts) { f.Battery = true }, want: "lid closed", not: ""},
		"the system's own limit":     {facts: nil, want: "65536 MiB, of which the GPU may use about 49152", not: "is set"},
		"what more it could hold":    {facts: nil, want: "--wired-limit-mb 59392 lets engines use 10240 MiB more", not: ""},
		"a limit that is set":        {facts: func(f *facts) { f.Wired = 59392 }, want: "may use 59392 (iogpu.wired_limit_mb is set)", not: "MiB more"},
		"a limit that freezes":       {facts: func(f *facts) { f.Wired = 65000 }, want: "leaves macOS less than 4096 MiB; --wired-limit-mb 59392 is safer", not: "MiB more"},
		"Local Network privacy":      {facts: nil, want: "not for launchd daemons", not: "15.1 fixes"},
		"macOS 15.0":                 {facts: func(f *facts) { f.MacOS = "15.0.1" }, want: "15.1 fixes", not: ""},
		"macOS 14":                   {facts: func(f *facts) { f.MacOS = "14.6" }, want: "firewall: off", not: "Local Network"},
		"a firewall":                 {facts: func(f *facts) { f.Firewall = 1 }, want: "--allow-firewall allows connections", not: "firewall: off"},
		"a firewall that blocks all": {facts: func(f *facts) { f.Firewall, f.BlockAll = 2, true }, want: "blocks all incoming", not: ""},
		"FileVault":                  {facts: func(f *facts) { f.FileVault = true }, want: "until a user unlocks the disk", not: ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMac(t)
			if c.facts != nil {
				m.change(c.facts)
			}
			was := m.picture()
			said, code := m.install("", "--dry-run", "--join", m.token())
			if code != 0 || !strings.Contains(said, c.want) || c.not != "" && strings.Contains(said, c.not) {
				t.Errorf("exit code %d, want %q and not %q:\n%s", code, c.want, c.not, said)
			}
			if m.picture() != was || m.facts().Changes > 0 || !strings.Contains(said, "dry run: nothing was changed") {
				t.Errorf("a dry run changed something: %q", m.log())
			}
		})
	}
}

func TestItAsks(t *testing.T) {
	m := newMac(t)
	was := m.picture()
	for _, answer := range []string{"", "n\n", "maybe\n"} {
		if said, code := m.install(answer, "--join", m.token()); code == 0 || !strings.Contains(said, "continue? [y/N]") || m.picture() != was {
			t.Errorf("answer %q: exit code %d:\n%s", answer, code, said)
		}
	}
	if said, code := m.install("y\n", "--join", m.token()); code != 0 {
		t.Errorf("exit code %d:\n%s", code, said)
	}
}

// settings are the flags that change more than what the daemon needs.
func settings() []string {
	return []string{"--wired-limit-mb=59392", "--keep-awake", "--allow-firewall"}
}

func TestSettingsAreChangedWhenAskedForAndComeBack(t *testing.T) {
	m := newMac(t, func(f *facts) { f.Sleep, f.Wired, f.Firewall = 10, 50000, 1 })
	said := m.mustInstall(append(settings(), "--join", m.token())...)
	f := m.facts()
	if f.Sleep != 0 || f.Wired != 59392 || !slices.Equal(f.Allowed, []string{m.at("usr/local/metalfleet/versions/v1.0.0/agent")}) {
		t.Errorf("sleep %d, limit %d, allowed %q", f.Sleep, f.Wired, f.Allowed)
	}
	for _, words := range []string{"from 50000 to 59392", "currently 10", "in the application firewall"} {
		if !strings.Contains(said, words) {
			t.Errorf("it does not say %q:\n%s", words, said)
		}
	}
	if p := readPlist(t, m.at("Library/LaunchDaemons/dev.metalfleet.wired-limit.plist")); !slices.Equal(p.ProgramArguments, []string{"/usr/sbin/sysctl", "iogpu.wired_limit_mb=59392"}) || !p.RunAtLoad {
		t.Errorf("%+v", p)
	}
	changes := m.facts().Changes
	if said := m.mustInstall(settings()...); m.facts().Changes != changes {
		t.Errorf("asked for the same again:\n%s", said)
	}
	m.mustInstall("--wired-limit-mb=55000")
	m.pack("v1.1.0")
	m.mustInstall()
	if f := m.facts(); !slices.Contains(f.Allowed, m.at("usr/local/metalfleet/versions/v1.1.0/agent")) || f.Wired != 55000 {
		t.Errorf("after an upgrade: limit %d, allowed %q", f.Wired, f.Allowed)
	}
	m.mustInstall("--uninstall")
	if f := m.facts(); f.Sleep != 10 || f.Wired != 50000 || f.Allowed != nil {
		t.Errorf("after the uninstall: sleep %d, limit %d, allowed %q", f.Sleep, f.Wired, f.Allowed)
	}
	if left, err := filepath.Glob(m.at("Library/LaunchDaemons/*")); err != nil || len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

func TestTheGPUsLimitIsGivenBack(t *testing.T) {
	m := joined(t)
	m.mustInstall("--wired-limit-mb=59392")
	was := m.facts().Daemons[label].PID
	m.mustInstall("--wired-limit-mb=0")
	if _, err := os.Stat(m.at("Library/LaunchDaemons/dev.metalfleet.wired-limit.plist")); err == nil || m.facts().Wired != 0 {
		t.Error("the limit is still set")
	}
	if m.facts().Daemons[label].PID != was {
		t.Error("the agent was started again for that")
	}
}

// Every change is made to fail, one after the other, and each time the Mac must
// be as it was.
func TestAFailureIsUndoneWhereverItHappens(t *testing.T) {
	configure := func(f *facts) { f.Sleep, f.Wired, f.Firewall = 10, 50000, 1 }
	for name, c := range map[string]struct {
		start func(*testing.T) *played
		args  func(*played) []string
	}{
		"first": {
			start: func(t *testing.T) *played { return newMac(t, configure) },
			args:  func(m *played) []string { return append(settings(), "--yes", "--join", m.token()) },
		},
		"upgrade": {
			start: func(t *testing.T) *played {
				m := joined(t, configure)
				m.pack("v1.1.0")
				return m
			},
			args: func(*played) []string { return append(settings(), "--yes", "--advertise=other.example") },
		},
		"other bytes of the same version": {
			start: func(t *testing.T) *played {
				m := joined(t, configure)
				m.write(filepath.Join(m.archive, "LICENSE"), "another", 0o644)
				m.sum()
				return m
			},
			args: func(*played) []string { return []string{"--yes"} },
		},
	} {
		t.Run(name, func(t *testing.T) {
			good := c.start(t)
			began := good.facts().Changes
			if said, code := good.install("", c.args(good)...); code != 0 {
				t.Fatalf("exit code %d:\n%s", code, said)
			}
			all := good.facts().Changes - began
			if all < 5 {
				t.Fatalf("only %d changes", all)
			}
			for n := 1; n <= all; n++ {
				t.Run(fmt.Sprint(n), func(t *testing.T) {
					t.Parallel()
					fails(t, c.start(t), c.args, n)
				})
			}
		})
	}
}

// fails runs an install whose n-th change fails. An identity stays where one was
// made: its token is used up.
func fails(t *testing.T, m *played, args func(*played) []string, n int) {
	t.Helper()
	line, was := args(m), m.picture()
	m.change(func(f *facts) { f.FailAt = f.Changes + n })
	said, code := m.install("", line...)
	if strings.Contains(said, "could not undo") {
		t.Errorf("not taken back:\n%s", said)
	}
	if code == 0 {
		// What is taken out of the firewall's list may fail; nothing else.
		t.Fatalf("change %d failed and it went on:\n%s\n%s", n, said, strings.Join(m.log(), "\n"))
	}
	_, err := os.Stat(m.at(state + "/account.json"))
	isFirst := !strings.Contains(was, "account.json")
	// The daemon is started only after the join.
	if err != nil && slices.ContainsFunc(m.log(), func(l string) bool { return strings.HasPrefix(l, "launchctl enable") }) {
		t.Errorf("the Mac had joined, and its identity is gone:\n%s", said)
	}
	if isFirst && err == nil {
		if !strings.Contains(said, "has already joined the fleet") || m.facts().Records["/Users/_metalfleet"] == nil {
			t.Errorf("the Mac has joined, and it is not said or its account is gone:\n%s", said)
		}
		m.must(os.RemoveAll(m.at(state)))
		m.must(os.Remove(m.at("usr/local/var")))
		m.change(func(f *facts) { delete(f.Records, "/Users/_metalfleet"); delete(f.Records, "/Groups/_metalfleet") })
	}
	if is := m.picture(); is != was {
		t.Errorf("after change %d failed (%q):\n%s\nwas\n%s\nis\n%s", n, lastChange(m), said, was, is)
	}
	if n%4 != 0 {
		return
	}
	m.change(func(f *facts) { f.FailAt = 0 })
	if said, code := m.install("", args(m)...); code != 0 {
		t.Errorf("the next try: exit code %d:\n%s", code, said)
	}
}

func lastChange(m *played) string {
	log := m.log()
	return strings.Join(log[max(0, len(log)-12):], "; ")
}

// The disk may be full, or failing.
func TestACopyThatDiffersIsNotUsed(t *testing.T) {
	m := newMac(t)
	was := m.picture()
	cp, err := exec.LookPath("cp")
	m.must(err)
	m.write(filepath.Join(m.bin(), "cp"), "#!/bin/sh\n"+cp+" \"$@\" || exit 1\ncase $1,$2 in */mlx.metallib,*/.new/) printf k >\"$2/mlx.metallib\" ;; esac\n", 0o755)
	if said, code := m.install("", "--yes", "--join", m.token()); code == 0 || !strings.Contains(said, "differ from the archive") || m.picture() != was {
		t.Errorf("exit code %d:\n%s", code, said)
	}
}

func TestADaemonThatKeepsDyingIsUndone(t *testing.T) {
	m := joined(t)
	m.pack("v1.1.0")
	m.write(m.at("Library/Logs/metalfleet/agent.log"), "agent: --advertise: \"x\" is not a valid port\n", 0o640)
	was := m.picture()
	m.change(func(f *facts) { f.AgentDies = true })
	said, code := m.install("", "--yes")
	m.change(func(f *facts) { f.AgentDies = false })
	if code == 0 || !strings.Contains(said, "does not keep running") || !strings.Contains(said, "is not a valid port") || m.picture() != was {
		t.Errorf("exit code %d:\n%s", code, said)
	}
}

// TestAttackEscapesInTheAgentsLog: the agent's account writes the log, and root reads its end.
func TestAttackEscapesInTheAgentsLog(t *testing.T) {
	m := joined(t)
	m.pack("v1.1.0")
	m.write(m.at("Library/Logs/metalfleet/agent.log"), "agent: \x1b]0;owned\x07\x1b[2Jgone\r\x7f\x00 \tßa\n", 0o640)
	m.change(func(f *facts) { f.AgentDies = true })
	said, code := m.install("", "--yes")
	if code == 0 || !strings.Contains(said, "agent: ]0;owned[2Jgone \tßa\n") {
		t.Errorf("exit code %d, %q", code, said)
	}
}

func TestUninstallLeavesWhatIsTheUsersUnlessToldOtherwise(t *testing.T) {
	m := newMac(t)
	empty := m.picture()
	m.mustInstall("--join", m.token())
	m.write(m.at(state+"/weights/file"), "weights", 0o600)
	whole := m.picture()
	if said, code := m.install("", "--uninstall", "--purge", "--dry-run"); code != 0 || m.picture() != whole || !strings.Contains(said, "all downloaded weights") {
		t.Errorf("a dry run: exit code %d:\n%s", code, said)
	}
	said := m.mustInstall("--uninstall")
	for _, path := range []string{"usr/local/metalfleet", "Library/LaunchDaemons/" + label + ".plist"} {
		if _, err := os.Stat(m.at(path)); err == nil {
			t.Errorf("%s is still there", path)
		}
	}
	if m.facts().Daemons[label] != nil || m.read(state+"/weights/file") != "weights" || m.read(state+"/account.json") != secret || !strings.Contains(said, "keeping /usr/local/var/metalfleet") {
		t.Errorf("daemons %v:\n%s", m.facts().Daemons, said)
	}
	m.mustInstall() // with what stayed
	m.mustInstall("--uninstall", "--purge")
	for _, dir := range []string{"usr/local/var", "usr/local/etc"} { // which others use too
		m.must(os.Remove(m.at(dir)))
	}
	if is := m.picture(); is != empty {
		t.Errorf("left:\n%s\nwas\n%s", is, empty)
	}
	if said := m.mustInstall("--uninstall", "--purge"); !strings.Contains(said, "nothing to remove") {
		t.Errorf("again:\n%s", said)
	}
}

func TestUninstallEndsEnginesAndAsksThemFirst(t *testing.T) {
	m := joined(t)
	notes := filepath.Join(m.dir, "notes")
	var engines []*exec.Cmd
	for _, script := range []string{
		`trap 'echo asked >>"$1"; exit 0' TERM; echo up; while :; do sleep 0.02; done`,
		`trap 'echo deaf >>"$1"' TERM; echo up; while :; do sleep 0.02; done`,
	} {
		c := exec.Command("sh", "-c", script, "engine", notes)
		out, err := c.StdoutPipe()
		m.must(err)
		m.must(c.Start())
		if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
			t.Fatal(err)
		}
		go func() { _ = c.Wait() }() // reaped as launchd does
		engines = append(engines, c)
		t.Cleanup(func() { _ = c.Process.Kill() })
	}
	m.change(func(f *facts) { f.Engines = []int{engines[0].Process.Pid, engines[1].Process.Pid} })
	m.must(os.Remove(filepath.Join(m.bin(), "sleep"))) // they need some time
	m.write(filepath.Join(m.bin(), "sleep"), "#!/bin/sh\nexec /bin/sleep 0.02\n", 0o755)
	said := m.mustInstall("--uninstall")
	if !strings.Contains(said, "stop the running engines (2)") || alive(engines[0].Process.Pid) || alive(engines[1].Process.Pid) {
		t.Errorf("engines live on:\n%s", said)
	}
	b, err := os.ReadFile(notes)
	m.must(err)
	if !regexp.MustCompile(`(?s)asked.*`).Match(b) || !strings.Contains(string(b), "deaf") {
		t.Errorf("they were not asked: %q", b)
	}
}

// An upgrade leaves engines alone: the next agent takes them over.
func TestUpgradeEndsNoEngine(t *testing.T) {
	m := joined(t)
	c := exec.Command("sleep", "600")
	m.must(c.Start())
	t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
	m.change(func(f *facts) { f.Engines = []int{c.Process.Pid} })
	m.pack("v1.1.0")
	if said := m.mustInstall(); !alive(c.Process.Pid) {
		t.Errorf("the engine was ended:\n%s", said)
	}
}

// The agent's account may put links where install.sh, which runs as root, expects its own.
func TestAttackLinksInPlaceOfFoldersAndLog(t *testing.T) {
	const logs = "Library/Logs/metalfleet"
	m := joined(t)
	for _, path := range []string{"etc", "victim"} {
		m.must(os.MkdirAll(m.at(path), 0o755))
	}
	m.write(m.at("etc/sudoers"), "root ALL", 0o440)
	m.must(os.Remove(m.at(logs + "/agent.log")))
	m.must(os.Symlink(m.at("etc/sudoers"), m.at(logs+"/agent.log")))
	m.must(os.RemoveAll(m.at("usr/local/etc/metalfleet"))) // so that folders are made again
	m.mustInstall()
	if i, err := os.Stat(m.at("etc/sudoers")); err != nil || i.Mode().Perm() != 0o440 {
		t.Errorf("what the log led to: %v, %v", i, err)
	}
	if i, err := os.Lstat(m.at(logs + "/agent.log")); err != nil || i.Mode() != 0o640 {
		t.Errorf("the log: %v, %v", i, err)
	}
	owners := slices.DeleteFunc(m.log(), func(l string) bool { return !strings.HasPrefix(l, "chown ") || !strings.Contains(l, m.at(logs)) })
	if len(owners) != 3 || !strings.Contains(owners[0], "root:wheel") || owners[2] != "chown -h _metalfleet:admin "+m.at(logs) {
		t.Errorf("the folder is not handed over last: %q", owners)
	}
	for _, dir := range []string{state, "usr/local/etc/metalfleet", logs} {
		m.must(os.Rename(m.at(dir), m.at("aside")))
		m.must(os.Symlink(m.at("victim"), m.at(dir)))
		if said, code := m.install("", "--yes"); code == 0 || !strings.Contains(said, "/"+dir+" is a link") {
			t.Errorf("%s is a link: exit code %d:\n%s", dir, code, said)
		}
		m.must(os.Remove(m.at(dir)))
		m.must(os.Rename(m.at("aside"), m.at(dir)))
	}
}

// Root writes nothing through a link, or through a folder whose owner could replace it by one.
func TestAttackFoldersOfAnotherAccount(t *testing.T) {
	m := joined(t)
	before := m.read("usr/local/etc/metalfleet/agent.flags")
	refused := func(dir, why string) {
		t.Helper()
		if said, code := m.install("", "--yes", "--advertise=mac.local"); code == 0 || !strings.Contains(said, ": "+dir+why) {
			t.Errorf("%s%s: exit code %d:\n%s", dir, why, code, said)
		}
		if after := m.read("usr/local/etc/metalfleet/agent.flags"); after != before {
			t.Errorf("%s%s, and root wrote the flags: %q", dir, why, after)
		}
	}
	for _, dir := range []string{
		"/usr/local", "/usr/local/etc", "/usr/local/etc/metalfleet", "/usr/local/var", "/Library/Logs", "/Library/LaunchDaemons", "/usr/local/metalfleet",
	} {
		m.change(func(f *facts) { f.Owners = map[string]int{dir: 501} })
		refused(dir, " does not belong to root")
		m.change(func(f *facts) { f.Owners = nil })
		m.must(os.Rename(m.at(dir), m.at("aside")))
		m.must(os.Symlink(m.at("aside"), m.at(dir)))
		refused(dir, " is a link")
		m.must(os.Remove(m.at(dir)))
		m.must(os.Rename(m.at("aside"), m.at(dir)))
	}
	m.mustInstall("--advertise=mac.local")
}
