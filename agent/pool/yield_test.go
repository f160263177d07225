//go:build !race

package pool

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"metalfleet.dev/metalfleet/agent/pool/enginetest"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// keepBusy has one request after another for a model, the next before the last one
// ends, for as long as requests are let in.
func (s *stage) keepBusy(uid string) {
	go func() {
		var last *Hold
		for s.ctx.Err() == nil {
			h, err := s.Acquire(s.ctx, uid, 1)
			if last != nil {
				last.Release()
			}
			last = nil
			wait := time.Second // as RetryAfter asks for
			if err == nil {
				last, wait = h, 30*time.Second
			}
			select {
			case <-time.After(wait):
			case <-s.ctx.Done():
			}
		}
	}()
}

// What an OnDemand model holds is no other tenant's loss for good: placement puts
// Always replicas where only OnDemand models are.
func TestAnAlwaysReplicaGetsTheRoomOfABusyModel(t *testing.T) {
	for name, namespace := range map[string]string{"another namespace": "other", "its own": "team"} {
		t.Run(name, func(t *testing.T) {
			play(t, func(s *stage) {
				busy := s.model("busy", enginetest.Script{HoldBytes: 50 * gib}, onDemand(0), of(namespace), drain(3600))
				always := s.model("always", enginetest.Script{HoldBytes: 20 * gib}, of("team"))
				s.follow(busy)
				h := s.acquire("busy") // until its client leaves, which it does not
				defer h.Release()
				s.follow(busy, always)
				s.after(almostAMinute)
				s.want("always", "Loaded False/WaitingForRoom")
				s.want("busy", "Serving True/Serving")
				s.after(2 * time.Second)
				s.want("busy", "Serving False/Draining")
				if _, err := s.Acquire(s.ctx, "busy", 1); !errors.Is(err, ErrNotReady) {
					t.Errorf("a new request while those that run finish: %v", err)
				}
				s.after(50 * time.Second)
				s.wantResident("busy") // its request may finish
				s.after(15 * time.Second)
				s.want("always", "Serving True/Serving")
				s.wantReclaims("busy/MadeRoom")
				s.after(time.Hour)
				s.wantResident("always")
			})
		})
	}
}

const almostAMinute = 59 * time.Second

func TestRequestsThatEndEarlierEndTheDrain(t *testing.T) {
	play(t, func(s *stage) {
		busy := s.model("busy", enginetest.Script{HoldBytes: 50 * gib}, onDemand(0))
		s.follow(busy)
		h := s.acquire("busy")
		s.follow(busy, s.model("always", enginetest.Script{HoldBytes: 20 * gib}))
		s.after(almostAMinute + 3*time.Second)
		h.Release()
		s.after(time.Second)
		s.want("always", "Serving True/Serving")
	})
}

// Two models that are always in use and do not fit together: each is served, and
// neither loads more often than is useful.
func TestBusyModelsOfTwoNamespacesTakeTurns(t *testing.T) {
	play(t, func(s *stage) {
		script := enginetest.Script{HoldBytes: 40 * gib, LoadMilliseconds: 20_000}
		s.follow(s.model("a", script, onDemand(0), of("a")), s.model("b", script, onDemand(0), of("b")))
		s.keepBusy("a")
		s.after(time.Minute)
		s.keepBusy("b")
		served := map[string]int{}
		for range 120 {
			s.after(time.Minute)
			served[s.resident()]++
		}
		if served["a"] < 40 || served["b"] < 40 {
			t.Errorf("minutes in which each was resident: %v of 120", served)
		}
		if n := len(s.reclaims); n < 12 || n > 120/5 {
			t.Errorf("%d unloads in 2 hours", n)
		}
	})
}

// pausing has a model serve requests one at a time, with a pause after each. It returns how
// many were served; one that is refused is sent again as RetryAfter asks for.
func (s *stage) pausing(uid string, serve, pause, total time.Duration) (served int) {
	for began := time.Now(); time.Since(began) < total; {
		h, err := s.Acquire(s.ctx, uid, 1)
		if err != nil {
			s.after(time.Second)
			continue
		}
		served++
		s.after(serve)
		h.Release()
		s.after(pause)
	}
	return served
}

