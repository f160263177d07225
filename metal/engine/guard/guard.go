// Package guard keeps an engine's process under its memory limits.
//
// The agent publishes Limits. A prompt is weighed twice: Check before it is admitted,
// and Decide before each of its chunks. Near the limit, chunks shrink; what does not fit
// at all is an Exceeded error. Guard asks the agent for room through Status and reads
// the answer in the next Limits.
//
// It estimates with package footprint and measures with the back end's account and the
// kernel's footprint. It never evicts, ends or queues anything: the scheduler loop acts
// on its verdicts.
//
// Start reading at Decide, then Guard.Check; Guard.Room is what both weigh against.
package guard

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/metal/footprint"
	"metalfleet.dev/metalfleet/metal/tensor"
)

const (
	// HeadroomPatience is how long a prompt waits for the agent to make room.
	HeadroomPatience = 10 * time.Second
	// retryAfter is when to try again if other requests have to end first.
	retryAfter = time.Second
	// garbagePause is the time between two collections of garbage, which stop a step.
	garbagePause = 5 * time.Second
)

// Arithmetic returns the Estimator of package footprint for one model on one back end.
func Arithmetic(facts model.Facts, kernels footprint.Kernels) Estimator {
	return arithmetic{facts, kernels}
}

type arithmetic struct {
	facts   model.Facts
	kernels footprint.Kernels
}

func (a arithmetic) Peak(p footprint.Prefill) (int64, error) {
	peak, err := footprint.PrefillPeak(a.facts, a.kernels, p)
	return peak.Total(), err
}

func (a arithmetic) Fit(p footprint.Prefill, room, floor int64) (int64, bool) {
	return footprint.FitChunk(a.facts, a.kernels, p, room, floor)
}

// Exceeded is the error of a prompt that does not fit.
type Exceeded struct {
	Message string
	// Used, Needed and Limit are bytes.
	Used, Needed, Limit int64
	// RetryAfter is set if the prompt would fit once other requests have ended.
	RetryAfter time.Duration
}

func (e *Exceeded) Error() string { return e.Message }

// Status is the guard's part of the engine's status.
type Status struct {
	// Active is false if the guard cannot act as it should. Inactive is then the reason,
	// in a sentence.
	Active   bool
	Inactive string
	// Sequence of the newest limits; 0 while there are none.
	Sequence int64
	// HeadroomRequest grows with each request for more room. HeadroomBytes is what the
	// newest prompt needs in addition to what the process holds.
	HeadroomRequest, HeadroomBytes int64
	// Throttled chunks, Refused requests and Aborted prefills are counted since start.
	Throttled, Refused, Aborted int64
}

// Model is the memory of a loaded model.
type Model struct {
	// Weights and Overhead of the process are bytes by arithmetic.
	Weights, Overhead int64
	// Extra bytes come and go with requests, such as compiled grammars; nil means none.
	Extra     func() int64
	Estimator Estimator
}

func (m *Model) extra() int64 {
	if m == nil || m.Extra == nil {
		return 0
	}
	return m.Extra()
}

// Options of a Guard.
type Options struct {
	Backend tensor.Backend
	// LimitBytes of the process while the agent publishes none; 0 means no limit.
	LimitBytes int64
	// Supervised is true if an agent publishes limits.
	Supervised bool
	// Notify is called when Status asks for more room.
	Notify func()
	// Cached and Unread are the bytes of the prefix cache and of output that no client
	// has read yet.
	Cached, Unread func() int64
	Log            *slog.Logger
}

// Guard is the memory guard of one engine. All methods may be called from any goroutine.
type Guard struct {
	opts   Options
	limits *limits
	// model is nil until its size is known; ready is set once it is loaded.
	model atomic.Pointer[Model]
	ready atomic.Bool
	// reserved bytes of the limit are for the prefix cache.
	reserved                    atomic.Int64
	throttled, refused, aborted atomic.Int64

	mu sync.Mutex
	// mu guards the fields after it.
	request, bytes int64
	// estimateError is why no prompt can be estimated; empty if they can.
	estimateError string
	// logged reasons of inactivity.
	logged map[string]bool
	// collected is when garbage was last collected.
	collected time.Time
}

