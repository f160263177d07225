package journal

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

var now = time.Unix(1000, 0)

func open(t *testing.T, dir string) *Journal {
	t.Helper()
	j, err := Open(dir, now)
	if err != nil {
		t.Fatal(err)
	}
	return j
}

func TestStateSurvivesARestart(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir)
	if err := j.Update(func(s *State) {
		s.Desired = &Desired{Generation: 7, Assignments: []v1alpha1.Assignment{{ReplicaUID: "u", Epoch: 2}}}
		s.PutEngine(Engine{ReplicaUID: "u", Epoch: 2, PID: 12, StartTime: "x"})
		s.PutEngine(Engine{ReplicaUID: "u", Epoch: 2, PID: 13, StartTime: "y"})
		s.Replica("u", 2).Loads = 3
		s.FreedBytesTotal = 99
	}); err != nil {
		t.Fatal(err)
	}
	s := open(t, dir).Snapshot()
	if s.Desired == nil || s.Desired.Generation != 7 || len(s.Engines) != 1 || s.Engine("u", 2).PID != 13 || s.Replica("u", 2).Loads != 3 || s.FreedBytesTotal != 99 {
		t.Errorf("after a restart: %+v", s)
	}
	if info, err := os.Stat(filepath.Join(dir, fileName)); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v (%v), want 0600", info.Mode(), err)
	}
}

func TestADamagedJournalIsSetAsideAndReported(t *testing.T) {
	for name, content := range map[string]string{
		"torn":             `{"version":1,"engines":[{"repl`,
		"of a newer agent": `{"version":99}`,
		"of no version":    `{}`,
		"negative":         `{"version":1,"freedBytesTotal":-1}`,
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, fileName), []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
			j := open(t, dir)
			if !strings.Contains(j.SetAside(), ".damaged-1000") {
				t.Fatalf("set aside as %q", j.SetAside())
			}
			kept, err := os.ReadFile(j.SetAside())
			if err != nil || string(kept) != content {
				t.Errorf("the damaged file was not kept: %q, %v", kept, err)
			}
			if err := j.Update(func(s *State) { s.FreedBytesTotal = 1 }); err != nil {
				t.Errorf("a new journal cannot begin: %v", err)
			}
		})
	}
}

func TestAnUpdateThatCannotBeWrittenChangesNothing(t *testing.T) {
	dir := t.TempDir()
	j := open(t, filepath.Join(dir, "missing"))
	if err := j.Update(func(s *State) { s.FreedBytesTotal = 5 }); err == nil {
		t.Fatal("wrote into a folder that does not exist")
	}
	if got := j.Snapshot().FreedBytesTotal; got != 0 {
		t.Errorf("state says %d, the disk knows nothing of it", got)
	}
}

func TestASnapshotIsACopy(t *testing.T) {
	j := open(t, t.TempDir())
	if err := j.Update(func(s *State) { s.PutEngine(Engine{ReplicaUID: "u", Epoch: 1, PID: 1}) }); err != nil {
		t.Fatal(err)
	}
	s := j.Snapshot()
	s.Engines[0].PID = 2
	if j.Snapshot().Engines[0].PID != 1 {
		t.Error("changing a snapshot changed the journal")
	}
}

func TestOnlyTheNewestReclaimsAreKept(t *testing.T) {
	j := open(t, t.TempDir())
	for i := range MaxReclaims + 3 {
		if err := j.Update(func(s *State) {
			s.Reclaims = append([]v1alpha1.Reclaim{{Load: int64(i)}}, s.Reclaims...)
		}); err != nil {
			t.Fatal(err)
		}
	}
	r := j.Snapshot().Reclaims
	if len(r) != MaxReclaims || r[0].Load != MaxReclaims+2 {
		t.Errorf("%d kept, newest %d", len(r), r[0].Load)
	}
}

// TestAttackALongMessageThatAnEarlierAgentKept: a Mac whose journal holds one heals when
// its agent starts again.
func TestAttackALongMessageThatAnEarlierAgentKept(t *testing.T) {
	long := strings.Repeat("1", 1<<20)
	dir := t.TempDir()
	if err := open(t, dir).Update(func(s *State) {
		r := s.Replica("u", 1)
		r.Refused = &Refusal{Reason: long, Message: long}
		r.LastFailure = &v1alpha1.EngineFailure{Reason: long, Message: long}
	}); err != nil {
		t.Fatal(err)
	}
	j := open(t, dir)
	s := j.Snapshot()
	r := s.Replica("u", 1)
	for _, text := range []string{r.Refused.Reason, r.Refused.Message, r.LastFailure.Reason, r.LastFailure.Message} {
		if text == "" || len(text) > 1024 {
			t.Errorf("a text of %d bytes is kept", len(text))
		}
	}
	if err := j.Update(func(*State) {}); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(filepath.Join(dir, fileName)); err != nil || info.Size() > 1<<14 {
		t.Errorf("the file has %d bytes, %v", info.Size(), err)
	}
}

func TestAStartRemovesWhatAKilledAgentDidNotFinish(t *testing.T) {
	dir := t.TempDir()
	if err := open(t, dir).Update(func(*State) {}); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		f, err := os.CreateTemp(dir, unfinished(fileName))
		if err != nil {
			t.Fatal(err)
		}
		_ = f.Close() // nothing was written
	}
	if s := open(t, dir).Snapshot(); s.Version != Version {
		t.Errorf("%+v", s)
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 2 {
		t.Errorf("%v are left, want the journal and its reserve; %v", left, err)
	}
}
