package dispatch

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"

	"metalfleet.dev/metalfleet/api/demand"
	"metalfleet.dev/metalfleet/api/front"
	"metalfleet.dev/metalfleet/gateway/fairqueue"
	"metalfleet.dev/metalfleet/gateway/pick"
	"metalfleet.dev/metalfleet/gateway/route"
)

// newModel returns a model with ready replicas on one Mac.
func newModel(replicas ...string) *route.Model {
	table := route.NewTable()
	table.MarkSynced()
	key := route.Key{Namespace: "ns", Name: "m"}
	table.SetDeployment(route.Deployment{Key: key, UID: "1", Names: "m"})
	table.SetMac(route.Mac{Name: "a", Address: "h:1", Open: true})
	for _, uid := range replicas {
		table.SetReplica(route.Replica{UID: uid, Deployment: key, DeploymentUID: "1", Mac: "a", Ready: true})
	}
	model, _ := table.Lookup("m")
	return model
}

func TestRequestsThatEndedAreNotCounted(t *testing.T) {
	model := newModel("r")
	q := newQueue(Config{})
	r := &Request{model: model, Prefix: pick.Prefix{Shared: 7, Own: 8}}
	first, _ := q.take(r)
	second, _ := q.take(r)
	if l := q.slots.models[model.Key]; l.inFlight != 2 || l.prefixes[7] != 2 {
		t.Errorf("two run: %+v", l)
	}
	first.Release()
	first.Release() // Release is idempotent
	second.Release()
	if l := q.slots.models[model.Key]; l.inFlight != 0 || len(l.prefixes) != 0 || q.slots.replicas["r"].inFlight != 0 {
		t.Errorf("none runs: %+v", l)
	}
}

// Regression test for llm-d-router #2295 and #2137: regardless of how long the request
// takes and which other replicas are dropped meanwhile.
func TestASilentRequestStaysCounted(t *testing.T) {
	model := newModel("silent", "idle")
	q := newQueue(Config{})
	now := time.Now()
	q.now = func() time.Time { return now }
	only := func(uid string) *Lease {
		l, ok := q.take(&Request{model: model, replicas: map[string]bool{"silent": uid != "silent", "idle": uid != "idle"}})
		if !ok || l.Replica != uid {
			t.Fatalf("took %+v, want %s", l, uid)
		}
		return l
	}
	prune := func() {
		q.slots.prune(now, func(route.Key) bool { return false })
	}
	silent := only("silent")
	only("idle").Release()
	now = now.Add(time.Hour)
	prune()
	if l := q.slots.replicas["silent"]; l == nil || l.inFlight != 1 || q.slots.models[model.Key].inFlight != 1 {
		t.Errorf("the silent request is not counted: %+v, %+v", l, q.slots.models[model.Key])
	}
	if q.slots.replicas["idle"] != nil {
		t.Error("a replica that is idle for long is remembered")
	}
	silent.Release()
	now = now.Add(time.Hour)
	prune()
	if len(q.slots.replicas) != 0 {
		t.Errorf("%d replicas are remembered", len(q.slots.replicas))
	}
}

// A client may disconnect at the moment in which its request is served.
func TestALeaseThatIsGrantedTooLateIsReleased(t *testing.T) {
	model := newModel("r")
	d := New(Config{Queue: fairqueue.Limits{Count: 5, Bytes: 5, Age: time.Minute}, Registry: prometheus.NewRegistry()})
	enter := func() *waiter {
		r := &Request{Candidates: []*route.Model{model}, Log: logr.Discard}
		r.begin(time.Now())
		w := newWaiter(r)
		if _, err := d.queue.enter(w); err != nil {
			t.Fatal(err)
		}
		return w
	}
	running := func(want int) {
		t.Helper()
		if n := d.queue.slots.models[model.Key].inFlight; n != want {
			t.Errorf("%d run, want %d", n, want)
		}
	}
	w := enter() // and there is a slot for it
	running(1)
	if _, err := d.quit(w, front.ErrClientGone); !errors.Is(err, front.ErrClientGone) {
		t.Errorf("quit returned %v", err)
	}
	running(0)
	lease, err := d.quit(enter(), fairqueue.ErrLate) // the lease arrived just in time
	if err != nil || lease.Replica != "r" {
		t.Errorf("a turn that came with the deadline: %+v, %v", lease, err)
	}
	running(1)
	lease.Release()
	running(0)
	if len(d.queue.waiters) != 0 || d.queue.entries.Len(model.Key.String()) != 0 {
		t.Error("a request still waits")
	}
}

