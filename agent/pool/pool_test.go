package pool

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/agent/memory"
	"metalfleet.dev/metalfleet/agent/pool/enginetest"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/metal/wire"
	"metalfleet.dev/metalfleet/test/patience"
)

func TestFakeEnginePassesTheSuite(t *testing.T) {
	path := filepath.Join(t.TempDir(), "script")
	if err := enginetest.WriteScript(path, enginetest.Script{HoldBytes: mib, TokenMilliseconds: 5}); err != nil {
		t.Fatal(err)
	}
	enginetest.Run(t, enginetest.Program{Path: os.Args[0], Env: enginetest.Env(), ModelPath: path, Context: 512, Slow: 10_000})
	if err := enginetest.WriteScript(path, enginetest.Script{HoldBytes: mib, Task: "Rerank", ListMilliseconds: 10_000}); err != nil {
		t.Fatal(err)
	}
	enginetest.RunReader(t, enginetest.Program{Path: os.Args[0], Env: enginetest.Env(), ModelPath: path, Context: 512})
}

func TestOneOrderBecomesOneServedMeasuredFreedEngine(t *testing.T) {
	r := newRig(t)
	r.script("m", enginetest.Script{HoldBytes: 64 * mib, LoadMilliseconds: 20})
	a := assignment("u", "m")
	r.Apply(orders(a))
	s := r.serving("u")
	for kind, want := range map[string]string{"Downloaded": "True/Verified", "Admitted": "True/Reserved", "Loaded": "True/Loaded", "Released": "False/Held"} {
		if got := status(s, kind); got != want {
			t.Errorf("%s is %q, want %q", kind, got, want)
		}
	}
	if s.Progress.Stage != v1alpha1.StageServing || s.PID == 0 || s.Memory.FootprintBytes < 64*mib || s.Memory.ReservedBytes != 100*mib || s.Memory.WeightsBytes != 64*mib {
		t.Errorf("report %+v", s)
	}
	if m := r.Snapshot().Memory; m.ReservedBytes != 100*mib || m.FootprintBytes < 64*mib || m.CapacityBytes == 0 || m.FreeBytes > 16*gib-64*mib {
		t.Errorf("memory %+v", m)
	}

	held := footprintOf(t, s.PID)
	a.Desired = v1alpha1.DesiredDrained
	r.Apply(orders(a))
	done := r.waitFor("u", v1alpha1.ConditionReleased, "True/Released")
	if done.Freed.Bytes == nil || !near(*done.Freed.Bytes, held, 5) || done.Freed.TotalBytes != *done.Freed.Bytes {
		t.Errorf("freed %+v, /proc said %d", done.Freed, held)
	}
	if alive(s.PID) {
		t.Error("the process lives on")
	}
	snap := r.Snapshot()
	if len(snap.Reclaims) != 1 || snap.Memory.FreedBytesTotal != *done.Freed.Bytes || snap.Memory.ReservedBytes != 0 || snap.Memory.FootprintBytes != 0 {
		t.Fatalf("%+v", snap)
	}
	c := snap.Reclaims[0]
	if c.ID != "u/1/1" || c.Reason != v1alpha1.ReclaimDrained || c.Exit != v1alpha1.ExitClean || c.HostCheck != v1alpha1.HostCheckVerified || c.Namespace != "team" {
		t.Errorf("reclaim %+v", c)
	}
	r.Apply(orders())
	eventually(t, func() string {
		if n := len(r.Snapshot().Assignments); n != 0 {
			return "a withdrawn order is still reported"
		}
		return ""
	})
	if left, _ := os.ReadDir(filepath.Join(r.dir, "run")); len(left) != 0 {
		t.Errorf("files left behind: %v", left)
	}
}

