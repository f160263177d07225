package proxy

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/gateway/route"
	"metalfleet.dev/metalfleet/gateway/waiting"
)

const (
	// againMin and againMax bound how long a request is left alone that every
	// replica refused; within them the refusal's own Retry-After counts.
	againMin = 250 * time.Millisecond
	againMax = 2 * time.Second
	// retryMost is the longest that a Retry-After says.
	retryMost = time.Minute
)

// Ends of a wait, which are labels too.
const (
	waitServed = "served"
	waitFull   = "full"  // refused at once: others take the room
	waitShare  = "share" // refused or sent away: its key takes as much as any
	waitLate   = "late"
	waitLeft   = "left" // the client did, or the gateway ends
	waitGone   = "gone" // the model is
)

// seat is a place in the waiting room. Whoever takes the waiter out of the room
// says why: it was given an endpoint, or has to go.
type seat struct {
	*waiting.Waiter
	*query
	granted chan grant
	sent    chan error
}

// place is what a waiter is told.
type place struct {
	position int
	eta      time.Duration
	known    bool // eta is
}

// enter lets a request wait. It may be served before this returns.
func (b *book) enter(s *seat) (place, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.now()
	left, err := b.room.Enter(s.Waiter, now)
	for _, w := range left {
		b.seats[w].sent <- waiting.ErrShare
		delete(b.seats, w)
	}
	if err != nil {
		return place{}, err
	}
	b.seats[s.Waiter] = s
	b.begunToWait()
	p := b.placeOf(s, now)
	b.serve(s.model, now)
	return p, nil
}

func (b *book) placeOf(s *seat, now time.Time) place {
	eta, known := b.startsIn(s.model, now)
	if !known {
		eta, known = b.room.ETA(s.Waiter, now)
	}
	return place{b.room.Position(s.Waiter), eta, known}
}

// where is a waiter's place now.
func (b *book) where(s *seat) place {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.placeOf(s, b.now())
}

// wake serves whoever waits for a model and now can be.
func (b *book) wake(m *route.Model) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.serve(m, b.now())
}

// wakeAll serves whoever waits and now can be.
func (b *book) wakeAll() {
	b.mu.Lock()
	defer b.mu.Unlock()
	waits := map[*route.Model]bool{}
	for _, s := range b.seats {
		waits[s.model] = true
	}
	for m := range waits {
		b.serve(m, b.now())
	}
}

// serve is wake; the lock is held.
func (b *book) serve(m *route.Model, now time.Time) {
	name := m.Key.String()
	for b.room.Len(name) > 0 {
		var g grant
		w := b.room.Next(name, now, func(w *waiting.Waiter) (ok bool) {
			g, ok = b.choose(b.seats[w].query, now)
			return ok
		})
		if w == nil {
			return
		}
		b.seats[w].granted <- g
		delete(b.seats, w)
	}
}

// leave ends a wait that nobody else has ended. What it was given meanwhile is
// returned.
func (b *book) leave(s *seat) (g grant, granted bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.room.Leave(s.Waiter)
	delete(b.seats, s.Waiter)
	select {
	case g := <-s.granted:
		return g, true
	default:
		return grant{}, false
	}
}

// wait has a request wait for an endpoint. A stream that waits for long is kept
// open; of other answers nothing can be sent before they come. One that has
// somewhere else to go waits for as long as its routing allows.
func (p *Proxy) wait(ctx context.Context, w *reply, q *query) (grant, error) {
	s := &seat{Waiter: q.waiter, query: q, granted: make(chan grant, 1), sent: make(chan error, 1)}
	began := time.Now()
	at, err := p.book.enter(s)
	if err != nil {
		p.metrics.waits.WithLabelValues(outcome(err)).Inc()
		return grant{}, p.notServed(q, at, err)
	}
	tellPlace(w, at)
	g, err := p.sit(ctx, w, s)
	p.metrics.waits.WithLabelValues(outcome(err)).Inc()
	p.metrics.waited.Observe(time.Since(began).Seconds())
	if err != nil {
		return grant{}, p.notServed(q, at, err)
	}
	if !w.begun() {
		w.Header().Set(agentapi.HeaderQueueSeconds, strconv.FormatFloat(time.Since(began).Seconds(), 'f', 3, 64))
	}
	return g, nil
}

