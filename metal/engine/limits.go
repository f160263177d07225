package engine

import (
	"sync"
	"sync/atomic"

	"metalfleet.dev/metalfleet/metal/footprint"
	"metalfleet.dev/metalfleet/metal/tensor"
)

// Limits are published by whoever watches the host's memory, as one value.
// Bytes throughout.
type Limits struct {
	// Memory is the process's own ceiling, Cache what the back end may keep
	// pooled; 0 means unset.
	Memory, Cache int64
	// PausePrefill holds back new prompts; running work goes on.
	PausePrefill bool
	// Sequence grows; older publications are ignored.
	Sequence int64
	// Footprint is what the kernel last said of this process; 0: not measured.
	Footprint int64
	// Headroom is how much more the host gives this process now, whatever its
	// own ceiling says; it counts where HeadroomKnown.
	Headroom      int64
	HeadroomKnown bool
	// HeadroomAnswered is the newest GuardStatus.HeadroomRequest that was dealt
	// with, room having been made or not.
	HeadroomAnswered int64
	// CanMakeRoom says that something idle could still be unloaded for this
	// process.
	CanMakeRoom bool
}

// publication is one value of Limits with what the engine knew when it came. It
// never changes: who reads takes the pointer once and sees one publication
// whole.
type publication struct {
	Limits
	// beyond is what the process held outside the back end's account; 0 where
	// no footprint was measured.
	beyond int64
	// ceiling is what the process may hold by the host's headroom; 0 where that
	// is not known. It is fixed here, so that what the engine takes between two
	// publications is taken from it.
	ceiling int64
}

// limits hold the newest publication.
type limits struct {
	newest atomic.Pointer[publication]

	mu sync.Mutex
	// came is closed by the next publication; guarded by mu, which also keeps
	// publications in order.
	came chan struct{}
}

func newLimits() *limits {
	l := &limits{came: make(chan struct{})}
	l.newest.Store(&publication{})
	return l
}

// now is the newest publication; before the first it is empty.
func (l *limits) now() *publication { return l.newest.Load() }

// next is closed when another publication comes.
func (l *limits) next() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.came
}

// publish stores what complete makes of v, unless something newer is there
// already. apply is called in the order of publications; neither may block.
func (l *limits) publish(v Limits, complete func(Limits) *publication, apply func(*publication)) (fresh bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if v.Sequence <= l.now().Sequence {
		return false
	}
	p := complete(v)
	l.newest.Store(p)
	apply(p)
	close(l.came)
	l.came = make(chan struct{})
	return true
}

// again applies the newest publication once more, in its order.
func (l *limits) again(apply func(*publication)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	apply(l.now())
}

// SetLimits takes newly published limits; older ones are ignored. Any
// goroutine may call it, and it never waits for a step.
func (e *Engine) SetLimits(l Limits) {
	if e.limits.publish(l, e.completed, e.applyLimits) {
		e.poke()
	}
}

// completed adds to limits what the engine holds at this moment. Headroom that
// was measured before the model was loaded says nothing about what is left
// beside it, and is dropped.
func (e *Engine) completed(l Limits) *publication {
	p := &publication{Limits: l}
	m, kept := e.opts.Backend.Memory(), e.prefixes.Load().bytes()+e.unread.Load()
	if l.Footprint > 0 {
		p.beyond = max(0, l.Footprint-m.Active()-m.Pooled-kept)
	}
	s, loaded := e.loadedServing()
	if !loaded {
		p.HeadroomKnown = false
	}
	if p.HeadroomKnown {
		p.ceiling = max(1, held(m, kept, s, p)+m.Pooled+max(0, l.Headroom))
	}
	return p
}

// loadedServing is what is served; loaded is false until all of it is there.
func (e *Engine) loadedServing() (s *serving, loaded bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.serving, e.serving != nil && (e.state == Ready || e.state == Draining)
}

// applyLimits hands the back end what is left of the process's ceiling.
func (e *Engine) applyLimits(p *publication) {
	limit := e.ownLimit(p)
	if limit > 0 {
		limit = max(1, limit-e.overhead()-e.prefixBudget())
	}
	e.opts.Backend.SetLimits(limit, p.Cache)
}

// ownLimit is the ceiling of this process, published or configured; 0 where
// there is none.
func (e *Engine) ownLimit(p *publication) int64 {
	if p.Memory > 0 {
		return p.Memory
	}
	return max(0, e.opts.LimitBytes)
}

// prefixBudget is what of the process's ceiling is set aside for earlier prompts;
// what they have of the KV promised is not.
func (e *Engine) prefixBudget() int64 {
	if p := e.prefixes.Load(); p != nil {
		return p.extra + footprint.CacheQueueHeld(e.opts.CacheQueue)
	}
	return 0
}

func (e *Engine) overhead() int64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.serving == nil {
		return 0
	}
	return e.serving.overhead
}

// held is what the process holds, without what is pooled: the largest of the
// back end's account and what comes on top by arithmetic, constraints included,
// of that account and what the kernel's footprint showed on top, and of what is
// accounted for; and the kept bytes of earlier prompts and of what nobody read
// yet. The footprint counts as the difference that it showed: the figure itself
// is as old as its publication, the back end's is of now.
func held(m tensor.Memory, kept int64, s *serving, p *publication) int64 {
	accounted := s.facts.WeightBytes + m.KV
	return kept + max(m.Active()+max(s.overhead+s.grammars.Bytes(), p.beyond), accounted)
}

// room is what the guard weighs at one moment, in bytes.
type room struct {
	// held by the process without its pool, kept of it what is remembered of
	// prompts, and pooled by its back end.
	held, kept, pooled int64
	// own is the process's ceiling, limit the least of it and what the host
	// gives; 0 means that there is none.
	own, limit int64
	// canAsk says that the host could unload something for this process.
	canAsk bool
}

// room measures now.
func (e *Engine) room(s *serving) room {
	p, m := e.limits.now(), e.opts.Backend.Memory()
	kept := e.prefixes.Load().bytes()
	r := room{held: held(m, kept+e.unread.Load(), s, p), kept: kept, pooled: m.Pooled, own: e.ownLimit(p), canAsk: p.CanMakeRoom}
	r.limit = r.own
	if p.ceiling > 0 && (r.limit == 0 || p.ceiling < r.limit) {
		r.limit = p.ceiling
	}
	return r
}

// fits says whether so much more stays under the limit.
func (r room) fits(needed int64) bool { return r.limit == 0 || needed <= r.limit-r.held }

// safe is how much more may be taken without coming near the limit.
func (r room) safe() int64 { return r.limit/1000*safePermille - r.held }

// worthAsking says that more room on the host would help, and that the host
// says it could make some: what the process's own ceiling forbids, no other
// engine's end allows.
func (r room) worthAsking(needed int64) bool {
	return r.canAsk && (r.own == 0 || r.limit < r.own && needed <= r.own-r.held)
}
