package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/agent/probe"
	"metalfleet.dev/metalfleet/test/patience"
)

func start(t *testing.T, ctx context.Context, args ...string) *Process {
	t.Helper()
	p, err := Start(ctx, Spec{Path: args[0], Args: args[1:], LogPath: filepath.Join(t.TempDir(), "log")}, probe.NewSystem())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Signal(syscall.SIGKILL) })
	return p
}

func waitDone(t *testing.T, p *Process) {
	t.Helper()
	select {
	case <-p.Done():
	case <-time.After(patience.Of(t)):
		t.Fatal("the end of the process was not seen")
	}
}

func TestTheEndOfAChildIsSeenWithItsCode(t *testing.T) {
	p := start(t, t.Context(), "/bin/sh", "-c", "exit 7")
	waitDone(t, p)
	if e := p.Exit(); !e.Known || e.Code != 7 || e.Signal != 0 {
		t.Errorf("%+v", e)
	}
	if _, err := p.Footprint(); !errors.Is(err, probe.ErrGone) {
		t.Errorf("footprint of an ended process: %v", err)
	}
	if err := p.Signal(syscall.SIGTERM); !errors.Is(err, probe.ErrGone) {
		t.Errorf("signalled an id that may be another's: %v", err)
	}
}

func TestAChildHasItsOwnSession(t *testing.T) {
	p := start(t, t.Context(), "/bin/sleep", "60")
	pgid, err := syscall.Getpgid(p.PID)
	if err != nil || pgid != p.PID {
		t.Errorf("process group %d of process %d (%v): it would get the agent's signals", pgid, p.PID, err)
	}
	if err := p.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	waitDone(t, p)
	if e := p.Exit(); !e.Known || e.Signal != syscall.SIGKILL {
		t.Errorf("%+v", e)
	}
}

func TestAStrangersEndIsSeen(t *testing.T) {
	child := start(t, t.Context(), "/bin/sleep", "60")
	adopted, err := Adopt(t.Context(), child.PID, child.StartTime, probe.NewSystem())
	if err != nil {
		t.Fatal(err)
	}
	if n, err := adopted.Footprint(); err != nil || n <= 0 {
		t.Errorf("footprint %d, %v", n, err)
	}
	if err := adopted.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	waitDone(t, adopted)
	if adopted.Exit().Known {
		t.Error("the code of a stranger's exit cannot be known")
	}
}

// An upgraded agent is the process that started its engines, and yet adopts
// them: what ends must not stay as a zombie until the agent ends.
func TestAChildThatIsAdoptedLeavesNothingBehind(t *testing.T) {
	for name, ended := range map[string]bool{"ends later": false, "ended before": true} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.Command("/bin/sleep", "60")
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			pid := cmd.Process.Pid
			started, err := probe.NewSystem().StartTime(pid)
			if err != nil {
				t.Fatal(err)
			}
			if ended {
				if err := cmd.Process.Kill(); err != nil {
					t.Fatal(err)
				}
				for deadline := time.Now().Add(patience.Of(t)); !errors.Is(gone(pid), probe.ErrGone); time.Sleep(time.Millisecond) {
					if time.Now().After(deadline) {
						t.Fatal("it does not end")
					}
				}
				if _, err := Adopt(t.Context(), pid, started, probe.NewSystem()); !errors.Is(err, probe.ErrGone) {
					t.Fatalf("adopted a zombie: %v", err)
				}
			} else {
				p, err := Adopt(t.Context(), pid, started, probe.NewSystem())
				if err != nil {
					t.Fatal(err)
				}
				if err := p.Signal(syscall.SIGKILL); err != nil {
					t.Fatal(err)
				}
				waitDone(t, p)
			}
			if _, err := syscall.Wait4(pid, nil, syscall.WNOHANG, nil); !errors.Is(err, syscall.ECHILD) {
				t.Errorf("the process %d was not collected: %v", pid, err)
			}
		})
	}
}

func gone(pid int) error {
	_, err := probe.NewSystem().StartTime(pid)
	return err
}

func TestAnotherProcessOfTheSameIDIsNotAdopted(t *testing.T) {
	child := start(t, t.Context(), "/bin/sleep", "60")
	if _, err := Adopt(t.Context(), child.PID, "another start", probe.NewSystem()); !errors.Is(err, probe.ErrGone) {
		t.Errorf("adopted a process that started at another time: %v", err)
	}
}

func TestTheEndOfTheWatchLeavesTheProcessAlone(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	child := start(t, ctx, "/bin/sleep", "60")
	adopted, err := Adopt(ctx, child.PID, child.StartTime, probe.NewSystem())
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	child.Forget()
	adopted.Forget()
	if _, err := probe.NewSystem().StartTime(child.PID); err != nil {
		t.Errorf("the process did not outlive its watch: %v", err)
	}
	if err := syscall.Kill(child.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	var ws syscall.WaitStatus
	if _, err := syscall.Wait4(child.PID, &ws, 0, nil); err != nil {
		t.Fatal(err)
	}
}

func TestAProgramThatDoesNotExistIsAnError(t *testing.T) {
	_, err := Start(t.Context(), Spec{Path: "/no/such/engine", LogPath: filepath.Join(t.TempDir(), "log")}, probe.NewSystem())
	if !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v", err)
	}
}

// uninspected is a probe of a program that may open no file for a while.
type uninspected struct {
	probe.Probe
	failing atomic.Bool
}

func (u *uninspected) StartTime(pid int) (string, error) {
	if u.failing.Load() {
		return "", fmt.Errorf("read process %d: %w", pid, syscall.ENFILE)
	}
	return u.Probe.StartTime(pid)
}

func TestAChildThatCannotBeInspectedIsSignalled(t *testing.T) {
	u := &uninspected{Probe: probe.NewSystem()}
	child, err := Start(t.Context(), Spec{Path: "/bin/sleep", Args: []string{"60"}, LogPath: filepath.Join(t.TempDir(), "log")}, u)
	if err != nil {
		t.Fatal(err)
	}
	u.failing.Store(true)
	if err := child.Signal(syscall.SIGKILL); err != nil {
		_ = syscall.Kill(child.PID, syscall.SIGKILL)
		t.Error(err)
	}
	waitDone(t, child)
}

// An engine that is taken for gone and lives has its memory promised twice.
func TestAProcessThatCannotBeInspectedIsWatched(t *testing.T) {
	child := start(t, t.Context(), "/bin/sleep", "60")
	for name, c := range map[string]struct {
		started string
		lives   bool
	}{
		"lives":                      {started: child.StartTime, lives: true},
		"another one has its number": {started: "another start"},
	} {
		t.Run(name, func(t *testing.T) {
			u := &uninspected{Probe: probe.NewSystem()}
			u.failing.Store(true)
			p, err := Adopt(t.Context(), child.PID, c.started, u)
			if err != nil {
				t.Fatal(err)
			}
			if err := p.Signal(syscall.SIGKILL); err == nil || errors.Is(err, probe.ErrGone) {
				t.Fatalf("a process that may be another one was signalled: %v", err)
			}
			u.failing.Store(false)
			if c.lives {
				if _, err := p.Footprint(); err != nil {
					t.Error(err)
				}
				select {
				case <-p.Done():
					t.Error("a living process counts as ended")
				case <-time.After(3 * lookAgain):
				}
				return
			}
			waitDone(t, p)
		})
	}
}