// busyModel returns a model with replicas that run two requests each, on Macs of the same
// names, and a dispatcher at which requests may wait.
func busyModel(macs ...string) (*route.Model, *Dispatcher) { return busyModelOf(2, macs...) }

// busyModelOf is busyModel with another number of requests that each replica runs.
func busyModelOf(sequences int64, macs ...string) (*route.Model, *Dispatcher) {
	table := route.NewTable()
	table.MarkSynced()
	key := route.Key{Namespace: "ns", Name: "m"}
	table.SetDeployment(route.Deployment{Key: key, UID: "1", Names: "m"})
	for _, mac := range macs {
		table.SetMac(route.Mac{Name: mac, Address: "h:1", Open: true})
		table.SetReplica(route.Replica{UID: mac, Deployment: key, DeploymentUID: "1", Mac: mac, Ready: true, Sequences: sequences})
	}
	model, _ := table.Lookup("m")
	return model, New(Config{Queue: fairqueue.Limits{Count: 2000, Bytes: 2000, Age: time.Minute}, Registry: prometheus.NewRegistry()})
}

// arrive takes a slot for a request, or queues it.
func arrive(t *testing.T, d *Dispatcher, model *route.Model, r Request) (*Lease, *waiter) {
	t.Helper()
	r.Candidates, r.Log, r.Key = []*route.Model{model}, logr.Discard, r.Owner
	r.begin(time.Now())
	if lease, ok := d.queue.take(&r); ok {
		return lease, nil
	}
	w := newWaiter(&r)
	if _, err := d.queue.enter(w); err != nil {
		t.Fatal(err)
	}
	return nil, w
}

// A tenant has all slots of a model while no other asks, and keeps no other waiting until
// one of its requests ends.
func TestAttackLongRequestsOfOneTenantHoldEverySlot(t *testing.T) {
	model, d := busyModel("r")
	var held []*Lease
	var queued []*waiter
	for range 20 {
		lease, w := arrive(t, d, model, Request{Owner: "a"})
		if lease != nil {
			held = append(held, lease)
		} else {
			queued = append(queued, w)
		}
	}
	if len(held) != slotsPerSequence*2 {
		t.Fatalf("a tenant alone has %d slots, want all", len(held))
	}
	var guests []*Lease
	for n := range mostGuests { // more tenants than sequences: each may have a long request
		guest, _ := arrive(t, d, model, Request{Owner: fmt.Sprint("guest ", n)})
		if guest == nil {
			t.Fatalf("tenant %d waits for a request of another to end", n)
		}
		guests = append(guests, guest)
	}
	lease, last := arrive(t, d, model, Request{Owner: "last"})
	if lease != nil {
		t.Fatal("a replica has more requests than it may")
	}
	d.queue.leave(last)
	_, second := arrive(t, d, model, Request{Owner: "guest 0"})
	if second == nil {
		t.Fatal("a tenant that has its part is a guest")
	}
	for _, ended := range guests[1:30] { // the slots of guests are not given on to a tenant with its part
		if ended.Release(); len(second.granted) > 0 {
			t.Error("a slot of a guest was given on")
		}
	}
	guests[30].Release() // a third of the slots is more than one
	if len(second.granted) != 1 || len(queued[0].granted) != 0 {
		t.Error("the tenant with less than its part still waits, or one with more does not")
	}
}

// TestGuestsCountTheirSequences: together they are no more than an engine lets wait.
func TestGuestsCountTheirSequences(t *testing.T) {
	model, d := busyModel("r")
	served := 0
	for n := range 3 * mostGuests {
		if lease, _ := arrive(t, d, model, Request{Owner: fmt.Sprint("client ", n), Sequences: 4}); lease != nil {
			served += 4
		}
	}
	if most := slotsPerSequence*2 + mostGuests; served > most {
		t.Errorf("%d sequences are sent to a replica, want at most %d", served, most)
	}
}

func TestARequestCountsTheSequencesThatItRuns(t *testing.T) {
	model, d := busyModel("r")
	lease, _ := arrive(t, d, model, Request{Sequences: 4})
	if lease == nil {
		t.Fatal("a request of several sequences is not served by an idle replica")
	}
	_, w := arrive(t, d, model, Request{})
	if w == nil {
		t.Fatal("four sequences have fewer than the four slots of a replica")
	}
	lease.Release()
	if len(w.granted) != 1 || d.queue.slots.replicas["r"].inFlight != 1 {
		t.Errorf("after the end %d slots are counted, want 1", d.queue.slots.replicas["r"].inFlight)
	}
}

