package dispatch

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"

	"metalfleet.dev/metalfleet/api/openai"
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

// TestAttackRequestsForEveryMacAndAdapter: requests that wait for one adapter at one Mac each
// cost no look at the replicas while those are busy, and one each once they are served.
func TestAttackRequestsForEveryMacAndAdapter(t *testing.T) {
	const macs, adapters = 10, 8
	var names []string
	for i := range adapters {
		names = append(names, fmt.Sprint("adapter-", i))
	}
	table, key := route.NewTable(), route.Key{Namespace: "ns", Name: "m"}
	table.MarkSynced()
	table.SetDeployment(route.Deployment{Key: key, UID: "1", Names: "m", Adapters: strings.Join(names, "\n")})
	for i := range macs {
		mac := fmt.Sprint("mac-", i)
		table.SetMac(route.Mac{Name: mac, Address: "h:1", Open: true})
		table.SetReplica(route.Replica{UID: mac, Deployment: key, DeploymentUID: "1", Mac: mac, Ready: true, Sequences: 1, Adapters: strings.Join(names, "\n")})
	}
	model, _ := table.Lookup("m")
	looks := 0
	d := New(Config{Queue: fairqueue.Limits{Count: 500, Bytes: 500, Age: time.Minute}, Registry: prometheus.NewRegistry(),
		Pick: func(c []pick.Candidate, p pick.Prefix, turn uint64) (int, bool) {
			looks++
			return pick.Choose(c, p, turn)
		}})
	busy := map[string][]*Lease{}
	for range slotsPerSequence * macs {
		lease, _ := arrive(t, d, model, Request{Owner: "t"})
		busy[lease.Mac] = append(busy[lease.Mac], lease)
	}
	var waiting []*waiter
	for i := range (macs - 1) * adapters { // all but the last Mac
		_, w := arrive(t, d, model, Request{Owner: "t", OnlyMac: fmt.Sprint("mac-", i/adapters), Adapter: names[i%adapters]})
		waiting = append(waiting, w)
	}
	looks = 0
	d.queue.notify(model)
	busy[fmt.Sprint("mac-", macs-1)][0].Release() // none of them waits for it
	if looks > 0 {
		t.Errorf("replicas were looked at %d times for requests that cannot be served", looks)
	}
	if lease, _ := arrive(t, d, model, Request{Owner: "t"}); lease == nil || looks > 2 {
		t.Errorf("the next request has %+v, after %d looks", lease, looks)
	}
	looks = 0
	busy["mac-3"][0].Release()
	if first := waiting[3*adapters]; len(first.granted) != 1 || looks > 1 {
		t.Errorf("the first that waits for a Mac has %d slots there, after %d looks", len(first.granted), looks)
	}
}

// TestAttackALargeBodyThatEveryReplicaRefuses: the gateway sends it again for as long as its
// client waits, but not as often as it can. A small body is tried at once.
func TestAttackALargeBodyThatEveryReplicaRefuses(t *testing.T) {
	for _, c := range []struct {
		name        string
		bytes       int64
		least, most int
	}{
		{name: "large", bytes: 16 << 20, least: 20, most: 1 + (resentBurst+300*resentPerSecond)/(16<<20)},
		{name: "small", bytes: 1 << 10, least: 500, most: 5000},
	} {
		synctest.Test(t, func(t *testing.T) {
			d := New(Config{Queue: fairqueue.Limits{Count: 10, Bytes: 1 << 30, Age: 5 * time.Minute}, KeepAlive: time.Minute, Registry: prometheus.NewRegistry()})
			r := &Request{Candidates: []*route.Model{newModel("r1", "r2", "r3", "r4", "r5")}, Log: logr.Discard, Owner: "mallory", Bytes: c.bytes, Client: patient{}}
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
			defer cancel()
			sent := 0
			for {
				lease, err := d.Acquire(ctx, r)
				if err != nil {
					break
				}
				sent++
				lease.Release()
				lease.Failed(&Failure{Reason: ReasonRefused, Err: errModelGone, Refusal: openai.RateLimited(time.Second)})
			}
			if sent < c.least || sent > c.most {
				t.Errorf("the %s body was sent %d times in 5 minutes, want %d to %d", c.name, sent, c.least, c.most)
			}
		})
	}
}

// TestEachTenantHasItsRetries: one whose requests fail all the time uses those of its own alone.
func TestEachTenantHasItsRetries(t *testing.T) {
	d := New(Config{Registry: prometheus.NewRegistry()})
	now := time.Unix(1e9, 0)
	d.queue.now = func() time.Time { return now }
	model := newModel("r1")
	hog, other := &Request{model: model, Owner: "hog"}, &Request{model: model, Owner: "other"}
	for d.queue.mayRetry(hog) {
	}
	if !d.queue.mayRetry(other) {
		t.Error("the retries of one tenant use up those of another")
	}
	now = now.Add(time.Hour)
	d.queue.began(other)
	if n := len(d.queue.slots.models[model.Key].budgets); n != 1 {
		t.Errorf("%d tenants are remembered after an hour, want the one with a request", n)
	}
}
