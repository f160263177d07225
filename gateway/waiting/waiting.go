// Package waiting is the room in which requests wait for a replica: while none
// is ready, while all are busy, and after all have refused.
//
// It owns who may wait, whose turn it is, and what a waiter can be told of its
// place. It is pure: it has no clock, no lock and no goroutine, and whoever
// uses it says what time it is. It refuses whoever would exceed its bounds
// (requests, bytes, age), and whoever could not be served in time.
//
// Turns are fair for each flow, which is an API key at a model: one is served
// from each in turn (start-time fair queueing), however many wait. Within a flow
// the first to arrive comes first. The room itself is shared by keys, however many
// models they ask: where it is full, the key that takes the most of it loses its
// newest request, unless the newcomer's key would take as much.
//
// Start reading at Room.Enter and Room.Next; eta.go has what is told.
package waiting

import (
	"cmp"
	"errors"
	"slices"
	"time"
)

// Limits of a room. A room of no requests lets nobody wait.
type Limits struct {
	// Count of requests that wait at once.
	Count int
	// Bytes of their bodies together.
	Bytes int64
	// Age is the longest that one may wait, in all.
	Age time.Duration
}

var (
	// ErrFull says that others take all the room.
	ErrFull = errors.New("the queue is full")
	// ErrShare says that the key takes as much of the room as any: it is its own
	// requests that are too many.
	ErrShare = errors.New("the client's share of the queue is used up")
	// ErrLate says that it would not be served in time, or was not.
	ErrLate = errors.New("not served in time")
)

// Waiter is one request. It may leave the room and enter again, and then has its
// old place in its flow and its old deadline.
type Waiter struct {
	// Model and Key are its flow; Key is empty where none is asked.
	Model, Key string
	// Bytes that it holds.
	Bytes int64
	// Deadline of the client; zero is none. Enter makes it the end of its age
	// where that comes earlier.
	Deadline time.Time
	// NotBefore is when it may be tried again.
	NotBefore time.Time

	number  uint64 // in order of arrival; 0 before it entered
	arrived time.Time
	flow    *flow // nil outside the room
}

// Waits says that it is in the room.
func (w *Waiter) Waits() bool { return w.flow != nil }

// flow is the queue of one key at one model.
type flow struct {
	queue   *queue
	key     string
	waiters []*Waiter // by number
	bytes   int64
	// tag is the turn of its first waiter; order tells flows of one turn apart.
	tag, order uint64
}

// queue is what waits for one model.
type queue struct {
	model string
	flows map[string]*flow
	// clock is the turn of whoever was served last.
	clock uint64
	pace  pace
	count int
}

// Room is the waiting room. It is for one goroutine at a time.
type Room struct {
	limits  Limits
	queues  map[string]*queue
	count   int
	bytes   int64
	numbers uint64
}

// New makes an empty room.
func New(l Limits) *Room { return &Room{limits: l, queues: map[string]*queue{}} }

// Enter lets a request wait. Those that it returns had to leave for it, newest
// first. Its error is ErrFull, ErrShare or ErrLate.
func (r *Room) Enter(w *Waiter, now time.Time) (left []*Waiter, err error) {
	if w.number == 0 {
		r.numbers++
		w.number, w.arrived = r.numbers, now
		if end := now.Add(r.limits.Age); w.Deadline.IsZero() || end.Before(w.Deadline) {
			w.Deadline = end
		}
	}
	if !now.Before(w.Deadline) {
		return nil, ErrLate
	}
	victims, err := r.makeRoom(w)
	if err != nil {
		return nil, err
	}
	q := r.queue(w.Model, now)
	q.flow(w.Key).add(w)
	r.count++
	r.bytes += w.Bytes
	if eta, known := r.ETA(w, now); known && now.Add(eta).After(w.Deadline) && len(victims) == 0 {
		r.Leave(w)
		return nil, ErrLate
	}
	for _, v := range victims {
		r.Leave(v)
	}
	return victims, nil
}