// TestAttackManyRequestsWaitForOneMac: requests that are bound to a Mac without a slot cost
// one look at its replicas together.
func TestAttackManyRequestsWaitForOneMac(t *testing.T) {
	model, d := busyModel("a", "b")
	looks := 0
	d.queue.slots.pick = func(c []pick.Candidate, p pick.Prefix, turn uint64) (int, bool) {
		looks++
		return pick.Choose(c, p, turn)
	}
	for range 500 {
		arrive(t, d, model, Request{Owner: "t", OnlyMac: "a"})
	}
	looks = 0
	if lease, _ := arrive(t, d, model, Request{Owner: "t"}); lease == nil || lease.Mac != "b" {
		t.Errorf("another Mac does not serve: %+v", lease)
	}
	if looks > 3 {
		t.Errorf("replicas were looked at %d times for one request", looks)
	}
}

// TestAttackManyRequestsWaitForOneReplica: while no replica has a slot, replicas are
// evaluated once for all waiting requests, and requests that are restricted to some of them
// do not block others.
func TestAttackManyRequestsWaitForOneReplica(t *testing.T) {
	model := newModel("r")
	full, looks := true, 0
	d := New(Config{Queue: fairqueue.Limits{Count: 1000, Bytes: 1000, Age: time.Minute}, Registry: prometheus.NewRegistry(),
		Pick: func(c []pick.Candidate, p pick.Prefix, turn uint64) (int, bool) {
			looks++
			if full {
				return 0, false
			}
			return pick.Choose(c, p, turn)
		}})
	enter := func(onlyMac string) *waiter {
		r := &Request{Candidates: []*route.Model{model}, Log: logr.Discard, OnlyMac: onlyMac}
		r.begin(time.Now())
		w := newWaiter(r)
		if _, err := d.queue.enter(w); err != nil {
			t.Fatal(err)
		}
		return w
	}
	elsewhere := enter("b")
	waiters := make([]*waiter, 500)
	for i := range waiters {
		waiters[i] = enter("")
	}
	looks = 0
	d.queue.notify(model)
	if looks > 2 {
		t.Errorf("replicas were looked at %d times for requests of which none could be served", looks)
	}
	full = false
	d.queue.notify(model)
	for i, w := range waiters {
		if len(w.granted) != 1 {
			t.Fatalf("request %d still waits", i)
		}
	}
	if len(elsewhere.granted) != 0 {
		t.Error("a request for another Mac was served")
	}
}

// TestAttackDeploymentsThatComeAndGo: a tenant that creates deployments, sends one request to
// each and deletes them fills neither the gateway's memory nor its reports and metrics.
func TestAttackDeploymentsThatComeAndGo(t *testing.T) {
	d := New(Config{Registry: prometheus.NewRegistry()})
	now := time.Now()
	d.queue.now = func() time.Time { return now }
	table := route.NewTable()
	table.MarkSynced()
	create := func(name string) *route.Model {
		key := route.Key{Namespace: "ns", Name: name}
		table.SetDeployment(route.Deployment{Key: key, UID: name})
		m, _ := table.Lookup(key.String())
		return m
	}
	ask := func(m *route.Model) {
		r := &Request{Candidates: []*route.Model{m}, Log: logr.Discard}
		if _, err := d.Acquire(t.Context(), r); err == nil {
			t.Fatal("a deployment without replicas serves")
		}
	}
	reported := func() (names []string) {
		var r demand.Report
		d.Demand(&r)
		for _, m := range r.Models {
			names = append(names, m.Name)
		}
		return names
	}
	ask(create("idle"))
	for i := range 2010 {
		name := fmt.Sprint("d", i)
		ask(create(name))
		table.DeleteDeployment(route.Key{Namespace: "ns", Name: name}, name)
		now = now.Add(20 * time.Millisecond)
		if n := len(d.queue.slots.models); n > int(pruneEvery/(20*time.Millisecond))+2 {
			t.Fatalf("%d models are remembered", n)
		}
	}
	if n := len(d.queue.figures()); n != 1 {
		t.Errorf("%d models have metrics, want only the one that exists", n)
	}
	if got := reported(); !slices.Equal(got, []string{"idle"}) {
		t.Errorf("the report names %d models: %.5v", len(got), got)
	}
	now = now.Add(2 * reportModel)
	if got := reported(); got != nil {
		t.Errorf("a model without requests is reported: %v", got)
	}
	if got := d.queue.figures(); len(got) != 1 {
		t.Errorf("%d models have metrics, want only the one that exists", len(got))
	}
}

