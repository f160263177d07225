package dispatch

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"

	"metalfleet.dev/metalfleet/gateway/fairqueue"
	"metalfleet.dev/metalfleet/gateway/route"
)

// bursts has three tenants in turn send more requests than Macs have slots. Their clients try three times.
// The first Mac ends each request at once, as given; the others answer four at a time, each after 5 s. It returns the
// share of the requests that were not answered.
func bursts(t *testing.T, macs int, how Outcome) float64 {
	var names []string
	engines := map[string]chan struct{}{}
	for i := range macs {
		names = append(names, fmt.Sprint("mac-", i))
		engines[names[i]] = make(chan struct{}, 4)
	}
	model, _ := busyModelOf(4, names...)
	d := New(Config{Queue: fairqueue.Limits{Count: 1000, Bytes: 1000, Age: 5 * time.Minute}, KeepAlive: 15 * time.Second, Registry: prometheus.NewRegistry()})
	ask := func(owner string) Outcome {
		lease, err := d.Acquire(t.Context(), &Request{Candidates: []*route.Model{model}, Log: logr.Discard, Client: patient{}, Owner: owner})
		if err != nil {
			return OutcomeRefused
		}
		ended := how
		if lease.Mac != "mac-0" {
			ended = OutcomeAnswered
			engines[lease.Mac] <- struct{}{}
			time.Sleep(5 * time.Second)
			<-engines[lease.Mac]
		}
		lease.Observe(ended)
		return ended
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	const most, rounds = 40, 9
	failed := 0
	for n := range rounds {
		for range most {
			wg.Go(func() {
				for try := range 3 {
					if ask(fmt.Sprint("t", n%3)) == OutcomeAnswered {
						return
					}
					time.Sleep(time.Second << try)
				}
				mu.Lock()
				defer mu.Unlock()
				failed++
			})
			time.Sleep(20 * time.Millisecond)
		}
		time.Sleep(70 * time.Second)
	}
	wg.Wait()
	return float64(failed) / (rounds * most)
}

// TestAttackAMacThatFailsAtOnce: it always has a free slot, and does not get all for which others have none. Of
// requests that it rejects it gets each tenant's first burst: they may be wrong.
func TestAttackAMacThatFailsAtOnce(t *testing.T) {
	for _, macs := range []int{2, 3} {
		for how, most := range map[Outcome]float64{OutcomeFailed: 0.02, OutcomeRejected: 0.35} {
			synctest.Test(t, func(t *testing.T) {
				if share := bursts(t, macs, how); share > most {
					t.Errorf("outcome %d of one of %d Macs: %.0f%% of the requests are not answered", how, macs, 100*share)
				}
			})
		}
	}
}

// endAt ends a request that a tenant sends to any Mac but one, if it gets a slot.
func endAt(t *testing.T, d *Dispatcher, model *route.Model, tenant, but string, how Outcome) {
	t.Helper()
	lease, w := arrive(t, d, model, Request{Owner: tenant, macs: map[string]bool{but: true}})
	if lease == nil {
		d.queue.leave(w)
		return
	}
	d.queue.ended(lease, &Request{Owner: tenant}, how)
}

// TestAReplicaThatFailsGetsOneRequestAtATime until it answers one, however many wait for others.
func TestAReplicaThatFailsGetsOneRequestAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		model, d := busyModel("a", "b")
		for n := range 5 {
			endAt(t, d, model, []string{"t", "u"}[n%2], "b", OutcomeFailed)
		}
		var honest []*Lease
		var waiting []*waiter
		for range 12 {
			lease, w := arrive(t, d, model, Request{Owner: "t"})
			switch {
			case lease == nil:
				waiting = append(waiting, w)
			case lease.Mac == "a":
				t.Fatal("a request was sent to a replica that fails")
			default:
				honest = append(honest, lease)
			}
		}
		if len(honest) != slotsPerSequence*2 {
			t.Fatalf("the other has %d requests", len(honest))
		}
		granted := func() (n int) {
			t.Helper()
			d.queue.notify(model)
			for _, w := range waiting {
				n += len(w.granted)
			}
			return n
		}
		time.Sleep(15 * time.Second)
		if n := granted(); n != 1 {
			t.Fatalf("after the ejection %d requests were sent there, want one", n)
		}
		d.queue.ended(<-waiting[0].granted, waiting[0].request, OutcomeRejected) // which may be the client's fault
		waiting = waiting[1:]
		if n := granted(); n != 0 {
			t.Errorf("after a rejection %d requests were sent there at once", n)
		}
		time.Sleep(lingerMax + 1)
		if n := granted(); n != 1 {
			t.Fatalf("after a rejection %d requests were sent there, want one", n)
		}
		d.queue.ended(<-waiting[0].granted, waiting[0].request, OutcomeFailed)
		waiting = waiting[1:]
		if n := granted(); n != 0 {
			t.Errorf("after one more failure %d requests were sent there", n)
		}
		time.Sleep(21 * time.Second)
		if n := granted(); n != 1 {
			t.Fatalf("after the second ejection %d requests were sent there, want one", n)
		}
		d.queue.ended(<-waiting[0].granted, waiting[0].request, OutcomeAnswered)
		waiting = waiting[1:]
		if n := granted(); n != slotsPerSequence*2 {
			t.Errorf("after an answer %d requests were sent there, want %d", n, slotsPerSequence*2)
		}
	})
}

