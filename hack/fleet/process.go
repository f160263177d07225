package fleet

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

// program is one of our processes: what to start, and the child that runs now,
// if one does. It may be started again after it ended.
type program struct {
	name string // of its log file
	path string
	args []string
	env  []string // beside our own environment
	log  string

	mu    sync.Mutex // guards child
	child *child
}

// child is one run of a program. Its goroutine starts it, waits for it, and
// closes done when it has ended.
type child struct {
	pid  int
	done chan struct{}
	err  error // how it ended; read it after done is closed
}

func newProgram(name, path, logDir string, args ...string) *program {
	return &program{name: name, path: path, args: args, log: filepath.Join(logDir, name+".log")}
}

// start launches the program with its output appended to its log.
func (p *program) start() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.child.alive() {
		return fmt.Errorf("start %s: it runs already as pid %d", p.name, p.child.pid)
	}
	out, err := os.OpenFile(p.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("log of %s: %w", p.name, err)
	}
	cmd := exec.Command(p.path, p.args...)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.Env = append(os.Environ(), p.env...)
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
		return fmt.Errorf("start %s: %w", p.name, err)
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

// pid is that of the running child, or 0.
func (p *program) pid() int {
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

// ended says how the last child ended, and whether it did.
func (p *program) ended() (error, bool) {
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

// stop ends the program with SIGTERM, and with SIGKILL when it takes too long
// or hurry is done. A program that does not run is fine.
func (p *program) stop(hurry context.Context) error {
	return p.signal(hurry, syscall.SIGTERM, syscall.SIGKILL)
}

// kill ends the program with SIGKILL and waits for its end.
func (p *program) kill() error {
	return p.signal(context.Background(), syscall.SIGKILL)
}

func (p *program) signal(hurry context.Context, signals ...syscall.Signal) error {
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
			return fmt.Errorf("end %s (pid %d): %w", p.name, c.pid, err)
		}
		if c.waitEnd(hurry, s == syscall.SIGKILL) {
			return nil
		}
	}
	return fmt.Errorf("%s (pid %d) has not ended %s after SIGKILL", p.name, c.pid, graceful)
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

// failed is an error that names the end of a program, with its log's end.
func (p *program) failed() error {
	err, ended := p.ended()
	if !ended {
		return nil
	}
	if err == nil {
		err = errors.New("exit status 0")
	}
	return fmt.Errorf("%s ended: %w; %s ends:\n%s", p.name, err, p.log, tail(p.log))
}

// tail is the end of a log file, for an error that has to say why.
func tail(path string) string {
	const most = 2000
	b, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	return string(b[max(0, len(b)-most):])
}

// stopTogether stops programs at the same time, because none needs another.
func stopTogether(hurry context.Context, programs []*program) error {
	errs := make([]error, len(programs))
	var wg sync.WaitGroup
	for i, p := range slices.Clone(programs) {
		wg.Go(func() { errs[i] = p.stop(hurry) })
	}
	wg.Wait()
	return errors.Join(errs...)
}
