package engine

import (
	"context"
	"errors"
	"time"

	"metalfleet.dev/metalfleet/metal/embed"
	"metalfleet.dev/metalfleet/metal/engine/guard"
	"metalfleet.dev/metalfleet/metal/footprint"
	"metalfleet.dev/metalfleet/metal/tensor"
)

// long reports whether an input is computed in parts, between which others may be: chunks of a
// decoder, or layers of an encoder. A decoder computes those in parts, too, that take longer than a pass should and
// have room next to all of those under way.
func (l *embedLoop) long(p passInput) bool {
	n := p.tokens()
	if p.of.walk != nil && p.at == p.of.begun || l.model.embedder.Long(n) {
		return true
	}
	return n > l.pace.room && !l.encodes() && !l.full(1, l.underWay()+l.spare(n))
}

// underWay is how many blocks inputs take in the end of which a part is computed.
func (l *embedLoop) underWay() (blocks int) {
	for _, r := range l.requests {
		if r.walk != nil {
			blocks += l.blocks(r.inputs[r.begun].Len())
		}
	}
	return blocks
}

// spare is how many blocks have to be free before an input of this many tokens begins, which is computed in parts: its
// own and those of a pass of short ones.
func (l *embedLoop) spare(tokens int) int {
	return l.blocks(tokens) + l.opts.Sequences + l.blocks(l.opts.Backend.Chunk())
}

// depth is the context of the next tokens of an input that is computed in parts; on average in an encoder, whose layers
// have all of it.
func (l *embedLoop) depth(e *embedding) int {
	switch {
	case e.walk == nil:
		return 0
	case l.encodes():
		return e.inputs[e.begun].Len() / 2
	}
	return e.walk.Computed()
}

// forgetWalk drops what is computed of an input.
func (e *embedding) forgetWalk() {
	if e.walk != nil {
		e.leave()
		e.walk.Release()
	}
	e.walk, e.leave = nil, nil
}

// held is how many blocks of the cache the inputs hold of which a part is computed.
func (l *embedLoop) held() (blocks int) {
	for _, r := range l.requests {
		if r.walk != nil {
			blocks += l.blocks(r.walk.Computed())
		}
	}
	return blocks
}

// hold sets which requests wait, while held blocks are taken: a long input until its tenant
// has no other under way, it is the next of these, and the cache has room for all of it and a
// pass of short ones next to all of those under way. If a long one began before the next, that
// might never have room. A short one waits until the cache has room for it now: the long ones
// do not grow while it is computed. An encoder has memory for one long input. One alone never
// waits. It also notes whether one waits that would not without those under way. While an input is under way that the
// back end could take at once, the others of its tenant wait.
func (l *embedLoop) hold(held int) {
	l.awaited = false
	under, cut := map[*embedTenant]bool{}, map[*embedTenant]bool{}
	for _, r := range l.requests {
		if r.waits = false; r.walk != nil {
			under[r.of] = true
			cut[r.of] = cut[r.of] || !l.model.embedder.Long(r.inputs[r.begun].Len())
		}
	}
	if len(under) == 0 {
		return
	}
	var due *embedding // the next long input
	for _, r := range l.requests {
		if r.walk != nil || r.begun == len(r.inputs) {
			continue
		}
		if r.waits = cut[r.of]; r.waits {
			continue
		}
		if n := r.inputs[r.begun].Len(); !l.model.embedder.Long(n) {
			r.waits = l.full(1, held+l.blocks(n))
			l.awaited = l.awaited || r.waits
			continue
		}
		if r.waits = true; !under[r.of] && (due == nil || r.before(due)) {
			due = r
		}
	}
	if due != nil {
		due.waits = l.encodes() || l.full(1, l.underWay()+l.spare(due.inputs[due.begun].Len()))
		l.awaited = l.awaited || due.waits
	}
}

// encodes reports whether the model is an encoder, which has no cache.
func (l *embedLoop) encodes() bool { return l.model.embedder.BlockTokens() == 0 }

// beginWalk begins to compute a long input, until its client leaves or the engine stops.
func (l *embedLoop) beginWalk(p passInput) {
	ctx, cancel := context.WithCancel(l.hard)
	stop := context.AfterFunc(p.of.ctx, cancel)
	p.of.walk = l.model.embedder.Walk(ctx, p.of.inputs[p.at].Input())
	p.of.leave = func() {
		stop()
		cancel()
	}
}

// computeChunk computes the next part of a long input. The error is of a back end that fails
// again and again.
func (l *embedLoop) computeChunk(p passInput) error {
	r := p.of
	if exceeded := l.fitChunk(p); exceeded != nil {
		l.finish(r, outOfMemory(exceeded))
		return nil
	}
	if r.walk == nil {
		l.beginWalk(p)
	}
	l.counters.steps.Add(1)
	before, depth, began := r.walk.Computed(), l.depth(r), time.Now()
	tokens := l.pace.part(depth, embed.PassTokens(l.opts.Backend))
	cost := l.weigh(min(tokens, r.walk.Left()), depth)
	out, err := r.walk.Next(tokens)
	if err != nil {
		r.count(cost)
	}
	switch {
	case errors.Is(err, context.Canceled):
		r.forgetWalk() // the next iteration ends the request, or everything
		return nil
	case errors.Is(err, tensor.ErrMemory):
		l.chunkOutOfMemory(r)
		return nil
	case err != nil:
		return l.failed([]passInput{p}, err)
	}
	l.failures = 0
	n := r.walk.Computed() - before
	l.pace.tookPart(time.Since(began), n, depth)
	r.count(l.weigh(n, depth))
	if r.walk.Left() > 0 {
		return nil
	}
	r.forgetWalk()
	r.restarted = false
	r.begun++
	if r.out = append(r.out, out); r.begun == len(r.inputs) {
		l.finish(r, nil)
	}
	return nil
}

// chunkOutOfMemory begins an input again, once, if that freed memory, and otherwise ends its
// request.
func (l *embedLoop) chunkOutOfMemory(r *embedding) {
	r.forgetWalk()
	if n, err := l.guard.Reclaim(); err == nil && n > 0 && !r.restarted {
		r.restarted = true
		return
	}
	l.finish(r, outOfMemory(l.guard.Abort(0, l.guard.Room())))
}

// fitChunk returns an error if there is no room for the rest of a long input, after the pool
// was reclaimed.
func (l *embedLoop) fitChunk(p passInput) *guard.Exceeded {
	rest := footprint.Prefill{New: int64(p.tokens()), Chunk: int64(l.opts.Backend.Chunk())}
	switch w := p.of.walk; {
	case w == nil:
	case l.encodes():
		return nil // all layers take as much
	default:
		rest.New, rest.Cached = int64(w.Left()), int64(w.Computed())
	}
	for reclaimed := false; ; reclaimed = true {
		needed, r, exceeded := l.guard.Weigh(rest)
		switch {
		case exceeded != nil:
			return exceeded
		case r.Fits(needed) && (reclaimed || r.Pooled == 0 || r.Fits(needed+r.Pooled)):
			return nil
		case reclaimed:
			return l.guard.Abort(needed, r)
		}
		if _, err := l.guard.Reclaim(); err != nil {
			l.log.Error("could not free pooled memory", "error", err.Error())
		}
	}
}
