package pool

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"metalfleet.dev/metalfleet/agent/memory"
	"metalfleet.dev/metalfleet/agent/pool/enginetest"
	"metalfleet.dev/metalfleet/agent/pool/failpoint"
	"metalfleet.dev/metalfleet/agent/probe"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/metal/wire"
)

// Also to an engine that loads late; one that hangs delays no other.
func TestEveryPollPublishesLimitsToEveryEngine(t *testing.T) {
	play(t, func(s *stage) {
		a, hung := s.model("a", enginetest.Script{HoldBytes: 10 * gib}), s.model("hung", enginetest.Script{HoldBytes: gib, IgnoreLimits: true})
		s.follow(a, hung)
		h := s.acquire("a")
		s.after(10 * time.Second)
		before := s.twin.Engine("a").Limits()
		s.after(time.Second)
		l := s.twin.Engine("a").Limits()
		if l.GetSequence() <= before.GetSequence() || l.GetMemoryBytes() != memory.EngineLimit(a.ReservedBytes) || l.GetFootprintBytes() != 10*gib ||
			!l.GetHeadroomKnown() || l.GetHeadroomBytes() <= 0 || l.GetCanMakeRoom() || l.GetPausePrefill() {
			t.Errorf("%v after %v", l, before)
		}
		late := s.model("late", enginetest.Script{HoldBytes: gib}, onDemand(0))
		s.follow(a, hung, late)
		s.used("late")
		s.after(s.lifecycle.Timing.Poll)
		if s.twin.Engine("late").Limits() == nil {
			t.Error("an engine that loaded late has no limits after one poll")
		}
		s.after(2 * time.Second)
		if !s.twin.Engine("a").Limits().GetCanMakeRoom() || s.twin.Engine("late").Limits().GetCanMakeRoom() {
			t.Error("an idle engine could go for another, and never for itself")
		}
		if got := s.macCondition(v1alpha1.ConditionGuardInactive); got != "True/LimitsNotTaken" {
			t.Errorf("GuardInactive is %s", got)
		}
		h.Release()
	})
}

func TestFailedPollIsReportedAndRetried(t *testing.T) {
	play(t, func(s *stage) {
		s.follow(s.model("a", enginetest.Script{HoldBytes: gib}))
		h := s.acquire("a")
		s.after(3 * time.Second)
		if got := s.macCondition(v1alpha1.ConditionGuardInactive); got != "False/GuardsActive" {
			t.Errorf("GuardInactive is %s", got)
		}
		s.mac.Fail(errors.New("the probe is broken"))
		s.after(3 * time.Second)
		if got := s.macCondition(v1alpha1.ConditionGuardInactive); got != "True/ProbeFails" {
			t.Errorf("GuardInactive is %s", got)
		}
		if m := s.Snapshot().Memory; m.FootprintBytes != gib {
			t.Errorf("what cannot be read keeps its last figure: %+v", m)
		}
		if l := s.twin.Engine("a").Limits(); l.GetHeadroomKnown() || l.GetFootprintBytes() != 0 {
			t.Errorf("limits of a reading that failed: %v", l)
		}
		s.mac.Fail(nil)
		s.after(2 * time.Second)
		if got := s.macCondition(v1alpha1.ConditionGuardInactive); got != "False/GuardsActive" {
			t.Errorf("GuardInactive is %s", got)
		}
		h.Release()
	})
}

