package engine

import (
	"errors"

	"metalfleet.dev/metalfleet/metal/batch"
	"metalfleet.dev/metalfleet/metal/footprint"
	"metalfleet.dev/metalfleet/metal/kv"
	"metalfleet.dev/metalfleet/metal/tensor"
)

// admit starts what may run, and lets it go on from what is remembered of it.
// What has no room for that yet is tried again before the next step.
func (l *looping) admit() {
	admitted := l.sched.Admit()
	for _, id := range admitted {
		if a := l.active[id]; a != nil {
			l.model.cache.Expect(tensor.RequestID(id), len(a.tokens))
		}
	}
	if l.prefixes == nil {
		return
	}
	fresh := append(l.fresh, admitted...)
	l.fresh = nil
	for _, id := range fresh {
		if a := l.active[id]; a != nil && l.sched.InKV(id) == 0 && !l.resume(a) {
			l.fresh = append(l.fresh, id)
		}
	}
}

// resume restores what is remembered of a request, of which at least one token
// is left to compute. It is done with it unless there is no room yet.
func (l *looping) resume(a *active) (done bool) {
	p := l.prefixes
	if a.ranking() {
		l.goOn(a, kv.Point{})
		return true
	}
	point := a.chain.Find(a.tokens, len(a.tokens)-1, p.ram.Has)
	views, ok := p.views(a.chain.Under(a.tokens, point))
	defer func() {
		for _, v := range views {
			v.Close()
		}
	}()
	if !ok || point.Tokens == 0 {
		l.resumed(a, kv.Point{})
		return true
	}
	if !l.roomToRestore(a, point) {
		return false
	}
	slices, state := l.cut(point, views)
	if err := l.model.cache.Restore(tensor.RequestID(a.id), point.Tokens, slices, state); err != nil {
		l.e.log.Error("could not restore a prompt from the prefix cache", "tokens", point.Tokens, "error", err.Error())
		l.resumed(a, kv.Point{})
		return true
	}
	if err := l.sched.Restored(a.id, point.Tokens); err != nil { // a fault of this package: it is computed instead
		l.e.log.Error("could not restore a prompt from the prefix cache", "tokens", point.Tokens, "error", err.Error())
		l.model.cache.Drop(tensor.RequestID(a.id))
		point = kv.Point{}
	}
	l.resumed(a, point)
	return true
}

// resumed notes the position from which a request continues.
func (l *looping) resumed(a *active, point kv.Point) {
	p := l.prefixes
	p.queried.Add(int64(len(a.tokens)))
	if point.Tokens > 0 {
		p.hits.Add(1)
		p.restored.Add(int64(point.Tokens))
	} else {
		p.misses.Add(1)
	}
	l.goOn(a, point)
}

// goOn has a request go on from a point, and count on what lies before it.
func (l *looping) goOn(a *active, point kv.Point) {
	p := l.prefixes
	if !a.began {
		a.began, a.cached = true, point.Tokens
	}
	old := a.holds
	a.holds, a.saved, a.mute = nil, point.Blocks, false
	for _, key := range a.chain.Under(a.tokens, point) {
		l.countOn(a, key)
	}
	p.ram.Unhold(old)
}

func (l *looping) countOn(a *active, key kv.Key) {
	if h, ok := l.prefixes.ram.Hold(key); ok {
		a.holds = append(a.holds, h)
	}
}

// views of all keys, or of none that is of use.
func (p *prefixes) views(keys []kv.Key) (views []*kv.View, ok bool) {
	for _, key := range keys {
		v, err := p.ram.View(key)
		if err != nil {
			return views, false
		}
		views = append(views, v)
	}
	return views, true
}

// roomToRestore says whether what is restored fits beside what is held, with the
// smallest piece of what is left to compute. What is remembered of others makes
// way.
func (l *looping) roomToRestore(a *active, point kv.Point) bool {
	e, s := l.e, l.model.serving
	r := e.room(s)
	if r.limit == 0 {
		return true
	}
	needed, err := s.estimator.peak(footprint.Prefill{
		New: int64(len(a.tokens) - point.Tokens), Cached: int64(point.Tokens), Restored: int64(point.Tokens), Chunk: floorChunk,
	})
	if err != nil {
		return false // the guard says so when it is to be computed
	}
	if !r.fits(needed) {
		l.prefixes.ram.Shed(needed - (r.limit - r.held))
		r = e.room(s)
	}
	return r.fits(needed)
}

// cut divides what lies under the keys of a point into what the back end takes:
// slices of its own blocks, of which the last may be shorter, and the state.
func (l *looping) cut(point kv.Point, views []*kv.View) (slices [][]byte, state []byte) {
	p := l.prefixes
	for at := 0; at < point.Tokens || len(views) > 0; {
		var payload []byte // of a bare block there is none
		last := point.State && at+p.shape.Block > point.Tokens
		if last || !p.shape.Bare {
			payload, views = views[0].Bytes(), views[1:]
		}
		for end := min(at+p.shape.Block, point.Tokens); at < end; {
			n := min(end-at, p.blockTokens)
			bytes := l.model.cache.SliceBytes(n)
			slices = append(slices, payload[:bytes])
			payload, at = payload[bytes:], at+n
		}
		if last {
			state = payload
		}
	}
	return slices, state
}

