package upgrade

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"metalfleet.dev/metalfleet/agent/integrity"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/test/patience"
)

// enterVariable makes this test's program one that enters as version v1 does.
const enterVariable = "UPGRADE_TEST_ENTER"

func TestMain(m *testing.M) {
	dir := os.Getenv(enterVariable)
	if dir == "" {
		os.Exit(m.Run())
	}
	p := Program{Log: logr.Discard(), Folder: In(dir), Version: "v1", Path: os.Args[0], Trial: 2 * time.Second}
	_, err := p.Enter()
	var ended Ended
	if errors.As(err, &ended) {
		os.Exit(int(ended))
	}
	if err != nil {
		_, _ = os.Stderr.WriteString(err.Error())
		os.Exit(99)
	}
	os.Exit(42) // this process is to run the agent
}

var build = Build{Version: "v2", SHA256: strings.Repeat("2", 64)}

// mac is a state folder with the build v2 on trial, which is a shell script.
func mac(t *testing.T, script string, change func(*State)) (dir string, f Folder) {
	t.Helper()
	dir = t.TempDir()
	f = In(dir)
	program(t, f.agent(build), script)
	base := filepath.Join(dir, "installed")
	program(t, base, `echo "$$" > "$UPGRADE_TEST_ENTER/back"; exit 7`)
	err := f.Update(func(s State) State {
		s.Base, s.BasePath = "v1", base
		s.Trial = &Trial{Build: build, Attempt: 3, From: "v1"}
		if change != nil {
			change(&s)
		}
		return s
	})
	if err != nil {
		t.Fatal(err)
	}
	return dir, f
}

func program(t *testing.T, path, script string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script+"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
}

// enter starts the installed program and returns how it ended.
func enter(t *testing.T, dir string, vars ...string) (pid, code int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(append(os.Environ(), enterVariable+"="+dir), vars...)
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("%v: %s", err, out)
	}
	return cmd.ProcessState.Pid(), cmd.ProcessState.ExitCode()
}

func load(t *testing.T, f Folder) State {
	t.Helper()
	s, err := f.Load()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestATrialThatGoesWellStaysAndItsEndIsTheLaunchers(t *testing.T) {
	dir, f := mac(t, `printf ready >&3; exec 3>&-
until grep -q Succeeded "$UPGRADE_TEST_ENTER/upgrade/state.json"; do sleep 0.05; done; exit 5`, nil)
	if _, code := enter(t, dir); code != 5 {
		t.Errorf("ended with %d, want the 5 of the agent", code)
	}
	s := load(t, f)
	if s.Trial != nil || s.Current == nil || !reflect.DeepEqual(*s.Current, build) || s.Last.Phase != v1alpha1.UpgradeSucceeded || s.Last.From != "v1" || s.Last.Attempt != 3 {
		t.Errorf("remembered %+v, last %+v", s, s.Last)
	}
}

func TestAProgramThatFailsItsTrialIsTakenBack(t *testing.T) {
	for name, tc := range map[string]struct {
		script string
		change func(*State)
		says   string
	}{
		"ends at once":         {script: "exit 3", change: nil, says: "exit code 3"},
		"dies":                 {script: "kill -SEGV $$", change: nil, says: "signal"},
		"ends well, not ready": {script: "exit 0", change: nil, says: "exit code 0"},
		"never ready":          {script: "exec sleep 60", change: nil, says: "not ready within 2s"},
		"does not end either":  {script: "trap '' TERM; while :; do sleep 0.1; done", change: nil, says: "not ready within 2s"},
		"another word":         {script: "printf nope! >&3; exec 3>&-; exec sleep 60", change: nil, says: "not ready within 2s"},
		"started too often":    {script: "printf ready >&3; exit 0", change: func(s *State) { s.Trial.Starts = maxStarts }, says: "was started 3 times"},
		"was changed": {script: "printf ready >&3; exit 0", change: func(s *State) {
			s.Trial.Files = integrity.Files{"agent": strings.Repeat("0", 64)}
		}, says: "agent was changed"},
		"is not there": {script: "", change: func(s *State) {
			s.Trial.SHA256 = strings.Repeat("9", 64)
		}, says: "cannot be started"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, f := mac(t, tc.script, tc.change)
			pid, code := enter(t, dir)
			back, err := os.ReadFile(filepath.Join(dir, "back"))
			if err != nil || code != 7 || strings.TrimSpace(string(back)) != strconv.Itoa(pid) {
				t.Errorf("ended with %d (%v); process %q is the agent from before, want %d", code, err, back, pid)
			}
			s := load(t, f)
			if s.Trial != nil || s.Current != nil || s.Last.Phase != v1alpha1.UpgradeRolledBack || !strings.Contains(s.Last.Message, tc.says) {
				t.Errorf("remembered %+v, last %+v; want %q", s, s.Last, tc.says)
			}
		})
	}
}

