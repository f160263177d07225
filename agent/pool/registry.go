package pool

import (
	"cmp"
	"context"
	"sync"
	"time"

	"metalfleet.dev/metalfleet/agent/memory"
	"metalfleet.dev/metalfleet/metal/wire"
)

// registry holds the replicas of this Mac with their engines, and the one lock
// that guards them. The state machine, the life cycle and the pressure loop
// share it: what one of them decides is visible to the others in the same
// critical section. It also signals the loops.
type registry struct {
	ledger *memory.Ledger
	// unsent are the requests that no engine received yet.
	unsent *wire.Unsent
	// changed is called after each change, without the lock.
	changed func()
	// planSignal makes the state machine plan. pollSignal makes the pressure loop
	// poll, and requestSignal makes it poll as often as while an engine works.
	// bookSignal makes the bookkeeper store what polls found.
	planSignal, pollSignal, requestSignal, bookSignal chan struct{}
	// life ends with Run: the agent's goroutines stop, engines live on.
	life   context.Context
	finish context.CancelFunc
	tasks  sync.WaitGroup

	mu      sync.Mutex // guards what follows and all entries; held for memory work only
	entries map[memory.Key]*entry
	stale   bool // something changed since the last Snapshot
	// roomChanges counts calls of roomChanged: a search for memory that one of them
	// overtook is repeated at once.
	roomChanges int64
}

func newRegistry(ledger *memory.Ledger, changed func()) *registry {
	newSignal := func() chan struct{} { return make(chan struct{}, 1) }
	r := &registry{
		ledger: ledger, unsent: wire.NewUnsent(), changed: changed, planSignal: newSignal(), pollSignal: newSignal(), requestSignal: newSignal(), bookSignal: newSignal(),
		entries: map[memory.Key]*entry{},
	}
	r.life, r.finish = context.WithCancel(context.Background())
	return r
}

// read does a copy under the lock.
func (r *registry) read(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f()
}

// change does memory work under the lock and publishes the result.
func (r *registry) change(f func()) {
	r.mu.Lock()
	f()
	r.stale = true
	r.mu.Unlock()
	r.changed()
}

// publish reports that there is a new snapshot.
func (r *registry) publish() { r.change(func() {}) }

// entry finds an entry or makes one; the caller holds mu.
func (r *registry) entry(k memory.Key) *entry {
	e := r.entries[k]
	if e == nil {
		e = &entry{key: k, state: Absent}
		r.entries[k] = e
	}
	return e
}

// replan makes the state machine plan again.
func (r *registry) replan() { signal(r.planSignal) }

// pollNow makes the pressure loop poll at once.
func (r *registry) pollNow() { signal(r.pollSignal) }

// pollSoon makes the pressure loop poll at once, or one Poll after the last poll: a
// request was admitted.
func (r *registry) pollSoon() { signal(r.requestSignal) }

// storeBooks makes the bookkeeper store what polls found.
func (r *registry) storeBooks() { signal(r.bookSignal) }

// running lists the engines that have a process.
func (r *registry) running() (engines []*engine) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.entries {
		if e.engine != nil && e.engine.alive() {
			engines = append(engines, e.engine)
		}
	}
	return engines
}

// alone reports whether g is the only engine; the caller holds mu. An engine
// that loads or serves changes the host's memory too.
func (r *registry) alone(g *engine) bool {
	for _, e := range r.entries {
		if e.engine != nil && e.engine != g {
			return false
		}
	}
	return true
}

// leaving returns an engine other than the given one that ends soon; nil if there
// is none. The caller holds mu.
func (r *registry) leaving(other *engine) *engine {
	for _, e := range r.entries {
		if g := e.engine; g != nil && g != other && (g.state == Draining || g.state == Stopping) && !g.lasts(time.Now()) {
			return g
		}
	}
	return nil
}

// roomChanged has every entry that found no memory tried again; the caller
// holds mu and calls replan.
func (r *registry) roomChanged() {
	r.roomChanges++
	for _, e := range r.entries {
		e.roomAgain = time.Time{}
	}
}

// engineIdle has every entry that found no memory tried again, because an engine
// became idle and may be evicted; the caller holds mu.
func (r *registry) engineIdle() {
	for _, e := range r.entries {
		if e.short != nil && !e.roomAgain.IsZero() {
			r.replan()
			break
		}
	}
	r.roomChanged()
}

// spare returns how much the ledger may reserve for a replica in addition to
// what is reserved permanently: for replicas that are always resident and are
// not being unloaded. The caller holds mu.
func (r *registry) spare(k memory.Key) int64 {
	a := r.ledger.Account()
	left := a.Limits.Capacity
	for holder, bytes := range a.Holders {
		if e := r.entries[holder]; holder != k && (e == nil || !e.onDemand() && !e.want.leaves()) {
			left -= bytes
		}
	}
	return left
}

func byKey(a, b memory.Key) int {
	return cmp.Or(cmp.Compare(a.UID, b.UID), cmp.Compare(a.Epoch, b.Epoch))
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
