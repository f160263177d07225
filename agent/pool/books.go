package pool

import (
	"time"

	"metalfleet.dev/metalfleet/agent/journal"
	"metalfleet.dev/metalfleet/agent/memory"
)

// bookkeeper stores what a restart must not lose and polls find: the last use of
// engines, and the evidence about wired memory. Polls do not wait for it.
type bookkeeper struct {
	*registry
	recorder *recorder
	gate     *startGate
}

// booksPause is the pause before another attempt after a failure.
const booksPause = 5 * time.Second

// run stores on each signal until registry.life ends.
func (bk *bookkeeper) run() {
	var again <-chan time.Time
	for {
		select {
		case <-bk.life.Done():
			return
		case <-bk.bookSignal:
		case <-again:
		}
		again = nil
		if bk.store(lastUseKept) != nil {
			again = time.After(booksPause)
		}
	}
}

// lastUseKept is by how much the journal may lag the last use of an engine: after
// a restart of the agent its idle time begins that much early at most.
const lastUseKept = 10 * time.Second

// due reports whether the last poll found anything to store.
func (bk *bookkeeper) due() (due bool) {
	bk.read(func() {
		due = len(bk.usesSince(lastUseKept)) > 0 || bk.gate.storedUnsettled != bk.gate.unsettled() || evidenceMoved(bk.gate.stored, bk.gate.stranding.Evidence())
	})
	return due
}

// store writes the last use of engines, if the journal lags by more than lag, and
// the evidence about the Mac's wired memory.
func (bk *bookkeeper) store(lag time.Duration) error {
	var uses map[string]time.Time
	var evidence memory.Evidence
	unsettled := false
	bk.read(func() {
		uses, evidence, unsettled = bk.usesSince(lag), bk.gate.stranding.Evidence(), bk.gate.unsettled()
	})
	err := bk.recorder.save(func(s *journal.State) {
		for i := range s.Engines {
			if at, ok := uses[s.Engines[i].Socket]; ok {
				s.Engines[i].LastUse = &at
			}
		}
		s.Unsettled, s.Wired = unsettled, bk.gate.wiredRecord(evidence)
	})
	if err != nil {
		return err
	}
	bk.read(func() {
		bk.gate.stored, bk.gate.storedUnsettled = evidence, unsettled
		for _, e := range bk.entries {
			if g := e.engine; g != nil {
				if at, ok := uses[g.record.Socket]; ok {
					g.lastUseKept = at
				}
			}
		}
	})
	return nil
}

// usesSince returns the last uses that the journal lags by more than lag, by
// socket, which is unique; the caller holds mu.
func (bk *bookkeeper) usesSince(lag time.Duration) map[string]time.Time {
	uses := map[string]time.Time{}
	for _, e := range bk.entries {
		if g := e.engine; g != nil && g.alive() && g.lastUse.Sub(g.lastUseKept) > lag {
			at := g.lastUse
			uses[g.record.Socket], g.record.LastUse = at, &at
		}
	}
	return uses
}
