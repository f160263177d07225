package dispatch

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"

	"metalfleet.dev/metalfleet/gateway/route"
)

// TestTheExpectedWaitCountsNoWaitForOneMac: those who need the queue after a while are not refused.
func TestTheExpectedWaitCountsNoWaitForOneMac(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		model, d := busyModel("a", "b")
		var held []*Lease
		for range slotsPerSequence * 2 {
			lease, _ := arrive(t, d, model, Request{Owner: "evil", OnlyMac: "a"})
			held = append(held, lease)
		}
		for range 6 {
			arrive(t, d, model, Request{Owner: "evil", OnlyMac: "a"})
		}
		for _, lease := range held {
			lease.Release()
		}
		time.Sleep(50 * time.Second) // at most a minute waits
		for n := range 20 {
			r := &Request{Candidates: []*route.Model{model}, Log: logr.Discard, Owner: "other"}
			r.begin(time.Now())
			if _, ok := d.queue.take(r); ok {
				continue
			}
			if _, err := d.queue.enter(newWaiter(r)); err != nil {
				t.Errorf("request %d: %v", n, err)
			}
		}
	})
}

// TestTheExpectedWaitIsKnownWhileGuestsPass: they take no slot from those that wait.
func TestTheExpectedWaitIsKnownWhileGuestsPass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		model, d := busyModel("a")
		var held []*Lease
		var last *waiter
		for range slotsPerSequence*2 + 4 {
			lease, w := arrive(t, d, model, Request{Owner: "t"})
			held, last = append(held, lease), w
		}
		for _, lease := range held[:3] {
			time.Sleep(time.Second)
			lease.Release()
		}
		if lease, _ := arrive(t, d, model, Request{Owner: "guest"}); lease == nil || !d.queue.place(last).Known {
			t.Error("the expected wait is not known after a guest")
		}
	})
}
