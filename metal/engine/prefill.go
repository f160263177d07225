package engine

import (
	"fmt"
	"time"

	"metalfleet.dev/metalfleet/metal/batch"
	"metalfleet.dev/metalfleet/metal/footprint"
	"metalfleet.dev/metalfleet/metal/tensor"
)

// piece is the next part of a prompt, as the guard decides about it.
type piece struct {
	// rest of the prompt in tokens, start of them computed already; there is room
	// for so many in the cache.
	rest, start, room int64
	// chunk is what the back end would take at once, full what time allows.
	chunk, full int64
	// first is true if the request was not weighed since it was admitted, ranked if
	// each token has logits.
	first, ranked bool
	// asked, shed and reclaimed say what was tried already.
	asked, shed, reclaimed bool
}

// verdict is what to do about a piece.
type verdict struct {
	// tokens to compute now; 0 where something else comes first, or nothing.
	tokens int64
	// reclaim the pool, shed so many bytes of what is remembered, or ask for so
	// many, and decide again.
	reclaim   bool
	shed, ask int64
	// over says that it does not fit and that nothing is left to try.
	over bool
	// needed bytes.
	needed int64
}

// decide says how much of a prompt to compute in the room there is. Admission
// wants room for the whole prompt at the back end's own chunk. After it, a
// chunk that would come near the limit shrinks, and only what does not fit at
// the smallest is over. Before a prompt is cut or given up, pooled bytes are
// reclaimed where they are in the way, what is remembered of other prompts
// makes way, and the host is asked for room, each once.
func decide(r room, p piece, est estimator) (verdict, error) {
	if r.limit == 0 {
		return verdict{tokens: p.full}, nil
	}
	prompt := footprint.Prefill{New: p.rest, Cached: p.start, Room: p.room, Chunk: p.chunk, AllLogits: p.ranked}
	whole, err := est.peak(prompt)
	if err != nil {
		return verdict{}, err
	}
	prompt.Chunk = p.full
	tokens, clear := est.fit(prompt, r.safe(), floorChunk)
	if !clear { // near the limit already: the smallest pieces, up to the limit itself
		tokens = min(floorChunk, p.full)
	}
	prompt.Chunk = tokens
	needed, err := est.peak(prompt)
	if err != nil {
		return verdict{}, err
	}
	fits := r.fits(needed)
	if p.first && !r.fits(whole) {
		fits, needed = false, whole
	}
	switch {
	case !(fits && r.fits(needed+r.pooled)) && r.pooled > 0 && !p.reclaimed:
		return verdict{reclaim: true, needed: needed}, nil
	case !fits && r.kept > 0 && !p.shed:
		return verdict{shed: needed - (r.limit - r.held), needed: needed}, nil
	case (!fits || tokens < p.full) && !p.asked && r.worthAsking(whole):
		return verdict{ask: whole, needed: needed}, nil
	case !fits:
		return verdict{over: true, needed: needed}, nil
	}
	return verdict{tokens: tokens, needed: needed}, nil
}

// holding is a prompt that waits for the agent's answer while answers go on.
type holding struct {
	id       batch.ID
	request  int64
	deadline time.Time
	timer    *time.Timer
}

// prefill admits what may run and says which pieces of prompts this step takes,
// and how many bytes these need. Prompts that do not fit any more are ended here,
// one by one.
func (l *looping) prefill() (pieces []batch.Row, needed int64) {
	for {
		l.admit()
		pieces := l.cutPieces(l.sched.Prompts(l.budget()))
		if len(pieces) == 0 || l.onHold(pieces[0].ID) {
			return nil, 0
		}
		first := l.active[pieces[0].ID]
		v, refusal := l.portion(first, pieces[0])
		if refusal != nil {
			l.end(first, Finished{Err: refusal})
			continue
		}
		if v.tokens == 0 {
			return nil, 0 // it waits for room, and whoever is younger with it
		}
		cut := v.tokens < int64(pieces[0].Length)
		pieces[0].Length = int(v.tokens)
		if cut {
			return pieces[:1], v.needed
		}
		others, needed := l.beside(pieces[1:], v.needed)
		return append(pieces[:1], others...), needed
	}
}

// following admits what may run and says which pieces of prompts a step takes that
// is built on one under way, whose pieces need their bytes at the same time. It
// reports false where that is to be decided once the latter has landed.
func (l *looping) following(f *flight) (pieces []batch.Row, needed int64, ok bool) {
	before := l.sched.Answers()
	if l.admit(); len(l.fresh) > 0 || l.sched.Answers() != before {
		return nil, 0, false // an answer more, whose token is known
	}
	proposed := l.cutPieces(l.sched.Prompts(l.budget()))
	pieces, both := l.beside(proposed, f.needed)
	return pieces, both - f.needed, len(pieces) == len(proposed)
}

// beside is which of further pieces fit into the step as well, beside what
// those before them need, and what all need. Nobody is asked for room, cut or ended
// for them: each will be the first.
func (l *looping) beside(pieces []batch.Row, taken int64) ([]batch.Row, int64) {
	for i, row := range pieces {
		a := l.active[row.ID]
		r := l.e.room(l.model.serving)
		r.held, r.canAsk = r.held+taken, false
		p := l.piece(a, row)
		v, err := decide(r, p, l.model.serving.estimator)
		if err != nil || v.tokens < p.full {
			return pieces[:i], taken
		}
		a.weighed = true
		taken += v.needed
	}
	return pieces, taken
}