// keep saves what a step completed of a request: blocks that are full now, and
// the state where prompts are cut. Once something has no room, what would
// follow it is worth nothing, and no more is saved.
func (l *looping) keep(a *active) {
	p := l.prefixes
	a.staged = false
	if p == nil || a.mute {
		return
	}
	n, block := l.sched.InKV(a.id), p.shape.Block
	a.chain.Grow(a.tokens[:n])
	for (a.saved+1)*block <= n {
		if !p.shape.Bare && !l.save(a, a.chain.Keys()[a.saved], a.saved*block, (a.saved+1)*block, false) {
			a.mute = true
			return
		}
		a.saved++
	}
	if n > 0 && p.shape.Stop(n-1, a.prompt) == n {
		l.save(a, a.chain.State(a.tokens, n), n/block*block, n, true)
	}
}

// due reports whether a request has blocks that are full and not saved.
func (l *looping) due(a *active) bool {
	p := l.prefixes
	return p != nil && !a.mute && (a.saved+1)*p.shape.Block <= l.sched.InKV(a.id)
}

// keepLate saves blocks while the next step, which was built on the one that filled
// them, is computed: what is written of a token stays as it is. All answers have
// their tokens by then. The back end begins to copy them, and when the next step has
// landed, they are saved.
func (l *looping) keepLate(filled []*active) {
	for _, a := range filled {
		if a.staged {
			l.keep(a)
		} else {
			l.stage(a)
		}
	}
}

// keepLast saves what was staged of a request that ended since.
func (l *looping) keepLast(a *active) {
	l.keep(a)
	l.e.letGo(a) // it counts on nothing any more
}

// stage has the back end begin to copy blocks that will be saved.
func (l *looping) stage(a *active) {
	p := l.prefixes
	n, block := l.sched.InKV(a.id), p.shape.Block
	a.chain.Grow(a.tokens[:n])
	a.staged = true
	for at := a.saved; (at+1)*block <= n && !p.shape.Bare; at++ {
		if p.ram.Has(a.chain.Keys()[at]) {
			continue
		}
		for first, last := at*block, (at+1)*block; first < last; first += p.blockTokens {
			l.model.cache.Stage(tensor.RequestID(a.id), first, min(first+p.blockTokens, last))
		}
	}
}

// save puts tokens [first, last) of a request under a key, and, if wanted, the
// state behind them.
func (l *looping) save(a *active, key kv.Key, first, last int, state bool) bool {
	p, cache, id := l.prefixes, l.model.cache, tensor.RequestID(a.id)
	if p.ram.Has(key) { // not Size: this goroutine asks no disk
		l.countOn(a, key)
		return true
	}
	bytes := cache.SliceBytes(last - first)
	if state {
		bytes += cache.StateBytes(last)
	}
	saved, err := p.ram.Make(key, bytes, func(dst []byte) error {
		for at := first; at < last; {
			to := min(at+p.blockTokens, last)
			n := cache.SliceBytes(to - at)
			if err := cache.Save(id, at, to, dst[:n]); err != nil {
				return err
			}
			at, dst = to, dst[n:]
		}
		if !state {
			return nil
		}
		return cache.SaveState(id, dst)
	})
	if err != nil {
		l.e.log.Error("could not save a prompt to the prefix cache", "tokens", last, "error", err.Error())
		return false
	}
	if saved == kv.Dropped {
		return false
	}
	l.countOn(a, key)
	return true
}

// cutPieces ends pieces of prompts where a state has to be saved, and those whose
// tokens are ranked where their logits would take too much.
func (l *looping) cutPieces(pieces []batch.Row) []batch.Row {
	for i, row := range pieces {
		pieces[i].Length = l.active[row.ID].chunk(row.Length)
	}
	if l.prefixes == nil {
		return pieces
	}
	for i, row := range pieces {
		if stop := l.prefixes.shape.Stop(row.Start, l.active[row.ID].prompt); stop > 0 {
			pieces[i].Length = min(row.Length, stop-row.Start)
		}
	}
	return pieces
}

// stops reports whether a step ends where a state of one of its requests is saved,
// which happens before the next step is built on it.
func (l *looping) stops(step batch.Step) bool {
	if l.prefixes == nil {
		return false
	}
	for _, r := range step.Rows {
		a, end := l.active[r.ID], r.Start+r.Length
		if a != nil && l.prefixes.shape.Stop(end-1, a.prompt) == end {
			return true
		}
	}
	return false
}

// reset forgets what is remembered after a step that the back end could not
// compute: what it computed lately is not to be trusted. It comes after the
// requests of that step have ended and before another step; of those that go on
// nothing more is saved.
func (l *looping) reset(cause error) {
	if l.prefixes == nil || errors.Is(cause, tensor.ErrMemory) {
		return
	}
	bytes := l.prefixes.ram.Bytes()
	l.prefixes.ram.Distrust()
	for _, a := range l.active {
		a.mute = true
	}
	l.e.log.Warn("prefix cache dropped because the back end failed", "bytes", bytes)
}
