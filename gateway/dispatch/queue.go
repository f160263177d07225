package dispatch

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"metalfleet.dev/metalfleet/api/demand"
	"metalfleet.dev/metalfleet/gateway/fairqueue"
	"metalfleet.dev/metalfleet/gateway/health"
	"metalfleet.dev/metalfleet/gateway/route"
)

// Place is the position of a waiting request in the queue of its deployment.
type Place struct {
	// Position is 1 for the request that is served next.
	Position int
	// ETA is the expected remaining wait, if Known.
	ETA   time.Duration
	Known bool
}

// waiter is a request in the queue. Its wait ends with a lease, or with an error if
// another request displaces it.
type waiter struct {
	*fairqueue.Entry
	request *Request
	granted chan *Lease
	evicted chan error
}

func newWaiter(r *Request) *waiter {
	return &waiter{Entry: r.entry, request: r, granted: make(chan *Lease, 1), evicted: make(chan error, 1)}
}

// queue assigns slots to requests, fairly between tenants and their keys. A slot is freed only
// when its request ends, however long that takes.
type queue struct {
	now func() time.Time

	mu       sync.Mutex // guards the fields after it
	slots    *slots
	entries  *fairqueue.Queue
	waiters  map[*fairqueue.Entry]*waiter
	looks    map[*route.Model]look
	arrivals chan struct{} // holds at most one value
	resent   health.Debts  // bytes of large bodies that are sent again, by client
	rounds   health.Debts  // of small ones, by client
	notified time.Time     // the last time that all waiting requests were looked at
	notifies bool          // they will be looked at again
}

// resentBurst are the bytes of bodies that are sent again for one client at once, and
// resentPerSecond how many in each second after that: one large body of a client could
// otherwise be sent thousands of times.
const resentBurst, resentPerSecond = 64 << 20, 2 << 20

// A body of up to smallBody bytes costs no more than the attempt: roundsBurst rounds of such
// requests begin for one client at once, and roundsPerSecond in each second after that. Large
// bodies of the same client, or address, do not hold them up.
const smallBody, roundsBurst, roundsPerSecond = 32 << 10, 200, 100

func newQueue(c Config) *queue {
	q := &queue{now: time.Now, slots: newSlots(c), entries: fairqueue.New(c.Queue), waiters: map[*fairqueue.Entry]*waiter{}, looks: map[*route.Model]look{}, arrivals: make(chan struct{}, 1),
		resent: health.Debts{Most: resentBurst, PerSecond: resentPerSecond}, rounds: health.Debts{Most: roundsBurst, PerSecond: roundsPerSecond}}
	q.entries.Runs = func(e *fairqueue.Entry) int { return q.slots.runs(q.waiters[e].request) }
	return q
}

// lookEvery is how often at most the waiting requests of a model are looked at when nothing has
// changed.
const lookEvery = time.Second

// look is the last time that a waiter had free slots assigned to all that wait for its model.
type look struct {
	at      time.Time
	changed <-chan struct{} // the model's, see route.Model.Changed
}

// take takes a slot now. ok is false if every replica is excluded or busy, or if other
// requests are waiting.
func (q *queue) take(r *Request) (lease *Lease, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := q.now()
	q.prune(now)
	if !q.letOthersFirst(r, now) {
		return nil, false
	}
	if lease, ok = q.takeSlot(r, now); ok && !lease.guest {
		q.entries.Passed(r.model.Key.String())
	}
	return lease, ok
}

// letOthersFirst serves the requests that wait for a model if there is a slot for one that
// comes. Without a slot it looks at no other request: there may be many, and each client
// that comes would hold the lock for as long. The lock is held.
func (q *queue) letOthersFirst(r *Request, now time.Time) (free bool) {
	if q.entries.Len(r.model.Key.String()) == 0 {
		return true
	}
	if free = q.slots.free(r, now); free {
		q.serve(r.model, now)
	}
	return free
}

// prune drops, from time to time, what is not used any more. The lock is held.
func (q *queue) prune(now time.Time) {
	if !q.slots.prune(now, func(key route.Key) bool { return q.entries.Len(key.String()) > 0 }) {
		return
	}
	for m := range q.looks {
		if q.entries.Len(m.Key.String()) == 0 {
			delete(q.looks, m)
		}
	}
}

// takeSlot is take regardless of the queue. The lock is held.
func (q *queue) takeSlot(r *Request, now time.Time) (*Lease, bool) {
	endpoint, free, settle, ok := q.slots.take(r, now)
	if !ok {
		return nil, false
	}
	model := r.model
	var timers []*time.Timer
	later := func(after time.Duration, do func()) {
		timers = append(timers, time.AfterFunc(after, func() {
			q.mu.Lock()
			defer q.mu.Unlock()
			do()
			q.serve(model, q.now())
		}))
	}
	if settle != nil {
		later(guestTime, settle)
	}
	if probes := q.slots.replicas[endpoint.Replica].probed.Sub(now); probes > 0 {
		later(probes, func() {}) // others may be sent there
	}
	l := &Lease{Endpoint: endpoint, Model: model, guest: settle != nil, began: now, free: sync.OnceFunc(func() {
		for _, t := range timers {
			t.Stop()
		}
		free()
	})}
	l.release = func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		l.free()
		q.serve(model, q.now())
	}
	return l, true
}

