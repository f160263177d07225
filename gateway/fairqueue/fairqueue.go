// Package fairqueue is the queue in which requests wait for a replica: while none is ready,
// while all are busy, and after all have refused.
//
// It owns which requests may wait, which one is served next, and the position and expected
// wait of each. It is pure: it has no clock, no lock and no goroutine; the caller passes
// the time. It rejects requests beyond its limits (count, bytes, age) and those that could
// not be served before their deadline.
//
// The queue is fair between flows; a flow is one API key at one model. The flow whose
// client has the fewest requests running is served first; of those with as many, flows take
// turns, one request each (start-time fair queueing), regardless of how many of their
// requests wait. Within a flow, requests are served in order of arrival. All models share the
// queue's capacity, and the shares are per key: when the queue is full, the key with the
// largest share loses its newest request, unless the newcomer's key would then have as
// large a share.
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
	// ErrFull means that other keys use the whole queue.
	ErrFull = errors.New("the queue is full")
	// ErrShare means that the key already has as large a share of the queue as any other.
	ErrShare = errors.New("the client's share of the queue is used up")
	// ErrLate means that a request was not served before its deadline, or could not be.
	ErrLate = errors.New("not served in time")
)

// Entry is one request in the queue. It may leave and enter again, and then keeps its place
// in its flow and its deadline.
type Entry struct {
	// Model and Key name its flow; Key is empty if no keys are required.
	Model, Key string
	// Bytes of its body.
	Bytes int64
	// Deadline of the client; zero is none. Enter moves it to the end of the request's
	// maximum age if that is earlier.
	Deadline time.Time
	// NotBefore is the earliest time of the next attempt.
	NotBefore time.Time

	number  uint64 // in order of arrival; 0 before it first entered
	arrived time.Time
	flow    *flow // nil outside the queue
}

// Waits reports whether the entry is in the queue.
func (e *Entry) Waits() bool { return e.flow != nil }

// flow is the queue of one key at one model.
type flow struct {
	queue   *modelQueue
	key     string
	entries []*Entry // by number
	bytes   int64
	// tag is the turn of its first entry; order decides between flows with the same tag.
	tag, order uint64
}

// modelQueue holds the requests that wait for one model.
type modelQueue struct {
	model string
	flows map[string]*flow
	// clock is the tag of the request that was served last.
	clock uint64
	pace  pace
	count int
}

// Queue holds the waiting requests of all models. It is not safe for concurrent use.
type Queue struct {
	limits  Limits
	queues  map[string]*modelQueue
	count   int
	bytes   int64
	numbers uint64
}

// New makes an empty queue.
func New(l Limits) *Queue { return &Queue{limits: l, queues: map[string]*modelQueue{}} }