func TestLoadUnloadAndRequestTriggerAPoll(t *testing.T) {
	play(t, func(s *stage) {
		s.follow(s.model("a", enginetest.Script{HoldBytes: gib}, onDemand(0)))
		s.after(time.Minute)
		polls := func(d time.Duration) int {
			s.probe.begin(nil)
			s.after(d)
			return s.probe.count()
		}
		if n := polls(5 * time.Minute); n < 9 || n > 11 {
			t.Errorf("an empty Mac was looked at %d times in 5 minutes, want 10", n)
		}
		h := s.acquire("a")
		synctest.Wait() // the looks that load and request ask for at this moment
		if n := polls(10 * time.Second); n < 9 || n > 11 {
			t.Errorf("a busy Mac was looked at %d times in 10 s, want 10", n)
		}
		h.Release()
		s.after(20 * time.Second)
		if n := polls(5 * time.Minute); n < 29 || n > 31 {
			t.Errorf("a loaded, idle Mac was looked at %d times in 5 minutes, want 30", n)
		}
		s.after(5 * time.Second)
		s.probe.begin(nil)
		s.acquire("a").Release()
		synctest.Wait()
		if s.probe.count() == 0 {
			t.Error("a request did not wake the enforcer")
		}
		s.after(5 * time.Second)
		s.pressure.evict(memory.Key{UID: "a", Epoch: 1}, v1alpha1.ReclaimIdle)
		s.after(time.Second)
		s.probe.begin(nil)
		s.after(0)
		if s.Snapshot().Memory.FootprintBytes != 0 {
			t.Error("the figures after an unload are stale")
		}
	})
}

// TestPressureUpEvictDownAndReturn is the loop that others never closed: the
// model that went comes back, and the bytes are recorded.
func TestPressureUpEvictDownAndReturn(t *testing.T) {
	play(t, func(s *stage) {
		s.follow(s.model("pin", enginetest.Script{HoldBytes: 20 * gib, TokenMilliseconds: 1000}), s.model("small", enginetest.Script{HoldBytes: gib}, onDemand(0)),
			s.model("idle", enginetest.Script{HoldBytes: 20 * gib}, onDemand(0)))
		s.after(time.Second)
		s.used("small")
		s.after(time.Minute)
		s.used("idle")
		h := s.acquire("pin")
		s.after(5 * time.Second)
		if m := s.Snapshot().Memory; m.PressureLevel != v1alpha1.PressureNormal || m.EffectiveCeilingBytes != 64*gib || m.AccountedBytes != 41*gib || m.ActiveBytes != 41*gib {
			t.Errorf("%+v", m)
		}
		lower := s.host
		lower.MetalCap = 44 * gib // engines hold more than its soft mark
		s.mac.SetHost(lower)
		s.after(30 * time.Second)
		if got := s.resident(); strings.Contains(got, "idle") {
			t.Errorf("resident under pressure: %s", got)
		}
		if c := s.macCondition(v1alpha1.ConditionMemoryPressure); c == "" || strings.HasPrefix(c, "Unknown") {
			t.Errorf("MemoryPressure is %s", c)
		}
		freed := s.Snapshot().Memory.FreedBytesTotal
		if freed < 20*gib {
			t.Errorf("%d bytes freed", freed)
		}
		s.mac.SetHost(s.host)
		h.Release()
		s.after(2 * time.Minute)
		if m := s.Snapshot().Memory; m.PressureLevel != v1alpha1.PressureNormal {
			t.Errorf("the pressure went and the level did not: %+v", m)
		}
		s.used("idle")
		if got := s.resident(); !strings.Contains(got, "idle") {
			t.Errorf("the model did not return: %s", got)
		}
	})
}