// sit waits in the room until one way or another it is over.
func (p *Proxy) sit(ctx context.Context, w *reply, s *seat) (grant, error) {
	silent := w.asked()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		changed := s.model.Changed()
		if s.model.Gone() {
			return p.quit(s, errModelGone)
		}
		p.book.wake(s.model)
		now := time.Now()
		next := s.Deadline
		for _, other := range []time.Time{s.NotBefore, later(silent.Add(p.KeepAlive), now.Add(soon))} {
			if other.After(now) && other.Before(next) {
				next = other
			}
		}
		timer.Reset(next.Sub(now))
		select {
		case g := <-s.granted:
			return g, nil
		case err := <-s.sent:
			return grant{}, err
		case <-ctx.Done():
			if errors.Is(context.Cause(ctx), errTotal) {
				return p.quit(s, waiting.ErrLate)
			}
			return p.quit(s, ended(ctx))
		case <-changed:
		case <-timer.C:
			if !time.Now().Before(s.Deadline) {
				return p.quit(s, waiting.ErrLate)
			}
		}
		if time.Since(silent) < p.KeepAlive {
			continue
		}
		silent = time.Now()
		if w.keepAlives == nil {
			continue
		}
		at := p.book.where(s)
		if at.position == 0 {
			continue // it was served just now
		}
		if err := w.keepAlive(at); err != nil {
			return p.quit(s, fmt.Errorf("%w: %w", errClientGone, err))
		}
	}
}

// soon is when a keep-alive event that is due is sent.
const soon = time.Millisecond

func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

// quit leaves the room. An endpoint that was just given is used, where its
// request goes on, or given back.
func (p *Proxy) quit(s *seat, why error) (grant, error) {
	g, granted := p.book.leave(s)
	switch {
	case granted && errors.Is(why, waiting.ErrLate):
		return g, nil
	case granted:
		g.release()
	}
	return grant{}, why
}

var errModelGone = errors.New("the deployment was deleted")

func outcome(err error) string {
	switch {
	case err == nil:
		return waitServed
	case errors.Is(err, waiting.ErrFull):
		return waitFull
	case errors.Is(err, waiting.ErrShare):
		return waitShare
	case errors.Is(err, waiting.ErrLate):
		return waitLate
	case errors.Is(err, errModelGone):
		return waitGone
	}
	return waitLeft
}

// notServed is what a client is told that waited in vain, or could not.
func (p *Proxy) notServed(q *query, at place, why error) error {
	after := noEndpointRetry
	if at.known {
		after = min(max(at.eta, noEndpointRetry), retryMost)
	}
	switch {
	case len(q.rest) > 0 && (errors.Is(why, waiting.ErrShare) || errors.Is(why, waiting.ErrFull) || errors.Is(why, waiting.ErrLate) || errors.Is(why, errModelGone)):
		return errElsewhere
	case errors.Is(why, waiting.ErrShare) && q.waiter.Key != "":
		e := openai.RateLimited(after)
		e.Message = fmt.Sprintf("Too many requests of the API key '%s' are already waiting. Try again in %s.", q.waiter.Key, inSeconds(after))
		return e
	case errors.Is(why, waiting.ErrFull), errors.Is(why, waiting.ErrShare):
		if q.told != nil {
			return q.told
		}
		if len(q.model.Endpoints()) == 0 {
			return openai.NoEndpoint(q.name, after)
		}
		return openai.Overloaded(after)
	case errors.Is(why, waiting.ErrLate):
		if q.told != nil {
			return q.told
		}
		if len(q.model.Endpoints()) == 0 || q.last != nil {
			return openai.NoEndpoint(q.name, after)
		}
		e := openai.Overloaded(after)
		e.Message = "The request could not be served within the time it may wait. Try again later."
		return e
	case errors.Is(why, errModelGone):
		return openai.ModelNotFound(q.name)
	}
	return why
}

// tellPlace sets the headers that go out with whatever the answer is.
func tellPlace(w *reply, at place) {
	if w.begun() {
		return
	}
	w.Header().Set(agentapi.HeaderQueuePosition, strconv.Itoa(at.position))
	if at.known {
		w.Header().Set(agentapi.HeaderQueueETA, seconds0(at.eta))
	}
}

// seconds0 are whole seconds, rounded up.
func seconds0(d time.Duration) string { return strconv.Itoa(int(math.Ceil(d.Seconds()))) }

// keepAlive says inside the stream how long it may take; a stream that has not
// begun begins with it.
func (w *reply) keepAlive(at place) error {
	tellPlace(w, at)
	text := fmt.Sprintf("%s, position %d", openai.KeepAlive, at.position)
	if at.known {
		text += ", about " + seconds0(at.eta) + " s"
	}
	return w.sendKeepAlive(text)
}
