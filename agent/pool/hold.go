package pool

import (
	"context"
	"fmt"
	"sync"
	"time"

	"metalfleet.dev/metalfleet/agent/memory"
)

// Hold is a request's claim on an engine: no hold, no call. As long as it is
// held, the engine is not unloaded before its drain deadline.
type Hold struct {
	requests *requests
	engine   *engine
	// ctx ends with the request or with Release; calls are made under it.
	ctx    context.Context
	cancel context.CancelFunc
	once   sync.Once
}

// Epoch and load of the engine that is held.
func (h *Hold) Epoch() int64 { return h.engine.key.Epoch }

// Load counts the engines of that epoch, from 1.
func (h *Hold) Load() int64 { return h.engine.load }

// Release gives the hold back and ends its calls. It may be called at any time
// and more than once.
func (h *Hold) Release() {
	h.once.Do(func() {
		h.requests.drop(h)
		h.cancel()
	})
}

// notReadyRetry is the RetryAfter of a request for an engine that is loading.
const notReadyRetry = time.Second

// requests grants holds: at once if the engine is ready, or after the load that
// the first request begins (OnDemand).
type requests struct {
	*registry
	timing Timing
	gate   gate
}

// acquire takes a hold; see Pool.Acquire.
func (rq *requests) acquire(ctx context.Context, k memory.Key) (*Hold, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	h := &Hold{requests: rq}
	h.ctx, h.cancel = context.WithCancel(ctx)
	if err := rq.hold(h, k); err != nil {
		h.cancel()
		return nil, fmt.Errorf("acquire replica %s epoch %d: %w", k.UID, k.Epoch, err)
	}
	context.AfterFunc(h.ctx, h.Release)
	rq.pollSoon()
	return h, nil
}

// hold takes the hold, at once or when the load is done: under the lock on both
// paths.
func (rq *requests) hold(h *Hold, k memory.Key) error {
	result, err := rq.takeOrJoin(h, k)
	if err != nil || result == nil {
		return err
	}
	timer := time.NewTimer(rq.timing.LoadWait)
	defer timer.Stop()
	select {
	case err := <-result:
		return err
	case <-h.ctx.Done():
		err = h.ctx.Err()
	case <-timer.C:
		err = rq.stillWaiting(k)
	case <-rq.life.Done():
		err = &NotReadyError{State: Loading, RetryAfter: notReadyRetry}
	}
	return rq.leave(h, k, result, err)
}

// takeOrJoin takes a hold on a ready engine, or joins those that wait for an
// OnDemand one and get the result from the channel.
func (rq *requests) takeOrJoin(h *Hold, k memory.Key) (<-chan error, error) {
	now := time.Now()
	rq.mu.Lock()
	defer rq.mu.Unlock()
	e := rq.entries[k]
	switch {
	case e == nil || e.released:
		return nil, ErrNotHere
	case e.state == Ready && e.engine != nil && e.engine.state == Ready:
		h.engine = e.engine
		h.engine.holds[h] = struct{}{}
		return nil, nil
	case !e.onDemand():
		return nil, &NotReadyError{State: e.state, RetryAfter: notReadyRetry}
	}
	if err := rq.unavailable(e, now); err != nil {
		return nil, err
	}
	result, began := e.join(h, now)
	if began {
		e.roomAgain = time.Time{}
		rq.replan()
	}
	return result, nil
}

// stillWaiting is the error of a request that has waited for LoadWait: it names
// the cause of the delay.
func (rq *requests) stillWaiting(k memory.Key) error {
	rq.mu.Lock()
	defer rq.mu.Unlock()
	e := rq.entries[k]
	switch {
	case e == nil:
		return ErrNotHere
	case e.engine == nil && e.short != nil:
		return &RoomError{Cause: e.short, RetryAfter: rq.timing.RoomRetry}
	case e.engine == nil && !rq.gate.mayStart():
		return rq.blockedError(e, "the memory of this Mac is still being checked after an engine ended uncleanly")
	}
	return &NotReadyError{State: Loading, RetryAfter: notReadyRetry}
}

// leave stops waiting because of err; a hold that was granted in the same moment
// is released. The load continues.
func (rq *requests) leave(h *Hold, k memory.Key, result <-chan error, err error) error {
	rq.mu.Lock()
	if e := rq.entries[k]; e != nil && e.demand != nil {
		delete(e.demand.waiting, h)
	}
	rq.mu.Unlock()
	select {
	case answer := <-result:
		if answer == nil {
			rq.drop(h)
		}
	default:
	}
	return err
}

// drop removes a hold from its engine. The idle time begins.
func (rq *requests) drop(h *Hold) {
	rq.mu.Lock()
	defer rq.mu.Unlock()
	g := h.engine
	delete(g.holds, h)
	g.use(time.Now())
	g.checkIdle()
	if len(g.holds) == 0 {
		rq.engineIdle()
	}
}

// unavailable returns why a request cannot even wait for an OnDemand entry; nil
// if it can. The caller holds mu.
func (rq *requests) unavailable(e *entry, now time.Time) error {
	_, blocked := rq.gate.blocked()
	switch {
	case e.refused != nil:
		return &LoadError{Reason: e.refused.Reason, Message: e.refused.Message}
	case !e.download.done && e.engine == nil:
		return &NotReadyError{State: e.state, RetryAfter: notReadyRetry}
	case e.hasNoProcess() && blocked != "":
		return rq.blockedError(e, blocked)
	case e.engine.yielding():
		return &NotReadyError{State: e.state, RetryAfter: notReadyRetry}
	case e.engine == nil && e.setBackNow(now):
		return &LoadError{Reason: e.failure.Reason, Message: e.failure.Message, RetryAfter: e.restart.Sub(now)}
	}
	return nil
}

// blockedError is the error of a request where no engine can be started on this Mac;
// the caller holds mu.
func (rq *requests) blockedError(e *entry, why string) error {
	limits := rq.ledger.Account().Limits
	return &RoomError{RetryAfter: blockedRetry, Cause: &memory.NoRoomError{
		Needed: e.assignment.ReservedBytes, Capacity: limits.Capacity, Ceiling: limits.Ceiling, Limits: limits, Term: limits.Term, Because: why,
	}}
}

// blockedRetry is the RetryAfter of a request where no engine can be started:
// such a cause lasts.
const blockedRetry = 30 * time.Second

// refuseBlocked ends the wait of requests for a load that cannot begin.
func (rq *requests) refuseBlocked() {
	why := ""
	rq.read(func() { _, why = rq.gate.blocked() })
	if why == "" {
		return
	}
	rq.change(func() {
		for _, e := range rq.entries {
			if e.demand != nil && e.hasNoProcess() {
				e.failWaiters(rq.blockedError(e, why))
			}
		}
	})
}
