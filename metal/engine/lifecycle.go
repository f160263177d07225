package engine

import (
	"errors"
	"log/slog"
	"sync"

	"metalfleet.dev/metalfleet/metal/excerpt"
)

// State is the state of an engine.
type State int

// The states of an engine.
const (
	Loading State = iota
	Ready
	Draining
	Failed
	Stopped
)

func (s State) String() string {
	return [...]string{"Loading", "Ready", "Draining", "Failed", "Stopped"}[s]
}

// lifecycle holds the state of an engine and who watches it.
type lifecycle struct {
	log *slog.Logger

	mu sync.Mutex
	// mu guards the fields after it.
	state           State
	reason, message string
	err             error
	// changed is closed at the next change.
	changed chan struct{}
}

func newLifecycle(log *slog.Logger) *lifecycle {
	return &lifecycle{log: log, changed: make(chan struct{})}
}

// current returns the state, and the reason and message of a failure.
func (l *lifecycle) current() (state State, reason, message string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.state, l.reason, l.message
}

// cause is the error that ended the engine; nil if none did.
func (l *lifecycle) cause() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// loaded makes a loading engine Ready.
func (l *lifecycle) loaded() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state == Loading {
		l.set(Ready, "", "")
	}
}

// drain makes an engine that loads or serves Draining, and returns the state before.
func (l *lifecycle) drain() (before State) {
	l.mu.Lock()
	defer l.mu.Unlock()
	before = l.state
	if before == Loading || before == Ready {
		l.set(Draining, "", "")
	}
	return before
}

// fail makes the engine Failed. A model's file, or its template, can make the text of
// err long; it is cut.
func (l *lifecycle) fail(err error) {
	err = excerpt.Error(err)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.err = err
	l.set(Failed, reasonOf(err), err.Error())
}

// stopped records the end of the engine; a failed one stays Failed.
func (l *lifecycle) stopped(closing error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if closing != nil {
		l.err = errors.Join(l.err, closing)
	}
	if l.state != Failed {
		l.set(Stopped, "", "")
	}
}

// set is called with mu held.
func (l *lifecycle) set(s State, reason, message string) {
	l.state, l.reason, l.message = s, reason, message
	l.signal()
	l.log.Info("engine state changed", "state", s.String(), "reason", reason, "message", message)
}

// watch returns a channel that is closed at the next change.
func (l *lifecycle) watch() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.changed
}

// notify wakes those that watch, because Status has something new.
func (l *lifecycle) notify() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.signal()
}

// signal is called with mu held.
func (l *lifecycle) signal() {
	close(l.changed)
	l.changed = make(chan struct{})
}