// New returns a Guard.
func New(o Options) *Guard { return &Guard{opts: o, limits: newLimits(), logged: map[string]bool{}} }

// SetLimits takes newly published limits and reports whether they are newer than the
// last ones. It never waits for a step.
func (g *Guard) SetLimits(l Limits) (newer bool) {
	return g.limits.publish(l, g.complete, g.apply)
}

// SetModel sets what the model takes, before its weights are read.
func (g *Guard) SetModel(m Model) {
	g.model.Store(&m)
	g.limits.reapply(g.apply)
}

// SetReady is called once the model is loaded.
func (g *Guard) SetReady() { g.ready.Store(true) }

// Reserve sets bytes of the limit aside for the prefix cache.
func (g *Guard) Reserve(bytes int64) {
	g.reserved.Store(bytes)
	g.limits.reapply(g.apply)
}

// PausePrefill reports whether new prompts are held back.
func (g *Guard) PausePrefill() bool { return g.limits.now().PausePrefill }

// complete adds what the engine holds at this moment. Headroom that was measured before
// the model was loaded does not apply once it is, and is dropped.
func (g *Guard) complete(l Limits) *publication {
	p := &publication{Limits: l}
	m, kept := g.opts.Backend.Memory(), g.opts.Cached()+g.opts.Unread()
	if l.Footprint > 0 {
		p.beyond = max(0, l.Footprint-m.Active()-m.Pooled-kept)
	}
	loaded := g.ready.Load()
	if !loaded {
		p.HeadroomKnown = false
	}
	if p.HeadroomKnown {
		p.ceiling = max(1, held(m, kept, g.model.Load(), p.beyond)+m.Pooled+max(0, l.Headroom))
	}
	return p
}

// apply gives the back end what is left of the process's limit.
func (g *Guard) apply(p *publication) {
	limit := g.ownLimit(p)
	if limit > 0 {
		limit = max(1, limit-g.Overhead()-g.reserved.Load())
	}
	g.opts.Backend.SetLimits(limit, p.Cache)
}

// ownLimit is the limit of this process, published or configured; 0 means none.
func (g *Guard) ownLimit(p *publication) int64 {
	if p.Memory > 0 {
		return p.Memory
	}
	return max(0, g.opts.LimitBytes)
}

// Overhead of the process by arithmetic; 0 until the model is known.
func (g *Guard) Overhead() int64 {
	if m := g.model.Load(); m != nil {
		return m.Overhead
	}
	return 0
}

// held is what the process holds, without its pool. It is the largest of three: the back
// end's account with the overhead by arithmetic, grammars included; the account with what
// the kernel's footprint showed in addition; and what is accounted for. To that come the
// kept bytes of the prefix cache and of unread output. The footprint counts as a
// difference: the figure itself is as old as its publication, the account is of now.
func held(m tensor.Memory, kept int64, loaded *Model, beyond int64) int64 {
	var weights, overhead int64
	if loaded != nil {
		weights, overhead = loaded.Weights, loaded.Overhead
	}
	return kept + max(m.Active()+max(overhead+loaded.extra(), beyond), weights+m.KV)
}

// Room measures now.
func (g *Guard) Room() Room {
	p, m := g.limits.now(), g.opts.Backend.Memory()
	cached := g.opts.Cached()
	r := Room{
		Held: held(m, cached+g.opts.Unread(), g.model.Load(), p.beyond), Cached: cached, KV: m.KV, Pooled: m.Pooled,
		Own: g.ownLimit(p), CanAsk: p.CanMakeRoom,
	}
	r.Limit = r.Own
	if p.ceiling > 0 && (r.Limit == 0 || p.ceiling < r.Limit) {
		r.Limit = p.ceiling
	}
	return r
}