// TestTrimAndAbortReachTheEngine, each once at a time.
func TestTrimAndAbortReachTheEngine(t *testing.T) {
	play(t, func(s *stage) {
		s.follow(s.model("a", enginetest.Script{HoldBytes: gib, PooledBytes: 3 * gib, TokenMilliseconds: 1000}))
		s.after(time.Second)
		h := s.acquire("a")
		ended := make(chan *wire.Finished, 1)
		go func() { end, _ := ask(s.ctx, h, 1000, nil); ended <- end }()
		s.after(5 * time.Second)
		k := memory.Key{UID: "a", Epoch: 1}
		s.pressure.act(memory.Decision{Actions: []memory.Action{{Key: k, Step: memory.StepTrim}, {Key: k, Step: memory.StepTrim}}})
		s.after(2 * time.Second)
		if m := s.Snapshot().Memory; m.PooledBytes != 0 || m.FootprintBytes != gib {
			t.Errorf("after a trim: %+v", m)
		}
		s.registry.read(func() {
			if g := s.registry.entries[k].engine; g.trim.acknowledged.IsZero() || g.trim.running {
				t.Errorf("the acknowledgement was not noted: %+v", g.trim)
			}
		})
		s.pressure.act(memory.Decision{Actions: []memory.Action{{Key: k, Step: memory.StepAbort, Because: "the test wants it"}}})
		if end := <-ended; end.GetError().GetCode() != wire.Code_CODE_ABORTED {
			t.Errorf("ended with %v", end)
		}
		s.wantResident("a")
		h.Release()
	})
}

// A trim that does not ask for it keeps it.
func TestTrimDropsThePromptCacheOnRequest(t *testing.T) {
	play(t, func(s *stage) {
		a := s.model("a", enginetest.Script{HoldBytes: gib, PrefixCacheBytes: 2 * gib})
		a.ReservedBytes = 4 * gib
		s.follow(a)
		s.after(15 * time.Second)
		if m := s.Snapshot().Memory; m.AccountedBytes != 3*gib || m.ActiveBytes != 3*gib || m.FootprintBytes != 3*gib {
			t.Errorf("before: %+v", m)
		}
		for _, c := range []struct {
			cache           bool
			holds, accounts int64
		}{{cache: false, holds: 3 * gib, accounts: 3 * gib}, {cache: true, holds: gib, accounts: gib}} {
			s.pressure.act(memory.Decision{Actions: []memory.Action{{Key: memory.Key{UID: "a", Epoch: 1}, Step: memory.StepTrim, Cache: c.cache}}})
			s.after(15 * time.Second) // an idle Mac is looked at every ten seconds
			if m := s.Snapshot().Memory; m.FootprintBytes != c.holds || m.AccountedBytes != c.accounts {
				t.Errorf("with the cache %t: %d bytes are held and %d accounted for, want %d and %d", c.cache, m.FootprintBytes, m.AccountedBytes, c.holds, c.accounts)
			}
		}
		s.wantResident("a")
	})
}

func TestHeadroomRequestIsAnsweredOnce(t *testing.T) {
	play(t, func(s *stage) {
		s.follow(s.model("idle1", enginetest.Script{HoldBytes: 20 * gib, ShutdownMilliseconds: 3000}, onDemand(0)),
			s.model("idle2", enginetest.Script{HoldBytes: 10 * gib}, onDemand(0)),
			s.model("asks", enginetest.Script{HoldBytes: 10 * gib, HeadroomBytes: 14 * gib}, onDemand(0), reserves(25*gib)))
		s.used("idle1")
		s.after(time.Second)
		s.used("idle2")
		h := s.acquire("asks")
		other := s.host
		other.MetalCap = 50 * gib // less than is promised
		s.mac.SetHost(other)
		s.after(time.Second)
		began := time.Now()
		if end, err := ask(s.ctx, h, 1, nil); err != nil {
			t.Errorf("%v, %v", end, err)
		}
		if took := time.Since(began); took < 3*time.Second || took > 10*time.Second {
			t.Errorf("answered after %v; the engine that ends takes 3 s", took)
		}
		s.wantReclaims("idle1/Headroom")
		if l := s.twin.Engine("asks").Limits(); l.GetHeadroomAnswered() != 1 {
			t.Errorf("%v", l)
		}
	})
	play(t, func(s *stage) {
		s.follow(s.model("asks", enginetest.Script{HoldBytes: 10 * gib, HeadroomBytes: 300 * gib}))
		s.after(time.Second)
		h := s.acquire("asks")
		if _, err := ask(s.ctx, h, 1, nil); err != nil {
			t.Error(err)
		}
		s.wantReclaims()
	})
}

