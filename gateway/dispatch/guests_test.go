package dispatch

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"metalfleet.dev/metalfleet/gateway/route"
)

// fillGuests has clients take all slots of a replica, and all that it has for guests.
func fillGuests(t *testing.T, d *Dispatcher, model *route.Model) (held []*Lease) {
	t.Helper()
	for range slotsPerSequence * 2 {
		lease, _ := arrive(t, d, model, Request{Owner: "first"})
		held = append(held, lease)
	}
	for n := range mostGuests / 4 {
		lease, _ := arrive(t, d, model, Request{Owner: fmt.Sprint("guest ", n), Sequences: 4})
		held = append(held, lease)
	}
	for n, lease := range held {
		if lease == nil {
			t.Fatalf("request %d waits", n)
		}
	}
	return held
}

// TestANewcomerIsServedAlthoughGuestsAnswersLast: answers without an end would otherwise keep each
// newcomer in the queue until it is refused.
func TestANewcomerIsServedAlthoughGuestsAnswersLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		model, d := busyModel("r")
		held := fillGuests(t, d, model)
		lease, queued := arrive(t, d, model, Request{Owner: "newcomer"})
		if lease != nil {
			t.Fatal("a replica has more guests than it may")
		}
		_, second := arrive(t, d, model, Request{Owner: "guest 0"})
		time.Sleep(guestTime + time.Second)
		synctest.Wait()
		if len(queued.granted) != 1 {
			t.Fatalf("a newcomer still waits after %v", guestTime)
		}
		if len(second.granted) != 0 {
			t.Error("a client with an answer was served as a newcomer")
		}
		if lease, _ := arrive(t, d, model, Request{Owner: "another"}); lease == nil {
			t.Error("a newcomer that comes later waits")
		} else {
			held = append(held, lease)
		}
		d.queue.leave(second)
		for _, lease := range append(held, <-queued.granted) {
			lease.Release()
		}
		noneRuns(t, d, model)
	})
}

// TestATenantIsAGuestOfEachReplica: long answers of one tenant, in the background too, otherwise hold
// every other to one request at a time in all replicas.
func TestATenantIsAGuestOfEachReplica(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		model, d := busyModel("a", "b", "c", "d")
		for n := range 4 * slotsPerSequence * 2 {
			if lease, _ := arrive(t, d, model, Request{Owner: "long"}); lease == nil {
				t.Fatalf("request %d waits at replicas that are idle", n)
			}
		}
		served := map[string][]*Lease{} // by Mac
		for n := range 4 * slotsPerSequence {
			lease, _ := arrive(t, d, model, Request{Owner: "short"})
			if lease == nil || len(served[lease.Mac]) == slotsPerSequence {
				t.Fatalf("request %d of another tenant waits, or has more than half of a replica", n)
			}
			served[lease.Mac] = append(served[lease.Mac], lease)
		}
		var waiting []*waiter
		for _, r := range []Request{{Owner: "short"}, {Owner: "short", OnlyMac: "b"}, {Owner: "long"}} {
			_, w := arrive(t, d, model, r)
			if waiting = append(waiting, w); w == nil {
				t.Fatalf("a request of %+v beyond its part is sent to a replica without a slot", r)
			}
		}
		for n, mac := range []string{"c", "b"} {
			if served[mac][0].Release(); len(waiting[n].granted) != 1 || (<-waiting[n].granted).Mac != mac {
				t.Errorf("request %d that waits has not the place of the one that ended at %s", n, mac)
			}
		}
		if len(waiting[2].granted) != 0 {
			t.Error("the place of a guest was given to the tenant with all slots")
		}
	})
}

