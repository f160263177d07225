// Package fairqueue is the queue in which requests wait for a replica: while none is ready,
// while all are busy, and after all have refused.
//
// It owns which requests may wait, which one is served next, and the position and expected
// wait of each. It is pure: it has no clock, no lock and no goroutine; the caller passes
// the time. It rejects requests beyond its limits (count, bytes, age) and those that could
// not be served before their deadline.
//
// The queue is fair between flows; a flow is one tenant at one model; without API keys
// an address is one. The flow whose
// tenant has the fewest requests running is served first; of those with as many, flows take
// turns, one request each (start-time fair queueing), regardless of how many of their
// requests wait. Within a flow, keys take turns, and requests of a key are served in order of
// arrival. All models share the queue's capacity, and the shares are per tenant: when the
// queue is full, the tenant with the largest share loses the newest request of its key that
// waits with the most, unless the newcomer's tenant would then have as large a share. Then the
// newcomer takes the place of one of its own tenant, if a key of that waits with more.
//
// Start reading at Queue.Enter and Queue.Next; eta.go has positions and expected times.
package fairqueue

import (
	"cmp"
	"errors"
	"slices"
	"time"
)

// Limits of a queue. With a zero Count no request waits.
type Limits struct {
	// Count of requests that may wait at once.
	Count int
	// Bytes of their bodies together.
	Bytes int64
	// Age is the longest total time that a request may wait.
	Age time.Duration
}

var (
	// ErrFull means that other tenants use the whole queue.
	ErrFull = errors.New("the queue is full")
	// ErrShare means that the tenant already has as large a share of the queue as any other,
	// and the key as large a part of it.
	ErrShare = errors.New("the client's share of the queue is used up")
	// ErrLate means that a request was not served before its deadline, or could not be.
	ErrLate = errors.New("not served in time")
)

// Entry is one request in the queue. It may leave and enter again, and then keeps its place
// in its flow and its deadline.
type Entry struct {
	// Model and Tenant name its flow; without API keys an address is a tenant. Key is one of the
	// tenant's; it is empty if none is required. Without a tenant the key is one.
	Model, Tenant, Key string
	// Bytes of its body.
	Bytes int64
	// Deadline of the client; zero is none. Enter moves it to the end of the request's
	// maximum age if that is earlier.
	Deadline time.Time
	// NotBefore is the earliest time of the next attempt.
	NotBefore time.Time

	number uint64 // in order of arrival; 0 before it first entered
	// turn of its key among those of its tenant. It is given when it first enters.
	turn    uint64
	arrived time.Time
	flow    *flow // nil outside the queue
	shared  bool  // it is at this place of its holder's share
	at      int
}

// owner returns the tenant of the entry.
func (e *Entry) owner() string { return cmp.Or(e.Tenant, e.Key) }

// compare orders the entries of a tenant as they are served.
func (e *Entry) compare(o *Entry) int {
	return cmp.Or(cmp.Compare(e.turn, o.turn), cmp.Compare(e.number, o.number))
}

// Waits reports whether the entry is in the queue.
func (e *Entry) Waits() bool { return e.flow != nil }

// flow is the queue of one tenant at one model.
type flow struct {
	queue   *modelQueue
	entries []*Entry // in the order of Entry.compare
	// tag is the turn of its first entry; order decides between flows with the same tag.
	tag, order uint64
}

// modelQueue holds the requests that wait for one model.
type modelQueue struct {
	model string
	flows map[string]*flow
	// clock is the largest tag of a request that was served.
	clock uint64
	pace  pace
	count int
}

// Queue holds the waiting requests of all models. It is not safe for concurrent use.
type Queue struct {
	// Runs returns how many requests of a waiting entry's client run, as for Next; nil is none. Positions
	// depend on it.
	Runs func(*Entry) int

	limits  Limits
	queues  map[string]*modelQueue
	shares  shares
	count   int
	bytes   int64
	numbers uint64
}

// New makes an empty queue.
func New(l Limits) *Queue {
	return &Queue{limits: l, queues: map[string]*modelQueue{}, shares: newShares()}
}

// Enter queues a request. It returns the requests that it displaced, newest first. Its
// error is ErrFull, ErrShare or ErrLate.
func (q *Queue) Enter(e *Entry, now time.Time) (left []*Entry, err error) {
	if e.number == 0 {
		q.numbers++
		e.number, e.arrived, e.turn = q.numbers, now, q.shares.turn(e)
		if end := now.Add(q.limits.Age); e.Deadline.IsZero() || end.Before(e.Deadline) {
			e.Deadline = end
		}
	}
	if !now.Before(e.Deadline) {
		return nil, ErrLate
	}
	victims, err := q.displace(e)
	if err != nil {
		return nil, err
	}
	m := q.modelQueue(e.Model, now)
	m.flow(e.owner()).add(e)
	q.shares.add(e)
	q.count++
	q.bytes += e.Bytes
	if eta, known := q.ETA(e, now); known && now.Add(eta).After(e.Deadline) && len(victims) == 0 {
		q.Leave(e)
		return nil, ErrLate
	}
	for _, v := range victims {
		q.Leave(v)
	}
	return victims, nil
}

