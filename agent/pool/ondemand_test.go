package pool

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/agent/memory"
	"metalfleet.dev/metalfleet/agent/pool/enginetest"
	"metalfleet.dev/metalfleet/agent/pool/failpoint"
	"metalfleet.dev/metalfleet/agent/probe"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/metal/wire"
)

func TestFakeEnginePassesTheEngineSuite(t *testing.T) {
	twin := enginetest.NewTwin(probe.NewScripted(probe.Host{Total: gib}))
	twin.SetScript("m", enginetest.Script{HoldBytes: mib, TokenMilliseconds: 5})
	enginetest.Run(t, enginetest.InTwin(twin, "m"))
	for _, task := range []string{"Embed", "Rerank"} {
		t.Run(task, func(t *testing.T) {
			twin.SetScript(task, enginetest.Script{HoldBytes: mib, Task: task, ListMilliseconds: 10_000})
			enginetest.RunReader(t, enginetest.InTwin(twin, task))
		})
	}
}

// TestTheProductionPoolRunsOnVirtualTime: ten minutes of a load, an hour of
// service and a drain take no time, and the figures are those of the script.
func TestTheProductionPoolRunsOnVirtualTime(t *testing.T) {
	play(t, func(s *stage) {
		a := s.model("a", enginetest.Script{HoldBytes: 20 * gib, LoadMilliseconds: 600_000, TokenMilliseconds: 1000})
		s.follow(a)
		s.after(300 * time.Second)
		if p := s.report("a").Progress; p.Stage != v1alpha1.StageLoading || p.BytesDone != 10*gib || p.BytesTotal != 20*gib {
			t.Errorf("half-way: %+v", p)
		}
		s.after(301 * time.Second)
		s.want("a", "Serving True/Serving", "Admitted True/Reserved")
		h := s.acquire("a")
		if end, err := ask(s.ctx, h, 3600, nil); err != nil || end.GetUsage().GetGeneratedTokens() != 3600 {
			t.Errorf("%v, %v", end, err)
		}
		h.Release()
		a.Desired = v1alpha1.DesiredDrained
		s.follow(a)
		s.after(time.Second)
		if r := s.lastReclaim(); r.FreedBytes == nil || *r.FreedBytes != 20*gib || r.HostCheck != v1alpha1.HostCheckVerified || r.Exit != v1alpha1.ExitClean {
			t.Errorf("%+v", r)
		}
		if took := time.Since(epoch); took < 4200*time.Second || took > 4300*time.Second {
			t.Errorf("took %v of virtual time", took)
		}
		s.wantLedger()
	})
}

func TestHundredRequestsCauseOneLoad(t *testing.T) {
	play(t, func(s *stage) {
		s.follow(s.model("a", enginetest.Script{HoldBytes: gib, LoadMilliseconds: 10_000}, onDemand(time.Hour)))
		s.want("a", "Downloaded True/Verified", "Admitted Unknown/OnDemand", "Loaded False/OnDemand", "Serving True/OnDemand")
		s.wantLedger()
		var wg sync.WaitGroup
		for range 100 {
			wg.Go(func() {
				h, err := s.Acquire(s.ctx, "a", 1)
				if err != nil {
					t.Error(err)
					return
				}
				if h.Load() != 1 {
					t.Errorf("load %d", h.Load())
				}
			})
		}
		s.after(5 * time.Second)
		s.want("a", "Loaded False/Loading", "Serving True/OnDemand")
		wg.Wait()
		if n := s.Endpoints()[0].Holds; n != 100 {
			t.Errorf("%d holds, want 100", n)
		}
		state := s.lifecycle.Journal.Snapshot()
		if loads := state.Replica("a", 1).Loads; loads != 1 {
			t.Errorf("%d loads", loads)
		}
		if took := time.Since(epoch); took != 10*time.Second {
			t.Errorf("the holds came after %v", took)
		}
	})
}

