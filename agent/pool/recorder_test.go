package pool

import (
	"fmt"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"

	"metalfleet.dev/metalfleet/agent/journal"
	"metalfleet.dev/metalfleet/agent/memory"
)

// tightJournal lies on a disk that is full, but for a reserve.
type tightJournal struct {
	memoryJournal
	full atomic.Bool
}

func (j *tightJournal) Update(change func(*journal.State)) error {
	if j.full.Load() {
		return fmt.Errorf("write journal: %w", syscall.ENOSPC)
	}
	return j.memoryJournal.Update(change)
}

// TestAFullDiskForgetsAnEngineThatEnded: its weights would stay as long as the journal names it.
// Nothing is started before the disk has room.
func TestAFullDiskForgetsAnEngineThatEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := &tightJournal{}
		rc := &recorder{registry: newRegistry(memory.NewLedger(), func() {}), log: logr.Discard(), journal: j}
		defer rc.finish()
		if err := rc.save(func(s *journal.State) { s.PutEngine(journal.Engine{ReplicaUID: "u", Epoch: 1, Load: 1}) }); err != nil {
			t.Fatal(err)
		}
		j.full.Store(true)
		ends, changes := 0, 0
		rc.record(func(s *journal.State) { changes++; s.DropEngine("u", 1, 1) }, func() { ends++ })
		synctest.Wait()
		if len(j.state.Engines) > 0 || ends != 1 || changes != 1 || rc.unsaved == "" {
			t.Errorf("on a full disk %d engines are known, the change was made %d times and ended %d times; starts wait for %q", len(j.state.Engines), changes, ends, rc.unsaved)
		}
		j.full.Store(false)
		time.Sleep(time.Minute)
		synctest.Wait()
		if ends != 1 || changes != 1 || rc.unsaved != "" {
			t.Errorf("with room again the change was made %d times and ended %d times; starts wait for %q", changes, ends, rc.unsaved)
		}
	})
}
