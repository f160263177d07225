//go:build !race

package macos

import (
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"howett.net/plist"

	"metalfleet.dev/metalfleet/metal/footprint"
)

// daemonPlist is what launchd reads of ours; an unknown key is a fault.
type daemonPlist struct {
	Label               string
	ProgramArguments    []string
	UserName, GroupName string
	Umask               int
	WorkingDirectory    string
	RunAtLoad           bool
	KeepAlive           bool
	AbandonProcessGroup bool
	ExitTimeOut         int
	ProcessType         string
	SoftResourceLimits  struct{ NumberOfFiles int }
	HardResourceLimits  struct{ NumberOfFiles int }
	StandardOutPath     string
	StandardErrorPath   string
}

func readPlist(t *testing.T, path string) daemonPlist {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var p daemonPlist
	var keys map[string]any
	if _, err := plist.Unmarshal(b, &p); err != nil {
		t.Fatal(err)
	}
	if _, err := plist.Unmarshal(b, &keys); err != nil {
		t.Fatal(err)
	}
	known, err := plist.Marshal(p, plist.XMLFormat)
	if err != nil {
		t.Fatal(err)
	}
	for key := range keys {
		if !strings.Contains(string(known), "<key>"+key+"</key>") {
			t.Errorf("%s: the key %s is none that launchd is meant to read", path, key)
		}
	}
	return p
}

// config is a file of config/macos.
func config(name string) string { return name }

const agentPlist = "dev.metalfleet.agent.plist"

func TestTheDaemonLeavesEnginesAlone(t *testing.T) {
	p := readPlist(t, config(agentPlist))
	if !p.AbandonProcessGroup {
		t.Error("launchd ends the engines with the agent")
	}
	if !p.RunAtLoad || !p.KeepAlive {
		t.Error("launchd does not start it at once, or not again")
	}
	if seconds := scriptNumber(t, "stop_seconds"); seconds <= p.ExitTimeOut {
		t.Errorf("install.sh waits %d s for an agent that may take %d", seconds, p.ExitTimeOut)
	}
}

func TestTheDaemonIsNobodyButItself(t *testing.T) {
	p := readPlist(t, config(agentPlist))
	if p.Label != label || p.UserName != "_metalfleet" || p.GroupName != "_metalfleet" || p.Umask != 0o077 {
		t.Errorf("%s runs as %s:%s with umask %o", p.Label, p.UserName, p.GroupName, p.Umask)
	}
	if p.ProcessType != "Interactive" {
		t.Errorf("process type %q: launchd slows others down", p.ProcessType)
	}
	// Each stream is a file, and each engine a socket; launchd's own limit is 256.
	if p.SoftResourceLimits.NumberOfFiles < 8192 || p.HardResourceLimits.NumberOfFiles < p.SoftResourceLimits.NumberOfFiles {
		t.Errorf("open files: %d, at most %d", p.SoftResourceLimits.NumberOfFiles, p.HardResourceLimits.NumberOfFiles)
	}
	if want := []string{"/usr/local/metalfleet/current/agent", "run", "--state=" + p.WorkingDirectory}; !slices.Equal(p.ProgramArguments[:3], want) {
		t.Errorf("it runs %q", p.ProgramArguments)
	}
	if p.StandardErrorPath == "" || p.StandardOutPath != p.StandardErrorPath {
		t.Errorf("logs go to %q and %q", p.StandardOutPath, p.StandardErrorPath)
	}
}

// What the script says about the Mac is what the rest of the tree says.
func TestTheScriptsFiguresAreThoseOfTheTree(t *testing.T) {
	fetch, err := os.ReadFile("../../hack/mlx/fetch.sh")
	if err != nil {
		t.Fatal(err)
	}
	tag := regexp.MustCompile(`tag=macosx_(\d+)_0_arm64`).FindSubmatch(fetch)
	if oldest := scriptNumber(t, "oldest"); tag == nil || string(tag[1]) != strconv.Itoa(oldest) {
		t.Errorf("install.sh wants macOS %d, MLX's wheel %s", oldest, tag)
	}
	// A limit as large as the script lets it be gives the agent all that it uses
	// on a Mac of that size, and no less than it leaves to the system.
	for _, mib := range []int64{16 << 10, 64 << 10, 512 << 10} {
		static := footprint.LimitsOf(footprint.Host{Total: mib << 20, Policy: footprint.Aggressive}).Ceiling >> 20
		if left := int64(scriptNumber(t, "left_mib")); mib-left != static {
			t.Errorf("of %d MiB install.sh leaves the system %d, the agent %d", mib, left, mib-static)
		}
	}
	account, err := os.ReadFile("../../agent/account/account.go")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(account), `const fileName = "account.json"`) || !strings.Contains(script(t), "identity=$state/account.json") {
		t.Error("install.sh looks for the identity in another file than agent/account writes")
	}
}

func script(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile(config("install.sh"))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// scriptNumber is a number that install.sh sets at its top.
func scriptNumber(t *testing.T, name string) int {
	t.Helper()
	m := regexp.MustCompile(`(?m)^` + name + `=(\d+)$`).FindStringSubmatch(script(t))
	if m == nil {
		t.Fatalf("install.sh sets no %s", name)
	}
	n, err := strconv.Atoi(m[1])
	if err != nil {
		t.Fatal(err)
	}
	return n
}
