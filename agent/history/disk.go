package history

import (
	"errors"
	"fmt"
	"math"
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
	w.muddle(full || slow > 0)
	w.mu.Lock()
	w.tally.lossy = w.tally.lossy || full
	w.mu.Unlock()
	w.disk.set(full, slow)
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
	if w.stop != nil {
		return "", fmt.Errorf("an agent runs %w", errNotThere)
	}
	w.mu.Lock()
	w.tally.reserved = math.MaxInt64 // promises may be more than the capacity
	w.mu.Unlock()
	return "", w.journal(func(s *journal.State) {
		for i := range s.Engines {
			if s.Engines[i].ReplicaUID == name {
				s.Engines[i].Reserved = reserved
			}
		}
	})
}

// journal changes the file while no agent runs.
func (w *World) journal(change func(*journal.State)) error {
	j, err := journal.Open(w.dir, time.Now())
	if err != nil {
		return err
	}
	return j.Update(change)
}

// clock sets the wall clock forward or back. Durations that are measured
// while an agent runs do not notice; times that it wrote down seem to have been
// earlier or later, to the next agent.
func (w *World) clock(a *arguments) (string, error) {
	d := time.Duration(0)
	a.duration("jump", &d)
	w.jump += d
	return "", a.done()
}

// sleep is that of the Mac: nothing runs, the wall clock does not stop, and the
// clients are gone when it ends.
func (w *World) sleep(a *arguments) (string, error) {
	d, err := time.ParseDuration(a.word())
	if err := errors.Join(err, a.done()); err != nil {
		return "", err
	}
	w.jump += d
	w.hangUpAll()
	return "", nil
}

// shift makes what the journal says agree with a clock that jumped.
func (w *World) shift() error {
	by := w.jump
	w.jump = 0
	if by == 0 {
		return nil
	}
	return w.journal(func(s *journal.State) {
		for i := range s.Engines {
			if e := &s.Engines[i]; e.LastUse != nil {
				*e.LastUse = e.LastUse.Add(-by)
			}
			if e := &s.Engines[i]; e.Stop != nil {
				e.Stop.Since = e.Stop.Since.Add(-by)
			}
		}
		for i := range s.Replicas {
			for k := range s.Replicas[i].Crashes {
				s.Replicas[i].Crashes[k] = s.Replicas[i].Crashes[k].Add(-by)
			}
		}
	})
}
