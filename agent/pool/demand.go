package pool

import (
	"time"

	"metalfleet.dev/metalfleet/agent/journal"
)

// demand is a load that requests wait for: one for an entry, however many
// wait. It is made by the first request and ends with the engine's readiness
// or with an error, each of which every waiter is told. A waiter may leave at
// any time; when all have left, the load goes on: the next request finds it.
type demand struct {
	since time.Time
	// waiting holds are told once, nil with the hold taken. Pool.mu guards it.
	waiting map[*Hold]chan error
}

// join lets h wait for the engine of e; the caller holds Pool.mu, and e is
// OnDemand and not ready. It reports whether a load was begun.
func (e *entry) join(h *Hold, now time.Time) (told <-chan error, began bool) {
	if e.demand == nil {
		e.demand = &demand{since: now, waiting: map[*Hold]chan error{}}
		began = true
	}
	c := make(chan error, 1)
	e.demand.waiting[h] = c
	return c, began
}

// grant gives every waiter its hold, in the same critical section in which the
// engine became ready: nothing can evict it in between. The caller holds
// Pool.mu.
func (e *entry) grant(g *engine) {
	if e.demand == nil {
		return
	}
	for h, told := range e.demand.waiting {
		h.engine = g
		g.holds[h] = struct{}{}
		told <- nil
	}
	e.demand = nil
}

// disappoint tells every waiter why there is no engine; the caller holds Pool.mu.
func (e *entry) disappoint(err error) {
	if e.demand == nil {
		return
	}
	for _, told := range e.demand.waiting {
		told <- err
	}
	e.demand = nil
}

// failedLoad is what waiters are told of a load that failed, with the time of
// the next try; the caller holds Pool.mu.
func (e *entry) failedLoad(why journal.Refusal, now time.Time) error {
	err := &LoadError{Reason: why.Reason, Message: why.Message}
	if e.refused == nil {
		err.RetryAfter = max(notReadyRetry, e.restart.Sub(now))
	}
	return err
}