func TestALoadGoesOnWhenItsWaitersLeave(t *testing.T) {
	play(t, func(s *stage) {
		s.follow(s.model("a", enginetest.Script{HoldBytes: gib, LoadMilliseconds: 10_000}, onDemand(0)))
		hurried, cancel := context.WithTimeout(s.ctx, 3*time.Second)
		defer cancel()
		left, stayed := make(chan error, 1), make(chan error, 1)
		go func() { _, err := s.Acquire(hurried, "a", 1); left <- err }()
		go func() { _, err := s.Acquire(s.ctx, "a", 1); stayed <- err }()
		if err := <-left; !errors.Is(err, context.DeadlineExceeded) || time.Since(epoch) != 3*time.Second {
			t.Errorf("who left: %v after %v", err, time.Since(epoch))
		}
		if err := <-stayed; err != nil {
			t.Errorf("who stayed: %v", err)
		}
		if n := s.Endpoints()[0].Holds; n != 1 {
			t.Errorf("%d holds, want 1: a waiter that left has no hold", n)
		}
	})
	play(t, func(s *stage) {
		s.follow(s.model("a", enginetest.Script{HoldBytes: gib, LoadMilliseconds: 10_000}, onDemand(0)))
		hurried, cancel := context.WithTimeout(s.ctx, time.Second)
		defer cancel()
		_, _ = s.Acquire(hurried, "a", 1) // and no other request
		s.after(10 * time.Second)
		s.want("a", "Serving True/Serving")
		s.wantReclaims()
	})
}

// TestTheWaitForALoadIsBounded, and the load is not.
func TestTheWaitForALoadIsBounded(t *testing.T) {
	play(t, func(s *stage) {
		s.follow(s.model("a", enginetest.Script{HoldBytes: gib, LoadMilliseconds: 900_000}, onDemand(0)))
		if _, err := s.Acquire(s.ctx, "a", 1); !errors.Is(err, ErrNotReady) || time.Since(epoch) != 10*time.Minute {
			t.Errorf("%v after %v", err, time.Since(epoch))
		}
		s.after(5 * time.Minute)
		s.want("a", "Serving True/Serving")
	})
}

func TestAFailedLoadAnswersAllThatWait(t *testing.T) {
	for name, tc := range map[string]struct {
		script enginetest.Script
		reason string
		retry  bool
	}{
		"it says why":         {script: enginetest.Script{LoadMilliseconds: 1000, FailReason: "BackendBusy", FailMessage: "later"}, reason: "BackendBusy", retry: true},
		"it says it is final": {script: enginetest.Script{LoadMilliseconds: 1000, FailReason: v1alpha1.ReasonUnsupportedModel}, reason: v1alpha1.ReasonUnsupportedModel, retry: false},
		"it dies":             {script: enginetest.Script{DieLoading: 3}, reason: v1alpha1.ReasonLoadFailed, retry: true},
		"it never answers":    {script: enginetest.Script{Deaf: true}, reason: v1alpha1.ReasonLoadFailed, retry: true},
		"it does not move":    {script: enginetest.Script{HoldBytes: gib, HangLoading: true}, reason: reasonLoadStalled, retry: true},
	} {
		t.Run(name, func(t *testing.T) {
			play(t, func(s *stage) {
				s.follow(s.model("a", tc.script, onDemand(0)))
				answers := make(chan error, 20)
				for range cap(answers) {
					go func() { _, err := s.Acquire(s.ctx, "a", 1); answers <- err }()
				}
				for range cap(answers) {
					err := <-answers
					var load *LoadError
					if !errors.As(err, &load) || !errors.Is(err, errLoadFailed) || load.Reason != tc.reason {
						t.Fatalf("%v, want the reason %s", err, tc.reason)
					}
				}
				s.after(2 * time.Minute)
				s.wantLedger()
				s.wantResident("")
				if _, err := s.Acquire(s.ctx, "a", 1); !tc.retry && !errors.Is(err, errLoadFailed) {
					t.Errorf("a final failure was tried again: %v", err)
				}
			})
		})
	}
}

