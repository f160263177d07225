// Package process starts and watches engine processes that outlive the agent.
//
// It owns how a process is made independent of the agent (its own session, no
// terminal, output to a file), how it is named for ever (id and start time),
// how its end is seen (as a child, or as a stranger by pidfd or kqueue), and
// how it is signalled without ever hitting a later process of the same id. It
// owns the seam by which the pool does all of that and dials engines, so that
// a test can play them. It refuses to decide when any of this is done.
//
// Start reading at Engines, then Start and Adopt.
package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"metalfleet.dev/metalfleet/agent/probe"
)

// lookAgain is how often a process is looked at that cannot be watched.
const lookAgain = 100 * time.Millisecond

// Spec is what to start.
type Spec struct {
	Path string
	Args []string
	Env  []string
	// LogPath takes what it writes; a file of mode 0600, appended to.
	LogPath string
}

// Exit is how a process ended.
type Exit struct {
	// Known is false for a process that was not our child: only the parent learns
	// its exit code.
	Known bool
	// Code of an exit; -1 after a signal.
	Code int
	// Signal that ended it, or 0.
	Signal syscall.Signal
}

// Process is one engine process. Done is closed when its end was observed.
type Process struct {
	PID       int
	StartTime string

	probe probe.Probe
	child bool // of this process, which alone gives its id back
	done  chan struct{}
	exit  Exit // read after done is closed

	watching sync.WaitGroup

	mu    sync.Mutex // held while a signal is sent and while the end of a child is collected
	ended bool       // the id may belong to another process from now on
}

// Start starts a process in its own session. The caller waits for Done, or for
// the end of ctx, which ends the watch and never the process.
func Start(ctx context.Context, s Spec, p probe.Probe) (*Process, error) {
	log, err := os.OpenFile(s.LogPath, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open engine log: %w", err)
	}
	defer log.Close() // the process has its own copy
	cmd := exec.Command(s.Path, s.Args...)
	cmd.Env = s.Env
	cmd.Stdout, cmd.Stderr = log, log // Stdin stays nil: /dev/null
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start engine: %w", err)
	}
	proc := &Process{PID: cmd.Process.Pid, probe: p, child: true, done: make(chan struct{})}
	// Before anybody waited for it, the id cannot be given to another process;
	// if it ended already, its start time is of no use to anybody.
	if proc.StartTime, err = p.StartTime(proc.PID); err != nil && !errors.Is(err, probe.ErrGone) {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		return nil, fmt.Errorf("start engine: %w", err)
	}
	proc.watch(ctx, func() Exit {
		_ = cmd.Wait()
		return exitOf(cmd.ProcessState)
	})
	return proc, nil
}

// watch starts to wait for the end and then stores the result of collect. Until
// then the id of a child is not reused.
func (p *Process) watch(ctx context.Context, collect func() Exit) {
	p.watching.Go(func() {
		if !p.waitEnd(ctx) {
			return
		}
		p.mu.Lock()
		p.exit = collect()
		p.ended = true
		p.mu.Unlock()
		close(p.done)
	})
}

// waitEnd reports whether the process ended before ctx did.
func (p *Process) waitEnd(ctx context.Context) bool {
	for {
		err := waitGone(ctx, p)
		if err == nil {
			return true
		}
		// Out of file descriptors, say: look again now and then.
		select {
		case <-ctx.Done():
			return false
		case <-time.After(lookAgain):
		}
		if errors.Is(p.same(), probe.ErrGone) {
			return true
		}
	}
}

func exitOf(s *os.ProcessState) Exit {
	if s == nil {
		return Exit{}
	}
	e := Exit{Known: true, Code: s.ExitCode()}
	if ws, ok := s.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		e.Signal = ws.Signal()
	}
	return e
}

// Adopt watches a process that another agent started, and returns probe.ErrGone when that very
// process is not there any more. One that cannot be inspected now counts as living until it can.
func Adopt(ctx context.Context, pid int, startTime string, p probe.Probe) (*Process, error) {
	proc := &Process{PID: pid, StartTime: startTime, probe: p, done: make(chan struct{})}
	if err := proc.same(); errors.Is(err, probe.ErrGone) {
		reap(pid)
		return nil, err
	}
	proc.watch(ctx, func() Exit {
		reap(pid)
		return Exit{}
	})
	return proc, nil
}

// reap collects an ended process that is our child after all: another version of
// the agent started it and then replaced itself with this program. Its code
// counts as unknown, as for an agent that was started again.
func reap(pid int) {
	_, _ = syscall.Wait4(pid, nil, syscall.WNOHANG, nil)
}

// same returns nil while the id still belongs to this process.
func (p *Process) same() error {
	start, err := p.probe.StartTime(p.PID)
	if err != nil {
		return err
	}
	if start != p.StartTime {
		return fmt.Errorf("process ID %d now belongs to another process: %w", p.PID, probe.ErrGone)
	}
	return nil
}

// Forget waits until nothing watches the process any more; the context given
// to Start or Adopt has ended, or the process.
func (p *Process) Forget() { p.watching.Wait() }

// Done is closed when the end of the process was observed.
func (p *Process) Done() <-chan struct{} { return p.done }

// Exit is how it ended; call it after Done is closed.
func (p *Process) Exit() Exit {
	<-p.done
	return p.exit
}

// Footprint measures it, or returns probe.ErrGone.
func (p *Process) Footprint() (int64, error) {
	select {
	case <-p.done:
		return 0, fmt.Errorf("process %d: %w", p.PID, probe.ErrGone)
	default:
	}
	n, err := p.probe.Footprint(p.PID)
	if err != nil {
		return 0, err
	}
	return n, p.same() // the figure is this process's only if the id still is
}

// Signal sends a signal to this process and to no later one of the same id.
func (p *Process) Signal(s syscall.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended {
		return fmt.Errorf("process %d: %w", p.PID, probe.ErrGone)
	}
	if !p.child { // the id of a child is its own until it is collected
		if err := p.same(); err != nil {
			return err
		}
	}
	if err := syscall.Kill(p.PID, s); err != nil {
		return fmt.Errorf("signal process %d: %w", p.PID, err)
	}
	return nil
}
