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
// can. The caller holds Pool.mu.
func (e *entry) unavailable(now time.Time) error {
	switch {
	case e.refused != nil:
		return &LoadError{Reason: e.refused.Reason, Message: e.refused.Message}
	case !e.download.done && e.engine == nil:
		return &NotReadyError{State: e.state, RetryAfter: notReadyRetry}
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

// rememberUse writes down when engines were used last, if the journal lags. A
// failure is only logged: it is tried again at the next poll.
func (p *Pool) rememberUse(lag time.Duration) {
	uses := map[string]time.Time{} // by socket, which is unique
	p.read(func() {
		for _, e := range p.entries {
			if g := e.engine; g != nil && g.proc != nil && !g.gone && g.lastUse.Sub(g.lastUseKept) > lag {
				at := g.lastUse
				uses[g.record.Socket], g.lastUseKept, g.record.LastUse = at, at, &at
			}
		}
	})
	if len(uses) == 0 {
		return
	}
	err := p.Journal.Update(func(s *journal.State) {
		for i := range s.Engines {
			if at, ok := uses[s.Engines[i].Socket]; ok {
				s.Engines[i].LastUse = &at
			}
		}
	})
	if err != nil {
		p.Log.Error(err, "Failed to store when engines were last used")
	}
}
