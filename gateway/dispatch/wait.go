package dispatch

import (
	"context"
	"errors"
	"fmt"
	"time"

	"metalfleet.dev/metalfleet/api/front"
	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/gateway/fairqueue"
)

const (
	// maxRetryAfter bounds the Retry-After of a refused wait.
	maxRetryAfter = time.Minute
	// soon is the delay of a keep-alive event that is overdue.
	soon = time.Millisecond
)

var (
	errModelGone = errors.New("the deployment was deleted")
	errSuspended = errors.New("the deployment is suspended")
)

// wait queues a request until a replica can take it. If another deployment may serve it, it
// waits only as long as its routing allows.
func (d *Dispatcher) wait(ctx context.Context, r *Request) (*Lease, error) {
	w := newWaiter(r)
	began := time.Now()
	at, err := d.queue.enter(w)
	if err != nil {
		d.metrics.waits.WithLabelValues(outcome(err)).Inc()
		return nil, r.notServed(at, err)
	}
	r.Client.Queued(at)
	lease, err := d.awaitTurn(ctx, w)
	d.metrics.waits.WithLabelValues(outcome(err)).Inc()
	d.metrics.waited.Observe(time.Since(began).Seconds())
	if err != nil {
		return nil, r.notServed(at, err)
	}
	r.Client.Dequeued(time.Since(began))
	return lease, nil
}

// awaitTurn returns when a waiter is served, or its wait has ended otherwise.
func (d *Dispatcher) awaitTurn(ctx context.Context, w *waiter) (*Lease, error) {
	idle := w.request.Client.IdleSince()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		changed := w.request.model.Changed()
		if w.request.model.Gone() {
			return d.quit(w, errModelGone)
		}
		if w.request.suspended() {
			return d.quit(w, errSuspended)
		}
		d.queue.notifyFor(w, changed)
		now := time.Now()
		next := w.Deadline
		for _, other := range []time.Time{w.NotBefore, later(idle.Add(d.keepAlive), now.Add(soon))} {
			if other.After(now) && other.Before(next) {
				next = other
			}
		}
		timer.Reset(next.Sub(now))
		select {
		case lease := <-w.granted:
			return lease, nil
		case err := <-w.evicted:
			return nil, err
		case <-ctx.Done():
			if errors.Is(context.Cause(ctx), ErrTimeout) {
				return d.quit(w, fairqueue.ErrLate)
			}
			return d.quit(w, Ended(ctx))
		case <-changed:
		case <-timer.C:
			if !time.Now().Before(w.Deadline) {
				return d.quit(w, fairqueue.ErrLate)
			}
		}
		if time.Since(idle) < d.keepAlive {
			continue
		}
		idle = time.Now()
		at := d.queue.place(w)
		if at.Position == 0 {
			continue // it was served just now
		}
		if err := w.request.Client.KeepAlive(at); err != nil {
			return d.quit(w, front.Gone(err))
		}
	}
}

func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

// quit leaves the queue. A lease that was granted at the same moment is used if the
// request continues, and released otherwise.
func (d *Dispatcher) quit(w *waiter, why error) (*Lease, error) {
	lease, granted := d.queue.leave(w)
	switch {
	case granted && errors.Is(why, fairqueue.ErrLate):
		return lease, nil
	case granted:
		lease.Release()
	}
	return nil, why
}

// outcome is the label of the end of a wait.
func outcome(err error) string {
	switch {
	case err == nil:
		return waitServed
	case errors.Is(err, fairqueue.ErrFull):
		return waitFull
	case errors.Is(err, fairqueue.ErrShare):
		return waitShare
	case errors.Is(err, fairqueue.ErrLate):
		return waitLate
	case errors.Is(err, errModelGone), errors.Is(err, errSuspended):
		return waitGone
	}
	return waitLeft
}

// notServed returns the error for the client of a request that waited in vain, or could not
// wait.
func (r *Request) notServed(at Place, why error) error {
	after := RetryAfter
	if at.Known {
		after = min(max(at.ETA, RetryAfter), maxRetryAfter)
	}
	late := errors.Is(why, fairqueue.ErrLate)
	crowded := errors.Is(why, fairqueue.ErrShare) || errors.Is(why, fairqueue.ErrFull)
	gone, suspended := errors.Is(why, errModelGone), errors.Is(why, errSuspended)
	switch {
	case len(r.rest) > 0 && (crowded || late || gone || suspended):
		return errElsewhere
	case suspended:
		return openai.Suspended(r.Name)
	case errors.Is(why, fairqueue.ErrShare) && r.Key != "":
		e := openai.RateLimited(after)
		e.Message = fmt.Sprintf("Too many requests of the API key '%s' or its tenant are already waiting. Try again in %s.", r.Key, InSeconds(after))
		return e
	case gone:
		return openai.ModelNotFound(r.Name)
	case !crowded && !late:
		return why
	case r.refusal != nil:
		return r.refusal
	case !r.served(r.model) || late && r.last != nil:
		return openai.NoEndpoint(r.Name, after)
	}
	e := openai.Overloaded(after)
	if late {
		e.Message = "The request could not be served within the time it may wait. Try again later."
	}
	return e
}

// InSeconds formats a duration for messages to clients: whole seconds, rounded up.
func InSeconds(d time.Duration) string { return (d + time.Second - 1).Truncate(time.Second).String() }
