// Package process runs programs as children: each in a group of its own, with
// its output in a log, and with an end that is waited for.
//
// It owns the children, ends them by pid, and on Linux they die with the process
// that started them. It refuses to start a program that runs. What a program is for,
// and when it is ready, is the caller's.
//
// Start reading at Program.Start.
package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"time"
)

// graceful is how long a program may take to end after SIGTERM before it is
// killed: three times what the slowest was seen to take.
const graceful = 10 * time.Second

// Program is what to start, and the child that runs now, if one does. It may be
// started again after it ended.
type Program struct {
	// Name is that of its log file.
	Name string
	// Path and Args are its command line.
	Path string
	Args []string
	// Env is added to our own environment. Once the program was started, SetEnv
	// changes it.
	Env []string
	// Log is the file that its output is appended to.
	Log string

	mu       sync.Mutex // guards child, restarts, and Env from the first start on
	child    *child
	restarts []time.Time
}

// child is one run of a program. Its goroutine starts it, waits for it, and
// closes done when it has ended.
type child struct {
	pid  int
	done chan struct{}
	err  error // how it ended; read it after done is closed
}

// New is a program whose log is NAME.log in a folder.
func New(name, path, logDir string, args ...string) *Program {
	return &Program{Name: name, Path: path, Args: args, Log: filepath.Join(logDir, name+".log")}
}

// SetEnv sets the variables that are added to our environment, from the next start
// on.
func (p *Program) SetEnv(env ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.Env = slices.Clone(env)
}

// Start launches the program with its output appended to its log.
func (p *Program) Start() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.child.alive() {
		return fmt.Errorf("start %s: it runs already as pid %d", p.Name, p.child.pid)
	}
	out, err := os.OpenFile(p.Log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("log of %s: %w", p.Name, err)
	}
	cmd := exec.Command(p.Path, p.Args...)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.Env = append(os.Environ(), p.Env...)
	// A group of its own, so that Ctrl-C reaches us and not it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	dieWithParent(cmd.SysProcAttr)

	c := &child{done: make(chan struct{})}
	started := make(chan error)
	go func() {
		// "Dies with its parent" means the thread that started it, so that
		// thread has to live as long as the child.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(c.done)
		defer out.Close()
		err := cmd.Start()
		if err == nil {
			c.pid = cmd.Process.Pid
		}
		started <- err
		if err == nil {
			c.err = cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		return fmt.Errorf("start %s: %w", p.Name, err)
	}
	p.child = c
	return nil
}

func (c *child) alive() bool {
	if c == nil {
		return false
	}
	select {
	case <-c.done:
		return false
	default:
		return true
	}
}

// PID is that of the running child, or 0.
func (p *Program) PID() int {
	if p == nil {
		return 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.child.alive() {
		return 0
	}
	return p.child.pid
}

// Ended returns how the last child ended, and whether it did.
func (p *Program) Ended() (error, bool) {
	if p == nil {
		return nil, false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.child == nil || p.child.alive() {
		return nil, false
	}
	return p.child.err, true
}

// Stop ends the program with SIGTERM, and with SIGKILL when it takes too long
// or hurry is done. A program that does not run is fine.
func (p *Program) Stop(hurry context.Context) error {
	return p.signal(hurry, syscall.SIGTERM, syscall.SIGKILL)
}

// Kill ends the program with SIGKILL and waits for its end.
func (p *Program) Kill() error {
	return p.signal(context.Background(), syscall.SIGKILL)
}

func (p *Program) signal(hurry context.Context, signals ...syscall.Signal) error {
	if p == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.child
	for _, s := range signals {
		if !c.alive() {
			return nil
		}
		// Not yet waited for, so the id cannot belong to another process.
		if err := syscall.Kill(c.pid, s); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("end %s (pid %d): %w", p.Name, c.pid, err)
		}
		if c.waitEnd(hurry, s == syscall.SIGKILL) {
			return nil
		}
	}
	return fmt.Errorf("%s (pid %d) has not ended %s after SIGKILL", p.Name, c.pid, graceful)
}

// waitEnd waits a bounded time; a killed child is waited for even in a hurry.
func (c *child) waitEnd(hurry context.Context, killed bool) bool {
	rush := hurry.Done()
	if killed {
		rush = nil
	}
	timer := time.NewTimer(graceful)
	defer timer.Stop()
	select {
	case <-c.done:
		return true
	case <-rush:
	case <-timer.C:
	}
	return false
}

// Failed is an error that names the end of a program, with its log's end.
func (p *Program) Failed() error {
	err, ended := p.Ended()
	if !ended {
		return nil
	}
	if err == nil {
		err = errors.New("exit status 0")
	}
	return fmt.Errorf("%s ended: %w; %s ends:\n%s", p.Name, err, p.Log, Tail(p.Log))
}

// mayRestart is how often a program may be restarted within restartWindow.
const (
	mayRestart    = 5
	restartWindow = time.Minute
)

// Restart starts a program again that has ended, as launchd or a cluster would, and reports
// whether it did. An error means that it ends again and again, and has the end of its log.
func (p *Program) Restart() (restarted bool, err error) {
	failed := p.Failed()
	if failed == nil {
		return false, nil
	}
	now := time.Now()
	p.mu.Lock()
	p.restarts = append(slices.DeleteFunc(p.restarts, func(t time.Time) bool { return now.Sub(t) > restartWindow }), now)
	n := len(p.restarts)
	p.mu.Unlock()
	if n > mayRestart {
		return false, fmt.Errorf("%d times within %s: %w", n, restartWindow, failed)
	}
	return true, p.Start()
}

// Tail is the end of a log file, for an error that has to say why.
func Tail(path string) string {
	const most = 2000
	b, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	return string(b[max(0, len(b)-most):])
}

// StopTogether stops programs at the same time, because none needs another.
func StopTogether(hurry context.Context, programs []*Program) error {
	errs := make([]error, len(programs))
	var wg sync.WaitGroup
	for i, p := range slices.Clone(programs) {
		wg.Go(func() { errs[i] = p.Stop(hurry) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// Ready asks until the answer is nil, the program has ended, or ctx has.
func (p *Program) Ready(ctx context.Context, ask func(context.Context) error) error {
	tick := time.NewTicker(25 * time.Millisecond)
	defer tick.Stop()
	for {
		err := ask(ctx)
		if err == nil {
			return nil
		}
		if died := p.Failed(); died != nil {
			return died
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready: %w (last answer: %w); %s ends:\n%s", p.Name, context.Cause(ctx), err, p.Log, Tail(p.Log))
		case <-tick.C:
		}
	}
}
