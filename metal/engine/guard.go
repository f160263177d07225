package engine

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/metal/footprint"
)

const (
	// safePermille of the limit is where prompts begin to be cut into
	// smaller chunks, floorChunk tokens the smallest of them.
	safePermille = 900
	floorChunk   = 32
	// headroomPatience is how long a prompt waits for the agent to make room.
	headroomPatience = 10 * time.Second
)

// estimator computes what prompts take. It is arithmetic, save in tests.
type estimator interface {
	// peak bytes of computing a prompt.
	peak(footprint.Prefill) (int64, error)
	// fit is the largest chunk with which the prompt fits into room bytes; ok is
	// false where not even floor tokens do.
	fit(p footprint.Prefill, room, floor int64) (chunk int64, ok bool)
}

// arithmetic is package footprint for one model on one back end.
type arithmetic struct {
	facts   model.Facts
	kernels footprint.Kernels
}

func (a arithmetic) peak(p footprint.Prefill) (int64, error) {
	peak, err := footprint.PrefillPeak(a.facts, a.kernels, p)
	return peak.Total(), err
}

func (a arithmetic) fit(p footprint.Prefill, room, floor int64) (int64, bool) {
	return footprint.FitChunk(a.facts, a.kernels, p, room, floor)
}

// GuardStatus is what the memory guard says of itself.
type GuardStatus struct {
	// Active is false where the guard cannot act as it should; Inactive says
	// why, in a sentence.
	Active   bool
	Inactive string
	// Sequence of the limits that it works with; 0 while there are none.
	Sequence int64
	// HeadroomRequest grows with each question for more room, HeadroomBytes is
	// what the newest prompt needs above what the process holds.
	HeadroomRequest, HeadroomBytes int64
	// Throttled chunks, Refused requests and prefills that were Aborted count
	// since start.
	Throttled, Refused, Aborted int64
}

// guard is what the memory guard remembers.
type guard struct {
	throttled, refused, aborted atomic.Int64

	mu sync.Mutex
	// All below are guarded by mu.
	request, bytes int64
	// blind is why no prompt can be estimated; empty if they can.
	blind string
	// logged reasons of inactivity.
	logged map[string]bool
}

// status reads the guard's snapshot.
func (e *Engine) guardStatus() GuardStatus {
	g, p := &e.guard, e.limits.now()
	s := GuardStatus{Sequence: p.Sequence, Throttled: g.throttled.Load(), Refused: g.refused.Load(), Aborted: g.aborted.Load()}
	s.Inactive = e.inactive(p)
	s.Active = s.Inactive == ""
	g.mu.Lock()
	defer g.mu.Unlock()
	s.HeadroomRequest, s.HeadroomBytes = g.request, g.bytes
	return s
}

// inactive is why the guard cannot act as it should; empty if it can.
func (e *Engine) inactive(p *publication) string {
	e.guard.mu.Lock()
	blind := e.guard.blind
	e.guard.mu.Unlock()
	switch {
	case blind != "":
		return blind
	case e.opts.Supervised && p.Sequence == 0:
		return "the agent has not published limits yet; only the limit in the engine's configuration applies"
	case e.ownLimit(p) == 0 && p.ceiling == 0:
		return "no memory limit is set"
	}
	return ""
}

// noteInactive logs once for each reason why the guard cannot act. An engine
// that nobody supervises and that was given no limit has none to keep.
func (e *Engine) noteInactive(p *publication) {
	reason := e.inactive(p)
	if reason == "" || !e.opts.Supervised && e.ownLimit(p) == 0 {
		return
	}
	g := &e.guard
	g.mu.Lock()
	fresh := !g.logged[reason]
	if fresh {
		if g.logged == nil {
			g.logged = map[string]bool{}
		}
		g.logged[reason] = true
	}
	g.mu.Unlock()
	if fresh {
		e.log.Warn("memory guard is inactive", slog.String("reason", reason))
	}
}

