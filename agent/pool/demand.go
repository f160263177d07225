package pool

import (
	"time"

	"metalfleet.dev/metalfleet/agent/journal"
)

// demand is a load that requests wait for: one per entry. The first request
// begins it. It ends when the engine is ready or with an error, which every
// waiter gets. A waiter may leave at any time; when all have left, the load
// continues for the next request.
type demand struct {
	since time.Time
	// waiting holds get one result, nil if the hold was granted. registry.mu
	// guards it.
	waiting map[*Hold]chan error
}

// join makes h wait for the engine of e and reports whether a load was begun; the
// caller holds registry.mu, and e is OnDemand and not ready.
func (e *entry) join(h *Hold, now time.Time) (result <-chan error, began bool) {
	if e.demand == nil {
		e.demand = &demand{since: now, waiting: map[*Hold]chan error{}}
		began = true
	}
	c := make(chan error, 1)
	e.demand.waiting[h] = c
	return c, began
}

// admitWaiters gives every waiter its hold, in the same critical section in which the
// engine became ready: nothing can evict it in between. The caller holds
// registry.mu.
func (e *entry) admitWaiters(g *engine) {
	if e.demand == nil {
		return
	}
	for h, result := range e.demand.waiting {
		h.engine = g
		g.holds[h] = struct{}{}
		result <- nil
	}
	e.demand = nil
}

// failWaiters gives every waiter the reason why there is no engine; the caller
// holds registry.mu.
func (e *entry) failWaiters(err error) {
	if e.demand == nil {
		return
	}
	for _, result := range e.demand.waiting {
		result <- err
	}
	e.demand = nil
}

// failedLoad is the error of requests that waited for a load that failed, with
// the time of the next attempt; the caller holds registry.mu.
func (e *entry) failedLoad(why journal.Refusal, now time.Time) error {
	err := &LoadError{Reason: why.Reason, Message: why.Message}
	if e.refused == nil {
		err.RetryAfter = max(notReadyRetry, e.restart.Sub(now))
	}
	return err
}