// TestAttackAModelThatTakesEachPauseOfAnother: a tenant's requests last, and are sent again
// at once when they are refused, until another namespace's model is idle for an instant.
func TestAttackAModelThatTakesEachPauseOfAnother(t *testing.T) {
	for _, tc := range []struct{ serve, pause time.Duration }{
		{5 * time.Second, 15 * time.Second}, {5 * time.Second, time.Second}, {5 * time.Second, 100 * time.Millisecond}, {20 * time.Second, 5 * time.Second}, {5 * time.Second, 50 * time.Second},
	} {
		play(t, func(s *stage) {
			script := enginetest.Script{HoldBytes: 40 * gib, LoadMilliseconds: 20_000}
			s.follow(s.model("attacks", script, onDemand(0), of("a"), drain(60)), s.model("pauses", script, onDemand(0), of("b"), drain(60)))
			s.pausing("pauses", tc.serve, tc.pause, 5*time.Minute)
			for range 3 {
				go func() {
					for s.ctx.Err() == nil {
						wait := 200 * time.Millisecond
						h, err := s.Acquire(s.ctx, "attacks", 1)
						if err == nil {
							wait = 100 * time.Second
						}
						select {
						case <-time.After(wait):
						case <-s.ctx.Done():
						}
						if err == nil {
							h.Release()
						}
					}
				}()
			}
			served := s.pausing("pauses", tc.serve, tc.pause, 2*time.Hour)
			if alone := int(2 * time.Hour / (tc.serve + tc.pause)); served < alone*2/5 {
				t.Errorf("requests of %v, %v apart: %d were served, %d without the attack", tc.serve, tc.pause, served, alone)
			}
		})
	}
}

// A model that is idle for long enough is no hindrance, nor is one of the same namespace.
func TestAnIdleModelGivesWayAtOnce(t *testing.T) {
	for name, tc := range map[string]struct {
		namespace string
		idle      time.Duration
		residency func(*v1alpha1.Assignment)
	}{
		"of the same namespace":          {"team", 0, onDemand(0)},
		"used a minute ago":              {"other", time.Minute, onDemand(0)},
		"for an always-resident replica": {"other", 0, func(*v1alpha1.Assignment) {}},
	} {
		t.Run(name, func(t *testing.T) {
			play(t, func(s *stage) {
				idle, next := s.model("idle", enginetest.Script{HoldBytes: 40 * gib}, onDemand(0), of(tc.namespace)), s.model("next", enginetest.Script{HoldBytes: 40 * gib}, of("team"), tc.residency)
				s.follow(idle)
				s.used("idle")
				s.after(tc.idle)
				s.follow(idle, next)
				if next.Residency.OnDemand() {
					s.used("next")
				}
				s.after(time.Second)
				s.wantResident("next")
				s.wantReclaims("idle/MadeRoom")
			})
		})
	}
}

// A namespace's own models do not take turns, nor do those of a lower priority.
func TestABusyModelStaysForItsNamespaceAndLowerPriorities(t *testing.T) {
	play(t, func(s *stage) {
		script := enginetest.Script{HoldBytes: 40 * gib}
		s.follow(s.model("busy", script, onDemand(0), of("a"), priority(1)), s.model("sibling", script, onDemand(0), of("a"), priority(1)),
			s.model("lower", script, onDemand(0), of("b")))
		s.keepBusy("busy")
		s.after(time.Second)
		s.keepBusy("sibling")
		s.keepBusy("lower")
		s.after(time.Hour)
		s.wantReclaims()
		s.wantResident("busy")
	})
}

// Memory that is freed for a model in parts is not taken by those that it was
// freed of.
func TestMemoryFreedInPartsIsKeptForTheModelThatWaits(t *testing.T) {
	play(t, func(s *stage) {
		slow := enginetest.Script{HoldBytes: 15 * gib, ShutdownMilliseconds: 20_000}
		s.follow(s.model("a", enginetest.Script{HoldBytes: 15 * gib}, onDemand(0), of("a"), drain(1)),
			s.model("b", slow, onDemand(0), of("a"), drain(40)), s.model("c", slow, onDemand(0), of("b"), drain(60)),
			s.model("big", enginetest.Script{HoldBytes: 50 * gib}, onDemand(0), of("big")))
		for _, uid := range []string{"a", "b", "c"} {
			s.keepBusy(uid)
		}
		s.after(10 * time.Minute)
		s.wantResident("a b c")
		s.keepBusy("big")
		s.after(almostAMinute + 20*time.Second)
		s.wantResident("b c") // a ended, and is not loaded again
		s.after(2 * time.Minute)
		s.wantResident("big")
		s.mu.Lock()
		n := len(s.reclaims)
		s.mu.Unlock()
		if n != 3 {
			t.Errorf("%d unloads, want one of each", n)
		}
	})
}

// As few engines as needed are ended, of the namespace that holds most.
func TestTheNamespaceWithMostOfTheMacYieldsFirst(t *testing.T) {
	play(t, func(s *stage) {
		script := enginetest.Script{HoldBytes: 15 * gib}
		first := []v1alpha1.Assignment{s.model("one", script, onDemand(0), of("small")), s.model("two", script, onDemand(0), of("large")), s.model("three", script, onDemand(0), of("large"))}
		s.follow(first...)
		for _, a := range first {
			s.keepBusy(a.ReplicaUID)
			s.after(time.Second)
		}
		s.follow(append(slices.Clone(first), s.model("always", script))...)
		s.after(3 * time.Minute)
		s.wantReclaims("two/MadeRoom")
		if got := s.resident(); !strings.Contains(got, "always") {
			t.Errorf("resident: %s", got)
		}
		synctest.Wait()
	})
}
