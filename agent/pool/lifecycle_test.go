package pool

import (
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"

	"metalfleet.dev/metalfleet/agent/journal"
	"metalfleet.dev/metalfleet/agent/memory"
	"metalfleet.dev/metalfleet/agent/pool/enginetest"
	"metalfleet.dev/metalfleet/agent/probe"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/metal/wire"
)

// stubOwner notes what the life cycle reports.
type stubOwner struct {
	reported []string
	left     time.Time // when the engine that vacated an entry ended
}

func (s *stubOwner) note(what string) { s.reported = append(s.reported, what) }

func (s *stubOwner) ready(*entry, *engine, time.Time) { s.note("ready") }
func (s *stubOwner) gaveUp(_ *entry, why journal.Refusal, _ time.Time) {
	s.note("gave up " + why.Reason)
}

func (s *stubOwner) failed(_ *entry, why journal.Refusal, _ time.Time) {
	s.note("failed " + why.Reason)
}

func (s *stubOwner) putOff(_ *entry, why journal.Refusal, _ time.Time) {
	s.note("put off " + why.Reason)
}

func (s *stubOwner) ended(_ *entry, r v1alpha1.Reclaim, why *journal.Refusal, _ time.Time) {
	fault := ""
	if why != nil {
		fault = " for " + why.Reason
	}
	s.note("ended " + string(r.Reason) + fault)
}
func (s *stubOwner) vacated(_ *entry, ended time.Time) {
	s.note("vacated")
	s.left = ended
}

// slowJournal writes after a minute.
type slowJournal struct{ memoryJournal }

func (j *slowJournal) Update(change func(*journal.State)) error {
	time.Sleep(time.Minute)
	return j.memoryJournal.Update(change)
}

// stubMemory measures engines alone.
type stubMemory struct{}

func (stubMemory) sample() memory.Reading       { return memory.Reading{} }
func (stubMemory) hostNow() (probe.Host, error) { return probe.Host{}, nil }
func (stubMemory) last() probe.Host             { return probe.Host{} }
func (stubMemory) measure(g *engine) (bytes int64, ok bool) {
	n, err := g.proc.Footprint()
	return n, err == nil
}

// newLifecycle is one over twins, with one entry to start engines for.
func newLifecycle(t *testing.T, script enginetest.Script) (*lifecycle, *entry, *stubOwner) {
	t.Helper()
	f, err := newFiles(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	mac := probe.NewScripted(probe.Host{})
	twin := enginetest.NewTwin(mac)
	twin.SetScript("m", script)
	reg := newRegistry(memory.NewLedger(), func() {})
	j := &memoryJournal{}
	owner := &stubOwner{}
	lc := &lifecycle{
		registry: reg, recorder: &recorder{registry: reg, log: logr.Discard(), journal: j}, files: f, owner: owner, mac: stubMemory{}, gate: stubGate{},
		Config: Config{Log: logr.Discard(), Journal: j, Engines: twin, Probe: mac, Engine: os.Args[0], Reclaimed: func(v1alpha1.Reclaim) {}}.withDefaults(),
	}
	e := reg.entry(memory.Key{UID: "u", Epoch: 1})
	e.assignment, e.download.path = assignment("u", "m"), "m"
	t.Cleanup(func() {
		reg.finish()
		reg.tasks.Wait()
		twin.KillAll()
	})
	return lc, e, owner
}

// wantState checks the state of the entry's engine once all that is due has happened.
func (lc *lifecycle) wantState(t *testing.T, e *entry, want State) {
	t.Helper()
	synctest.Wait()
	lc.read(func() {
		if got := e.engine.state; got != want {
			t.Errorf("%v: the engine is %s, want %s", time.Since(epoch), got, want)
		}
	})
}

// TestLifecyclePassesTheStatesOfItsDiagram without a plan and without memory
// pressure: from start to reclaim.
func TestLifecyclePassesTheStatesOfItsDiagram(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lc, e, owner := newLifecycle(t, enginetest.Script{HoldBytes: gib, LoadMilliseconds: 1000, ShutdownMilliseconds: 1000})
		lc.mu.Lock() // the process cannot be recorded yet
		g := lc.newEngine(e)
		lc.mu.Unlock()
		if g.state != Starting || g.alive() {
			t.Errorf("a new engine is %s", g.state)
		}
		lc.start(e)
		lc.wantState(t, e, Loading)
		time.Sleep(2 * time.Second)
		lc.wantState(t, e, Ready)

		h := &Hold{}
		lc.read(func() { e.engine.holds[h] = struct{}{} })
		if !lc.unload(e, v1alpha1.ReclaimDrained, nil) || lc.unload(e, v1alpha1.ReclaimIdle, nil) {
			t.Error("an engine is not unloaded once")
		}
		time.Sleep(5 * time.Second)
		lc.wantState(t, e, Draining)
		lc.read(func() {
			delete(e.engine.holds, h)
			e.engine.checkIdle()
		})
		lc.wantState(t, e, Stopping)
		time.Sleep(time.Second)
		lc.wantState(t, e, Exited)
		if d := cmp.Diff([]string{"ready", "ended Drained", "vacated"}, owner.reported); d != "" {
			t.Error(d)
		}
		if r := lc.reclaims; len(r) != 1 || r[0].FreedBytes == nil || *r[0].FreedBytes != gib || r[0].Exit != v1alpha1.ExitClean {
			t.Errorf("reclaims %+v", r)
		}
	})
}