// A model that took its engine over asks for more than its engine may ever hold.
func TestAnEngineTakesNoOtherModelsMemoryBeyondItsOwnLimit(t *testing.T) {
	play(t, func(s *stage) {
		s.follow(s.model("idle", enginetest.Script{HoldBytes: 20 * gib}, onDemand(0), of("other")),
			s.model("taken over", enginetest.Script{HoldBytes: 10 * gib, HeadroomBytes: 300 * gib}))
		s.used("idle")
		h := s.acquire("taken over")
		for range 10 {
			if _, err := ask(s.ctx, h, 1, nil); err != nil {
				t.Error(err)
			}
			s.after(time.Second)
		}
		s.wantReclaims()
		s.wantResident("idle taken over")
	})
}

// Nothing else is evicted while they run.
func TestHeadroomRequestWaitsForRunningUnloads(t *testing.T) {
	play(t, func(s *stage) {
		s.follow(s.model("going1", enginetest.Script{HoldBytes: 10 * gib, ShutdownMilliseconds: 3000}, onDemand(0)),
			s.model("going2", enginetest.Script{HoldBytes: 10 * gib, ShutdownMilliseconds: 5000}, onDemand(0)),
			s.model("asks", enginetest.Script{HoldBytes: 10 * gib, HeadroomBytes: 300 * gib}))
		s.used("going1")
		s.used("going2")
		h := s.acquire("asks")
		for _, name := range []string{"going1", "going2"} {
			s.pressure.act(memory.Decision{Actions: []memory.Action{{Key: memory.Key{UID: name, Epoch: 1}, Step: memory.StepEvict, Reason: v1alpha1.ReclaimHardPressure}}})
		}
		began := time.Now()
		if end, err := ask(s.ctx, h, 1, nil); err != nil {
			t.Errorf("%v, %v", end, err)
		}
		if took := time.Since(began); took < 5*time.Second || took > 8*time.Second {
			t.Errorf("answered after %v; the last engine that ends takes 5 s", took)
		}
		s.wantReclaims("going1/HardPressure", "going2/HardPressure")
	})
}

func TestLoadCancelledForMemoryLeavesNothing(t *testing.T) {
	play(t, func(s *stage) {
		s.follow(s.model("a", enginetest.Script{HoldBytes: 10 * gib, LoadMilliseconds: 60_000}, onDemand(0)))
		got := make(chan error, 1)
		go func() { _, err := s.Acquire(s.ctx, "a", 1); got <- err }()
		s.after(30 * time.Second)
		s.pressure.act(memory.Decision{Actions: []memory.Action{{Key: memory.Key{UID: "a", Epoch: 1}, Step: memory.StepCancelLoad, Reason: v1alpha1.ReclaimLoadCancelled}}})
		err := <-got
		var load *LoadError
		if !errors.As(err, &load) || load.Reason != string(v1alpha1.ReclaimLoadCancelled) || load.RetryAfter <= 0 {
			t.Errorf("%v", err)
		}
		s.after(time.Second)
		s.wantReclaims("a/LoadCancelled")
		s.wantLedger()
		if m := s.Snapshot().Memory; m.AccountedBytes != 0 || m.FootprintBytes != 0 || m.ReservedBytes != 0 {
			t.Errorf("%+v", m)
		}
		stage := func(want v1alpha1.Stage) {
			t.Helper()
			if got := s.Snapshot().Assignments[0].Progress.Stage; got != want {
				t.Errorf("stage %s, want %s", got, want)
			}
		}
		stage(v1alpha1.StageQueued)
		s.after(pressurePause)
		stage(v1alpha1.StageServing) // the first request loads it again
		h := s.acquire("a")          // it is no failure of the model
		h.Release()
	})
}