// makeRoom finds who must leave for a newcomer.
func (r *Room) makeRoom(w *Waiter) (victims []*Waiter, err error) {
	count, bytes := r.count+1, r.bytes+w.Bytes
	if r.limits.Count == 0 || w.Bytes > r.limits.Bytes {
		return nil, ErrFull
	}
	if count <= r.limits.Count && bytes <= r.limits.Bytes {
		return nil, nil
	}
	held := r.shares()
	mine := held[holderOf(w)]
	own := share{count: mine.count + 1, bytes: mine.bytes + w.Bytes}
	for count > r.limits.Count || bytes > r.limits.Bytes {
		measure := func(s share) int64 { return int64(s.count) }
		if bytes > r.limits.Bytes {
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
		case measure(most) < measure(own) || holder == holderOf(w):
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

// holder is whose share of the room a waiter takes: its key's, at all models together,
// or where no keys are asked its model's.
type holder struct{ key, model string }

func holderOf(w *Waiter) holder {
	if w.Key != "" {
		return holder{key: w.Key}
	}
	return holder{model: w.Model}
}

// share is what a holder takes of the room: the first count of its waiters, which are
// those that need not leave.
type share struct {
	waiters []*Waiter // by number
	count   int
	bytes   int64
}

func (s share) newest() *Waiter { return s.waiters[s.count-1] }

func (r *Room) shares() map[holder]share {
	out := map[holder]share{}
	for _, q := range r.queues {
		for _, f := range q.flows {
			if len(f.waiters) == 0 {
				continue
			}
			h := holderOf(f.waiters[0])
			s := out[h]
			s.waiters = append(s.waiters, f.waiters...)
			s.count, s.bytes = len(s.waiters), s.bytes+f.bytes
			out[h] = s
		}
	}
	for _, s := range out {
		slices.SortFunc(s.waiters, func(a, b *Waiter) int { return cmp.Compare(a.number, b.number) })
	}
	return out
}

// add puts a waiter to its place.
func (f *flow) add(w *Waiter) {
	at, _ := slices.BinarySearchFunc(f.waiters, w.number, func(o *Waiter, n uint64) int { return cmp.Compare(o.number, n) })
	f.waiters = slices.Insert(f.waiters, at, w)
	f.bytes += w.Bytes
	f.queue.count++
	w.flow = f
}

// queue finds that of a model, and forgets those that are long empty.
func (r *Room) queue(model string, now time.Time) *queue {
	q := r.queues[model]
	if q == nil {
		for name, old := range r.queues {
			if old.count == 0 && old.pace.old(now) {
				delete(r.queues, name)
			}
		}
		q = &queue{model: model, flows: map[string]*flow{}}
		r.queues[model] = q
	}
	if q.count == 0 {
		q.pace.resume(now)
	}
	return q
}

// flow finds that of a key. One that comes anew has its turn next, and no turns
// that it did not use.
func (q *queue) flow(key string) *flow {
	f := q.flows[key]
	if f == nil {
		order := uint64(0)
		for _, o := range q.flows {
			order = max(order, o.order+1)
		}
		f = &flow{queue: q, key: key, order: order}
		q.flows[key] = f
	}
	if len(f.waiters) == 0 {
		f.tag = max(f.tag, q.clock)
	}
	return f
}

// Next takes the waiter out whose turn it is, of those that may be tried and
// that can be served; nil is nobody.
func (r *Room) Next(model string, now time.Time, can func(*Waiter) bool) *Waiter {
	q := r.queues[model]
	if q == nil || q.count == 0 {
		return nil
	}
	for _, f := range q.turns() {
		for _, w := range f.waiters {
			if now.Before(w.NotBefore) || !can(w) {
				continue
			}
			q.clock = f.tag
			f.tag++
			q.pace.served(now)
			r.Leave(w)
			return w
		}
	}
	return nil
}

// turns are the flows that wait, in the order of their turns.
func (q *queue) turns() []*flow {
	out := make([]*flow, 0, len(q.flows))
	for _, f := range q.flows {
		if len(f.waiters) > 0 {
			out = append(out, f)
		}
	}
	slices.SortFunc(out, func(a, b *flow) int { return cmp.Or(cmp.Compare(a.tag, b.tag), cmp.Compare(a.order, b.order)) })
	return out
}

// Leave takes a waiter out. One that is not in the room may leave as well.
func (r *Room) Leave(w *Waiter) {
	f := w.flow
	if f == nil {
		return
	}
	w.flow = nil
	f.waiters = slices.DeleteFunc(f.waiters, func(o *Waiter) bool { return o == w })
	f.bytes -= w.Bytes
	q := f.queue
	q.count--
	r.count--
	r.bytes -= w.Bytes
	for key, o := range q.flows { // turns that lie ahead are remembered while others wait
		if len(o.waiters) == 0 && (q.count == 0 || o.tag <= q.clock) {
			delete(q.flows, key)
		}
	}
}

// Len is how many wait for a model.
func (r *Room) Len(model string) int {
	if q := r.queues[model]; q != nil {
		return q.count
	}
	return 0
}

// Oldest is when the one arrived that waits longest for a model.
func (r *Room) Oldest(model string) (at time.Time, any bool) {
	if q := r.queues[model]; q != nil {
		at = q.oldest()
	}
	return at, !at.IsZero()
}

// oldest is when the one arrived that waits longest; zero where nobody does.
func (q *queue) oldest() time.Time {
	var at time.Time
	for _, f := range q.flows {
		if len(f.waiters) > 0 && (at.IsZero() || f.waiters[0].arrived.Before(at)) {
			at = f.waiters[0].arrived
		}
	}
	return at
}

// Queue is what waits for one model.
type Queue struct {
	Model string
	Count int
	// Oldest is when the one arrived that waits longest.
	Oldest time.Time
}

// Queues are all that anybody waits in, by model.
func (r *Room) Queues() []Queue {
	var out []Queue
	for _, q := range r.queues {
		if q.count == 0 {
			continue
		}
		out = append(out, Queue{Model: q.model, Count: q.count, Oldest: q.oldest()})
	}
	slices.SortFunc(out, func(a, b Queue) int { return cmp.Compare(a.Model, b.Model) })
	return out
}
