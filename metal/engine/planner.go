package engine

import (
	"log/slog"
	"slices"
	"time"

	"metalfleet.dev/metalfleet/metal/batch"
	"metalfleet.dev/metalfleet/metal/engine/guard"
	"metalfleet.dev/metalfleet/metal/footprint"
	"metalfleet.dev/metalfleet/metal/tensor"
)

// planner chooses the prefill chunks of a step: as many as the pace and the memory allow.
type planner struct {
	*sequences
	blocks *blocks
	guard  *guard.Guard
	log    *slog.Logger
	// chunk is the largest chunk of the back end.
	chunk int
	// pace decides how many prompt tokens a step takes.
	pace batch.Pace
	// passes is true if a prompt that shares the steps of the first had the last one, as the chunk of that was
	// cut for memory. They take turns: the other would wait for all of the first.
	passes bool
	// waiting is a prompt that waits for the agent to make room; nil if none does. notify
	// wakes the loop when it has waited long enough.
	waiting *headroomWait
	notify  func()
}

// headroomWait is a prompt that waits for the agent's answer while others decode.
type headroomWait struct {
	id       batch.ID
	request  int64
	deadline time.Time
	timer    *time.Timer
}

// refused is a sequence whose prompt does not fit any more.
type refused struct {
	sequence *sequence
	exceeded *guard.Exceeded
}

// next admits what may run and returns the prefill chunks of the next step, and how many
// bytes these need. If the first prompt does not fit any more it is returned as refused:
// then the caller ends it and asks again.
func (p *planner) next() (chunks []batch.Row, needed int64, _ *refused) {
	p.admit()
	if p.awaitsHeadroom() {
		chunks, needed = p.others()
		return chunks, needed, nil
	}
	return p.choose()
}

// choose returns the chunks of the prompts that fit.
func (p *planner) choose() (chunks []batch.Row, needed int64, _ *refused) {
	chunks = p.blocks.propose(p.budget(), p.blocks.held())
	if len(chunks) == 0 {
		return nil, 0, nil
	}
	first := p.byID[chunks[0].ID]
	v, exceeded := p.fitFirst(first, chunks[0])
	if exceeded != nil {
		return nil, 0, &refused{first, exceeded}
	}
	if slices.Contains(p.blocks.unfit, first) {
		return p.choose()
	}
	if v.Tokens == 0 {
		if p.awaitsHeadroom() {
			chunks, needed = p.others()
			return chunks, needed, nil
		}
		return nil, 0, nil
	}
	if v.Tokens < int64(chunks[0].Length) {
		if p.passes = !p.passes && len(chunks) > 1; p.passes {
			if other, _ := p.fit(chunks[1], 0); other.Tokens > 0 {
				p.byID[chunks[1].ID].begins()
				return append(chunks[:0], p.sched.Shorten(chunks[1], int(other.Tokens))), other.Needed, nil
			}
		}
		chunks[0] = p.sched.Shorten(chunks[0], int(v.Tokens))
		return chunks[:1], v.Needed, nil
	}
	others, needed := p.fitMore(chunks[1:], v.Needed)
	return append(chunks[:1], others...), needed, nil
}

// following admits what may run and returns the prefill chunks of a step that is built on
// one in flight, whose chunks need their bytes at the same time. ok is false if that is to
// be decided once the step in flight has completed.
func (p *planner) following(f *inflightStep) (chunks []batch.Row, needed int64, ok bool) {
	before := p.sched.Decodes()
	if p.admit(); len(p.blocks.pending) > 0 || p.sched.Decodes() != before {
		return nil, 0, false // one more sequence decodes, from a token that is known
	}
	proposed := p.blocks.propose(p.budget(), p.blocks.held())
	chunks, both := p.fitMore(proposed, f.needed)
	return chunks, both - f.needed, len(chunks) == len(proposed)
}

// admit starts what may run, from its cached prefixes.
func (p *planner) admit() {
	admitted := p.sched.Admit()
	for _, id := range admitted {
		if s := p.byID[id]; s != nil {
			p.kv.Expect(tensor.RequestID(id), len(s.tokens))
		}
	}
	p.blocks.restore(admitted)
	p.blocks.unfit = slices.DeleteFunc(p.blocks.unfit, func(s *sequence) bool {
		return p.byID[s.id] != s || !p.mayWait(s) || p.mayBegin(s)
	})
}

// mayWait reports whether a prompt without memory to begin may wait: others have KV, and it has not
// waited for long.
func (p *planner) mayWait(s *sequence) bool {
	if !s.unfitSince.IsZero() && time.Since(s.unfitSince) >= roomWait {
		return false
	}
	for _, o := range p.byID {
		if o != s && o.weighed && p.sched.InKV(o.id) > 0 {
			return true
		}
	}
	return false
}

