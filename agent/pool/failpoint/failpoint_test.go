package failpoint

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"metalfleet.dev/metalfleet/agent/journal"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// memoryJournal is a state without a disk.
type memoryJournal struct{ state journal.State }

func (j *memoryJournal) Snapshot() journal.State { return j.state }
func (j *memoryJournal) Update(change func(*journal.State)) error {
	change(&j.state)
	return nil
}
func (j *memoryJournal) Release(change func(*journal.State)) error { return j.Update(change) }

// TestAJournalPassesThePointsOfALife in their order, each once, and none for a
// change that they do not depend on.
func TestAJournalPassesThePointsOfALife(t *testing.T) {
	var passed []string
	j, _ := Wrap(&memoryJournal{}, nil, func(point string) { passed = append(passed, point) })
	record := journal.Engine{ReplicaUID: "u", Epoch: 1, Load: 1}
	freed := int64(7)
	for _, change := range []func(*journal.State){
		func(s *journal.State) { s.PutEngine(record) },
		func(s *journal.State) { record.PID = 7; s.PutEngine(record) },
		func(s *journal.State) { s.FreedBytesTotal++ },
		func(s *journal.State) { record.Stop = &journal.Stop{}; s.PutEngine(record) },
		func(s *journal.State) { record.Stop = &journal.Stop{Footprint: &freed}; s.PutEngine(record) },
		func(s *journal.State) { s.PutEngine(record) },
		func(s *journal.State) { s.DropEngine("u", 1, 1); s.Reclaims = []v1alpha1.Reclaim{{ID: "u/1/1"}} },
		func(s *journal.State) { s.Replica("u", 1).Released = true },
	} {
		if err := j.Update(change); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{
		LoadBegun, LoadRecorded, LoadStarted, LoadIdentified, UnloadBegun, UnloadRecorded, UnloadDrained, UnloadMeasured,
		ExitSettled, ExitRecorded, Released,
	}
	if d := cmp.Diff(want, passed); d != "" {
		t.Error(d)
	}
}
