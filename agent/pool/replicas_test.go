package pool

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"

	"metalfleet.dev/metalfleet/agent/journal"
	"metalfleet.dev/metalfleet/agent/memory"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// stubEngines notes what it is asked for and marks the entry as the engine life
// cycle does.
type stubEngines struct{ asked []string }

func (s *stubEngines) start(e *entry) {
	s.asked = append(s.asked, "start "+e.key.UID)
	e.engine, e.state = &engine{key: e.key, state: Loading, config: e.config(""), holds: map[*Hold]struct{}{}}, Loading
	e.engine.record.Reserved = e.assignment.ReservedBytes
}

func (s *stubEngines) unload(e *entry, reason v1alpha1.ReclaimReason, only func(*engine) bool) bool {
	if e.engine == nil || e.engine.leaving() || only != nil && !only(e.engine) {
		return false
	}
	s.asked = append(s.asked, "unload "+e.key.UID+" "+string(reason))
	e.engine.state, e.state = Draining, Draining
	return true
}

// stubRoom admits unless short is set.
type stubRoom struct {
	short  *memory.NoRoomError
	coming bool
}

func (s *stubRoom) admit(*entry) (coming bool, err error) {
	if s.short != nil {
		return s.coming, s.short
	}
	return false, nil
}
func (*stubRoom) answerHeadroom(*engine) {}

// stubGate keeps nothing from starting.
type stubGate struct{}

func (stubGate) known() bool                   { return true }
func (stubGate) mayStart() bool                { return true }
func (stubGate) inOrder() bool                 { return true }
func (stubGate) blocked() (reason, why string) { return "", "" }
func (stubGate) exited(bool)                   {}
func (stubGate) unsettled() bool               { return false }
func (stubGate) noteUnsettled(bool)            {}
func (stubGate) unclean()                      {}
func (stubGate) settle(*engine, *int64) v1alpha1.HostCheck {
	return v1alpha1.HostCheckVerified
}

// memoryJournal is a state without a disk.
type memoryJournal struct{ state journal.State }

func (j *memoryJournal) Snapshot() journal.State { return j.state }
func (j *memoryJournal) Update(change func(*journal.State)) error {
	change(&j.state)
	return nil
}

// TestStateMachineNeedsNoEngineAndNoMemory: an assignment is downloaded, reserved
// and loaded; a crash backs off; withdrawn, it is unloaded, released and forgotten.
func TestStateMachineNeedsNoEngineAndNoMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reg := newRegistry(memory.NewLedger(), func() {})
		engines, room := &stubEngines{}, &stubRoom{short: &memory.NoRoomError{}, coming: true}
		rs := &replicas{
			registry: reg, log: logr.Discard(), timing: Timing{}.withDefaults(), weights: &scripts{}, engines: engines, room: room, gate: stubGate{},
			recorder: &recorder{registry: reg, log: logr.Discard(), journal: &memoryJournal{}},
		}
		apply := func(a ...v1alpha1.Assignment) { reg.change(func() { rs.apply(orders(a...)) }) }
		// pass plans until the downloads and journal writes that it began are done.
		pass := func() {
			rs.pass(time.Now())
			synctest.Wait()
			rs.pass(time.Now())
			synctest.Wait()
		}
		want := func(kind, condition string, asked ...string) {
			t.Helper()
			pass()
			reg.read(func() {
				all := rs.reports(time.Now())
				if len(all) != 1 || status(all[0], kind) != condition {
					t.Errorf("%v: want %s %s: %+v", time.Since(epoch), kind, condition, all)
				}
			})
			if d := cmp.Diff(asked, engines.asked); d != "" {
				t.Errorf("%v: asked of engines: %s", time.Since(epoch), d)
			}
			engines.asked = nil
		}
		a := assignment("u", "m")
		apply(a)
		want(v1alpha1.ConditionLoaded, "False/WaitingForRoom")
		room.short = nil
		time.Sleep(rs.timing.RoomRetry)
		want(v1alpha1.ConditionLoaded, "False/Loading", "start u")

		e := reg.entry(memory.Key{UID: "u", Epoch: 1})
		reg.change(func() { rs.ready(e, e.engine, time.Now()) })
		want(v1alpha1.ConditionServing, "True/Serving")
		reg.change(func() {
			rs.ended(e, v1alpha1.Reclaim{Reason: v1alpha1.ReclaimCrashed}, &journal.Refusal{Reason: v1alpha1.ReasonEngineCrashed}, time.Now())
			rs.vacated(e)
		})
		want(v1alpha1.ConditionServing, "False/BackOff")
		time.Sleep(firstBackoff)
		want(v1alpha1.ConditionLoaded, "False/Loading", "start u")

		a.Desired = v1alpha1.DesiredDrained
		apply(a)
		want(v1alpha1.ConditionServing, "False/Draining", "unload u Drained")
		reg.change(func() {
			rs.ended(e, v1alpha1.Reclaim{Reason: v1alpha1.ReclaimDrained}, nil, time.Now())
			rs.vacated(e)
		})
		want(v1alpha1.ConditionReleased, "True/Released")
		apply()
		pass()
		if n := len(reg.entries); n != 0 {
			t.Errorf("%d entries are left", n)
		}
		reg.finish()
		reg.tasks.Wait()
	})
}

// TestSearchForMemoryThatAChangeOvertookIsRepeated: an engine became idle while a
// replica looked for memory. It looks again at once, and no request is refused.
func TestSearchForMemoryThatAChangeOvertookIsRepeated(t *testing.T) {
	reg := newRegistry(memory.NewLedger(), func() {})
	rs := &replicas{registry: reg, log: logr.Discard(), timing: Timing{}.withDefaults(), gate: stubGate{}}
	e := reg.entry(memory.Key{UID: "u", Epoch: 1})
	a := assignment("u", "m")
	onDemand(0)(&a)
	e.take(a)
	short := &memory.NoRoomError{}
	for _, changed := range []bool{true, false} {
		result, _ := e.join(&Hold{}, time.Now())
		searched := rs.roomChangesNow()
		if changed {
			reg.change(reg.roomChanged)
		}
		rs.noVictim(e, short, searched)
		if refused := len(result) > 0; refused == changed {
			t.Errorf("memory changed during the search: %v, the request was refused: %v", changed, refused)
		}
		e.demand = nil
		rs.awaitRoom(e, short, searched)
		if e.roomAgain.IsZero() != changed {
			t.Errorf("memory changed during the search: %v, it is repeated at %v", changed, e.roomAgain)
		}
	}
}