// Status returns a snapshot.
func (g *Guard) Status() Status {
	p := g.limits.now()
	s := Status{Sequence: p.Sequence, Throttled: g.throttled.Load(), Refused: g.refused.Load(), Aborted: g.aborted.Load()}
	s.Inactive = g.inactive(p)
	s.Active = s.Inactive == ""
	g.mu.Lock()
	defer g.mu.Unlock()
	s.HeadroomRequest, s.HeadroomBytes = g.request, g.bytes
	return s
}

// inactive is why the guard cannot act as it should; empty if it can.
func (g *Guard) inactive(p *publication) string {
	g.mu.Lock()
	estimateError := g.estimateError
	g.mu.Unlock()
	switch {
	case estimateError != "":
		return estimateError
	case g.opts.Supervised && p.Sequence == 0:
		return "the agent has not published limits yet; only the limit in the engine's configuration applies"
	case g.ownLimit(p) == 0 && p.ceiling == 0:
		return "no memory limit is set"
	}
	return ""
}

// logInactive logs each reason why the guard cannot act once. An engine without an agent
// and without a limit has none to keep.
func (g *Guard) logInactive(p *publication) {
	reason := g.inactive(p)
	if reason == "" || !g.opts.Supervised && g.ownLimit(p) == 0 {
		return
	}
	g.mu.Lock()
	logged := g.logged[reason]
	g.logged[reason] = true
	g.mu.Unlock()
	if !logged {
		g.opts.Log.Warn("memory guard is inactive", slog.String("reason", reason))
	}
}

// Ask requests this many bytes from the agent, through Status, and returns the number of
// the request. A request that is open and asks for as much is joined.
func (g *Guard) Ask(bytes int64) (request int64) {
	g.mu.Lock()
	open := g.request > g.limits.now().HeadroomAnswered
	if !open || bytes > g.bytes {
		g.request++
		g.bytes = bytes
	}
	request = g.request
	g.mu.Unlock()
	g.opts.Notify()
	return request
}

// Answered reports whether the agent has handled a request.
func (g *Guard) Answered(request int64) bool { return g.limits.now().HeadroomAnswered >= request }

