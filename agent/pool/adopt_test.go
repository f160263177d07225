package pool

import (
	"context"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"

	"metalfleet.dev/metalfleet/agent/journal"
	"metalfleet.dev/metalfleet/agent/memory"
	"metalfleet.dev/metalfleet/agent/pool/enginetest"
	"metalfleet.dev/metalfleet/agent/pool/process"
	"metalfleet.dev/metalfleet/agent/probe"
	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/metal/wire"
)

func invalid(uid string, epoch int64) journal.InvalidAssignment {
	return journal.InvalidAssignment{ReplicaUID: uid, Epoch: epoch, Message: "cannot be followed"}
}

// served starts an engine and ends the pool.
func served(t *testing.T) (*rig, v1alpha1.Assignment, v1alpha1.AssignmentStatus) {
	t.Helper()
	r := newRig(t)
	r.script("m", enginetest.Script{HoldBytes: 8 * mib, TokenMilliseconds: 1})
	a := assignment("u", "m")
	r.Apply(orders(a))
	s := r.serving("u")
	r.halt()
	return r, a, s
}

// TestAnEngineIsStartedForTheTaskThatWasInspected, and an earlier engine that got
// no task counts as started for it.
func TestAnEngineIsStartedForTheTaskThatWasInspected(t *testing.T) {
	writes := &entry{assignment: assignment("u", "m")}
	reads := &entry{assignment: assignment("u", "m")}
	reads.assignment.Model.Facts.SetTask(model.Embed)
	if w, r := writes.config("p"), reads.config("p"); w.Task != "" || r.Task != "Embed" {
		t.Errorf("tasks %q and %q", w.Task, r.Task)
	}
	got, older := reads.config("p"), reads.config("p")
	older.Task = ""
	other := got
	other.Task = "Rerank"
	if !sameService(older, got) || !sameService(got, got) || sameService(other, got) || sameService(got, writes.config("p")) {
		t.Error("configurations of the same service are not distinguished from others")
	}
}

func TestALivingEngineIsAdoptedWithoutReloading(t *testing.T) {
	r, a, s := served(t)
	began := time.Now()
	r.boot()
	r.Apply(orders(a))
	again := r.serving("u")
	if again.PID != s.PID {
		t.Errorf("pid %d, was %d", again.PID, s.PID)
	}
	t.Logf("it serves again after %v", time.Since(began))
	if n := len(r.Snapshot().Reclaims); n != 0 || r.registry.ledger.Account().Reserved != 100*mib {
		t.Errorf("%d reclaims, %d reserved", n, r.registry.ledger.Account().Reserved)
	}
	h, err := r.Acquire(t.Context(), "u", 1)
	if err != nil {
		t.Fatal(err)
	}
	if end, err := ask(t.Context(), h, 3, nil); err != nil || end.GetUsage().GetGeneratedTokens() != 3 {
		t.Errorf("%v, %v", end, err)
	}
	h.Release()

	a.Desired = v1alpha1.DesiredDrained
	held := footprintOf(t, s.PID)
	r.Apply(orders(a))
	done := r.waitFor("u", v1alpha1.ConditionReleased, "True/Released")
	if c := r.Snapshot().Reclaims[0]; c.Exit != v1alpha1.ExitClean || done.Freed.Bytes == nil || !near(*done.Freed.Bytes, held, 5) {
		t.Errorf("%+v, /proc said %d", c, held)
	}
}

func TestWithoutOrdersAnAdoptedEngineServesOn(t *testing.T) {
	r, _, s := served(t)
	r.boot()
	if again := r.serving("u"); again.PID != s.PID {
		t.Errorf("pid %d, was %d", again.PID, s.PID)
	}
	r.Apply(orders()) // read, and it names nothing
	eventually(t, func() string {
		if alive(s.PID) || len(r.Snapshot().Reclaims) == 0 {
			return "what no order names runs on"
		}
		return ""
	})
	if c := r.Snapshot().Reclaims[0]; c.Reason != v1alpha1.ReclaimUnassigned {
		t.Errorf("%+v", c)
	}
}