// enter queues a request. It may be served before enter returns.
func (q *queue) enter(w *waiter) (Place, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := q.now()
	q.waiters[w.Entry] = w
	displaced, err := q.entries.Enter(w.Entry, now)
	for _, other := range displaced {
		q.waiters[other].evicted <- fairqueue.ErrShare
		delete(q.waiters, other)
	}
	if err != nil {
		delete(q.waiters, w.Entry)
		return Place{}, err
	}
	select {
	case q.arrivals <- struct{}{}:
	default: // the operator is about to be notified anyway
	}
	at := q.placeOf(w, now)
	if !now.Before(w.NotBefore) {
		q.letOthersFirst(w.request, now) // and w itself
	}
	return at, nil
}

// place returns the current place of a waiter.
func (q *queue) place(w *waiter) Place {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.placeOf(w, q.now())
}

func (q *queue) placeOf(w *waiter, now time.Time) Place {
	eta, known := q.startsIn(w.request.model, now)
	if !known {
		eta, known = q.entries.ETA(w.Entry, now)
	}
	return Place{q.entries.Position(w.Entry), eta, known}
}

// startsIn returns the expected time until a model without a replica has one, counted from
// the arrival of the first request that waits for it.
func (q *queue) startsIn(m *route.Model, now time.Time) (time.Duration, bool) {
	takes := m.StartTime()
	if takes == 0 || len(m.Endpoints()) > 0 {
		return 0, false
	}
	since := now
	if oldest, any := q.entries.Oldest(m.Key.String()); any {
		since = oldest
	}
	return max(time.Second, since.Add(takes).Sub(now)), true
}

// notify assigns free slots to the requests that wait for a model.
func (q *queue) notify(m *route.Model) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.serve(m, q.now())
}

// notifyFor is notify by a waiter that was woken. Many are woken by one change, and the first
// of them looks for all: a look costs a time for each that waits.
func (q *queue) notifyFor(w *waiter, changed <-chan struct{}) {
	q.mu.Lock()
	defer q.mu.Unlock()
	m, now := w.request.model, q.now()
	last := q.looks[m]
	mayTry := !now.Before(w.NotBefore) && last.at.Before(w.NotBefore) // only since the last look
	if last.changed == changed && !mayTry && now.Sub(last.at) < lookEvery {
		return
	}
	q.looks[m] = look{now, changed}
	q.serve(m, now)
}

// notifyEvery is how often at most all waiting requests are looked at because Macs connect: one
// Mac may connect a thousand times in a second.
const notifyEvery = 100 * time.Millisecond

// notifyAll assigns free slots to all waiting requests, now or soon.
func (q *queue) notifyAll() {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch after := notifyEvery - q.now().Sub(q.notified); {
	case q.notifies:
	case after > 0:
		q.notifies = true
		time.AfterFunc(after, func() {
			q.mu.Lock()
			defer q.mu.Unlock()
			q.serveAll()
		})
	default:
		q.serveAll()
	}
}

// serveAll is notifyAll, now. The lock is held.
func (q *queue) serveAll() {
	models := map[*route.Model]bool{}
	for _, w := range q.waiters {
		models[w.request.model] = true
	}
	for m := range models {
		q.serve(m, q.now())
	}
	q.notified, q.notifies = q.now(), false
}

// scope is where a request looks for a slot: requests of one scope find one, or none does.
type scope struct {
	model   *route.Model
	onlyMac string
	adapter string
	refuser string // the Mac that refused it for good
	tenant  string // if it may be a guest, or avoids a replica: where differs between tenants
}

// serve is notify with the lock held. Without room at any replica it looks at no request, and
// otherwise it compares them with those that have room.
func (q *queue) serve(m *route.Model, now time.Time) {
	name := m.Key.String()
	full := map[scope]bool{}
	for q.entries.Len(name) > 0 {
		free := map[*route.Model]*openings{m: q.slots.openings(m, now)} // another one if it was created again
		if len(free[m].all) == 0 {
			return
		}
		var lease *Lease
		next := q.entries.Next(name, now, q.entries.Runs, func(w *fairqueue.Entry) (ok bool) {
			lease, ok = q.takeOpen(q.waiters[w].request, free, full, now)
			return ok
		})
		if next == nil {
			return
		}
		q.waiters[next].granted <- lease
		delete(q.waiters, next)
	}
}

