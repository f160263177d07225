//go:build !race

package macos

import (
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"howett.net/plist"
)

// TestMain plays a command of macOS where it is called by its name.
func TestMain(m *testing.M) {
	dir, name := os.Getenv("PLAYED_MAC"), filepath.Base(os.Args[0])
	play, ok := commands()[name]
	if dir == "" || !ok {
		code := m.Run()
		if template.dir != "" {
			_ = os.RemoveAll(template.dir)
		}
		os.Exit(code)
	}
	f, err := load(dir)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(70)
	}
	c := &call{facts: &f, dir: dir, args: os.Args[1:]}
	line := name + " " + strings.Join(c.args, " ")
	log, err := os.OpenFile(filepath.Join(dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err == nil {
		fmt.Fprintln(log, line)
		err = log.Close()
	}
	code := 70
	if err == nil {
		code = play(c)
		err = save(dir, f)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(70)
	}
	// At last, because who reads it may go on before this process has ended.
	fmt.Print(c.out.String())
	if c.then != nil {
		code = c.then()
	}
	os.Exit(code)
}

// call is one call of a command.
type call struct {
	*facts
	dir  string
	args []string
	out  strings.Builder
	then func() int // runs after the facts were stored
}

func (c *call) say(words ...any)                  { fmt.Fprintln(&c.out, words...) }
func (c *call) printf(format string, args ...any) { fmt.Fprintf(&c.out, format, args...) }

func (c *call) is(words ...string) bool {
	return len(c.args) >= len(words) && slices.Equal(c.args[:len(words)], words)
}

func (c *call) arg(i int) string {
	if i < len(c.args) {
		return c.args[i]
	}
	return ""
}

// changes counts a command that changes the Mac, and reports false for the one
// that is to fail.
func (c *call) changes() bool {
	c.Changes++
	if c.Changes == c.FailAt {
		fmt.Fprintln(os.Stderr, "it fails, as the test wants")
		return false
	}
	return true
}

// refuse is what a command says of a call that a Mac's own would not take.
func (c *call) refuse(format string, args ...any) int {
	fmt.Fprintf(os.Stderr, format+"\n", args...)
	return 64
}

func commands() map[string]func(*call) int {
	return map[string]func(*call) int{
		"uname":   func(c *call) int { c.say(c.System); return 0 },
		"id":      func(c *call) int { c.say(c.UID); return 0 },
		"sw_vers": func(c *call) int { c.say(c.MacOS); return 0 },
		"df": func(c *call) int {
			c.printf("Filesystem 1024-blocks Used Available Capacity iused ifree %%iused Mounted on\n/dev/disk3s5 971350180 1 %d 60%% 1 1 0%% /System/Volumes/Data\n", c.FreeMiB<<10)
			return 0
		},
		"fdesetup": func(c *call) int {
			c.say("FileVault is " + map[bool]string{true: "On.", false: "Off."}[c.FileVault])
			return 0
		},
		"ps": ps, "sysctl": sysctl, "pmset": pmset, "dscl": dscl, "launchctl": launchctl, "socketfilterfw": firewall, "sudo": sudo,
		"stat": stat, "shasum": shasum, "plutil": plutil, "xattr": xattr, "chown": chown, "ln": really("ln", "-sfn"), "mv": really("mv"),
	}
}

// really is a command of Linux that counts as a change.
func really(name string, flags ...string) func(*call) int {
	return func(c *call) int {
		for _, a := range c.args {
			if strings.HasPrefix(a, "-") && !slices.Contains(flags, a) {
				return c.refuse("%s: no flag %s that a Mac knows too", name, a)
			}
		}
		if !c.changes() {
			return 1
		}
		if out, err := exec.Command("/bin/"+name, c.args...).CombinedOutput(); err != nil {
			return c.refuse("%s: %v: %s", name, err, out)
		}
		return 0
	}
}

// stat prints the owner of a folder: root, unless the test gave it to another account.
func stat(c *call) int {
	if !c.is("-f", "%u") || len(c.args) != 3 {
		return c.refuse("stat: want -f %%u PATH")
	}
	for path, owner := range c.Owners {
		if strings.HasSuffix(c.arg(2), path) {
			c.say(owner)
			return 0
		}
	}
	c.say(0)
	return 0
}

func chown(c *call) int {
	owner, args := c.arg(0), c.args[1:]
	if owner == "-R" || owner == "-h" {
		owner, args = c.arg(1), c.args[2:]
	}
	for _, name := range strings.Split(owner, ":") {
		_, user := c.Records["/Users/"+name]
		_, group := c.Records["/Groups/"+name]
		if !user && !group && !slices.Contains([]string{"root", "wheel", "admin"}, name) {
			return c.refuse("chown: %s: illegal name", name)
		}
	}
	for _, path := range args {
		i, err := os.Lstat(path)
		if err != nil {
			return c.refuse("chown: %v", err)
		}
		if i.Mode().Type() == os.ModeSymlink && c.arg(0) != "-h" {
			return c.refuse("chown: %s is a link, and what it leads to would change its owner", path)
		}
	}
	if !c.changes() {
		return 1
	}
	return 0
}

func ps(c *call) int {
	if !c.is("-A", "-o", "user=", "-o", "pid=", "-o", "comm=") {
		return c.refuse("ps: %q", c.args)
	}
	c.say("root                 1 /sbin/launchd\n_other             77 /usr/local/other/engine")
	for _, pid := range c.Engines {
		if alive(pid) {
			c.printf("_metalfleet %8d %s\n", pid, filepath.Join(c.dir, "disk/usr/local/metalfleet/current/engine"))
		}
	}
	return 0
}

func sysctl(c *call) int {
	var set int64
	switch n, _ := fmt.Sscanf(c.arg(0), "iogpu.wired_limit_mb=%d", &set); {
	case n == 1:
		if !c.changes() {
			return 1
		}
		c.Wired = set
	case c.is("-n", "hw.optional.arm64"):
		if c.Arm64 == "" {
			return c.refuse("sysctl: unknown oid 'hw.optional.arm64'")
		}
		c.say(c.Arm64)
	case c.is("-n", "hw.memsize"):
		c.say(c.MemoryMiB << 20)
	case c.is("-n", "iogpu.wired_limit_mb"):
		c.say(c.Wired)
	default:
		return c.refuse("sysctl: %q", c.args)
	}
	return 0
}

func pmset(c *call) int {
	var minutes int
	switch n, _ := fmt.Sscanf(strings.Join(c.args, " "), "-c sleep %d", &minutes); {
	case n == 1:
		if !c.changes() {
			return 1
		}
		c.Sleep = minutes
	case c.is("-g", "custom"):
		if c.Battery {
			c.printf("Battery Power:\n Sleep On Power Button 1\n sleep                1\n")
		}
		c.printf("AC Power:\n Sleep On Power Button 1\n displaysleep         10\n sleep                %d\n disksleep            10\n", c.Sleep)
	case c.is("-g", "batt"):
		c.say("Now drawing from 'AC Power'")
		if c.Battery {
			c.say(" -InternalBattery-0 (id=1)	100%; charged")
		}
	default:
		return c.refuse("pmset: %q", c.args)
	}
	return 0
}

func dscl(c *call) int {
	record := c.arg(2)
	switch {
	case c.is(".", "-list"):
		for name, keys := range c.Records {
			if v, ok := keys[c.arg(3)]; ok && strings.HasPrefix(name, record+"/") {
				c.printf("%-24s %s\n", filepath.Base(name), v)
			}
		}
	case c.is(".", "-read"):
		v, ok := c.Records[record][c.arg(3)]
		if c.arg(3) == "" {
			_, ok = c.Records[record]
		}
		if !ok {
			return c.refuse("<dscl_cmd> DS Error: -14136 (eDSRecordNotFound)")
		}
		c.printf("%s: %s\n", c.arg(3), v)
	case c.is(".", "-create"):
		if !c.changes() {
			return 1
		}
		if c.Records[record] == nil {
			c.Records[record] = map[string]string{}
		}
		if len(c.args) == 5 {
			c.Records[record][c.args[3]] = c.args[4]
		}
	case c.is(".", "-delete"):
		if !c.changes() || c.Records[record] == nil {
			return 1
		}
		delete(c.Records, record)
	default:
		return c.refuse("dscl: %q", c.args)
	}
	return 0
}

func launchctl(c *call) int {
	name := strings.TrimPrefix(c.arg(1), "system/")
	d := c.Daemons[name]
	switch {
	case c.is("print"):
		if d == nil {
			return 113
		}
		if d.Leaving > 0 {
			if d.Leaving--; d.Leaving == 0 {
				delete(c.Daemons, name)
			}
		}
		d.Looks++
		c.printf("%s = {\n\tactive count = 1\n\tstate = running\n\n\tprogram = %s\n", c.arg(1), d.Program)
		if !c.AgentDies {
			c.printf("\tpid = %d\n\tdefault pid = x\n", d.PID)
		} else if d.Looks%4 == 0 { // it is tried again, and ends again
			c.printf("\tpid = %d\n", d.PID+d.Looks)
		}
		c.say("}")
	case c.is("enable"):
		if !c.changes() {
			return 1
		}
	case c.is("bootout"):
		if !c.changes() {
			return 1
		}
		if d == nil || d.Leaving > 0 {
			return 3
		}
		if d.Leaving = c.LeavesAfter; d.Leaving == 0 {
			delete(c.Daemons, name)
		}
		return 36 // it is in progress
	case c.is("bootstrap", "system"):
		return bootstrap(c)
	default:
		return c.refuse("launchctl: %q", c.args)
	}
	return 0
}

// bootstrap reads a plist as launchd does: it wants the account, and a program.
func bootstrap(c *call) int {
	if !c.changes() {
		return 5
	}
	var p daemonPlist
	b, err := os.ReadFile(c.arg(2))
	if err == nil {
		_, err = plist.Unmarshal(b, &p)
	}
	if err != nil || p.Label+".plist" != filepath.Base(c.arg(2)) {
		return c.refuse("Bootstrap failed: 5: Input/output error (%v)", err)
	}
	if _, ok := c.Records["/Users/"+p.UserName]; !ok || c.Daemons[p.Label] != nil {
		return c.refuse("Bootstrap failed: 5: Input/output error")
	}
	for _, dir := range []string{p.WorkingDirectory, filepath.Dir(p.StandardErrorPath)} {
		if i, err := os.Stat(filepath.Join(c.dir, "disk", dir)); err != nil || !i.IsDir() {
			return c.refuse("Bootstrap failed: 5: Input/output error: %v", err)
		}
	}
	program := filepath.Join(c.dir, "disk", p.ProgramArguments[0])
	real, err := filepath.EvalSymlinks(program)
	if err != nil {
		return c.refuse("no program: %v", err)
	}
	c.Daemons[p.Label] = &daemon{Program: strings.TrimPrefix(real, filepath.Join(c.dir, "disk")), PID: 4000 + c.Changes}
	return 0
}

func firewall(c *call) int {
	switch path := c.arg(1); {
	case c.is("--getglobalstate"):
		c.printf("Firewall is ... (State = %d)\n", c.Firewall)
	case c.is("--getblockall"):
		c.say("Firewall has block all state set to " + map[bool]string{true: "enabled.", false: "disabled."}[c.BlockAll])
	case c.is("--add"), c.is("--unblockapp"):
		if !c.changes() {
			return 1
		}
		if _, err := os.Stat(path); err != nil {
			return c.refuse("socketfilterfw: %v", err)
		}
		if !slices.Contains(c.Allowed, path) {
			c.Allowed = append(c.Allowed, path)
		}
	case c.is("--remove"):
		c.Changes++
		c.Allowed = slices.DeleteFunc(c.Allowed, func(p string) bool { return p == path })
		if len(c.Allowed) == 0 {
			c.Allowed = nil
		}
	default:
		return c.refuse("socketfilterfw: %q", c.args)
	}
	return 0
}

func sudo(c *call) int {
	if _, ok := c.Records["/Users/"+c.arg(1)]; !c.is("-u") || !ok {
		return c.refuse("sudo: unknown user %q", c.arg(1))
	}
	if !c.changes() {
		return 1
	}
	c.then = func() int {
		p := exec.Command(c.args[2], c.args[3:]...)
		p.Stdin, p.Stdout, p.Stderr = os.Stdin, os.Stdout, os.Stderr
		if err := p.Run(); err != nil {
			return c.refuse("%v", err)
		}
		return 0
	}
	return 0
}

func shasum(c *call) int {
	if !c.is("-a", "256", "-c") {
		return c.refuse("shasum: %q", c.args)
	}
	sums, err := os.ReadFile(c.arg(3))
	if err != nil {
		return c.refuse("shasum: %v", err)
	}
	code := 0
	for line := range strings.Lines(string(sums)) {
		want, name, _ := strings.Cut(strings.TrimSpace(line), "  ")
		b, err := os.ReadFile(name)
		verdict := "OK"
		if err != nil || fmt.Sprintf("%x", sha256.Sum256(b)) != want {
			verdict, code = "FAILED", 1
		}
		c.say(name+":", verdict)
	}
	return code
}

func plutil(c *call) int {
	b, err := os.ReadFile(c.arg(1))
	if err == nil {
		var tree any
		_, err = plist.Unmarshal(b, &tree)
	}
	if err != nil || !c.is("-lint") {
		return c.refuse("%s: %v", c.arg(1), err)
	}
	return 0
}

func xattr(c *call) int {
	if !c.is("-c") {
		return c.refuse("xattr: %q", c.args)
	}
	return 0
}