// ask tells the agent, through Status, that so many bytes are needed above what
// is held, and returns the number to wait for. A question that is open and asks
// for as much is joined.
func (e *Engine) ask(bytes int64) int64 {
	g := &e.guard
	g.mu.Lock()
	open := g.request > e.limits.now().HeadroomAnswered
	if !open || bytes > g.bytes {
		g.request++
		g.bytes = bytes
	}
	request := g.request
	g.mu.Unlock()
	e.mu.Lock()
	e.announce()
	e.mu.Unlock()
	return request
}

// awaitHeadroom asks and waits until the agent has answered, patience is over,
// or nobody waits any more.
func (e *Engine) awaitHeadroom(ctx context.Context, bytes int64) {
	patience := time.NewTimer(headroomPatience)
	defer patience.Stop()
	request := e.ask(bytes)
	for {
		next := e.limits.next()
		if e.limits.now().HeadroomAnswered >= request {
			return
		}
		select {
		case <-next:
		case <-patience.C:
			return
		case <-ctx.Done():
			return
		case <-e.hard.Done():
			return
		}
	}
}

// checkMemory refuses a prompt whose prefill would not fit under the limit
// beside what is held now, before the request is admitted. Tokens that can be
// restored are not computed, and take KV all the same. What is remembered of
// other prompts makes way when it is computed. Where the host could make room
// it is asked once.
func (e *Engine) checkMemory(ctx context.Context, s *serving, a *active, cached int) *Refusal {
	needed, r, refusal := e.weigh(s, a, footprint.Prefill{
		New: int64(a.prompt - cached), Cached: int64(cached), Restored: int64(cached), Chunk: int64(a.chunk(e.opts.Backend.Chunk())), AllLogits: a.ranking(),
	})
	if refusal != nil {
		return refusal
	}
	if r.fits(needed - r.kept) {
		return nil
	}
	if r.worthAsking(needed) {
		a.asked = true
		e.awaitHeadroom(ctx, needed)
		r = e.room(s)
	}
	if r.fits(needed - r.kept) {
		return nil
	}
	return e.refuse(a, needed, r)
}

// weigh estimates a prompt and measures the room for it. What cannot be
// estimated is refused by name wherever there is a limit to keep.
func (e *Engine) weigh(s *serving, a *active, p footprint.Prefill) (int64, room, *Refusal) {
	e.noteInactive(e.limits.now())
	r := e.room(s)
	if r.limit == 0 {
		return 0, r, nil
	}
	needed, err := s.estimator.peak(p)
	if err == nil {
		return needed, r, nil
	}
	e.guard.refused.Add(1)
	e.guard.mu.Lock()
	e.guard.blind = "cannot compute the memory of a prompt: " + err.Error()
	e.guard.mu.Unlock()
	e.noteInactive(e.limits.now())
	return 0, r, &Refusal{Kind: OutOfMemory, Param: "messages", Used: r.held, Limit: r.limit,
		Message: fmt.Sprintf("the prompt is refused because the memory for its %d tokens cannot be computed: %v", a.prompt, err)}
}

// refuse is the typed error of a prompt that does not fit. Where it would fit
// once others have ended, be it the requests of this engine or what the host's
// memory is short of, it says when to come again.
func (e *Engine) refuse(a *active, needed int64, r room) *Refusal {
	e.guard.refused.Add(1)
	refusal := &Refusal{Kind: OutOfMemory, Param: "messages", Used: r.held, Needed: needed, Limit: r.limit,
		Message: fmt.Sprintf("a prompt of %d tokens needs %d bytes in addition to the %d in use, but the limit is %d", a.prompt, needed, r.held, r.limit)}
	limit := r.limit
	if r.own > 0 {
		limit = r.own
	}
	if kv := e.opts.Backend.Memory().KV; needed <= limit-(r.held-kv) {
		refusal.RetryAfter = retryAfter
	}
	return refusal
}