// displace chooses the requests that leave to admit e, and takes them out of their shares.
func (q *Queue) displace(e *Entry) (victims []*Entry, err error) {
	if q.limits.Count == 0 || e.Bytes > q.limits.Bytes {
		return nil, ErrFull
	}
	count, bytes := q.count+1, q.bytes+e.Bytes
	own := q.shares.sizes(holderOf(e))
	own[byCount]++
	own[byBytes] += e.Bytes
	for err == nil && (count > q.limits.Count || bytes > q.limits.Bytes) {
		by := byCount
		if bytes > q.limits.Bytes {
			by = byBytes
		}
		v, mine := (*Entry)(nil), q.shares.of[holderOf(e)]
		switch most := q.shares.largest(by); {
		case most == nil:
			err = ErrFull
		case most != mine && most.size(by) > own[by]:
			v = most.entries[0]
		case mine != nil && mine.entries[0].turn > e.turn:
			v = mine.entries[0]
			own[byCount]--
			own[byBytes] -= v.Bytes
		case most != mine && most.size(by) == own[by]:
			err = ErrFull
		default:
			err = ErrShare
		}
		if v != nil {
			victims = append(victims, v)
			q.shares.remove(v)
			count--
			bytes -= v.Bytes
		}
	}
	if err != nil {
		for _, v := range victims { // they stay
			q.shares.add(v)
		}
		return nil, err
	}
	return victims, nil
}

// add inserts an entry at its place.
func (f *flow) add(e *Entry) {
	f.entries = slices.Insert(f.entries, f.place(e), e)
	f.queue.count++
	e.flow = f
}

// place returns where an entry is among those of its flow, or belongs.
func (f *flow) place(e *Entry) int {
	at, _ := slices.BinarySearchFunc(f.entries, e, (*Entry).compare)
	return at
}

// modelQueue returns the queue of a model, and drops those that have been empty for long.
func (q *Queue) modelQueue(model string, now time.Time) *modelQueue {
	m := q.queues[model]
	if m == nil {
		for name, old := range q.queues {
			if old.count == 0 && old.pace.old(now) {
				delete(q.queues, name)
			}
		}
		m = &modelQueue{model: model, flows: map[string]*flow{}}
		q.queues[model] = m
	}
	if m.count == 0 {
		m.pace.resume(now)
	}
	return m
}

// flow returns the flow of a tenant. A new flow starts at the current turn: it gets no credit
// for turns that it did not use, and waits for one of each that was there.
func (m *modelQueue) flow(owner string) *flow {
	f := m.flows[owner]
	if f == nil {
		order := uint64(0)
		for _, o := range m.flows {
			order = max(order, o.order+1)
		}
		f = &flow{queue: m, order: order}
		m.flows[owner] = f
	}
	if len(f.entries) == 0 {
		f.tag = max(f.tag, m.clock+1)
	}
	return f
}

// Next removes and returns the request to serve next, among those that may be attempted now
// and that can accepts; nil if there is none. runs returns how many requests of an entry's
// client run.
func (q *Queue) Next(model string, now time.Time, runs func(*Entry) int, can func(*Entry) bool) *Entry {
	m := q.queues[model]
	if m == nil || m.count == 0 {
		return nil
	}
	for _, next := range m.turns(runs) {
		f := next.flow
		for _, e := range f.entries {
			if now.Before(e.NotBefore) || !can(e) {
				continue
			}
			m.clock = max(m.clock, f.tag) // it is past the tag of a flow that could not be served
			f.tag = m.clock + 1
			q.shares.served(e)
			m.pace.served(now)
			q.Leave(e)
			return e
		}
	}
	return nil
}

// Passed notes that a request for a model was served although it had not waited: those that wait cannot be
// served yet, and how long says nothing about others.
func (q *Queue) Passed(model string) {
	if m := q.queues[model]; m != nil {
		m.pace.times = nil
	}
}

// turn is a flow with the number of requests that its client runs.
type turn struct {
	*flow
	running int
}

// turns returns the flows with entries, in the order in which they are served.
func (m *modelQueue) turns(runs func(*Entry) int) []turn {
	out := make([]turn, 0, len(m.flows))
	for _, f := range m.flows {
		if len(f.entries) > 0 {
			out = append(out, turn{f, runs(f.entries[0])})
		}
	}
	slices.SortFunc(out, func(a, b turn) int {
		return cmp.Or(cmp.Compare(a.running, b.running), cmp.Compare(a.tag, b.tag), cmp.Compare(a.order, b.order))
	})
	return out
}

// Leave removes an entry; it is a no-op for one that is not in the queue.
func (q *Queue) Leave(e *Entry) {
	f := e.flow
	if f == nil {
		return
	}
	e.flow = nil
	at := f.place(e)
	f.entries = slices.Delete(f.entries, at, at+1)
	q.shares.remove(e)
	m := f.queue
	m.count--
	q.count--
	q.bytes -= e.Bytes
	for owner, o := range m.flows { // later tags are kept while other flows wait
		if len(o.entries) == 0 && (m.count == 0 || o.tag <= m.clock) {
			delete(m.flows, owner)
		}
	}
}

// Len returns how many requests wait for a model.
func (q *Queue) Len(model string) int {
	if m := q.queues[model]; m != nil {
		return m.count
	}
	return 0
}

// Oldest returns the arrival time of the request that has waited longest for a model.
func (q *Queue) Oldest(model string) (at time.Time, any bool) {
	if m := q.queues[model]; m != nil {
		at = m.oldest()
	}
	return at, !at.IsZero()
}

// oldest returns the arrival time of the request that has waited longest; zero if none
// waits.
func (m *modelQueue) oldest() time.Time {
	var at time.Time
	for _, f := range m.flows {
		for _, e := range f.entries {
			if at.IsZero() || e.arrived.Before(at) {
				at = e.arrived
			}
		}
	}
	return at
}

// Length is the length of the queue of one model.
type Length struct {
	Model string
	Count int
	// Oldest is the arrival time of the request that has waited longest.
	Oldest time.Time
}

// Lengths returns the lengths of the queues that are not empty, in no order.
func (q *Queue) Lengths() []Length {
	var out []Length
	for _, m := range q.queues {
		if m.count == 0 {
			continue
		}
		out = append(out, Length{Model: m.model, Count: m.count, Oldest: m.oldest()})
	}
	return out
}
