package pool

import (
	"errors"
	"sync"
	"syscall"
	"time"

	"metalfleet.dev/metalfleet/agent/journal"
	"metalfleet.dev/metalfleet/agent/memory"
	"metalfleet.dev/metalfleet/metal/footprint"
)

// Journal is the state that survives the agent; journal.Journal keeps it.
type Journal interface {
	// Snapshot is a copy of the state.
	Snapshot() journal.State
	// Update changes the state and returns once it is on disk, or leaves it as
	// it was and returns an error.
	Update(change func(*journal.State)) error
}

// recordPatience is how long a record holds up its caller where the disk does
// not answer.
const recordPatience = time.Second

// save writes to the journal once, and notes whether that works: the conditions
// report it, and no engine is started until it does.
func (p *Pool) save(change func(*journal.State)) error {
	err := p.Journal.Update(change)
	why := ""
	if err != nil {
		why = diskFault(err)
	}
	before := ""
	p.read(func() { before, p.unsaved = p.unsaved, why })
	if (before == "") == (why == "") {
		return err
	}
	p.change(func() {})
	if err != nil {
		p.Log.Error(err, "Cannot write the journal; retrying")
		p.keepBooks()
		return err
	}
	p.Log.Info("Journal is written again")
	p.wake() // starts waited for it
	return nil
}

// diskFault is the system's word for a failed write, without the name of a
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
// or after recordPatience: nothing that gives memory back waits for the disk.
func (p *Pool) record(change func(*journal.State), then func()) {
	tried := make(chan struct{})
	p.tasks.Go(func() {
		caller := sync.OnceFunc(func() { close(tried) })
		defer caller()
		for pause := 50 * time.Millisecond; ; pause = min(2*pause, 5*time.Second) {
			if p.save(change) == nil {
				if then != nil {
					then()
				}
				return
			}
			caller()
			select {
			case <-p.life.Done():
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
	case <-p.life.Done():
	}
}

// booksPause is the pause before the books are written again after a failure.
const booksPause = 5 * time.Second

// bookkeep stores what polls find and a restart must not forget, until the
// pool's life ends. Polls do not wait for it.
func (p *Pool) bookkeep() {
	var again <-chan time.Time
	for {
		select {
		case <-p.life.Done():
			return
		case <-p.books:
		case <-again:
		}
		again = nil
		if p.saveBooks(lastUseKept) != nil {
			again = time.After(booksPause)
		}
	}
}

// keepBooks has the books written.
func (p *Pool) keepBooks() {
	select {
	case p.books <- struct{}{}:
	default:
	}
}

// booksDue reports whether the journal lags what the last poll found.
func (p *Pool) booksDue() (due bool) {
	p.read(func() {
		due = len(p.usesSince(lastUseKept)) > 0 || p.unsettledKept != p.unsettled() || evidenceMoved(p.evidenceKept, p.stranding.Evidence())
	})
	return due
}

// saveBooks writes down when engines were used last, if the journal lags by
// more than that, and what is known of the Mac's wired memory.
func (p *Pool) saveBooks(lag time.Duration) error {
	var uses map[string]time.Time
	var evidence memory.Evidence
	unsettled := false
	p.read(func() {
		uses, evidence, unsettled = p.usesSince(lag), p.stranding.Evidence(), p.unsettled()
	})
	err := p.save(func(s *journal.State) {
		for i := range s.Engines {
			if at, ok := uses[s.Engines[i].Socket]; ok {
				s.Engines[i].LastUse = &at
			}
		}
		s.Unsettled, s.Wired = unsettled, p.wiredRecord(evidence)
	})
	if err != nil {
		return err
	}
	p.read(func() {
		p.evidenceKept, p.unsettledKept = evidence, unsettled
		for _, e := range p.entries {
			if g := e.engine; g != nil {
				if at, ok := uses[g.record.Socket]; ok {
					g.lastUseKept = at
				}
			}
		}
	})
	return nil
}

// usesSince are the last uses of engines of which the journal lags by more than
// that, by socket, which is unique; the caller holds mu.
func (p *Pool) usesSince(lag time.Duration) map[string]time.Time {
	uses := map[string]time.Time{}
	for _, e := range p.entries {
		if g := e.engine; g != nil && g.proc != nil && !g.gone && g.lastUse.Sub(g.lastUseKept) > lag {
			at := g.lastUse
			uses[g.record.Socket], g.record.LastUse = at, &at
		}
	}
	return uses
}

// evidenceStep is by how much a figure moves before it is written down again:
// far less than what counts as stranded.
const evidenceStep = 256 * footprint.MiB

func evidenceMoved(kept, now memory.Evidence) bool {
	far := func(a, b int64) bool { return max(a-b, b-a) >= evidenceStep }
	return kept.BaselineKnown != now.BaselineKnown || kept.Stranded != now.Stranded ||
		far(kept.Baseline, now.Baseline) || far(kept.Left, now.Left) || far(kept.Elsewhere, now.Elsewhere)
}

// wiredRecord is evidence as the journal keeps it: for this boot of the machine,
// or not at all where boots cannot be distinguished.
func (p *Pool) wiredRecord(e memory.Evidence) *journal.Wired {
	if p.boot == "" || !e.BaselineKnown {
		return nil
	}
	return &journal.Wired{Boot: p.boot, Baseline: e.Baseline, Left: e.Left, Elsewhere: e.Elsewhere, Stranded: e.Stranded}
}

// restoreWired takes over what an agent before found since the machine started.
func (p *Pool) restoreWired(s journal.State) {
	if start, err := p.Probe.StartTime(firstProcess); err == nil {
		p.boot = start
	}
	if w := s.Wired; w != nil && p.boot != "" && w.Boot == p.boot {
		p.evidenceKept = memory.Evidence{Baseline: w.Baseline, BaselineKnown: true, Left: w.Left, Elsewhere: w.Elsewhere, Stranded: w.Stranded}
		p.stranding.Restore(p.evidenceKept)
	}
	if p.unsettledKept = s.Unsettled; s.Unsettled {
		p.stranding.Unclean()
	}
}

// firstProcess starts with the machine: its start names the boot.
const firstProcess = 1