func TestAnEngineThatEndedMeanwhileIsReclaimedOnce(t *testing.T) {
	r, a, s := served(t)
	if err := syscall.Kill(int(s.PID), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() string {
		if alive(s.PID) {
			return "it lives"
		}
		return ""
	})
	r.boot()
	r.Apply(orders(a))
	c := r.Snapshot().Reclaims
	if len(c) != 1 || c[0].Exit != v1alpha1.ExitUnknown || c[0].FreedBytes != nil || c[0].HostCheck != v1alpha1.HostCheckIndeterminate {
		t.Fatalf("%+v", c)
	}
	again := r.serving("u")
	if again.PID == s.PID || again.Restarts != 1 || again.LastFailure == nil {
		t.Errorf("%+v", again)
	}
	r.halt()
	r.boot()
	if s := r.report("u"); s.LastFailure == nil || *s.LastFailure != *again.LastFailure {
		t.Errorf("after another restart its last failure is %v", s.LastFailure)
	}
	if n := len(r.Snapshot().Reclaims); n != 1 {
		t.Errorf("%d reclaims after another restart", n)
	}
}

func TestAnUnloadGoesOnAfterARestart(t *testing.T) {
	r := newRig(t)
	r.script("m", enginetest.Script{HoldBytes: 8 * mib})
	a := assignment("u", "m")
	r.Apply(orders(a))
	s := r.serving("u")
	h, err := r.Acquire(t.Context(), "u", 1)
	if err != nil {
		t.Fatal(err)
	}
	a.Desired = v1alpha1.DesiredDrained
	r.Apply(orders(a))
	eventually(t, func() string { // the drain waits for the hold
		if e := r.lifecycle.Journal.Snapshot().Engine("u", 1); e == nil || e.Stop == nil {
			return "no stop in the journal"
		}
		return ""
	})
	r.halt()
	h.Release()
	r.boot()
	r.Apply(orders(a))
	done := r.waitFor("u", v1alpha1.ConditionReleased, "True/Released")
	if c := r.Snapshot().Reclaims; len(c) != 1 || c[0].Reason != v1alpha1.ReclaimDrained || alive(s.PID) || done.Freed.TotalBytes < 8*mib {
		t.Errorf("%+v", c)
	}
}

// What an engine left is found by the next look at the Mac, which an agent that
// ends before it leaves to the next one.
func TestAnEndThatIsNotLookedAtIsLookedAtAfterARestart(t *testing.T) {
	timing := quick()
	timing.Poll, timing.LoadedPoll, timing.IdlePoll = time.Hour, time.Hour, time.Hour // only when it is asked for
	r := newRigOf(t, timing)
	r.script("m", enginetest.Script{})
	r.Apply(orders(assignment("u", "m")))
	r.serving("u")
	settled := func() {
		t.Helper()
		eventually(t, func() string {
			if r.lifecycle.Journal.Snapshot().Unsettled {
				return "the journal says unsettled"
			}
			return ""
		})
	}
	settled()
	eventually(t, func() string { // the poll that follows readiness may come in between
		var e *entry
		r.registry.read(func() {
			e = r.registry.entries[memory.Key{UID: "u", Epoch: 1}]
			r.pressure.gate.ends++
		})
		r.lifecycle.recordReclaim(e, v1alpha1.Reclaim{ReplicaUID: "gone", Epoch: 1, Load: 1}, nil, time.Now(), func() {}, func() {})
		if !r.lifecycle.Journal.Snapshot().Unsettled {
			return "the journal has the Mac as settled"
		}
		return ""
	})
	r.registry.pollNow()
	settled()
}

func TestADamagedJournalLosesNoProcess(t *testing.T) {
	r, a, s := served(t)
	if err := os.WriteFile(filepath.Join(r.dir, "journal.json"), []byte("{torn"), 0o600); err != nil {
		t.Fatal(err)
	}
	r.boot()
	r.Apply(orders(a))
	if again := r.serving("u"); again.PID != s.PID || len(r.registry.running()) != 1 {
		t.Errorf("pid %d, was %d; %d engines", again.PID, s.PID, len(r.registry.running()))
	}
}

