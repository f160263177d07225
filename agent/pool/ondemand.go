package pool

import (
	"time"

	"metalfleet.dev/metalfleet/agent/journal"
	"metalfleet.dev/metalfleet/agent/memory"
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

// onDemand reports whether the first request loads the entry's engine; the
// caller holds Pool.mu.
func (e *entry) onDemand() bool {
	return e.want == wantRunning && e.order.Residency.OnDemand()
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

// unavailable says why an OnDemand entry cannot even be waited for; nil if it
// can. The caller holds mu.
func (p *Pool) unavailable(e *entry, now time.Time) error {
	_, blocked := p.blocked()
	switch {
	case e.refused != nil:
		return &LoadError{Reason: e.refused.Reason, Message: e.refused.Message}
	case !e.download.done && e.engine == nil:
		return &NotReadyError{State: e.state, RetryAfter: notReadyRetry}
	case e.unstaffed() && blocked != "":
		return p.blockedError(e, blocked)
	case e.engine == nil && e.setBackNow(now):
		return &LoadError{Reason: e.failure.Reason, Message: e.failure.Message, RetryAfter: e.restart.Sub(now)}
	}
	return nil
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

// idleAfter is the time to live of an idle engine; the caller holds Pool.mu.
func (e *entry) idleAfter() time.Duration {
	return time.Duration(e.order.Residency.IdleSeconds) * time.Second
}

// use notes the end of a use: the time to live begins again. The caller holds
// Pool.mu.
func (g *engine) use(now time.Time) {
	if now.After(g.lastUse) {
		g.lastUse = now
	}
}

// lastUseKept is how far the journal may lag behind the last use of an engine:
// after a restart of the agent its idle time begins that much early at most.
const lastUseKept = 10 * time.Second

// unstaffed reports whether the entry has no process: none was started, or the
// last one has ended and that is being written down. The caller holds Pool.mu.
func (e *entry) unstaffed() bool { return e.engine == nil || e.engine.gone }

// blockedError is the error of a request where no engine can be started on this Mac;
// the caller holds mu.
func (p *Pool) blockedError(e *entry, why string) error {
	limits := p.Ledger.Account().Limits
	return &RoomError{RetryAfter: blockedRetry, Cause: &memory.NoRoomError{
		Needed: e.order.ReservedBytes, Capacity: limits.Capacity, Ceiling: limits.Ceiling, Limits: limits, Term: limits.Term, Because: why,
	}}
}

// blockedRetry is when a request may come again where no engine can be started:
// what blocks it lasts.
const blockedRetry = 30 * time.Second

// refuseBlocked ends the wait of requests for a load that cannot begin.
func (p *Pool) refuseBlocked() {
	why := ""
	p.read(func() { _, why = p.blocked() })
	if why == "" {
		return
	}
	p.change(func() {
		for _, e := range p.entries {
			if e.demand != nil && e.unstaffed() {
				e.disappoint(p.blockedError(e, why))
			}
		}
	})
}