// The reservation is kept until the exit was observed, checked and recorded.
func TestEveryUnloadTakesOnePath(t *testing.T) {
	act := func(step memory.Step, why v1alpha1.ReclaimReason) func(*stage, v1alpha1.Assignment) {
		return func(s *stage, _ v1alpha1.Assignment) {
			s.pressure.act(memory.Decision{Actions: []memory.Action{{Key: memory.Key{UID: "a", Epoch: 1}, Step: step, Reason: why}}})
		}
	}
	for why, trigger := range map[v1alpha1.ReclaimReason]func(*stage, v1alpha1.Assignment){
		v1alpha1.ReclaimDrained:      func(s *stage, a v1alpha1.Assignment) { a.Desired = v1alpha1.DesiredDrained; s.follow(a) },
		v1alpha1.ReclaimUnassigned:   func(s *stage, _ v1alpha1.Assignment) { s.follow() },
		v1alpha1.ReclaimReplaced:     func(s *stage, a v1alpha1.Assignment) { a.Context.MaxConcurrentRequests = 9; s.follow(a) },
		v1alpha1.ReclaimIdle:         func(s *stage, _ v1alpha1.Assignment) { s.after(2 * time.Minute) },
		v1alpha1.ReclaimMadeRoom:     act(memory.StepEvict, v1alpha1.ReclaimMadeRoom),
		v1alpha1.ReclaimHeadroom:     act(memory.StepEvict, v1alpha1.ReclaimHeadroom),
		v1alpha1.ReclaimSoftPressure: act(memory.StepEvict, v1alpha1.ReclaimSoftPressure),
		v1alpha1.ReclaimHardPressure: act(memory.StepEvict, v1alpha1.ReclaimHardPressure),
		v1alpha1.ReclaimOverLimit:    act(memory.StepUnload, v1alpha1.ReclaimOverLimit),
		v1alpha1.ReclaimEmergency:    act(memory.StepUnload, v1alpha1.ReclaimEmergency),
	} {
		t.Run(string(why), func(t *testing.T) {
			play(t, func(s *stage) {
				a := s.model("a", enginetest.Script{HoldBytes: 5 * gib}, onDemand(time.Minute))
				s.follow(a)
				s.used("a")
				s.after(10 * time.Second)
				var order []string
				s.at(func(point string) {
					if point == failpoint.UnloadAsked {
						return // it may happen at the same time as the end
					}
					order = append(order, point)
					if held := s.registry.ledger.Account().Reserved; held != 6*gib && point != failpoint.Released {
						t.Errorf("%d bytes are reserved at %s", held, point)
					}
				})
				trigger(s, a)
				s.after(5 * time.Second)
				s.at(nil)
				want := []string{failpoint.UnloadBegun, failpoint.UnloadRecorded, failpoint.UnloadDrained, failpoint.UnloadMeasured, failpoint.ExitSeen, failpoint.ExitSettled, failpoint.ExitRecorded}
				if len(order) < len(want) || !slices.Equal(order[:len(want)], want) {
					t.Errorf("%v", order)
				}
				s.wantReclaims("a/" + string(why))
				if r := s.lastReclaim(); r.FreedBytes == nil || *r.FreedBytes != 5*gib || r.Exit != v1alpha1.ExitClean {
					t.Errorf("%+v", r)
				}
				s.wantLedger()
				s.wantResident("")
			})
		})
	}
}

