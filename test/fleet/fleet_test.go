//go:build !race

package fleet

import (
	"bufio"
	"context"
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

const childVariable = "FLEET_TEST_CHILD"

// TestMain lets the test binary play a program of the fleet.
func TestMain(m *testing.M) {
	switch os.Getenv(childVariable) {
	case "":
		os.Exit(m.Run())
	case "stubborn":
		signal.Ignore(syscall.SIGTERM)
	}
	os.Stdout.WriteString("up\n")
	time.Sleep(time.Minute) // the test ends it
}

// startEngine starts a process in its own session whose command line is that
// of an engine with its state under dir.
func startEngine(t *testing.T, behaviour, dir string) *exec.Cmd {
	t.Helper()
	cmd := &exec.Cmd{
		Path:        os.Args[0],
		Args:        []string{"/somewhere/bin/engine", "--config=" + filepath.Join(dir, "mac/engine.json")},
		Env:         append(os.Environ(), childVariable+"="+behaviour),
		SysProcAttr: &syscall.SysProcAttr{Setsid: true},
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || line != "up\n" {
		t.Fatalf("child said %q: %v", line, err)
	}
	ended := make(chan struct{})
	go func() { defer close(ended); _ = cmd.Wait() }()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-ended
	})
	return cmd
}

func TestSweepEndsTheEnginesOfOneFolderOnly(t *testing.T) {
	ours, others := t.TempDir(), t.TempDir()
	polite := startEngine(t, "polite", ours)
	stubborn := startEngine(t, "stubborn", ours)
	foreign := startEngine(t, "polite", others)

	found, err := Engines(ours)
	if err != nil || len(found) != 2 {
		t.Fatalf("found %v, %v; want the two of %s", found, err, ours)
	}
	hurry, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := Sweep(hurry, ours); err != nil {
		t.Fatal(err)
	}
	for _, e := range found {
		if e.Alive() {
			t.Errorf("engine %d lives", e.PID)
		}
	}
	left, err := Engines(others)
	if err != nil || len(left) != 1 || left[0].PID != foreign.Process.Pid {
		t.Errorf("of the other folder %v, %v; want %d alone, untouched (ours were %d and %d)",
			left, err, foreign.Process.Pid, polite.Process.Pid, stubborn.Process.Pid)
	}
}

func TestEnginesAreRecognizedByProgramAndFolder(t *testing.T) {
	for name, test := range map[string]struct {
		command []string
		want    bool
	}{
		"ours":                           {command: []string{"/x/bin/engine", "--config=/run/a/mac/c.json"}, want: true},
		"path as an argument of its own": {command: []string{"engine", "serve", "/run/a/mac/c.json"}, want: true},
		"another program":                {command: []string{"/x/bin/agent", "--state=/run/a/mac"}, want: false},
		"a folder with our name before":  {command: []string{"engine", "--config=/run/ab/c.json"}, want: false},
		"no arguments":                   {command: []string{"engine"}, want: false},
		"sockets in the other folder":    {command: []string{"engine", "serve", "--socket", "/tmp/metalfleet-1/x.sock"}, want: true},
		"an editor on the source":        {command: []string{"vi", "/run/a/engine"}, want: false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := isEngine(test.command, "/run/a", "/tmp/metalfleet-1"); got != test.want {
				t.Errorf("isEngine(%q) = %v", test.command, got)
			}
		})
	}
}

func TestStartHalfWayLeavesNothing(t *testing.T) {
	root := t.TempDir()
	if err := os.Mkdir(filepath.Join(root, "bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(root, "run")
	_, err := Start(t.Context(), Options{Root: root, Dir: dir})
	if err == nil || !strings.Contains(err.Error(), "make build") {
		t.Errorf("error %v, want one that names make build", err)
	}
	for _, name := range []string{"operator", "gateway", "agent", "engine"} {
		if err := os.WriteFile(filepath.Join(root, "bin", name), nil, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("KUBEBUILDER_ASSETS", filepath.Join(root, "nowhere"))
	if _, err = Start(t.Context(), Options{Root: root, Dir: dir}); err == nil {
		t.Error("started without a control plane")
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the run directory is left: %v", err)
	}
}

func TestAFolderThatExistsIsNotTakenOver(t *testing.T) {
	root := t.TempDir()
	if err := os.Mkdir(filepath.Join(root, "bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"operator", "gateway", "agent", "engine"} {
		if err := os.WriteFile(filepath.Join(root, "bin", name), nil, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	precious := filepath.Join(root, "home", "file")
	if err := os.Mkdir(filepath.Dir(precious), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(precious, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Start(t.Context(), Options{Root: root, Dir: filepath.Dir(precious)}); err == nil {
		t.Error("took a folder that exists")
	}
	if _, err := os.Stat(precious); err != nil {
		t.Errorf("a file that was there is gone: %v", err)
	}
}
