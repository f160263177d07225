//go:build !race

package pool

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"metalfleet.dev/metalfleet/agent/pool/enginetest"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// A tenant's models die while they load, and it replaces those that have failed. The
// next start of another tenant's model waits for a check of the Mac's memory now
// and then, and not each time.
func TestFailingModelsOfOneTenantDoNotHoldUpStartsOfOthers(t *testing.T) {
	play(t, func(s *stage) {
		s.host.Wired, s.host.WiredKnown = 2*gib, true
		s.mac.SetHost(s.host)
		good := s.model("good", enginetest.Script{HoldBytes: gib}, onDemand(time.Second))
		evil := make([]v1alpha1.Assignment, 8)
		for i := range evil {
			evil[i] = s.model(fmt.Sprintf("evil-%d", i), enginetest.Script{HoldBytes: gib, LoadMilliseconds: int64(1000 + 900*i), DieLoading: 3}, of("evil"))
		}
		s.follow(append(evil, good)...)
		waited := time.Duration(0)
		for round := range 120 {
			s.after(7*time.Second + time.Duration(round%13)*700*time.Millisecond)
			for i := range evil {
				if status(s.report(evil[i].ReplicaUID), "Admitted")[:5] == "False" { // failed for good
					uid := fmt.Sprintf("evil-%d-%d", i, round)
					evil[i] = s.model(uid, enginetest.Script{HoldBytes: gib, LoadMilliseconds: int64(1000 + 900*i), DieLoading: 3}, of("evil"))
				}
			}
			s.follow(append(evil[:len(evil):len(evil)], good)...)
			began := time.Now()
			s.acquire("good").Release()
			synctest.Wait()
			waited += time.Since(began)
		}
		if waited > 2*time.Minute {
			t.Errorf("120 requests waited for %v together", waited)
		}
	})
}

// A tenant deletes models whose engines have to be killed, one after another, and creates others.
func TestEnginesOfOneTenantThatMustBeKilledDoNotHoldUpStartsOfOthers(t *testing.T) {
	play(t, func(s *stage) {
		s.host.Wired, s.host.WiredKnown = 2*gib, true
		s.mac.SetHost(s.host)
		good := s.model("good", enginetest.Script{HoldBytes: gib}, onDemand(time.Second))
		evil, made := make([]v1alpha1.Assignment, 8), 0
		replace := func(i int) {
			made++
			evil[i] = s.model(fmt.Sprintf("evil-%d", made), enginetest.Script{HoldBytes: gib, IgnoreShutdown: true, IgnoreTerm: true}, of("evil"))
			evil[i].DrainSeconds = 0
		}
		for i := range evil {
			replace(i)
		}
		waited := time.Duration(0)
		for round := range 120 {
			s.follow(append(evil[:len(evil):len(evil)], good)...)
			s.after(9 * time.Second)
			began := time.Now()
			s.acquire("good").Release()
			synctest.Wait()
			waited += time.Since(began)
			replace(round % len(evil))
		}
		if waited > 4*time.Minute {
			t.Errorf("120 requests waited for %v together", waited)
		}
	})
}

// A tenant's models were started together and die one after another, each before the check of the
// Mac's memory for the one before has passed twice.
func TestEnginesOfOneTenantThatDieOneAfterAnotherHoldUpNoStartForLong(t *testing.T) {
	play(t, func(s *stage) {
		s.host.Wired, s.host.WiredKnown = 2*gib, true
		s.mac.SetHost(s.host)
		good := s.model("good", enginetest.Script{HoldBytes: gib}, onDemand(time.Second))
		all := []v1alpha1.Assignment{good}
		for i := range 12 {
			dies := enginetest.Script{HoldBytes: gib, LoadMilliseconds: 10 * int64(20_000+9_000*i), DieLoading: 3}
			all = append(all, s.model(fmt.Sprintf("evil-%d", i), dies, of("evil")))
		}
		s.follow(all...)
		s.after(22 * time.Second)
		began := time.Now()
		s.acquire("good").Release()
		synctest.Wait()
		if waited := time.Since(began); waited > 40*time.Second {
			t.Errorf("a request waited for %v", waited)
		}
	})
}

// An on-demand model dies whenever it is loaded, and its client asks again and again. While it may not be
// started it holds no memory, which the model of another namespace needs.
func TestAModelThatWaitsForItsNextStartHoldsNoMemory(t *testing.T) {
	play(t, func(s *stage) {
		s.host.Wired, s.host.WiredKnown = 2*gib, true
		s.mac.SetHost(s.host)
		s.follow(s.model("good", enginetest.Script{HoldBytes: 30 * gib}, onDemand(time.Second)),
			s.model("evil", enginetest.Script{HoldBytes: 30 * gib, LoadMilliseconds: 20_000, DieLoading: 3}, of("evil"), onDemand(time.Second)))
		var asks sync.WaitGroup
		ctx, stop := context.WithCancel(s.ctx)
		asks.Go(func() {
			for ctx.Err() == nil {
				if _, err := s.Acquire(ctx, "evil", 1); err == nil {
					t.Error("a model that dies was loaded")
				}
				time.Sleep(time.Second)
			}
		})
		s.after(time.Minute)
		served, all := 0, 40
		for range all {
			if h, err := s.Acquire(s.ctx, "good", 1); err == nil {
				h.Release()
				served++
			}
			s.after(15 * time.Second)
		}
		stop()
		asks.Wait()
		if served < all*3/4 {
			t.Errorf("%d of %d requests were served", served, all)
		}
	})
}

// A tenant that is alone on a Mac holds up nothing.
func TestFailingModelIsRestartedSoonWithoutOthers(t *testing.T) {
	play(t, func(s *stage) {
		s.follow(s.model("bad", enginetest.Script{HoldBytes: gib, LoadMilliseconds: 100, DieLoading: 3}))
		s.after(3 * time.Minute)
		s.want("bad", "Loaded False/LoadFailed")
		if r := s.report("bad").Restarts; r != maxCrashes+1 {
			t.Errorf("%d restarts", r)
		}
	})
}