// The gauge falls at the fourth poll.
func TestHostIsPolledUntilItsMemoryReturns(t *testing.T) {
	for name, tc := range map[string]struct {
		drops int
		want  v1alpha1.HostCheck
		looks int
	}{
		"it drops at the fourth look": {drops: 4, want: v1alpha1.HostCheckVerified, looks: 4},
		"it drops at once":            {drops: 1, want: v1alpha1.HostCheckVerified, looks: 1},
		"it never drops":              {drops: 1000, want: v1alpha1.HostCheckIndeterminate, looks: settleRounds},
	} {
		t.Run(name, func(t *testing.T) {
			play(t, func(s *stage) {
				s.follow(s.model("a", enginetest.Script{HoldBytes: 20 * gib}, onDemand(0)))
				s.used("a")
				s.after(time.Second)
				s.at(func(point string) {
					switch point {
					case failpoint.ExitSeen:
						s.probe.begin(func(look int, h probe.Host) probe.Host {
							if look < tc.drops {
								h.Used += 20 * gib
							}
							return h
						})
					case failpoint.ExitSettled:
						if n := s.probe.count(); n < tc.looks || n > tc.looks+2 { // a poll may look meanwhile
							t.Errorf("%d looks, want %d", n, tc.looks)
						}
						s.probe.begin(nil)
					}
				})
				s.pressure.evict(memory.Key{UID: "a", Epoch: 1}, v1alpha1.ReclaimIdle)
				s.after(10 * time.Second)
				if r := s.lastReclaim(); r.HostCheck != tc.want || *r.FreedBytes != 20*gib {
					t.Errorf("%+v", r)
				}
			})
		})
	}
}

// The freed bytes are the engine's own figure, never negative.
func TestOnePollIsEnoughWhilePeersServe(t *testing.T) {
	play(t, func(s *stage) {
		s.follow(s.model("other", enginetest.Script{HoldBytes: gib, LoadMilliseconds: 1000}, reserves(31*gib)), s.model("a", enginetest.Script{HoldBytes: 20 * gib}, onDemand(0)))
		s.after(2 * time.Second)
		for i := int64(1); i <= 3; i++ {
			s.used("a")
			s.after(time.Second)
			var began, ended time.Time
			s.at(func(point string) {
				switch point {
				case failpoint.ExitSeen:
					began = time.Now()
					s.twin.Engine("other").SetExtra(i * 30 * gib / 3) // it allocates while the other ends
				case failpoint.ExitSettled:
					ended = time.Now()
				}
			})
			s.pressure.evict(memory.Key{UID: "a", Epoch: 1}, v1alpha1.ReclaimMadeRoom)
			s.after(time.Second)
			s.at(nil)
			if took := ended.Sub(began); took != 0 {
				t.Errorf("settled after %v", took)
			}
			s.twin.Engine("other").SetExtra(0)
			if r := s.lastReclaim(); r.HostCheck != v1alpha1.HostCheckIndeterminate || *r.FreedBytes != 20*gib {
				t.Errorf("%+v", r)
			}
			if n := s.Snapshot().Memory.IndeterminateReclaims; n != i {
				t.Errorf("%d indeterminate, want %d", n, i)
			}
		}
		s.halt()
		s.boot()
		if m := s.Snapshot().Memory; m.IndeterminateReclaims != 3 || m.FreedBytesTotal != 60*gib {
			t.Errorf("after a restart: %+v", m)
		}
	})
}

// TestAnEngineThatCannotBeMeasuredDoesNotHoldUpTheCheck of wired memory for ever, by which the
// others wait for a start.
func TestAnEngineThatCannotBeMeasuredDoesNotHoldUpTheCheck(t *testing.T) {
	for name, left := range map[string]int64{"all comes back": 0, "much stays wired": 20 * gib} {
		t.Run(name, func(t *testing.T) {
			play(t, func(s *stage) {
				wired := func(bytes int64) {
					h := s.host
					h.Wired, h.WiredKnown = bytes, true
					s.mac.SetHost(h)
				}
				wired(2 * gib)
				s.after(time.Minute)
				a, hidden := s.model("a", enginetest.Script{HoldBytes: 20 * gib}), s.model("hidden", enginetest.Script{HoldBytes: 10 * gib})
				s.follow(a, hidden)
				s.after(time.Second)
				wired(32 * gib)
				s.after(20 * time.Second)
				s.mac.Hide(s.twin.Engine("hidden").PID())
				if err := s.twin.Engine("a").Signal(syscall.SIGKILL); err != nil {
					t.Fatal(err)
				}
				wired(12*gib + left)
				s.after(20 * time.Second)
				s.want("a", "Loaded False/HostUnsettled")
				s.after(time.Minute)
				if left > 0 {
					s.wantResident("hidden")
					return
				}
				s.want("a", "Serving True/Serving")
			})
		})
	}
}