// TestACrashBetweenStartAndJournalLosesNoProcess: the process id was not
// written yet.
func TestACrashBetweenStartAndJournalLosesNoProcess(t *testing.T) {
	r, a, s := served(t)
	j, err := journal.Open(r.dir, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if err := j.Update(func(st *journal.State) { st.Engines[0].PID, st.Engines[0].StartTime = 0, "" }); err != nil {
		t.Fatal(err)
	}
	r.boot()
	r.Apply(orders(a))
	if again := r.serving("u"); again.PID != s.PID {
		t.Errorf("pid %d, was %d", again.PID, s.PID)
	}
}

// liar is an engine that answers with the id of another process.
type liar struct {
	process.Engines
	process.Conn
	config wire.Config
}

func (l liar) Dial(string, func() int) (process.Conn, error)         { return l, nil }
func (l liar) Listener(context.Context, string) (pid int, err error) { return 40, nil }
func (l liar) Close() error                                          { return nil }
func (l liar) Hello(context.Context, *wire.HelloRequest, ...grpc.CallOption) (*wire.HelloResponse, error) {
	return &wire.HelloResponse{ConfigHash: l.config.Hash(), Pid: 41}, nil
}

// An engine that was taken over must not have the agent end another process in its place.
func TestTheProcessOfAStrayEngineIsTheOneThatListens(t *testing.T) {
	mac := probe.NewScripted(probe.Host{})
	mac.SetProcess(40, "engine", 0)
	mac.SetProcess(41, "another", 0)
	r := journal.Engine{Config: wire.Config{ReplicaUID: "u"}}
	lc := &lifecycle{Config: Config{Engines: liar{config: r.Config}, Probe: mac, Timing: quick()}}
	if !lc.identify(t.Context(), &r) || r.PID != 40 || r.StartTime != "engine" {
		t.Errorf("process %d, %q", r.PID, r.StartTime)
	}
	r.Config.ReplicaUID = "v"
	if lc.identify(t.Context(), &r) {
		t.Error("an engine with another configuration is taken for ours")
	}
}

func TestAProcessWithAReusedIDIsNeitherAdoptedNorKilled(t *testing.T) {
	r, _, s := served(t)
	j, err := journal.Open(r.dir, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if err := j.Update(func(st *journal.State) { st.Engines[0].StartTime = "another" }); err != nil {
		t.Fatal(err)
	}
	defer syscall.Kill(int(s.PID), syscall.SIGKILL)
	r.boot()
	r.Apply(orders())
	eventually(t, func() string {
		if len(r.Snapshot().Assignments) != 0 {
			return "still there"
		}
		return ""
	})
	if !alive(s.PID) {
		t.Error("a stranger was killed")
	}
}

// An engine treats requests as its deployment states; one that treats them differently is
// not adopted.
func TestAnEngineGetsTheStatedTemplateAndSampling(t *testing.T) {
	of := func(s v1alpha1.SamplingSpec, template string) wire.Config {
		return (&entry{assignment: v1alpha1.Assignment{Sampling: s, ChatTemplate: template}}).config("p")
	}
	c := of(v1alpha1.SamplingSpec{Temperature: "0", TopP: "0.9", TopK: 40, MinP: "0.05", RepetitionPenalty: "1.1", MaxTokens: 512,
		Limits: v1alpha1.SamplingLimits{MaxTokens: 1024, Temperature: "1.25"}}, "{{ messages }}")
	p := c.Sampling
	if p == nil || *p.Temperature != 0 || *p.TopP != 0.9 || *p.TopK != 40 || *p.MinP != 0.05 || *p.RepetitionPenalty != 1.1 || p.MaxTokens != 512 || p.LimitTokens != 1024 || *p.LimitTemperature != 1.25 {
		t.Errorf("the engine gets the policy %+v", p)
	}
	if c.ChatTemplate != "{{ messages }}" {
		t.Errorf("the engine gets the template %q", c.ChatTemplate)
	}
	one := of(v1alpha1.SamplingSpec{MaxTokens: 9}, "")
	if p := one.Sampling; p == nil || p.MaxTokens != 9 || p.Temperature != nil || p.TopP != nil || p.TopK != nil || p.MinP != nil || p.RepetitionPenalty != nil || p.LimitTemperature != nil {
		t.Errorf("a policy of nothing but a length: %+v", p)
	}
	none := of(v1alpha1.SamplingSpec{}, "")
	if none.Sampling != nil || none.ChatTemplate != "" || sameService(none, c) || sameService(none, one) || !sameService(one, of(v1alpha1.SamplingSpec{MaxTokens: 9}, "")) {
		t.Errorf("without any: %+v", none)
	}
}

// An engine shares the prefixes that its deployment states, with its namespace; one that
// shares others is not adopted.
func TestAnEngineSharesTheStatedPrefixes(t *testing.T) {
	of := func(prefixes ...string) *entry {
		return &entry{assignment: v1alpha1.Assignment{Namespace: "team", SharedPrefixes: prefixes}}
	}
	c := of("You are helpful.").config("p")
	if len(c.SharedPrefixes) != 1 || c.SharedPrefixes[0] != "You are helpful." || c.SharedScope != "team" {
		t.Errorf("the engine shares %q within %q", c.SharedPrefixes, c.SharedScope)
	}
	if none := of().config("p"); none.SharedScope != "" || sameService(none, c) || !sameService(c, of("You are helpful.").config("p")) {
		t.Errorf("without prefixes: %+v", none)
	}
}
