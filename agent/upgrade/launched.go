package upgrade

import (
	"context"
	"fmt"
	"os"
	"sync"
	"syscall"
)

// The pipes that a launcher gives to its agent.
const (
	readyFD = 3
	lifeFD  = 4
)

// Launched describes the launcher of an agent. Its methods may be called on nil:
// there is no launcher.
type Launched struct {
	ready, life *os.File

	mu                sync.Mutex // guards what follows
	reported, renewed bool
	proved            chan struct{} // closed when both are true; nil: this is no trial
}

// inherit opens a launcher's pipes, if there are any, and hides our variables
// from the programs that this one starts.
func inherit() (*Launched, error) {
	launched, trial := os.Getenv(pipesVariable) != "", os.Getenv(proveVariable) != ""
	for _, name := range []string{roleVariable, pipesVariable, proveVariable} {
		if err := os.Unsetenv(name); err != nil {
			return nil, fmt.Errorf("unset %s: %w", name, err)
		}
	}
	if !launched {
		return nil, nil
	}
	syscall.CloseOnExec(readyFD)
	syscall.CloseOnExec(lifeFD)
	return NewLaunched(os.NewFile(readyFD, "ready"), os.NewFile(lifeFD, "life"), trial), nil
}

// NewLaunched returns an agent that reports to ready and ends with life; on trial
// it must pass first.
func NewLaunched(ready, life *os.File, trial bool) *Launched {
	l := &Launched{ready: ready, life: life}
	if trial {
		l.proved = make(chan struct{})
	}
	return l
}

// OnTrial reports whether this agent must pass a trial first.
func (l *Launched) OnTrial() bool { return l != nil && l.proved != nil }

// Reported records that the API server accepted a status, and Renewed that it
// accepted a heartbeat. Both together pass the trial.
func (l *Launched) Reported() { l.note(func() { l.reported = true }) }

// Renewed records an accepted heartbeat.
func (l *Launched) Renewed() { l.note(func() { l.renewed = true }) }

func (l *Launched) note(what func()) {
	if !l.OnTrial() {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	before := l.reported && l.renewed
	what()
	if l.reported && l.renewed && !before {
		close(l.proved)
	}
}

// Prove waits for the trial to succeed and notifies the launcher. It returns
// false if ctx ended first or the launcher is gone.
func (l *Launched) Prove(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return false
	case <-l.proved:
	}
	_, err := l.ready.Write(readyWord)
	return err == nil && l.ready.Close() == nil
}

// Orphaned returns when the launcher has ended without its agent, or ctx has.
// Such an agent is not restarted, and blocks the state folder for the next
// launcher: it must end.
func (l *Launched) Orphaned(ctx context.Context) bool {
	if l == nil {
		<-ctx.Done()
		return false
	}
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		_, _ = l.life.Read(make([]byte, 1)) // nothing is ever written; only its end is seen
	}()
	select {
	case <-gone:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}