// takeOpen is takeSlot for a waiting request. Where one finds no slot, no other of its scope
// does either, unless replicas failed it. The lock is held.
func (q *queue) takeOpen(r *Request, free map[*route.Model]*openings, full map[scope]bool, now time.Time) (*Lease, bool) {
	open := free[r.model]
	if open == nil {
		open = q.slots.openings(r.model, now)
		free[r.model] = open
	}
	in, guest := scope{model: r.model, onlyMac: r.OnlyMac, adapter: r.Adapter}, q.slots.mayBeGuest(r, open.size)
	if guest || open.forSome || q.slots.rejected.Any(r.Owner) || len(r.Avoided) > 0 {
		in.tenant = r.Owner
	}
	for mac := range r.refusers {
		in.refuser = mac
	}
	if !open.mayFit(r, guest) || full[in] {
		return nil, false
	}
	if open.fit(r, guest) {
		if lease, ok := q.takeSlot(r, now); ok {
			return lease, true
		}
	}
	full[in] = full[in] || len(r.replicas)+len(r.macs) == 0 && len(r.refusers) < 2
	return nil, false
}

// leave ends a wait that has not ended otherwise. It returns the lease that was granted
// meanwhile, if any.
func (q *queue) leave(w *waiter) (lease *Lease, granted bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.entries.Leave(w.Entry)
	delete(q.waiters, w.Entry)
	select {
	case lease := <-w.granted:
		return lease, true
	default:
		return nil, false
	}
}

// began counts a request's first attempt at a deployment.
func (q *queue) began(r *Request) {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := q.now()
	q.prune(now)
	q.slots.began(r, now)
}

// mayRetry counts another attempt, or returns false if the retry budget of the tenant for the
// model, or that of the client, is used up.
func (q *queue) mayRetry(r *Request) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	now, small := q.now(), r.Bytes <= smallBody
	if !small && q.resent.Wait(r.Owner, float64(r.Bytes), now) > 0 || !q.slots.model(r.model, now).budget(r.Owner).Retry(now) {
		return false
	}
	if !small {
		q.resent.Add(r.Owner, float64(r.Bytes), now)
	}
	return true
}

// resend counts the first attempt of another round, and returns how long it has to wait.
func (q *queue) resend(r *Request, now time.Time) time.Duration {
	q.mu.Lock()
	defer q.mu.Unlock()
	debts, n := &q.resent, float64(r.Bytes)
	if r.Bytes <= smallBody {
		debts, n = &q.rounds, 1
	}
	after := debts.Wait(r.Owner, n, now)
	debts.Add(r.Owner, n, now)
	return after
}

// avoid avoids a Mac for a while. It returns false if it was avoided already.
func (q *queue) avoid(mac string) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.slots.avoid(mac, q.now())
}

// trust ends the avoidance of a Mac.
func (q *queue) trust(mac string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.slots.macs, mac)
}

// demand fills in a report for the operator. It names the models that have requests, or had
// one recently and exist.
func (q *queue) demand(r *demand.Report) {
	q.unsorted(r)
	slices.SortFunc(r.Models, func(a, b demand.Model) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
}

// unsorted is demand without the order of the models: others wait for the lock.
func (q *queue) unsorted(r *demand.Report) {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := q.now()
	q.prune(now)
	waits := map[string]struct {
		count  int
		oldest time.Duration
	}{}
	for _, of := range q.entries.Lengths() {
		w := waits[of.Model]
		w.count, w.oldest = of.Count, now.Sub(of.Oldest)
		waits[of.Model] = w
	}
	r.Models, r.Replicas = nil, map[string]int{}
	for key, l := range q.slots.models {
		w := waits[key.String()]
		if l.inFlight == 0 && w.count == 0 && (l.of.Gone() || now.Sub(l.used) > reportModel) {
			continue
		}
		r.Models = append(r.Models, demand.Model{Namespace: key.Namespace, Name: key.Name, Running: l.inFlight, Waiting: w.count,
			OldestMillis: max(0, w.oldest.Milliseconds()), Begun: l.begun})
	}
	for uid, l := range q.slots.replicas {
		if l.inFlight > 0 {
			r.Replicas[uid] = l.inFlight
		}
	}
}

// figures are the counts of one model.
type figures struct {
	running, waiting int
	oldest           time.Duration
}

// maxIdleModels is how many models of a namespace without a request have counts: those that had
// one last. Autoscalers need their zeros.
const maxIdleModels = 500

// figures returns the counts of the models that exist and that this gateway received a request
// for.
func (q *queue) figures() map[string]figures {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := q.now()
	q.prune(now)
	out := map[string]figures{}
	idle := map[string][]route.Key{} // by namespace
	for key, l := range q.slots.models {
		switch {
		case l.inFlight > 0:
			out[key.String()] = figures{running: l.inFlight}
		case !l.of.Gone():
			idle[key.Namespace] = append(idle[key.Namespace], key)
		}
	}
	for _, keys := range idle {
		if len(keys) > maxIdleModels {
			slices.SortFunc(keys, func(a, b route.Key) int { return q.slots.models[b].used.Compare(q.slots.models[a].used) })
			keys = keys[:maxIdleModels]
		}
		for _, key := range keys {
			out[key.String()] = figures{}
		}
	}
	for _, of := range q.entries.Lengths() {
		f := out[of.Model]
		f.waiting, f.oldest = of.Count, now.Sub(of.Oldest)
		out[of.Model] = f
	}
	return out
}