// mayBegin reports whether a prompt that waits for memory may fit now: there is more than when it was
// weighed, after all that can be evicted was.
func (p *planner) mayBegin(s *sequence) bool {
	start := p.sched.InKV(s.id)
	needed, r, exceeded := p.guard.Weigh(footprint.Prefill{
		New: int64(len(s.tokens) - start), Cached: int64(start), Room: int64(p.kv.Room(tensor.RequestID(s.id))),
		Chunk: int64(s.maxChunk(p.chunk)), AllLogits: s.wantsPromptLogprobs(),
	})
	return exceeded != nil || r.Limit == 0 || r.Limit-r.Held > s.unfitRoom && r.Fits(needed-r.Cached)
}

// budget is how many prompt tokens the next step may take.
func (p *planner) budget() int {
	w := p.sched.Work()
	p.sched.Weigh(p.pace.Growth(w))
	return p.pace.Tokens(w, p.chunk)
}

// awaitsHeadroom reports whether a prompt waits for the agent's answer.
func (p *planner) awaitsHeadroom() bool {
	w := p.waiting
	if w == nil {
		return false
	}
	if p.byID[w.id] != nil && !p.guard.Answered(w.request) && time.Now().Before(w.deadline) {
		return true
	}
	w.timer.Stop()
	p.waiting = nil
	return false
}

// others returns the chunks of the prompts that fit while one waits for the agent's answer.
func (p *planner) others() ([]batch.Row, int64) {
	return p.fitMore(p.blocks.propose(p.budget(), p.blocks.held(p.waiting.id)), 0)
}

// chunkOf is a proposed row as the guard sees it.
func (p *planner) chunkOf(s *sequence, row batch.Row) guard.Chunk {
	rest := len(s.tokens) - row.Start
	return guard.Chunk{
		Rest: int64(rest), Start: int64(row.Start), Room: int64(p.kv.Room(tensor.RequestID(row.ID))), First: !s.weighed, Asked: s.asked,
		Max: int64(max(min(s.maxChunk(p.chunk), rest), row.Length)), Full: int64(row.Length), Min: int64(p.sched.Shorten(row, 1).Length), AllLogits: s.wantsPromptLogprobs(),
	}
}

// fitMore returns which of further chunks fit into the step as well, in addition to the
// bytes taken by those before them, and what all need. Nothing is asked, cut or ended for
// them: each will be the first.
func (p *planner) fitMore(chunks []batch.Row, taken int64) ([]batch.Row, int64) {
	for i, row := range chunks {
		v, whole := p.fit(row, taken)
		if !whole {
			return chunks[:i], taken
		}
		p.byID[row.ID].begins()
		taken += v.Needed
	}
	return chunks, taken
}

// fit decides about a further chunk, and reports whether the whole chunk fits.
func (p *planner) fit(row batch.Row, taken int64) (guard.Verdict, bool) {
	c := p.chunkOf(p.byID[row.ID], row)
	c.Asked = true
	v, _, err := p.guard.Decide(c, taken)
	return v, err == nil && v.Tokens >= c.Full
}

// begins notes that the guard has let a chunk of a sequence into a step.
func (s *sequence) begins() { s.weighed, s.unfitSince = true, time.Time{} }

// fitFirst decides about the first chunk, and does what the guard asks for before it. A
// verdict of no tokens is a prompt that waits for room.
func (p *planner) fitFirst(s *sequence, row batch.Row) (guard.Verdict, *guard.Exceeded) {
	c := p.chunkOf(s, row)
	for {
		v, r, err := p.guard.Decide(c, 0)
		switch {
		case err != nil:
			_, _, exceeded := p.guard.Weigh(footprint.Prefill{New: c.Rest, Cached: c.Start, Chunk: c.Max, AllLogits: c.AllLogits})
			if exceeded == nil { // the limit was removed meanwhile: there is nothing to weigh against
				return guard.Verdict{Tokens: c.Full}, nil
			}
			return guard.Verdict{}, exceeded
		case v.Reclaim:
			c.Reclaimed = true
			if _, err := p.guard.Reclaim(); err != nil {
				p.log.Error("could not free pooled memory", "error", err.Error())
			}
		case v.Shed > 0:
			c.Shed = true
			p.blocks.prefixes.ram.Shed(v.Shed)
		case v.Ask > 0:
			s.asked = true
			p.waiting = &headroomWait{
				id: s.id, request: p.guard.Ask(v.Ask), deadline: time.Now().Add(guard.HeadroomPatience), timer: time.AfterFunc(guard.HeadroomPatience, p.notify),
			}
			return guard.Verdict{}, nil
		case v.Over && c.First && r.FitsAlone(v.Needed) && p.mayWait(s):
			if s.unfitSince.IsZero() {
				s.unfitSince = time.Now()
			}
			s.unfitRoom = r.Limit - r.Held
			p.blocks.unfit = append(p.blocks.unfit, s)
			return guard.Verdict{}, nil
		case v.Over && c.First:
			return guard.Verdict{}, p.guard.Refuse(int64(s.prompt), v.Needed, r)
		case v.Over:
			p.log.Warn("prompt was refused at the memory limit", "computed", c.Start, "rest", c.Rest, "used", r.Held, "needed", v.Needed, "limit", r.Limit)
			return guard.Verdict{}, p.guard.Abort(v.Needed, r)
		default:
			s.begins()
			if v.Tokens < c.Full {
				p.guard.Throttled()
			}
			return v, nil
		}
	}
}
