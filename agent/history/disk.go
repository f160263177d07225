package history

import (
	"errors"
	"fmt"
	"sync"
	"syscall"
	"time"

	"metalfleet.dev/metalfleet/agent/journal"
)

// disk is where the agent's journal lies. Safe for concurrent use.
type disk struct {
	mu   sync.Mutex // guards what follows
	full bool
	slow time.Duration
}

// set makes writes fail, or last.
func (d *disk) set(full bool, slow time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.full, d.slow = full, slow
}

func (d *disk) now() (full bool, slow time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.full, d.slow
}

// books is the journal on that disk.
type books struct {
	*journal.Journal
	disk *disk
}

// Update fails as a full disk does, or late.
func (b books) Update(change func(*journal.State)) error {
	full, slow := b.disk.now()
	if slow > 0 {
		<-time.After(slow)
	}
	if full {
		return fmt.Errorf("write journal: %w", syscall.ENOSPC)
	}
	return b.Journal.Update(change)
}

// Release fails like Update: the reserve is used up.
func (b books) Release(change func(*journal.State)) error { return b.Update(change) }

func (w *World) setDisk(a *arguments) (string, error) {
	var slow time.Duration
	a.duration("slow", &slow)
	full := false
	if slow == 0 {
		switch a.word() {
		case "full":
			full = true
		case "works":
		default:
			return "", errors.New("want full, works or slow=TIME")
		}
	}
	w.judge.muddle(full || slow > 0)
	w.judge.lose(full)
	w.agent.disk.set(full, slow)
	return "", a.done()
}

// rewrite changes what the journal says an engine has reserved, as an agent
// that computed it otherwise would have written: the engine keeps its limit.
func (w *World) rewrite(a *arguments) (string, error) {
	name, reserved := a.word(), int64(0)
	a.bytes("reserved", &reserved)
	if err := a.done(); err != nil {
		return "", err
	}
	if w.agent.running() {
		return "", fmt.Errorf("an agent runs %w", errNotThere)
	}
	w.judge.forgetReserved()
	return "", w.agent.journal(func(s *journal.State) {
		for i := range s.Engines {
			if s.Engines[i].ReplicaUID == name {
				s.Engines[i].Reserved = reserved
			}
		}
	})
}

// clock sets the wall clock forward or back. Durations that are measured
// while an agent runs do not notice; times that it wrote down seem to have been
// earlier or later, to the next agent.
func (w *World) clock(a *arguments) (string, error) {
	d := time.Duration(0)
	a.duration("jump", &d)
	w.agent.jump += d
	return "", a.done()
}

// sleep is that of the Mac: nothing runs, the wall clock does not stop, and the
// clients are gone when it ends.
func (w *World) sleep(a *arguments) (string, error) {
	d, err := time.ParseDuration(a.word())
	if err := errors.Join(err, a.done()); err != nil {
		return "", err
	}
	w.agent.jump += d
	w.clients.hangUpAll()
	return "", nil
}
