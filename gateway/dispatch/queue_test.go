package dispatch

import (
	"fmt"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"

	"metalfleet.dev/metalfleet/gateway/fairqueue"
	"metalfleet.dev/metalfleet/gateway/pick"
	"metalfleet.dev/metalfleet/gateway/route"
)

// TestARequestWithoutASlotLooksAtNoOther: a client that is refused again and again holds the
// lock of all models no longer when many wait.
func TestARequestWithoutASlotLooksAtNoOther(t *testing.T) {
	model, looks, full := newModel("r"), 0, true
	d := New(Config{Queue: fairqueue.Limits{Count: 200, Bytes: 200, Age: time.Minute}, Registry: prometheus.NewRegistry(),
		Pick: func(c []pick.Candidate, p pick.Prefix, turn uint64) (int, bool) {
			looks++
			if full {
				return 0, false
			}
			return pick.Choose(c, p, turn)
		}})
	request := func(adapter string) *Request {
		r := &Request{Candidates: []*route.Model{model}, Log: logr.Discard, Key: "k", Adapter: adapter, Bytes: 1}
		r.begin(time.Now())
		return r
	}
	var first *waiter
	for i := range 200 {
		w := newWaiter(request(fmt.Sprint(i)))
		if first == nil {
			first = newWaiter(request(""))
			w = first
		}
		if _, err := d.queue.enter(w); err != nil {
			t.Fatal(err)
		}
	}
	if looks > 200 {
		t.Errorf("replicas were looked at %d times for 200 requests that came", looks)
	}
	looks = 0
	late := request("")
	if _, ok := d.queue.take(late); ok || looks > 1 {
		t.Errorf("a request that comes has a slot: %t, after %d looks", ok, looks)
	}
	if _, err := d.queue.enter(newWaiter(late)); err == nil || looks > 1 {
		t.Errorf("it enters the full queue: %v, after %d looks", err, looks)
	}
	full = false // a slot that nothing announced
	if _, ok := d.queue.take(late); !ok || len(first.granted) != 1 {
		t.Errorf("it has a slot: %t, and the one that waited has %d", ok, len(first.granted))
	}
}
