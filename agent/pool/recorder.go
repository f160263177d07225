package pool

import (
	"errors"
	"sync"
	"syscall"
	"time"

	"github.com/go-logr/logr"

	"metalfleet.dev/metalfleet/agent/journal"
)

// Journal is the state that survives the agent; journal.Journal keeps it.
type Journal interface {
	// Snapshot is a copy of the state.
	Snapshot() journal.State
	// Update changes the state and returns once it is on disk, or leaves it as
	// it was and returns an error.
	Update(change func(*journal.State)) error
	// Release is Update for a change that gives something back, which a full disk may still have
	// room for.
	Release(change func(*journal.State)) error
}

// reasonStateNotSaved of GuardInactive, Loaded and Serving: the agent's journal
// cannot be written.
const reasonStateNotSaved = "StateNotSaved"

// recorder writes the journal. While that fails no engine is started: a process
// that the journal does not know could be lost.
type recorder struct {
	*registry
	log     logr.Logger
	journal Journal
	unsaved string // why the last write failed; empty if it succeeded. registry.mu guards it.
}

// recordPatience is how long record waits for a disk that does not answer.
const recordPatience = time.Second

// save writes to the journal once and notes whether that worked: the conditions
// report it, and no engine is started until it works.
func (rc *recorder) save(change func(*journal.State)) error {
	err := rc.journal.Update(change)
	why := ""
	if err != nil {
		why = diskFault(err)
	}
	before := ""
	rc.read(func() { before, rc.unsaved = rc.unsaved, why })
	if (before == "") == (why == "") {
		return err
	}
	rc.change(func() {})
	if err != nil {
		rc.log.Error(err, "Cannot write the journal; retrying")
		rc.storeBooks()
		return err
	}
	rc.log.Info("Journal is written again")
	rc.replan() // starts waited for it
	return nil
}

// diskFault is the system error of a failed write, without the name of a
// temporary file.
func diskFault(err error) string {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return errno.Error()
	}
	return err.Error()
}

// record writes to the journal, and tries until it succeeds; then runs, where
// it is given, once the change is on disk. It returns after the first attempt,
// or after recordPatience: nothing that gives memory back waits for the disk. A full disk
// is written with its reserve, and starts nothing until it has room for a write without.
func (rc *recorder) record(change func(*journal.State), then func()) {
	tried := make(chan struct{})
	rc.tasks.Go(func() {
		caller := sync.OnceFunc(func() { close(tried) })
		defer caller()
		for pause := 50 * time.Millisecond; ; pause = min(2*pause, 5*time.Second) {
			err := rc.save(change)
			if err == nil || journal.Full(err) && rc.journal.Release(change) == nil {
				if then != nil {
					then()
				}
				change, then = func(*journal.State) {}, nil
			}
			if err == nil {
				return
			}
			caller()
			select {
			case <-rc.life.Done():
				return
			case <-time.After(pause):
			}
		}
	})
	timer := time.NewTimer(recordPatience)
	defer timer.Stop()
	select {
	case <-tried:
	case <-timer.C:
	case <-rc.life.Done():
	}
}

// notSavedError: what is about to be done could not be written down.
type notSavedError struct{ err error }

func (e *notSavedError) Error() string {
	return "the agent's journal cannot be written: " + diskFault(e.err)
}

func (e *notSavedError) Unwrap() error { return e.err }
