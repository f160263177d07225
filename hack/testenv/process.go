package testenv

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"time"
)

// graceful is how long a program may take to end after SIGTERM before it is
// killed; the API server drains its watches in about a second.
const graceful = 5 * time.Second

// process is one child. Its goroutine starts it, waits for it, and closes done
// when it has ended.
type process struct {
	name string
	log  string
	pid  int
	done chan struct{}
	err  error // how it ended; read it after done is closed
}

// launch starts a program with its output in LOGDIR/NAME.log.
func launch(program, logDir string, args []string) (*process, error) {
	name := filepath.Base(program)
	p := &process{name: name, log: filepath.Join(logDir, name+".log"), done: make(chan struct{})}
	out, err := os.OpenFile(p.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("log of %s: %w", name, err)
	}
	cmd := exec.Command(program, args...)
	cmd.Stdout, cmd.Stderr = out, out
	// A group of its own, so that Ctrl-C reaches us and not it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	dieWithParent(cmd.SysProcAttr)

	started := make(chan error)
	go func() {
		// "Dies with its parent" means the thread that started it, so that
		// thread has to live as long as the child.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(p.done)
		defer out.Close()
		err := cmd.Start()
		if err == nil {
			p.pid = cmd.Process.Pid
		}
		started <- err
		if err == nil {
			p.err = cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	return p, nil
}

func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// stop ends the process and waits for its end. A process that never started or
// has ended is fine.
func (p *process) stop() error {
	if p == nil || p.ended() {
		return nil
	}
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		// Not yet waited for, so the id cannot belong to another process.
		if err := syscall.Kill(p.pid, s); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("end %s (pid %d): %w", p.name, p.pid, err)
		}
		select {
		case <-p.done:
			return nil
		case <-time.After(graceful):
		}
	}
	return fmt.Errorf("%s (pid %d) has not ended %s after SIGKILL", p.name, p.pid, graceful)
}