// TestLifecycleReportsWhenAnEngineEnded, however long the disk takes to write that.
func TestLifecycleReportsWhenAnEngineEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lc, e, owner := newLifecycle(t, enginetest.Script{})
		lc.start(e)
		lc.wantState(t, e, Ready)
		synctest.Wait()
		lc.recorder.journal = &slowJournal{}
		asked := time.Now()
		lc.unload(e, v1alpha1.ReclaimDrained, nil)
		time.Sleep(time.Hour)
		synctest.Wait()
		if after := owner.left.Sub(asked); after < 0 || after > 10*time.Second {
			t.Errorf("it ended %v after it was asked to", after)
		}
	})
}

// TestLifecycleReportsAnEngineThatCannotLoad, and takes it back.
func TestLifecycleReportsAnEngineThatCannotLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lc, e, owner := newLifecycle(t, enginetest.Script{FailReason: v1alpha1.ReasonUnsupportedModel})
		lc.start(e)
		time.Sleep(time.Minute)
		lc.wantState(t, e, Exited)
		want := []string{"gave up UnsupportedModel", "ended LoadFailed for UnsupportedModel", "vacated"}
		if d := cmp.Diff(want, owner.reported); d != "" {
			t.Error(d)
		}
	})
}

// TestLifecycleGivesUpNoLaterEngine: a watchdog that found an engine silent may
// act after its end, when the next one is there.
func TestLifecycleGivesUpNoLaterEngine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lc, e, owner := newLifecycle(t, enginetest.Script{})
		lc.start(e)
		time.Sleep(time.Second)
		lc.wantState(t, e, Ready)
		earlier := &engine{key: e.key, state: Exited}
		lc.giveUp(e, earlier, v1alpha1.ReclaimCrashed, journal.Refusal{Reason: reasonEngineSilent})
		lc.wantState(t, e, Ready)
		if d := cmp.Diff([]string{"ready"}, owner.reported); d != "" || earlier.failure != nil {
			t.Error(d, earlier.failure)
		}
	})
}

// TestReplicaThatWaitsIsTriedAgainOnceAnEngineReportsThatItIsIdle: the engine's
// status can be later than the release of its last hold.
func TestReplicaThatWaitsIsTriedAgainOnceAnEngineReportsThatItIsIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lc, e, _ := newLifecycle(t, enginetest.Script{})
		waits := lc.entry(memory.Key{UID: "waits", Epoch: 1})
		for _, tc := range []struct {
			holds, running int64
			again          bool
		}{{holds: 1, running: 0, again: false}, {holds: 0, running: 1, again: false}, {holds: 0, running: 0, again: true}} {
			g := &engine{key: e.key, state: Ready, status: &wire.Status{Activity: &wire.Activity{Running: 1}}, holds: map[*Hold]struct{}{}}
			for range tc.holds {
				g.holds[&Hold{}] = struct{}{}
			}
			e.engine, waits.short, waits.roomAgain = g, &memory.NoRoomError{}, time.Now().Add(time.Second)
			lc.observe(e, g, &wire.Status{State: wire.State_STATE_READY, Activity: &wire.Activity{Running: tc.running}})
			if waits.roomAgain.IsZero() != tc.again || (len(lc.planSignal) > 0) != tc.again {
				t.Errorf("%d holds, %d requests run: tried again at %v, %d signals", tc.holds, tc.running, waits.roomAgain, len(lc.planSignal))
			}
		}
		e.engine = nil
	})
}