// There is no gap between the decision to wait and the hold, nor between the
// hold and its first use.
func TestHeldEngineIsNeverEvicted(t *testing.T) {
	for _, why := range []v1alpha1.ReclaimReason{
		v1alpha1.ReclaimMadeRoom, v1alpha1.ReclaimIdle, v1alpha1.ReclaimHeadroom, v1alpha1.ReclaimSoftPressure, v1alpha1.ReclaimHardPressure,
	} {
		t.Run(string(why), func(t *testing.T) {
			play(t, func(s *stage) {
				s.follow(s.model("a", enginetest.Script{HoldBytes: gib, LoadMilliseconds: 1000, TokenMilliseconds: 10}, onDemand(0)))
				h := s.acquire("a") // of the path "just loaded"
				again := s.acquire("a")
				h.Release()
				if s.pressure.evict(memory.Key{UID: "a", Epoch: 1}, why) {
					t.Error("an engine with a hold was evicted")
				}
				if end, err := ask(s.ctx, again, 5, nil); err != nil || end.GetReason() != wire.FinishReason_FINISH_REASON_LENGTH {
					t.Errorf("%v, %v", end, err)
				}
				again.Release()
				if !s.pressure.evict(memory.Key{UID: "a", Epoch: 1}, why) {
					t.Error("an idle engine was not evicted")
				}
				s.after(time.Second)
				s.wantReclaims("a/" + string(why))
				s.wantLedger()
			})
		})
	}
}

func TestReadyEngineIsAlreadyHeld(t *testing.T) {
	play(t, func(s *stage) {
		s.follow(s.model("a", enginetest.Script{LoadMilliseconds: 1000}, onDemand(0)))
		seen := false
		s.at(func(point string) {
			if point == failpoint.LoadReady {
				seen = true
				go func() { // as an enforcer would, at every chance
					for range 1000 {
						if s.pressure.evict(memory.Key{UID: "a", Epoch: 1}, v1alpha1.ReclaimMadeRoom) {
							t.Error("evicted between readiness and the first use")
							return
						}
					}
				}()
			}
		})
		h := s.acquire("a")
		if end, err := ask(s.ctx, h, 5, nil); err != nil {
			t.Errorf("%v, %v", end, err)
		}
		if !seen {
			t.Error("the engine was never ready")
		}
	})
}

func TestRefusedRequestLeavesNoHold(t *testing.T) {
	play(t, func(s *stage) {
		s.follow(s.model("a", enginetest.Script{}, onDemand(0)))
		holds := func() int { return s.Endpoints()[0].Holds }
		for range 1000 {
			h := s.acquire("a")
			stream, err := h.Generate(s.ctx, &wire.GenerateRequest{Id: "nothing to answer"})
			if err == nil {
				_, err = stream.Recv()
			}
			if wire.RefusalOf(err).GetCode() != wire.Code_CODE_INVALID {
				t.Fatal(err)
			}
			h.Release()
		}
		if n := holds(); n != 0 {
			t.Errorf("%d holds after a thousand refusals", n)
		}
		var all []*Hold
		for range 7 {
			all = append(all, s.acquire("a"))
		}
		if n := holds(); n != 7 {
			t.Errorf("%d holds, want 7", n)
		}
		for _, h := range all {
			h.Release()
		}
		if n := holds(); n != 0 {
			t.Errorf("%d holds, want 0", n)
		}
	})
}

func TestCrashedEngineLeavesNoActiveRequests(t *testing.T) {
	play(t, func(s *stage) {
		s.follow(s.model("a", enginetest.Script{TokenMilliseconds: 1000}, onDemand(time.Minute)))
		h := s.acquire("a")
		time.AfterFunc(10*time.Second, func() { s.twin.Engine("a").Exit(9) })
		if _, err := ask(s.ctx, h, 10_000, nil); !errors.Is(err, ErrEngineLost) {
			t.Errorf("%v", err)
		}
		s.after(10 * time.Second)
		next := s.acquire("a")
		h.Release() // late, and of the old engine
		if n := s.Endpoints()[0].Holds; n != 1 {
			t.Errorf("%d holds, want 1", n)
		}
		next.Release()
		s.after(2 * time.Minute)
		s.wantReclaims("a/Crashed", "a/Idle")
		s.wantResident("")
	})
}