// TestAfterAnUncleanEndNothingStartsUntilTheHostIsInOrder.
func TestAfterAnUncleanEndNothingStartsUntilTheHostIsInOrder(t *testing.T) {
	play(t, func(s *stage) {
		wired := func(bytes int64) {
			h := s.host
			h.Wired, h.WiredKnown = bytes, true
			s.mac.SetHost(h)
		}
		wired(2 * gib)
		s.after(time.Minute) // the baseline of an empty pool
		a := s.model("a", enginetest.Script{HoldBytes: 20 * gib})
		s.follow(a)
		s.after(time.Second)
		s.want("a", "Serving True/Serving")
		wired(22 * gib)
		s.after(20 * time.Second)
		if got := s.macCondition(v1alpha1.ConditionWiredStranded); got != "False/NothingStranded" {
			t.Errorf("WiredStranded is %s: an engine's own wired pages are its own", got)
		}
		if err := s.twin.Engine("a").Signal(syscall.SIGKILL); err != nil { // and its pages stay
			t.Fatal(err)
		}
		s.after(9 * time.Second)
		s.want("a", "Loaded False/HostUnsettled")
		s.after(20 * time.Second)
		if got := s.macCondition(v1alpha1.ConditionWiredStranded); got != "True/WiredUnowned" {
			t.Errorf("WiredStranded is %s", got)
		}
		s.after(time.Hour)
		s.wantResident("") // a restart that restarted itself did so 233 times
		if m := s.Snapshot().Memory; m.StrandedBytes != 20*gib {
			t.Errorf("%+v", m)
		}
		s.halt()
		s.boot() // a new agent starts nothing either
		s.follow(a)
		s.after(5 * time.Second)
		s.wantResident("")
		wired(2 * gib)
		s.after(time.Minute)
		s.want("a", "Serving True/Serving")
	})
}