func TestARollbackReturnsToTheBuildFromBefore(t *testing.T) {
	before := Build{Version: "v1.5", SHA256: strings.Repeat("5", 64)}
	dir, f := mac(t, "exit 1", func(s *State) { s.Current = &before })
	program(t, f.agent(before), "exit 8")
	if _, code := enter(t, dir); code != 8 {
		t.Errorf("ended with %d, want the 8 of v1.5", code)
	}
	if s := load(t, f); s.Current == nil || !reflect.DeepEqual(*s.Current, before) {
		t.Errorf("remembered %+v", s)
	}
}

func TestARollbackDoesNotReturnToAChangedBuild(t *testing.T) {
	before := Build{Version: "v1.5", SHA256: strings.Repeat("5", 64), Files: integrity.Files{"agent": strings.Repeat("0", 64)}}
	dir, f := mac(t, "exit 1", func(s *State) { s.Current = &before })
	program(t, f.agent(before), "exit 8")
	if _, code := enter(t, dir); code != 7 {
		t.Errorf("ended with %d, want the 7 of the installed agent", code)
	}
}

func TestAnAgentMayAskItsLauncherForAnotherTrial(t *testing.T) {
	next := Build{Version: "v3", SHA256: strings.Repeat("3", 64)}
	// The first agent proves itself and, as Restart does, writes down another trial.
	dir, f := mac(t, `printf ready >&3; exec 3>&-
until grep -q Succeeded "$UPGRADE_TEST_ENTER/upgrade/state.json"; do sleep 0.05; done
cp "$UPGRADE_TEST_ENTER/next.json" "$UPGRADE_TEST_ENTER/upgrade/state.json"; exit 75`, nil)
	program(t, f.agent(next), "printf ready >&3; exec 3>&-\nuntil grep -q '\"to\": \"v3\"' \"$UPGRADE_TEST_ENTER/upgrade/state.json\"; do sleep 0.05; done; exit 6")
	s := load(t, f)
	s.Current, s.Trial = &build, &Trial{Build: next, Attempt: 4, From: "v2"}
	b, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "next.json"), b, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, code := enter(t, dir); code != 6 {
		t.Errorf("ended with %d, want the 6 of v3", code)
	}
	if s := load(t, f); s.Current == nil || !reflect.DeepEqual(*s.Current, next) || s.Last.To != "v3" {
		t.Errorf("remembered %+v", s)
	}
}

func TestTheEndOfALauncherIsNoticed(t *testing.T) {
	dir, _ := mac(t, `printf ready >&3; exec 3>&-; echo "$$" > "$UPGRADE_TEST_ENTER/pid.new"; mv "$UPGRADE_TEST_ENTER/pid.new" "$UPGRADE_TEST_ENTER/pid"
cat <&4 > /dev/null; echo orphaned > "$UPGRADE_TEST_ENTER/orphaned"`, nil)
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), enterVariable+"="+dir)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	await(t, filepath.Join(dir, "pid"))
	if err := cmd.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	await(t, filepath.Join(dir, "orphaned"))
}

func await(t *testing.T, path string) {
	t.Helper()
	for deadline := time.Now().Add(patience.Of(t)); ; time.Sleep(10 * time.Millisecond) {
		if _, err := os.Stat(path); err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("no %s", path)
		}
	}
}

func TestWhatAProgramDoesFirst(t *testing.T) {
	trial := &Trial{Build: build}
	for name, tc := range map[string]struct {
		s    State
		role string
		want step
	}{
		"nothing was ever upgraded":         {s: State{}, role: "", want: beAgent},
		"a build proved itself":             {s: State{Base: "v1", Current: &build}, role: "", want: become},
		"it is that build":                  {s: State{Base: "v1", Current: &build}, role: roleAgent, want: beAgent},
		"a trial was cut short":             {s: State{Base: "v1", Current: &build, Trial: trial}, role: "", want: beLauncher},
		"another version was installed":     {s: State{Base: "v0", Current: &build}, role: "", want: beAgent},
		"another, in the midst of a trial":  {s: State{Base: "v0", Trial: trial}, role: "", want: beAgent},
		"a trial asks for its launcher":     {s: State{Base: "v0", Trial: trial}, role: roleLauncher, want: beLauncher},
		"a launcher and nothing to launch":  {s: State{Base: "v1"}, role: roleLauncher, want: beAgent},
		"the child of a trial is the agent": {s: State{Base: "v1", Trial: trial}, role: roleAgent, want: beAgent},
	} {
		if got := start(tc.s, tc.role, "v1"); got != tc.want {
			t.Errorf("%s: %d, want %d", name, got, tc.want)
		}
	}
}