func TestHoldRestartsTheIdleTime(t *testing.T) {
	play(t, func(s *stage) {
		s.follow(s.model("a", enginetest.Script{HoldBytes: gib}, onDemand(time.Minute)), s.model("pinned", enginetest.Script{HoldBytes: gib}))
		h := s.acquire("a")
		s.after(10 * time.Minute)
		s.wantResident("a pinned") // across the expiry, held
		h.Release()
		s.after(59 * time.Second)
		s.wantResident("a pinned")
		s.after(3 * time.Second)
		s.wantResident("pinned")
		s.wantReclaims("a/Idle")
		s.want("a", "Serving True/OnDemand", "Loaded False/OnDemand")
		s.after(2 * time.Hour)
		s.wantResident("pinned") // Always has no time to live
		s.used("a")
		s.wantResident("a pinned")
		if r := s.lastReclaim(); r.FreedBytes == nil || *r.FreedBytes != gib {
			t.Errorf("%+v", r)
		}
	})
}

func TestAdoptedEngineKeepsItsLastUse(t *testing.T) {
	play(t, func(s *stage) {
		a := s.model("a", enginetest.Script{HoldBytes: gib}, onDemand(10*time.Minute))
		s.follow(a)
		s.used("a")
		s.after(8 * time.Minute)
		s.halt()
		s.boot()
		s.follow(a)
		s.wantResident("a")
		s.after(time.Minute)
		s.wantResident("a")
		s.after(70 * time.Second)
		s.wantResident("")
		s.wantReclaims("a/Idle")
	})
}

func TestARoomIsMadeOfIdleEnginesOneAtATime(t *testing.T) {
	play(t, func(s *stage) {
		slow := enginetest.Script{HoldBytes: 15 * gib, ShutdownMilliseconds: 5000}
		s.follow(s.model("a", slow, onDemand(0)), s.model("b", slow, onDemand(0)), s.model("c", slow, onDemand(0)),
			s.model("big", enginetest.Script{HoldBytes: 30 * gib}, onDemand(0)))
		s.used("a")
		s.after(time.Minute)
		s.used("b")
		s.after(time.Minute)
		s.used("c")
		s.wantResident("a b c") // 48 of 57.6 GiB are promised
		got := make(chan error, 1)
		go func() { _, err := s.Acquire(s.ctx, "big", 1); got <- err }()
		s.after(2 * time.Second)
		s.wantReclaims() // the first one still ends
		if n := leaving(s); n != 1 {
			t.Errorf("%d engines end at once, want 1", n)
		}
		if err := <-got; err != nil {
			t.Fatal(err)
		}
		s.wantReclaims("a/MadeRoom", "b/MadeRoom")
		s.wantResident("big c")
		s.wantLedger("big", "c")
	})
}

func leaving(s *stage) (n int) {
	s.registry.read(func() {
		for _, e := range s.registry.entries {
			if e.engine != nil && e.engine.stop != nil {
				n++
			}
		}
	})
	return n
}

func TestWithoutRoomARequestIsToldWhetherToComeAgain(t *testing.T) {
	play(t, func(s *stage) {
		s.follow(s.model("always", enginetest.Script{HoldBytes: 20 * gib}), s.model("a", enginetest.Script{HoldBytes: 30 * gib}, onDemand(0)),
			s.model("b", enginetest.Script{HoldBytes: 30 * gib}, onDemand(0)), s.model("too-much", enginetest.Script{HoldBytes: 40 * gib}, onDemand(0)),
			s.model("large", enginetest.Script{HoldBytes: 60 * gib}, onDemand(0)), s.model("dear", enginetest.Script{HoldBytes: 30 * gib}, onDemand(0), priority(5)))
		s.after(time.Second)
		h := s.acquire("a")
		for uid, retry := range map[string]bool{"b": true, "too-much": false, "large": false} {
			_, err := s.Acquire(s.ctx, uid, 1)
			var room *RoomError
			if !errors.As(err, &room) || !errors.Is(err, errNoRoom) || room.RetryAfter > 0 != retry || room.Cause.Needed < 31*gib {
				t.Errorf("%s: %v (%+v)", uid, err, room)
			}
		}
		s.want("b", "Serving True/OnDemand")
		s.want("large", "Admitted False/InsufficientMemory", "Serving False/InsufficientMemory")
		s.want("too-much", "Admitted False/InsufficientMemory")
		h.Release()
		s.used("dear")
		if _, err := s.Acquire(s.ctx, "b", 1); !errors.Is(err, errNoRoom) {
			t.Errorf("a model of higher priority went for one of lower: %v", err)
		}
		s.wantReclaims("a/MadeRoom")
		s.wantResident("always dear")
	})
}