func TestConcurrentAssignmentsAndRequestsCauseOneLoad(t *testing.T) {
	r := newRig(t)
	r.script("m", enginetest.Script{LoadMilliseconds: 100})
	var wg sync.WaitGroup
	for range 100 {
		wg.Go(func() {
			r.Apply(orders(assignment("u", "m")))
			h, err := r.Acquire(t.Context(), "u", 1)
			if err == nil {
				h.Release()
			} else if !errors.Is(err, ErrNotReady) && !errors.Is(err, ErrNotHere) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	s := r.serving("u")
	state := r.lifecycle.Journal.Snapshot()
	if loads := state.Replica("u", 1).Loads; s.Restarts != 0 || loads != 1 || len(r.registry.running()) != 1 {
		t.Errorf("loads %d, engines %d", loads, len(r.registry.running()))
	}
}

func TestHeldEngineFinishesItsRequestsBeforeItStops(t *testing.T) {
	for name, withdraw := range map[string]func(r *rig, a v1alpha1.Assignment){
		"drained":    func(r *rig, a v1alpha1.Assignment) { a.Desired = v1alpha1.DesiredDrained; r.Apply(orders(a)) },
		"unassigned": func(r *rig, _ v1alpha1.Assignment) { r.Apply(orders()) },
		"replaced":   func(r *rig, a v1alpha1.Assignment) { a.Context.MaxConcurrentRequests = 9; r.Apply(orders(a)) },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.script("m", enginetest.Script{TokenMilliseconds: 5})
			a := assignment("u", "m")
			r.Apply(orders(a))
			r.serving("u")
			h, err := r.Acquire(t.Context(), "u", 1)
			if err != nil {
				t.Fatal(err)
			}
			withdraw(r, a) // between acquire and first use
			r.waitFor("u", v1alpha1.ConditionServing, "False/Draining")
			if _, err := r.Acquire(t.Context(), "u", 1); !errors.Is(err, ErrNotReady) {
				t.Errorf("a draining engine gave a new hold: %v", err)
			}
			end, err := ask(t.Context(), h, 20, nil)
			if err != nil || end.GetReason() != wire.FinishReason_FINISH_REASON_LENGTH || end.GetUsage().GetGeneratedTokens() != 20 {
				t.Errorf("%v, %v", end, err)
			}
			h.Release()
			eventually(t, func() string {
				if len(r.Snapshot().Reclaims) == 0 {
					return "not reclaimed"
				}
				return ""
			})
			if c := r.Snapshot().Reclaims[0]; c.Exit != v1alpha1.ExitClean || !strings.EqualFold(string(c.Reason), name) {
				t.Errorf("reclaim %+v", c)
			}
		})
	}
}

func TestPastTheDrainDeadlineRequestsGetATypedEnd(t *testing.T) {
	r := newRig(t)
	r.script("m", enginetest.Script{TokenMilliseconds: 20})
	a := assignment("u", "m")
	a.DrainSeconds = 0
	r.Apply(orders(a))
	r.serving("u")
	h, err := r.Acquire(t.Context(), "u", 1)
	if err != nil {
		t.Fatal(err)
	}
	end, err := ask(t.Context(), h, 10_000, func() {
		a.Desired = v1alpha1.DesiredDrained
		r.Apply(orders(a))
	})
	if err != nil || end.GetError().GetCode() != wire.Code_CODE_CANCELLED {
		t.Errorf("%v, %v", end, err)
	}
	r.waitFor("u", v1alpha1.ConditionReleased, "True/Released")
	h.Release()
	h.Release()
}

func TestAHoldEndsWithItsRequestAndOnlyOnce(t *testing.T) {
	r := newRig(t)
	r.script("m", enginetest.Script{TokenMilliseconds: 5})
	r.Apply(orders(assignment("u", "m")))
	r.serving("u")
	ctx, cancel := context.WithCancel(t.Context())
	h, err := r.Acquire(ctx, "u", 1)
	if err != nil {
		t.Fatal(err)
	}
	other, err := r.Acquire(t.Context(), "u", 1)
	if err != nil {
		t.Fatal(err)
	}
	holds := func() int { return r.Endpoints()[0].Holds }
	if n := holds(); n != 2 {
		t.Errorf("%d holds, want 2", n)
	}
	cancel() // the client that never reads
	eventually(t, func() string {
		if holds() != 1 {
			return "a hold outlives its request"
		}
		return ""
	})
	h.Release()
	if n := holds(); n != 1 {
		t.Errorf("releasing twice counts twice: %d holds", n)
	}
	if _, err := h.Generate(t.Context(), &wire.GenerateRequest{}); !errors.Is(err, errReleased) {
		t.Errorf("a call without a hold: %v", err)
	}
	other.Release()
	if _, err := r.Acquire(t.Context(), "u", 2); !errors.Is(err, ErrNotHere) {
		t.Errorf("another epoch: %v", err)
	}
	if _, err := r.Acquire(t.Context(), "unknown", 1); !errors.Is(err, ErrNotHere) {
		t.Errorf("another replica: %v", err)
	}
}

func TestAKilledEngineIsReportedReclaimedAndStartedAgain(t *testing.T) {
	r := newRig(t)
	r.script("m", enginetest.Script{HoldBytes: 32 * mib, TokenMilliseconds: 20})
	r.Apply(orders(assignment("u", "m")))
	s := r.serving("u")
	h, err := r.Acquire(t.Context(), "u", 1)
	if err != nil {
		t.Fatal(err)
	}
	_, err = ask(t.Context(), h, 10_000, func() { _ = syscall.Kill(int(s.PID), syscall.SIGKILL) })
	if !errors.Is(err, ErrEngineLost) {
		t.Errorf("a request on a killed engine: %v, want ErrEngineLost", err)
	}
	h.Release()
	r.backsOff("u", s.PID)
	eventually(r.t, func() string { // it is written down first
		if len(r.Snapshot().Reclaims) == 0 {
			return "no reclaim is reported"
		}
		return ""
	})
	if c := r.Snapshot().Reclaims[0]; c.Reason != v1alpha1.ReclaimCrashed || c.Exit != v1alpha1.ExitCrashed || c.FreedBytes == nil || *c.FreedBytes < 32*mib {
		t.Errorf("reclaim %+v", c)
	}
	again := r.serving("u")
	if again.PID == s.PID || len(r.registry.running()) != 1 {
		t.Errorf("pid %d after %d, %d engines", again.PID, s.PID, len(r.registry.running()))
	}
	if m := r.Snapshot().Memory; m.ReservedBytes != 100*mib {
		t.Errorf("reserved %d", m.ReservedBytes)
	}
}

// A full disk lets a record wait for longer than the engine lives.
func TestAStopThatIsRecordedLateSparesTheNextLoad(t *testing.T) {
	r := newRig(t)
	r.script("m", enginetest.Script{})
	r.Apply(orders(assignment("u", "m")))
	pid := r.serving("u").PID
	var old *engine
	r.registry.read(func() { old = r.registry.entries[memory.Key{UID: "u", Epoch: 1}].engine })
	if err := syscall.Kill(int(pid), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	var again v1alpha1.AssignmentStatus
	eventually(t, func() string {
		if again = r.serving("u"); again.PID == pid {
			return "the killed engine is reported as serving"
		}
		return ""
	})
	r.lifecycle.recordStop(old)
	if e := r.lifecycle.Journal.Snapshot().Engine("u", 1); e == nil || int64(e.PID) != again.PID || e.Load != 2 || e.Stop != nil {
		t.Errorf("the journal has %+v, and process %d serves", e, again.PID)
	}
}

// backsOff waits for the pause of a second after a crash, or, on a machine too
// slow to observe that second, for what follows.
func (r *rig) backsOff(uid string, crashed int64) {
	r.t.Helper()
	eventually(r.t, func() string {
		back := r.report(uid)
		if got := status(back, v1alpha1.ConditionServing); got != "False/BackOff" {
			if back.Restarts == 1 && back.PID != 0 && back.PID != crashed {
				return "" // it is over
			}
			return fmt.Sprintf("Serving is %q, want BackOff: %+v", got, back)
		}
		// It crashed, and the Mac is looked at before another starts.
		if back.LastFailure == nil || back.LastFailure.Reason != v1alpha1.ReasonEngineCrashed || back.LastFailure.Time.IsZero() {
			r.t.Errorf("%+v", back.LastFailure)
		}
		if loaded := status(back, "Loaded"); back.Restarts != 1 || loaded != "False/EngineCrashed" && loaded != "False/HostUnsettled" || back.PID != 0 {
			r.t.Errorf("%+v", back)
		}
		return ""
	})
}

func TestAnEngineThatCannotLoadSaysWhy(t *testing.T) {
	for name, tc := range map[string]struct {
		script enginetest.Script
		final  bool
		reason string
	}{
		"hopeless reasons are final":        {script: enginetest.Script{FailReason: v1alpha1.ReasonInvalidModel, FailMessage: "tensor out of bounds"}, final: true, reason: v1alpha1.ReasonInvalidModel},
		"others are tried again":            {script: enginetest.Script{FailReason: "BackendBusy"}, final: false, reason: "BackendBusy"},
		"death while loading":               {script: enginetest.Script{DieLoading: 3}, final: false, reason: v1alpha1.ReasonLoadFailed},
		"an engine that is not ours":        {script: enginetest.Script{AnotherHash: true}, final: false, reason: v1alpha1.ReasonLoadFailed},
		"a reason the API would not take":   {script: enginetest.Script{FailReason: "no such thing!"}, final: false, reason: v1alpha1.ReasonLoadFailed},
		"hopeless, and it ignores Shutdown": {script: enginetest.Script{FailReason: v1alpha1.ReasonUnsupportedModel, IgnoreShutdown: true}, final: true, reason: v1alpha1.ReasonUnsupportedModel},
	} {
		t.Run(name, func(t *testing.T) {
			timing := quick()
			if tc.script.IgnoreShutdown {
				deafToShutdown(&timing)
			}
			r := newRigOf(t, timing)
			r.script("m", tc.script)
			r.Apply(orders(assignment("u", "m")))
			s := r.waitFor("u", v1alpha1.ConditionLoaded, "False/"+tc.reason)
			eventually(t, func() string {
				if c := r.Snapshot().Reclaims; len(c) == 0 || c[0].Reason != v1alpha1.ReclaimLoadFailed {
					return "not reclaimed"
				}
				return ""
			})
			if tc.final {
				s = r.waitFor("u", v1alpha1.ConditionAdmitted, "False/"+tc.reason)
				if n := r.registry.ledger.Account().Reserved; n != 0 || s.Progress.Stage != v1alpha1.StageFailed {
					t.Errorf("%d reserved, %+v", n, s.Progress)
				}
			}
		})
	}
}

// deafToShutdown does not wait for an engine that does not listen.
func deafToShutdown(t *Timing) { t.Stop = 500 * time.Millisecond }

func TestTheLadderEndsWhatDoesNotListen(t *testing.T) {
	for name, tc := range map[string]struct {
		script enginetest.Script
		timing func(*Timing)
		exit   v1alpha1.ExitKind
	}{
		"SIGTERM":    {script: enginetest.Script{IgnoreShutdown: true}, timing: deafToShutdown, exit: v1alpha1.ExitTerminated},
		"SIGKILL":    {script: enginetest.Script{IgnoreShutdown: true, IgnoreTerm: true}, timing: func(d *Timing) { deafToShutdown(d); d.Term = 300 * time.Millisecond }, exit: v1alpha1.ExitKilled},
		"by itself ": {script: enginetest.Script{}, timing: func(*Timing) {}, exit: v1alpha1.ExitClean},
	} {
		t.Run(name, func(t *testing.T) {
			timing := quick()
			tc.timing(&timing)
			r := newRigOf(t, timing)
			tc.script.HoldBytes = mib
			r.script("m", tc.script)
			a := assignment("u", "m")
			r.Apply(orders(a))
			s := r.serving("u")
			a.Desired = v1alpha1.DesiredDrained
			r.Apply(orders(a))
			r.waitFor("u", v1alpha1.ConditionReleased, "True/Released")
			if c := r.Snapshot().Reclaims[0]; c.Exit != tc.exit || c.FreedBytes == nil || *c.FreedBytes < mib {
				t.Errorf("reclaim %+v", c)
			}
			if alive(s.PID) {
				t.Error("it lives")
			}
		})
	}
}

func TestWithoutRoomAReplicaIsRefusedForGood(t *testing.T) {
	r := newRig(t)
	r.script("m", enginetest.Script{})
	a, b := assignment("a", "m"), assignment("b", "m")
	a.ReservedBytes, b.ReservedBytes = 8*gib, 8*gib // of about 9.6 GiB
	r.Apply(orders(a))
	r.serving("a")
	r.Apply(orders(a, b))
	s := r.waitFor("b", v1alpha1.ConditionAdmitted, "False/"+v1alpha1.ReasonInsufficientRoom)
	if s.Progress.Stage != v1alpha1.StageFailed || s.PID != 0 {
		t.Errorf("%+v", s)
	}
	a.Desired = v1alpha1.DesiredDrained
	r.Apply(orders(a, b))
	r.waitFor("a", v1alpha1.ConditionReleased, "True/Released")
	if got := status(r.report("b"), v1alpha1.ConditionAdmitted); got != "False/"+v1alpha1.ReasonInsufficientRoom {
		t.Errorf("a refusal was taken back: %s", got)
	}
	r.halt()
	r.boot()
	r.Apply(orders(b))
	if got := status(r.report("b"), v1alpha1.ConditionAdmitted); got != "False/"+v1alpha1.ReasonInsufficientRoom {
		t.Errorf("a refusal was forgotten over a restart: %s", got)
	}
}

func TestWhileOthersServeTheHostCheckIsIndeterminate(t *testing.T) {
	r := newRig(t)
	r.script("m", enginetest.Script{HoldBytes: mib, TokenMilliseconds: 1})
	a, b := assignment("a", "m"), assignment("b", "m")
	r.Apply(orders(a, b))
	r.serving("a")
	r.serving("b")
	a.Desired = v1alpha1.DesiredDrained
	r.Apply(orders(a, b))
	s := r.waitFor("a", v1alpha1.ConditionReleased, "True/Released")
	if s.Freed.HostCheck != v1alpha1.HostCheckIndeterminate || s.Freed.Bytes == nil {
		t.Errorf("freed %+v", s.Freed)
	}
	if got := status(r.report("b"), v1alpha1.ConditionServing); got != "True/Serving" {
		t.Errorf("the other engine: %s", got)
	}
}

func TestAFailedDownloadIsReportedAndTriedAgain(t *testing.T) {
	r := newRig(t)
	r.script("m", enginetest.Script{})
	r.weights.fail(&DownloadError{Reason: v1alpha1.ReasonDiskFull, Message: "no room on the disk"})
	r.Apply(orders(assignment("u", "m")))
	r.waitFor("u", v1alpha1.ConditionDownloaded, "False/DiskFull")
	r.weights.fail(nil)
	r.serving("u")
}

func TestADownloadThatIsRefusedReservesNothing(t *testing.T) {
	r := newRig(t)
	r.weights.fail(&DownloadError{Reason: v1alpha1.ReasonDigestMismatch, Message: "other bytes", Final: true})
	a := assignment("u", "m")
	r.Apply(orders(a))
	s := r.waitFor("u", v1alpha1.ConditionDownloaded, "False/DigestMismatch")
	if s.Memory.ReservedBytes != 0 {
		t.Errorf("reserved for files that are not there: %+v", s)
	}
	a.Desired = v1alpha1.DesiredDrained
	r.Apply(orders(a))
	if s := r.waitFor("u", v1alpha1.ConditionReleased, "True/Released"); s.Freed.Bytes != nil {
		t.Errorf("freed %+v", s.Freed)
	}
}

func TestWeightsAloneAreKeptWithoutAnEngine(t *testing.T) {
	r := newRig(t)
	r.script("m", enginetest.Script{})
	a := assignment("u", "m")
	a.Desired = v1alpha1.DesiredDownloaded
	r.Apply(orders(a))
	s := r.waitFor("u", v1alpha1.ConditionDownloaded, "True/Verified")
	if len(r.registry.running()) != 0 || s.Memory.ReservedBytes != 0 {
		t.Errorf("%+v", s)
	}
}

// TestWeightsThatFoundNoRoomAheadAreTriedAtOnceWhenTheyAreNeeded: the pause after
// failures applied to a download that no request waited for.
func TestWeightsThatFoundNoRoomAheadAreTriedAtOnceWhenTheyAreNeeded(t *testing.T) {
	later := time.Now().Add(time.Hour)
	for name, tc := range map[string]struct {
		before v1alpha1.DesiredState
		final  bool
		waits  bool
	}{
		"ahead":                   {before: v1alpha1.DesiredDownloaded, final: false, waits: false},
		"ahead, and it cannot be": {before: v1alpha1.DesiredDownloaded, final: true, waits: true},
		"it was needed before":    {before: v1alpha1.DesiredRunning, final: false, waits: true},
	} {
		e := &entry{}
		a := assignment("u", "m")
		a.Desired = tc.before
		e.take(a)
		e.download.failure, e.download.notBefore = &DownloadError{Reason: v1alpha1.ReasonDiskFull, Final: tc.final}, later
		a.Desired = v1alpha1.DesiredRunning
		e.take(a)
		if waits := e.download.notBefore.Equal(later); waits != tc.waits {
			t.Errorf("%s: it waits: %v", name, waits)
		}
	}
}

func TestAProgramThatDoesNotStartFailsInBounds(t *testing.T) {
	r := newRig(t)
	r.halt()
	r.boot()
	r.lifecycle.Engine = "/no/such/engine"
	r.Apply(orders(assignment("u", "m")))
	s := r.waitFor("u", v1alpha1.ConditionLoaded, "False/LoadFailed")
	if s.Restarts != 0 || len(r.Snapshot().Reclaims) != 0 {
		t.Errorf("%+v", s)
	}
	eventually(t, func() string { // the condition shows before the journal is written
		if n := len(r.lifecycle.Journal.Snapshot().Engines); n != 0 {
			return fmt.Sprintf("%d engines in the journal", n)
		}
		return ""
	})
}

func TestInvalidAssignmentDoesNotAffectRunningEngines(t *testing.T) {
	r := newRig(t)
	r.script("m", enginetest.Script{})
	r.Apply(orders(assignment("u", "m")))
	s := r.serving("u")
	o := orders()
	o.Invalid = append(o.Invalid, invalid("u", 1), invalid("v", 1))
	r.Apply(o)
	r.waitFor("v", v1alpha1.ConditionAdmitted, "False/"+ReasonInvalidAssignment)
	if got := r.report("u"); got.PID != s.PID || !alive(s.PID) {
		t.Errorf("%+v", got)
	}
}

// TestTheLedgerEqualsTheResidents after histories that end in every way, and
// neither goroutines nor processes are left.
func TestTheLedgerEqualsTheResidents(t *testing.T) {
	before := runtime.NumGoroutine()
	r := newRig(t)
	r.script("good", enginetest.Script{HoldBytes: mib})
	r.script("bad", enginetest.Script{FailReason: v1alpha1.ReasonUnsupportedModel})
	r.script("dead", enginetest.Script{DieLoading: 1})
	a, b, c, d := assignment("a", "good"), assignment("b", "bad"), assignment("c", "dead"), assignment("d", "good")
	r.Apply(orders(a, b, c, d))
	pa, pd := r.serving("a").PID, r.serving("d").PID
	r.waitFor("b", v1alpha1.ConditionAdmitted, "False/UnsupportedModel")
	d.Desired = v1alpha1.DesiredDrained
	r.Apply(orders(a, b, d)) // c is withdrawn while it backs off
	r.waitFor("d", v1alpha1.ConditionReleased, "True/Released")
	eventually(t, func() string {
		if n := len(r.Snapshot().Assignments); n != 3 {
			return "a withdrawn order is still there"
		}
		return ""
	})
	if acc := r.registry.ledger.Account(); len(acc.Holders) != 1 || acc.Holders[memory.Key{UID: "a", Epoch: 1}] == 0 {
		t.Errorf("ledger %+v", acc.Holders)
	}
	if !alive(pa) || alive(pd) {
		t.Errorf("a alive %v, d alive %v", alive(pa), alive(pd))
	}
	r.Apply(orders())
	eventually(t, func() string {
		if alive(pa) || len(r.registry.ledger.Account().Holders) != 0 || len(r.Snapshot().Assignments) != 0 {
			return "something is left"
		}
		return ""
	})
	r.halt()
	eventually(t, func() string {
		if n := runtime.NumGoroutine(); n > before+1 { // net poller helpers come and go
			return "goroutines are left"
		}
		return ""
	})
}

func TestLogsAreBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(path, make([]byte, maxLogBytes+1), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := boundLog(path); err != nil {
		t.Fatal(err)
	}
	now, err1 := os.Stat(path)
	old, err2 := os.Stat(path + ".1")
	if err1 != nil || err2 != nil || now.Size() != 0 || old.Size() != maxLogBytes+1 {
		t.Errorf("%v %v", err1, err2)
	}
	if err := errors.Join(os.Remove(path+".1"), os.Mkdir(path+".1", 0o700), os.Truncate(path, 1<<30)); err != nil {
		t.Fatal(err)
	}
	_, err := boundLog(path)
	if now, err1 = os.Stat(path); err == nil || err1 != nil || now.Size() != 0 {
		t.Errorf("a log that cannot be set aside stays: %v, %v", err, err1)
	}
}

func TestSocketPathsAreShortAndPrivate(t *testing.T) {
	long := filepath.Join(t.TempDir(), strings.Repeat("long", 30))
	if err := os.MkdirAll(long, 0o700); err != nil {
		t.Fatal(err)
	}
	f, err := newFiles(long)
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(f.run)
	if s := f.engine(memory.Key{UID: strings.Repeat("u", 64), Epoch: 1 << 60}, 12345).socket; len(s) > maxSocketPath {
		t.Errorf("%d bytes: %s", len(s), s)
	}
	if args := f.arguments(f.named("a-1")); !slices.Equal(args[len(args)-2:], []string{"--state", long}) {
		t.Errorf("the sandbox does not learn which folder to close: %q", args)
	}
	if err := os.Chmod(f.run, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := newFiles(long); err == nil || !strings.Contains(err.Error(), "mode 0700") {
		t.Errorf("a folder open to others was taken: %v", err)
	}
}

func TestAStoppedAgentLeavesEnginesAndGoroutinesNot(t *testing.T) {
	r := newRig(t)
	r.script("m", enginetest.Script{})
	r.Apply(orders(assignment("u", "m")))
	s := r.serving("u")
	done := make(chan struct{})
	go func() { r.halt(); close(done) }()
	select {
	case <-done:
	case <-time.After(patience.Of(t)):
		t.Fatal("the pool does not end while an engine lives")
	}
	if !alive(s.PID) {
		t.Error("the engine ended with its agent")
	}
}