// TestAnEngineThatHangsCountsAsBusyAndIsThenDealtWith: SIGSTOP.
func TestAnEngineThatHangsCountsAsBusyAndIsThenDealtWith(t *testing.T) {
	play(t, func(s *stage) {
		s.follow(s.model("a", enginetest.Script{HoldBytes: 30 * gib}, onDemand(0)), s.model("b", enginetest.Script{HoldBytes: 30 * gib}, onDemand(0)))
		s.used("a")
		s.after(time.Second)
		if err := s.twin.Engine("a").Signal(syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		s.after(15 * time.Second)
		if _, err := s.Acquire(s.ctx, "b", 1); !errors.Is(err, errNoRoom) {
			t.Errorf("an engine that says nothing was taken for idle: %v", err)
		}
		s.wantReclaims()
		s.after(4 * time.Minute) // silence, Shutdown, SIGTERM, SIGKILL
		s.wantReclaims("a/Crashed")
		if r := s.lastReclaim(); r.Exit != v1alpha1.ExitKilled || *r.FreedBytes != 30*gib {
			t.Errorf("%+v", r)
		}
		s.used("b")
		s.wantResident("b")
	})
}

// TestALoadThatStopsIsGivenUp: SIGSTOP while it loads.
func TestALoadThatStopsIsGivenUp(t *testing.T) {
	play(t, func(s *stage) {
		s.follow(s.model("a", enginetest.Script{HoldBytes: 10 * gib, LoadMilliseconds: 600_000}))
		s.after(90 * time.Second)
		_ = s.twin.Engine("a").Signal(syscall.SIGSTOP)
		s.after(85 * time.Second)
		s.want("a", "Loaded False/Loading")
		s.after(15 * time.Second)
		s.want("a", "Loaded False/"+reasonLoadStalled)
		s.after(2 * time.Minute)
		s.wantReclaims("a/LoadFailed")
		if r := s.lastReclaim(); r.Exit != v1alpha1.ExitKilled || *r.FreedBytes != gib {
			t.Errorf("%+v", r)
		}
	})
}

// TestALeakIsEndedAlone: the engine over its own limit is unloaded, the others
// serve on.
func TestALeakIsEndedAlone(t *testing.T) {
	play(t, func(s *stage) {
		s.follow(s.model("leaks", enginetest.Script{HoldBytes: 5 * gib, LeakBytes: 100 * mib, LeakMilliseconds: 1000}), s.model("good", enginetest.Script{HoldBytes: 5 * gib, TokenMilliseconds: 1000}))
		s.after(time.Second)
		h := s.acquire("good")
		if end, err := ask(s.ctx, h, 120, nil); err != nil || end.GetReason() != wire.FinishReason_FINISH_REASON_LENGTH {
			t.Errorf("the other engine's stream: %v, %v", end, err)
		}
		h.Release()
		s.mu.Lock()
		defer s.mu.Unlock()
		if len(s.reclaims) == 0 {
			t.Fatal("the leak was not ended")
		}
		for _, r := range s.reclaims {
			if r.ReplicaUID != "leaks" || r.Reason != v1alpha1.ReclaimOverLimit {
				t.Errorf("%+v", r)
			}
		}
	})
}

// TestAnAgentThatMissedAnEndLooksFirst: how the engine ended is not known, so
// that the host is looked at twice before the next start.
func TestAnAgentThatMissedAnEndLooksFirst(t *testing.T) {
	play(t, func(s *stage) {
		s.host.Wired, s.host.WiredKnown = 2*gib, true
		s.mac.SetHost(s.host)
		s.after(time.Minute)
		a := s.model("a", enginetest.Script{HoldBytes: gib})
		s.follow(a)
		s.after(time.Second)
		s.halt()
		s.twin.Engine("a").Exit(3)
		s.boot()
		s.follow(a)
		s.after(5 * time.Second)
		s.want("a", "Loaded False/HostUnsettled")
		s.after(30 * time.Second)
		s.want("a", "Serving True/Serving")
	})
}

// TestAnEngineThatEndsWhileItIsAdoptedKeepsItsFigure: the agent before measured
// it for a stop, and was killed.
func TestAnEngineThatEndsWhileItIsAdoptedKeepsItsFigure(t *testing.T) {
	play(t, func(s *stage) {
		a := s.model("a", enginetest.Script{HoldBytes: 7 * gib, ShutdownMilliseconds: 2000, IgnoreLimits: true})
		s.follow(a)
		s.after(time.Second)
		a.Desired = v1alpha1.DesiredDrained
		s.follow(a)
		s.after(time.Second) // asked to end, and not gone
		s.halt()
		e := s.twin.Engine("a")
		_ = e.Signal(syscall.SIGSTOP) // it says nothing to the next agent
		time.AfterFunc(2*time.Second, func() { e.Exit(0) })
		s.boot()
		s.follow(a)
		s.after(5 * time.Second)
		if r := s.lastReclaim(); r.FreedBytes == nil || *r.FreedBytes != 7*gib || r.Reason != v1alpha1.ReclaimDrained {
			t.Errorf("%+v", r)
		}
	})
}

// No other file asks an engine to shut down, or signals it.
func TestOnlyUnloadStopsEngines(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, name := range files {
		if name == "unload.go" || strings.HasSuffix(name, "_test.go") {
			continue
		}
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, call := range []string{".Shutdown(", ".Signal("} {
			if strings.Contains(string(b), call) {
				t.Errorf("%s calls %s: engines are ended by lifecycle.unload alone", name, call)
			}
		}
	}
}