// awaitHeadroom asks and waits until the agent has answered, patience is over, or ctx
// ends.
func (g *Guard) awaitHeadroom(ctx context.Context, bytes int64) {
	patience := time.NewTimer(HeadroomPatience)
	defer patience.Stop()
	request := g.Ask(bytes)
	for {
		next := g.limits.next()
		if g.Answered(request) {
			return
		}
		select {
		case <-next:
		case <-patience.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

// Check refuses a prompt whose prefill would not fit under the limit in addition to what
// is held now, before the request is admitted. Restored tokens are not computed, but take
// KV all the same. The cached prefixes of other prompts are evicted when it is computed.
// If the agent could make room it is asked once: asked is then true. If waits is true, a
// prompt that fits once other requests have ended or given way is not refused.
func (g *Guard) Check(ctx context.Context, p footprint.Prefill, waits bool) (asked bool, exceeded *Exceeded) {
	needed, r, exceeded := g.Weigh(p)
	if exceeded != nil {
		return false, exceeded
	}
	if r.Fits(needed - r.Cached) {
		return false, nil
	}
	if r.worthAsking(needed) {
		asked = true
		g.awaitHeadroom(ctx, needed)
		r = g.Room()
	}
	if r.Fits(needed-r.Cached) || waits && r.FitsAlone(needed) {
		return asked, nil
	}
	return asked, g.Refuse(p.New+p.Cached, needed, r)
}

// Weigh estimates a prompt and measures the room for it. If there is a limit, a prompt
// that cannot be estimated is refused.
func (g *Guard) Weigh(p footprint.Prefill) (needed int64, r Room, exceeded *Exceeded) {
	g.logInactive(g.limits.now())
	r = g.Room()
	m := g.model.Load()
	if r.Limit == 0 || m == nil {
		return 0, r, nil
	}
	needed, err := m.Estimator.Peak(p)
	if err == nil {
		return needed, r, nil
	}
	g.refused.Add(1)
	g.mu.Lock()
	g.estimateError = "cannot compute the memory of a prompt: " + err.Error()
	g.mu.Unlock()
	g.logInactive(g.limits.now())
	return 0, r, &Exceeded{Used: r.Held, Limit: r.Limit,
		Message: fmt.Sprintf("the prompt is refused because the memory for its %d tokens cannot be computed: %v", p.New+p.Cached, err)}
}

// Decide returns what to do about a chunk, with taken bytes set aside for the chunks
// before it.
func (g *Guard) Decide(c Chunk, taken int64) (Verdict, Room, error) {
	r := g.Room()
	r.Held += taken
	v, err := Decide(r, c, g.model.Load().Estimator)
	return v, r, err
}

// FitsAtMinChunk returns the bytes that a prompt needs at the smallest chunk, and whether
// there is room for them. An error means that it cannot be estimated.
func (g *Guard) FitsAtMinChunk(p footprint.Prefill) (needed int64, r Room, err error) {
	if r = g.Room(); r.Limit == 0 {
		return 0, r, nil
	}
	p.Chunk = minChunk
	needed, err = g.model.Load().Estimator.Peak(p)
	return needed, r, err
}

// Refuse is the error of a prompt that does not fit before it has begun. If it would fit
// once others have ended, whether requests of this engine or other users of the Mac's
// memory, it says when to try again.
func (g *Guard) Refuse(tokens, needed int64, r Room) *Exceeded {
	g.refused.Add(1)
	e := &Exceeded{Used: r.Held, Needed: needed, Limit: r.Limit,
		Message: fmt.Sprintf("a prompt of %d tokens needs %d bytes in addition to the %d in use, but the limit is %d", tokens, needed, r.Held, r.Limit)}
	limit := r.Limit
	if r.Own > 0 {
		limit = r.Own
	}
	if g.collect(needed, r) || needed <= limit-(r.Held-r.KV) {
		e.RetryAfter = retryAfter
	}
	return e
}

// collect returns the garbage of Go's heap to the system, now and then, if a prompt might fit without
// it: with less than that in use, Go does so by itself only after minutes, in which the footprint
// shows it and no prompt is computed. The next publication shows what is left.
func (g *Guard) collect(needed int64, r Room) (may bool) {
	m := g.model.Load()
	garbage := g.limits.now().beyond - g.Overhead() - m.extra()
	if garbage <= 0 || !r.Fits(needed-r.Cached-garbage) {
		return false
	}
	g.mu.Lock()
	due := time.Since(g.collected) >= garbagePause
	if due {
		g.collected = time.Now()
	}
	g.mu.Unlock()
	if due {
		debug.FreeOSMemory()
	}
	return true
}

// Abort is the error of a prompt that had begun.
func (g *Guard) Abort(needed int64, r Room) *Exceeded {
	g.aborted.Add(1)
	g.collect(needed, r)
	return &Exceeded{Used: r.Held, Needed: needed, Limit: r.Limit, RetryAfter: retryAfter,
		Message: fmt.Sprintf("computing the prompt reached the memory limit: %d bytes are in use, %d more are needed, the limit is %d", r.Held, needed, r.Limit)}
}

// Throttled counts a chunk that was cut.
func (g *Guard) Throttled() { g.throttled.Add(1) }

// Reclaim returns pooled memory of the back end to the system. It returns the
// measured number of bytes, never negative.
func (g *Guard) Reclaim() (int64, error) {
	before := g.opts.Backend.Memory().Pooled
	if err := g.opts.Backend.Trim(); err != nil {
		return 0, fmt.Errorf("return pooled memory: %w", err)
	}
	return max(0, before-g.opts.Backend.Memory().Pooled), nil
}