// TestFailuresOfATenantTakeNoReplicaFromOthers: it may have caused them. Others wait for no slot.
func TestFailuresOfATenantTakeNoReplicaFromOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		model, d := busyModel("a", "b")
		for range 8 {
			endAt(t, d, model, "evil", "b", OutcomeFailed)
		}
		for n := range 2 * slotsPerSequence * 2 {
			if lease, _ := arrive(t, d, model, Request{Owner: "other"}); lease == nil {
				t.Fatalf("request %d waits", n)
			}
		}
		for len(d.queue.waiters) == 0 {
			if lease, _ := arrive(t, d, model, Request{Owner: "evil"}); lease != nil && lease.Mac == "a" {
				t.Fatal("the tenant uses a replica that fails its requests")
			}
		}
	})
}

// TestAttackWrongRequestsOfATenant: those that it sends to one replica take no slot there from others.
func TestAttackWrongRequestsOfATenant(t *testing.T) {
	for _, how := range []Outcome{OutcomeRejected, OutcomeRefused, OutcomeFailed} {
		synctest.Test(t, func(t *testing.T) {
			model, d := busyModelOf(4, "a", "b")
			for range 100 {
				endAt(t, d, model, "evil", "b", how)
			}
			served := 0
			for range 2 * slotsPerSequence * 4 {
				if lease, _ := arrive(t, d, model, Request{Owner: "other"}); lease != nil && lease.Mac == "a" {
					served++
				}
			}
			if served < slotsPerSequence*4-1 {
				t.Errorf("outcome %d: another tenant has %d slots there, want all", how, served)
			}
		})
	}
}

// TestAReplicaThatFailsServesWhatNoOtherCan: then it is better than none.
func TestAReplicaThatFailsServesWhatNoOtherCan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		model, d := busyModel("a", "b")
		for n := range 5 {
			endAt(t, d, model, []string{"t", "u"}[n%2], "b", OutcomeFailed)
		}
		if lease, _ := arrive(t, d, model, Request{Owner: "t", OnlyMac: "a"}); lease == nil {
			t.Error("a request that no other Mac can serve waits")
		}
		if lease, _ := arrive(t, d, model, Request{Owner: "t", macs: map[string]bool{"b": true}}); lease != nil {
			t.Error("a request is sent to it because another Mac failed")
		}
		d.queue.slots.canReach = func(e route.Endpoint) bool { return e.Mac != "b" }
		if lease, _ := arrive(t, d, model, Request{Owner: "t"}); lease == nil {
			t.Error("a request waits while no other Mac is reachable")
		}
	})
}

func TestAtMostHalfOfTheReplicasGetNoRequests(t *testing.T) {
	at := func(s int) time.Time { return time.Unix(int64(s), 0) }
	for _, c := range []struct {
		until []time.Time
		want  []int
	}{
		{until: []time.Time{at(1)}, want: []int{}},
		{until: []time.Time{at(1), {}}, want: []int{0}},
		{until: []time.Time{at(1), at(3), at(2), {}}, want: []int{1, 2}},
	} {
		if got := closed(c.until); !slices.Equal(got, c.want) {
			t.Errorf("%v: %v, want %v", c.until, got, c.want)
		}
	}
}

// TestAFailedRequestKeepsItsSlotForAsLongAsAnAnswerTakes: a replica that fails at once gets no more than others.
func TestAFailedRequestKeepsItsSlotForAsLongAsAnAnswerTakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		model, d := busyModel("a", "b")
		at := func() int {
			d.queue.mu.Lock()
			defer d.queue.mu.Unlock()
			return d.queue.slots.replicas["a"].rejected.n
		}
		send := func(takes time.Duration, how Outcome) {
			lease, _ := arrive(t, d, model, Request{Owner: "t", macs: map[string]bool{"b": true}})
			time.Sleep(takes)
			d.queue.ended(lease, &Request{Owner: "t"}, how)
		}
		send(4*time.Second, OutcomeAnswered)
		send(4*time.Second, OutcomeFailed)
		if n := at(); n != 0 {
			t.Errorf("%d requests count that took as long as an answer", n)
		}
		send(time.Second, OutcomeFailed)
		time.Sleep(3*time.Second - 1)
		if synctest.Wait(); at() != 1 {
			t.Error("a request that failed early does not count")
		}
		time.Sleep(2 * time.Nanosecond)
		if synctest.Wait(); at() != 0 {
			t.Error("it counts for longer than an answer takes")
		}
	})
}

// TestAWaiterThatMayNotUseAReplicaKeepsNoOtherFromIt: it comes first, but its requests failed there, or it was
// refused.
func TestAWaiterThatMayNotUseAReplicaKeepsNoOtherFromIt(t *testing.T) {
	for _, refused := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			model, d := busyModel("a", "b", "c")
			for range 5 {
				if !refused {
					lease, _ := arrive(t, d, model, Request{Owner: "first", OnlyMac: "a"})
					d.queue.ended(lease, &Request{Owner: "first", OnlyMac: "a"}, OutcomeFailed)
				}
			}
			var atA *Lease
			for tenant, mac := range map[string]string{"first": "b", "second": "c", "third": "a"} {
				for range slotsPerSequence * 2 {
					lease, _ := arrive(t, d, model, Request{Owner: tenant, OnlyMac: mac})
					if mac == "a" {
						atA = lease
					}
				}
			}
			_, first := arrive(t, d, model, Request{Owner: "first"})
			if refused {
				first.request.refusers = map[string]bool{"a": true}
			}
			_, second := arrive(t, d, model, Request{Owner: "second"})
			atA.Release()
			if len(first.granted) != 0 || len(second.granted) != 1 {
				t.Errorf("refused %t: the first has %d slots and the second %d", refused, len(first.granted), len(second.granted))
			}
		})
	}
}