// TestTenantsHaveTheirPartOfAReplicaAmongLongAnswers: those with fewer requests leave half of the places
// of guests to tenants without one, and those come first.
func TestTenantsHaveTheirPartOfAReplicaAmongLongAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		model, d := busyModelOf(16, "r")
		const slots = slotsPerSequence * 16
		send := func(tenant string, n int) {
			t.Helper()
			for range n {
				arrive(t, d, model, Request{Owner: tenant})
			}
		}
		want := func(counts map[string]int, tenants, guests int) {
			t.Helper()
			d.queue.mu.Lock()
			defer d.queue.mu.Unlock()
			l := d.queue.slots.replicas["r"]
			for tenant, n := range counts {
				if l.tenants[tenant] != n {
					t.Errorf("%s has %d requests at the replica, want %d", tenant, l.tenants[tenant], n)
				}
			}
			if len(l.tenants) != tenants || l.guests != guests {
				t.Errorf("%d tenants and %d guests, want %d and %d", len(l.tenants), l.guests, tenants, guests)
			}
		}
		send("long", slots)
		send("second", slots)
		want(map[string]int{"long": slots, "second": slots / 2}, 2, mostGuests/2)
		send("third", slots)
		for n := range mostGuests {
			send(fmt.Sprint("newcomer ", n), 2)
		}
		parts := map[string]int{"long": slots, "second": slots / 2, "third": 1, "newcomer 0": 1}
		want(parts, 3+mostGuests/2-1, mostGuests)
		time.Sleep(guestTime + time.Second)
		synctest.Wait()
		want(parts, 3+mostGuests, mostGuests/2+1)
	})
}

// TestATenantWithItsPartIsNoGuest: where all tenants use a model, they wait in the queue, which is fair.
func TestATenantWithItsPartIsNoGuest(t *testing.T) {
	model, d := busyModel("a", "b", "c", "d")
	tenants := []string{"t", "u", "v", "w", "x", "y", "z"}
	served := map[string]int{}
	for range 8 {
		for _, tenant := range tenants {
			if lease, _ := arrive(t, d, model, Request{Owner: tenant}); lease != nil {
				served[tenant]++
			}
		}
	}
	for _, tenant := range tenants { // 16 slots for 7
		if n := served[tenant]; n < 2 || n > 3 {
			t.Errorf("%s has %d slots, want its part: %v", tenant, n, served)
		}
	}
	if lease, _ := arrive(t, d, model, Request{Owner: "newcomer"}); lease == nil {
		t.Error("a tenant without a slot waits")
	}
}

// TestAGuestIsCountedOnce: an answer that ends before the time of guests, after it, or at it.
func TestAGuestIsCountedOnce(t *testing.T) {
	for name, after := range map[string]time.Duration{"before": time.Second, "at": guestTime, "after": 2 * guestTime} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				model, d := busyModel("r")
				held := fillGuests(t, d, model)
				time.Sleep(after)
				for _, lease := range held {
					lease.Release()
					lease.Release()
				}
				noneRuns(t, d, model)
				again := fillGuests(t, d, model) // of which none ends with the others
				time.Sleep(guestTime - time.Second)
				if n := guestsOf(d); n != mostGuests {
					t.Errorf("%d guests are counted, want %d", n, mostGuests)
				}
				time.Sleep(2 * time.Second)
				synctest.Wait()
				if n := guestsOf(d); n != 0 {
					t.Errorf("%d guests are counted after %v, want none", n, guestTime)
				}
				for _, lease := range again {
					lease.Release()
				}
				noneRuns(t, d, model)
			})
		})
	}
}

// guestsOf returns how many guests are counted.
func guestsOf(d *Dispatcher) int {
	d.queue.mu.Lock()
	defer d.queue.mu.Unlock()
	return d.queue.slots.replicas["r"].guests
}

// noneRuns checks that no request is counted.
func noneRuns(t *testing.T, d *Dispatcher, model *route.Model) {
	t.Helper()
	synctest.Wait()
	d.queue.mu.Lock()
	defer d.queue.mu.Unlock()
	at, of := d.queue.slots.replicas["r"], d.queue.slots.models[model.Key]
	if at.guests != 0 || at.inFlight != 0 || of.inFlight != 0 || len(at.tenants)+len(of.tenants) != 0 {
		t.Errorf("none runs: %+v, %+v", at, of)
	}
}
