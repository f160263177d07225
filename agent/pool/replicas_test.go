package pool

import (
	"sync"
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

func (s *stubEngines) hasten(*entry) bool { return false }

func (s *stubEngines) kill(e *entry) { s.asked = append(s.asked, "kill "+e.key.UID) }

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
type memoryJournal struct {
	mu    sync.Mutex
	state journal.State
}

func (j *memoryJournal) Snapshot() journal.State {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.state
}
func (j *memoryJournal) Update(change func(*journal.State)) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	change(&j.state)
	return nil
}
func (j *memoryJournal) Release(change func(*journal.State)) error { return j.Update(change) }

// machine is a replica state machine between stubs of the engines and of the memory.
type machine struct {
	*replicas
	t       *testing.T
	engines *stubEngines
	room    *stubRoom
}

func newMachine(t *testing.T) *machine {
	reg := newRegistry(memory.NewLedger(), func() {})
	m := &machine{t: t, engines: &stubEngines{}, room: &stubRoom{short: &memory.NoRoomError{}, coming: true}}
	m.replicas = &replicas{
		registry: reg, log: logr.Discard(), timing: Timing{}.withDefaults(), weights: &scripts{}, engines: m.engines, room: m.room, gate: stubGate{},
		recorder: &recorder{registry: reg, log: logr.Discard(), journal: &memoryJournal{}},
	}
	return m
}

// assign applies assignments.
func (m *machine) assign(a ...v1alpha1.Assignment) {
	m.registry.change(func() { m.apply(orders(a...)) })
}

// end records that the engine of an entry ended and freed its memory.
func (m *machine) end(e *entry, reason v1alpha1.ReclaimReason, refusal *journal.Refusal) {
	m.registry.change(func() {
		m.ended(e, v1alpha1.Reclaim{Reason: reason}, refusal, time.Now())
		m.vacated(e, time.Now())
	})
}

// plan plans until the downloads and journal writes that it began are done.
func (m *machine) plan() {
	for range 2 {
		m.pass(time.Now())
		synctest.Wait()
	}
}

// want plans, and requires a condition of the only replica and what the engines were asked
// for.
func (m *machine) want(kind, condition string, asked ...string) {
	m.t.Helper()
	m.plan()
	m.registry.read(func() {
		all := m.reports(time.Now())
		if len(all) != 1 || status(all[0], kind) != condition {
			m.t.Errorf("%v: want %s %s: %+v", time.Since(epoch), kind, condition, all)
		}
	})
	if d := cmp.Diff(asked, m.engines.asked); d != "" {
		m.t.Errorf("%v: asked of engines: %s", time.Since(epoch), d)
	}
	m.engines.asked = nil
}

// TestStateMachineNeedsNoEngineAndNoMemory: an assignment is downloaded, reserved
// and loaded; a crash backs off; withdrawn, it is unloaded, released and forgotten.
func TestStateMachineNeedsNoEngineAndNoMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t)
		a := assignment("u", "m")
		m.assign(a)
		m.want(v1alpha1.ConditionLoaded, "False/WaitingForRoom")
		m.room.short = nil
		time.Sleep(m.timing.RoomRetry)
		m.want(v1alpha1.ConditionLoaded, "False/Loading", "start u")

		e := m.registry.entry(memory.Key{UID: "u", Epoch: 1})
		m.registry.change(func() { m.ready(e, e.engine, time.Now()) })
		m.want(v1alpha1.ConditionServing, "True/Serving")
		m.end(e, v1alpha1.ReclaimCrashed, &journal.Refusal{Reason: v1alpha1.ReasonEngineCrashed})
		m.want(v1alpha1.ConditionServing, "False/BackOff")
		time.Sleep(firstBackoff)
		m.want(v1alpha1.ConditionLoaded, "False/Loading", "start u")

		a.Desired = v1alpha1.DesiredDrained
		m.assign(a)
		m.want(v1alpha1.ConditionServing, "False/Draining", "unload u Drained")
		m.end(e, v1alpha1.ReclaimDrained, nil)
		m.want(v1alpha1.ConditionReleased, "True/Released")
		m.assign()
		m.plan()
		if n := len(m.registry.entries); n != 0 {
			t.Errorf("%d entries are left", n)
		}
		m.registry.finish()
		m.registry.tasks.Wait()
	})
}

// TestAReplicaIsForgottenBeforeItsPlanIsExecuted, which then does nothing.
func TestAReplicaIsForgottenBeforeItsPlanIsExecuted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t)
		m.assign(assignment("u", "m"))
		views, _ := m.views(time.Now())
		actions, _ := plan(views, time.Now())
		m.assign()
		m.plan()
		for _, a := range actions {
			m.execute(a)
		}
		if m.plan(); len(actions) == 0 || len(m.registry.entries) != 0 {
			t.Errorf("%d actions, and %d entries are left", len(actions), len(m.registry.entries))
		}
		m.registry.finish()
		m.registry.tasks.Wait()
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