// onHold says whether the prompt waits for the agent's answer.
func (l *looping) onHold(id batch.ID) bool {
	h := l.hold
	if h == nil {
		return false
	}
	if h.id == id && l.e.limits.now().HeadroomAnswered < h.request && time.Now().Before(h.deadline) {
		return true
	}
	h.timer.Stop()
	l.hold = nil
	return false
}

// piece is a proposed row as the guard sees it.
func (l *looping) piece(a *active, row batch.Row) piece {
	rest := len(a.tokens) - row.Start
	return piece{
		rest: int64(rest), start: int64(row.Start), room: int64(l.model.cache.Room(tensor.RequestID(row.ID))), first: !a.weighed, asked: a.asked,
		chunk: int64(min(a.chunk(l.e.opts.Backend.Chunk()), rest)), full: int64(row.Length), ranked: a.ranking(),
	}
}

// portion decides about the next piece of one prompt. A verdict of no tokens is
// a prompt that waits for room.
func (l *looping) portion(a *active, row batch.Row) (verdict, *Refusal) {
	e, s := l.e, l.model.serving
	p := l.piece(a, row)
	for {
		r := e.room(s)
		v, err := decide(r, p, s.estimator)
		switch {
		case err != nil:
			_, _, refusal := e.weigh(s, a, footprint.Prefill{New: p.rest, Cached: p.start, Chunk: p.chunk, AllLogits: p.ranked})
			if refusal == nil { // the limit went in between: nothing to weigh against
				return verdict{tokens: p.full}, nil
			}
			return verdict{}, refusal
		case v.reclaim:
			p.reclaimed = true
			if _, err := e.reclaim(); err != nil {
				e.log.Error("could not free pooled memory", "error", err.Error())
			}
		case v.shed > 0:
			p.shed = true
			l.prefixes.ram.Shed(v.shed)
		case v.ask > 0:
			a.asked = true
			l.hold = &holding{id: a.id, request: e.ask(v.ask), deadline: time.Now().Add(headroomPatience), timer: time.AfterFunc(headroomPatience, e.poke)}
			return verdict{}, nil
		case v.over && p.first:
			return verdict{}, e.refuse(a, v.needed, r)
		case v.over:
			e.log.Warn("prompt was refused at the memory limit", "computed", p.start, "rest", p.rest, "used", r.held, "needed", v.needed, "limit", r.limit)
			return verdict{}, e.overLimit(v.needed, r.held, r.limit)
		default:
			a.weighed = true
			if v.tokens < p.full {
				e.guard.throttled.Add(1)
			}
			return v, nil
		}
	}
}

// overLimit is the typed error of a prompt that had begun.
func (e *Engine) overLimit(needed, used, limit int64) *Refusal {
	e.guard.aborted.Add(1)
	return &Refusal{Kind: OutOfMemory, Param: "messages", Used: used, Needed: needed, Limit: limit, RetryAfter: retryAfter,
		Message: fmt.Sprintf("computing the prompt reached the memory limit: %d bytes are in use, %d more are needed, the limit is %d", used, needed, limit)}
}

// cutBack forgets what a failed step had written of a request. Where a
// recurrent state moved on that is all of it: the request is computed again from
// its first token, and what it drew stays.
func (l *looping) cutBack(a *active) {
	id, computed := tensor.RequestID(a.id), l.sched.InKV(a.id)
	l.model.cache.Truncate(id, computed)
	if l.model.cache.Length(id) < computed {
		l.sched.Forget(a.id)
		a.weighed, a.parked = false, nil
	}
}

// reclaim returns what the back end keeps pooled to the system and says how
// much that was, measured.
func (e *Engine) reclaim() (int64, error) {
	b := e.opts.Backend
	before := b.Memory().Pooled
	if err := b.Trim(); err != nil {
		return 0, fmt.Errorf("return pooled memory: %w", err)
	}
	return max(0, before-b.Memory().Pooled), nil
}

// outOfMemory deals with a step that the back end could not allocate for,
// although the guard let it pass: the estimate was too low. Once the pool is
// reclaimed and the step tried again; after that exactly one request ends, the
// prompt if there is one, else the youngest answer. The others lose what the
// failed step had written and go on where they were, or from their beginning.
func (l *looping) outOfMemory(step batch.Step, cause error) {
	var victim *active
	prompt := false
	for _, row := range step.Rows {
		a := l.active[row.ID]
		if a == nil {
			continue // it ended before the step did
		}
		l.cutBack(a)
		victim, prompt = a, !row.Decode()
	}
	if victim == nil {
		return
	}
	if !l.relieved {
		l.relieved = true
		if n, err := l.e.reclaim(); err == nil && n > 0 {
			return
		}
	}
	r := l.e.room(l.model.serving)
	l.e.log.Error("step ran out of memory", "rows", len(step.Rows), "tokens", step.Tokens(), "used", r.held, "limit", r.limit, "error", cause.Error())
	refusal := &Refusal{Kind: OutOfMemory, Message: "computing the response reached the memory limit", Used: r.held, Limit: r.limit, RetryAfter: retryAfter}
	if prompt {
		refusal = l.e.overLimit(0, r.held, r.limit)
	}
	l.end(victim, Finished{Err: refusal})
}