// It may evict others.
func TestAlwaysResidentModelIsNeverEvicted(t *testing.T) {
	play(t, func(s *stage) {
		pin, idle := s.model("pin", enginetest.Script{HoldBytes: 25 * gib}), s.model("idle", enginetest.Script{HoldBytes: 25 * gib}, onDemand(0), priority(9))
		s.follow(pin, idle)
		s.used("idle")
		more := s.model("more", enginetest.Script{HoldBytes: 25 * gib})
		s.follow(pin, idle, more)
		s.after(time.Second)
		s.want("more", "Serving True/Serving")
		s.wantReclaims("idle/MadeRoom")
		last := s.model("last", enginetest.Script{HoldBytes: 25 * gib})
		s.follow(pin, idle, more, last)
		s.want("last", "Admitted False/InsufficientMemory")
		s.wantResident("more pin")
		if s.pressure.evict(memory.Key{UID: "pin", Epoch: 1}, v1alpha1.ReclaimHardPressure) {
			t.Error("an always-resident replica is never evicted")
		}
	})
	play(t, func(s *stage) { // busy, so it waits
		pin, busy := s.model("pin", enginetest.Script{HoldBytes: 25 * gib}), s.model("busy", enginetest.Script{HoldBytes: 25 * gib}, onDemand(0))
		s.follow(pin, busy)
		h := s.acquire("busy")
		more := s.model("more", enginetest.Script{HoldBytes: 25 * gib})
		s.follow(pin, busy, more)
		s.after(time.Minute)
		s.want("more", "Loaded False/WaitingForRoom")
		h.Release()
		s.after(time.Second)
		s.want("more", "Serving True/Serving")
		s.wantReclaims("busy/MadeRoom")
	})
}

func TestAnOrderThatIsWithdrawnAnswersItsWaiters(t *testing.T) {
	play(t, func(s *stage) {
		a := s.model("a", enginetest.Script{HoldBytes: gib, LoadMilliseconds: 60_000}, onDemand(0))
		s.follow(a)
		got := make(chan error, 1)
		go func() { _, err := s.Acquire(s.ctx, "a", 1); got <- err }()
		s.after(time.Second)
		a.Desired = v1alpha1.DesiredDrained
		s.follow(a)
		if err := <-got; !errors.Is(err, ErrNotReady) {
			t.Errorf("%v", err)
		}
		s.after(2 * time.Minute)
		s.want("a", "Released True/Released")
		s.wantLedger()
	})
}

func TestResidencyMayChangeUnderARunningEngine(t *testing.T) {
	play(t, func(s *stage) {
		a := s.model("a", enginetest.Script{HoldBytes: gib})
		s.follow(a)
		s.after(time.Second)
		pid := s.report("a").PID
		onDemand(time.Minute)(&a)
		s.follow(a)
		s.after(30 * time.Second)
		if s.report("a").PID != pid {
			t.Error("the engine was restarted")
		}
		s.after(time.Minute)
		s.wantResident("") // merely evictable now, and idle
		a.Residency = v1alpha1.Residency{Policy: v1alpha1.ResidencyAlways}
		s.follow(a)
		s.after(time.Second)
		s.want("a", "Serving True/Serving")
	})
}

// TestExitWhileLoadingIsReportedByItsStatus: the connections of a process end a
// moment before its exit status is known, and only the status explains it.
func TestExitWhileLoadingIsReportedByItsStatus(t *testing.T) {
	for _, reap := range []int64{0, 1, 500} {
		t.Run(fmt.Sprintf("known after %d ms", reap), func(t *testing.T) {
			play(t, func(s *stage) {
				s.follow(s.model("a", enginetest.Script{HoldBytes: gib, LoadMilliseconds: 100, Deaf: true, DieLoading: 3, ReapMilliseconds: reap}))
				s.after(900 * time.Millisecond) // before the restart
				if r := s.lastReclaim(); r.Reason != v1alpha1.ReclaimLoadFailed || r.Exit != v1alpha1.ExitCrashed {
					t.Errorf("%+v", r)
				}
				if f := s.report("a").LastFailure; f == nil || f.Message != "the engine exited while loading (exit code 3)" {
					t.Errorf("last failure: %+v", f)
				}
			})
		})
	}
}