// TestIdleModelsInTheMetricsAreBounded: a tenant sends one request to each of its models.
func TestIdleModelsInTheMetricsAreBounded(t *testing.T) {
	table := route.NewTable()
	table.MarkSynced()
	d := New(Config{Registry: prometheus.NewRegistry()})
	now := time.Unix(1e9, 0)
	d.queue.now = func() time.Time { return now }
	used := func(namespace, name string) {
		key := route.Key{Namespace: namespace, Name: name}
		table.SetDeployment(route.Deployment{Key: key, UID: key.String()})
		model, _ := table.Lookup(key.String())
		now = now.Add(time.Millisecond)
		d.queue.began(&Request{model: model})
	}
	used("victim", "m")
	for i := range 2 * maxIdleModels {
		used("mallory", fmt.Sprint("m", i))
	}
	got := d.queue.figures()
	_, victims := got["victim/m"]
	_, last := got[fmt.Sprint("mallory/m", 2*maxIdleModels-1)]
	if len(got) != maxIdleModels+1 || !victims || !last {
		t.Errorf("%d models have counts, want %d, the only one of the victim: %t, and the last one used: %t", len(got), maxIdleModels+1, victims, last)
	}
}

// patient is a client that waits.
type patient struct{}

func (patient) Queued(Place)           {}
func (patient) IdleSince() time.Time   { return time.Now() }
func (patient) KeepAlive(Place) error  { return nil }
func (patient) Dequeued(time.Duration) {}

// TestAttackEndpointsThatChangeWhileManyWait: a change, the end of a pause that all have in
// common, and keep-alives cost one look for all, and each of them is served in time.
func TestAttackEndpointsThatChangeWhileManyWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := route.NewTable()
		table.MarkSynced()
		key := route.Key{Namespace: "ns", Name: "m"}
		table.SetDeployment(route.Deployment{Key: key, UID: "1"})
		table.SetMac(route.Mac{Name: "a", Address: "h:1", Open: true})
		model, _ := table.Lookup(key.String())
		var looks atomic.Int64
		var free atomic.Bool
		d := New(Config{Queue: fairqueue.Limits{Count: 1000, Bytes: 1000, Age: time.Hour}, KeepAlive: 10 * time.Second, Registry: prometheus.NewRegistry(),
			Pick: func(c []pick.Candidate, p pick.Prefix, turn uint64) (int, bool) {
				if looks.Add(1); !free.Load() {
					return 0, false
				}
				return pick.Choose(c, p, turn)
			}})
		const many, changes = 300, 20
		var served sync.WaitGroup
		pause := time.Now().Add(5 * time.Second)
		for range many {
			served.Go(func() {
				r := &Request{Candidates: []*route.Model{model}, Log: logr.Discard, Client: patient{}}
				r.begin(time.Now())
				r.entry.NotBefore = pause
				if _, err := d.wait(t.Context(), r); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		time.Sleep(5*time.Second + time.Millisecond) // none may be tried before
		if synctest.Wait(); looks.Load() > 5 {
			t.Errorf("%d looks when the pause of %d ended", looks.Load(), many)
		}
		looks.Store(0)
		for i := range changes {
			table.SetReplica(route.Replica{UID: fmt.Sprint(i), Deployment: key, DeploymentUID: "1", Mac: "a", Ready: true})
			synctest.Wait()
		}
		if looks.Load() > 2*changes {
			t.Errorf("%d looks for %d changes while %d wait", looks.Load(), changes, many)
		}
		looks.Store(0)
		if time.Sleep(20 * time.Second); looks.Load() > 60 {
			t.Errorf("%d looks for two keep-alives of each", looks.Load())
		}
		table.DeleteReplica("0")
		synctest.Wait() // another look at this moment
		free.Store(true)
		table.SetReplica(route.Replica{UID: "last", Deployment: key, DeploymentUID: "1", Mac: "a", Ready: true})
		synctest.Wait()
		if n := len(d.queue.waiters); n != 0 {
			t.Errorf("%d still wait after a change that serves all", n)
		}
		served.Wait()
	})
}