// Enter queues a request. It returns the requests that it displaced, newest first. Its
// error is ErrFull, ErrShare or ErrLate.
func (q *Queue) Enter(e *Entry, now time.Time) (left []*Entry, err error) {
	if e.number == 0 {
		q.numbers++
		e.number, e.arrived = q.numbers, now
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
	m.flow(e.Key).add(e)
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

// displace chooses the requests that leave to admit e.
func (q *Queue) displace(e *Entry) (victims []*Entry, err error) {
	count, bytes := q.count+1, q.bytes+e.Bytes
	if q.limits.Count == 0 || e.Bytes > q.limits.Bytes {
		return nil, ErrFull
	}
	if count <= q.limits.Count && bytes <= q.limits.Bytes {
		return nil, nil
	}
	held := q.shares()
	mine := held[holderOf(e)]
	own := share{count: mine.count + 1, bytes: mine.bytes + e.Bytes}
	for count > q.limits.Count || bytes > q.limits.Bytes {
		measure := func(s share) int64 { return int64(s.count) }
		if bytes > q.limits.Bytes {
			measure = func(s share) int64 { return s.bytes }
		}
		var holder holder
		most := share{}
		for h, s := range held {
			if s.count > 0 && (most.count == 0 || measure(s) > measure(most) || measure(s) == measure(most) && s.newest().number > most.newest().number) {
				holder, most = h, s
			}
		}
		switch {
		case most.count == 0:
			return nil, ErrFull
		case measure(most) < measure(own) || holder == holderOf(e):
			return nil, ErrShare
		case measure(most) == measure(own):
			return nil, ErrFull
		}
		v := most.newest()
		victims = append(victims, v)
		most.count--
		most.bytes -= v.Bytes
		held[holder] = most
		count--
		bytes -= v.Bytes
	}
	return victims, nil
}

// holder is what a share belongs to: a key across all models, or a model if no keys are
// required.
type holder struct{ key, model string }

func holderOf(e *Entry) holder {
	if e.Key != "" {
		return holder{key: e.Key}
	}
	return holder{model: e.Model}
}

// share is the part of the queue that a holder uses: the first count of its entries, those
// that are not displaced.
type share struct {
	entries []*Entry // by number
	count   int
	bytes   int64
}

func (s share) newest() *Entry { return s.entries[s.count-1] }

func (q *Queue) shares() map[holder]share {
	out := map[holder]share{}
	for _, m := range q.queues {
		for _, f := range m.flows {
			if len(f.entries) == 0 {
				continue
			}
			h := holderOf(f.entries[0])
			s := out[h]
			s.entries = append(s.entries, f.entries...)
			s.count, s.bytes = len(s.entries), s.bytes+f.bytes
			out[h] = s
		}
	}
	for _, s := range out {
		slices.SortFunc(s.entries, func(a, b *Entry) int { return cmp.Compare(a.number, b.number) })
	}
	return out
}

// add inserts an entry at its place.
func (f *flow) add(e *Entry) {
	at, _ := slices.BinarySearchFunc(f.entries, e.number, func(o *Entry, n uint64) int { return cmp.Compare(o.number, n) })
	f.entries = slices.Insert(f.entries, at, e)
	f.bytes += e.Bytes
	f.queue.count++
	e.flow = f
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

// flow returns the flow of a key. A new flow starts at the current turn: it gets no credit
// for turns that it did not use.
func (m *modelQueue) flow(key string) *flow {
	f := m.flows[key]
	if f == nil {
		order := uint64(0)
		for _, o := range m.flows {
			order = max(order, o.order+1)
		}
		f = &flow{queue: m, key: key, order: order}
		m.flows[key] = f
	}
	if len(f.entries) == 0 {
		f.tag = max(f.tag, m.clock)
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
	for _, f := range m.turns(runs) {
		for _, e := range f.entries {
			if now.Before(e.NotBefore) || !can(e) {
				continue
			}
			m.clock = f.tag
			f.tag++
			m.pace.served(now)
			q.Leave(e)
			return e
		}
	}
	return nil
}

// turns returns the flows with entries, in the order in which they are served.
func (m *modelQueue) turns(runs func(*Entry) int) []*flow {
	out, running := make([]*flow, 0, len(m.flows)), make(map[*flow]int, len(m.flows))
	for _, f := range m.flows {
		if len(f.entries) > 0 {
			out = append(out, f)
			running[f] = runs(f.entries[0])
		}
	}
	slices.SortFunc(out, func(a, b *flow) int {
		return cmp.Or(cmp.Compare(running[a], running[b]), cmp.Compare(a.tag, b.tag), cmp.Compare(a.order, b.order))
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
	f.entries = slices.DeleteFunc(f.entries, func(o *Entry) bool { return o == e })
	f.bytes -= e.Bytes
	m := f.queue
	m.count--
	q.count--
	q.bytes -= e.Bytes
	for key, o := range m.flows { // later tags are kept while other flows wait
		if len(o.entries) == 0 && (m.count == 0 || o.tag <= m.clock) {
			delete(m.flows, key)
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
		if len(f.entries) > 0 && (at.IsZero() || f.entries[0].arrived.Before(at)) {
			at = f.entries[0].arrived
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

// Lengths returns the lengths of the queues that are not empty, by model.
func (q *Queue) Lengths() []Length {
	var out []Length
	for _, m := range q.queues {
		if m.count == 0 {
			continue
		}
		out = append(out, Length{Model: m.model, Count: m.count, Oldest: m.oldest()})
	}
	slices.SortFunc(out, func(a, b Length) int { return cmp.Compare(a.Model, b.Model) })
	return out
}