func TestWhatFailedIsNotTriedAgain(t *testing.T) {
	order := &v1alpha1.AgentOrder{Version: "v2", SHA256: build.SHA256, Attempt: 3}
	after := func(p v1alpha1.AgentUpgradePhase, attempt int64) *v1alpha1.AgentUpgrade {
		return &v1alpha1.AgentUpgrade{To: "v2", SHA256: build.SHA256, Attempt: attempt, Phase: p, Time: metav1.Now()}
	}
	for name, tc := range map[string]struct {
		o    *v1alpha1.AgentOrder
		own  string
		last *v1alpha1.AgentUpgrade
		want bool
	}{
		"nothing is ordered":       {o: nil, own: "v1", last: nil, want: false},
		"another is ordered":       {o: order, own: "v1", last: nil, want: true},
		"it runs":                  {o: order, own: "v2", last: nil, want: false},
		"it was rolled back":       {o: order, own: "v1", last: after(v1alpha1.UpgradeRolledBack, 3), want: false},
		"it was refused":           {o: order, own: "v1", last: after(v1alpha1.UpgradeRefused, 3), want: false},
		"it is wished again":       {o: order, own: "v1", last: after(v1alpha1.UpgradeRolledBack, 2), want: true},
		"a fetch was cut short":    {o: order, own: "v1", last: after(v1alpha1.UpgradeFetching, 3), want: true},
		"a success, and back to 1": {o: order, own: "v1", last: after(v1alpha1.UpgradeSucceeded, 3), want: true},
	} {
		if got := todo(tc.o, tc.own, tc.last); got != tc.want {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
}

// entry is a file of an archive.
type entry struct {
	name string
	kind byte
	body string
}

func archive(t *testing.T, entries ...entry) *bytes.Buffer {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	for _, e := range entries {
		h := &tar.Header{Name: e.name, Typeflag: e.kind, Mode: 0o755, Size: int64(len(e.body))}
		if e.kind == tar.TypeSymlink {
			h.Linkname, h.Size = "/etc/passwd", 0
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if e.kind == tar.TypeReg {
			if _, err := w.Write([]byte(e.body)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := errors.Join(w.Close(), z.Close()); err != nil {
		t.Fatal(err)
	}
	return &b
}

func TestArchivesAreUnpackedOrRefused(t *testing.T) {
	for name, tc := range map[string]struct {
		entries []entry
		want    string
	}{
		"two programs and a library": {entries: []entry{{name: "agent", kind: tar.TypeReg, body: "a"}, {name: "engine", kind: tar.TypeReg, body: "e"}, {name: "lib/x", kind: tar.TypeReg, body: "l"}}, want: ""},
		"a way out":                  {entries: []entry{{name: "../agent", kind: tar.TypeReg, body: "a"}}, want: "../agent"},
		"a path from the top":        {entries: []entry{{name: "/agent", kind: tar.TypeReg, body: "a"}}, want: "/agent"},
		"a link":                     {entries: []entry{{name: "agent", kind: tar.TypeSymlink, body: ""}}, want: "not a regular file"},
		"the same twice":             {entries: []entry{{name: "agent", kind: tar.TypeReg, body: "a"}, {name: "agent", kind: tar.TypeReg, body: "b"}}, want: "agent"},
		"too many":                   {entries: slices.Repeat([]entry{{name: "lib", kind: tar.TypeDir, body: ""}}, maxFiles+1), want: "more than 4096"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			root, err := os.OpenRoot(dir)
			if err != nil {
				t.Fatal(err)
			}
			defer root.Close()
			err = unpack(archive(t, tc.entries...), root)
			if tc.want != "" {
				if err == nil || !strings.Contains(err.Error(), tc.want) {
					t.Errorf("%v, want %q", err, tc.want)
				}
				return
			}
			b, readErr := os.ReadFile(filepath.Join(dir, "lib/x"))
			if err != nil || readErr != nil || string(b) != "l" {
				t.Errorf("%v, %v, %q", err, readErr, b)
			}
		})
	}
	if err := unpack(strings.NewReader("no archive"), nil); err == nil || !strings.Contains(err.Error(), "not a .tar.gz") {
		t.Errorf("nonsense: %v", err)
	}
}

func TestAProgramForAnotherMachineIsRefused(t *testing.T) {
	dir := t.TempDir()
	source := filepath.Join(dir, "main.go")
	if err := os.WriteFile(source, []byte("package main\nimport \"fmt\"\nfunc main() { fmt.Println(\"agent v2\") }\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	compile := func(to string, env ...string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "go", "build", "-o", filepath.Join(dir, to), source)
		cmd.Env = append(append(os.Environ(), "CGO_ENABLED=0"), env...)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	compile("agent")
	compile("engine")
	if err := verify(t.Context(), dir, "v2"); err != nil {
		t.Errorf("what was ordered is refused: %v", err)
	}
	if err := verify(t.Context(), dir, "v3"); err == nil || !strings.Contains(err.Error(), `"agent v2", want "agent v3"`) {
		t.Errorf("another version: %v", err)
	}
	compile("engine", "GOARCH=riscv64", "GOOS=linux")
	if err := verify(t.Context(), dir, "v2"); err == nil || !strings.Contains(err.Error(), "engine in the archive is for linux/riscv64") {
		t.Errorf("another machine: %v", err)
	}
	program(t, filepath.Join(dir, "engine"), "exit 0")
	if err := verify(t.Context(), dir, "v2"); err == nil || !strings.Contains(err.Error(), "not a metalfleet program") {
		t.Errorf("a script: %v", err)
	}
	if err := os.Remove(filepath.Join(dir, "engine")); err != nil {
		t.Fatal(err)
	}
	if err := verify(t.Context(), dir, "v2"); err == nil || !strings.Contains(err.Error(), `no program "engine"`) {
		t.Errorf("no engine: %v", err)
	}
}
