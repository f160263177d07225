package engine

import (
	"errors"
	"log/slog"
	"slices"
	"time"

	"metalfleet.dev/metalfleet/metal/batch"
	"metalfleet.dev/metalfleet/metal/engine/guard"
	"metalfleet.dev/metalfleet/metal/footprint"
	"metalfleet.dev/metalfleet/metal/kv"
	"metalfleet.dev/metalfleet/metal/tensor"
)

const (
	// maxPrepared is for how many blocks room is made in advance, soonTokens how many
	// tokens before an answer fills one.
	maxPrepared = 8
	soonTokens  = 32
)

// blocks moves blocks between the KV cache of sequences and the prefix cache, on the loop's
// goroutine. Without a prefix cache it does nothing.
type blocks struct {
	*sequences
	prefixes *prefixCache // nil if there is none
	guard    *guard.Guard
	log      *slog.Logger
	// pending sequences still wait to restore a prefix: later ones for steps of others, and do not
	// begin to compute it meanwhile, the others for room.
	pending, later []batch.ID
	side           *sideWork
	// came reports whether requests of other owners have come in meanwhile. Nil: none do.
	came func(owner string) bool
	// wanted are the images that the proposed chunks need first, in the order of these.
	wanted []wantedImage
	// roomless are the images without memory to be encoded. Their prompts are held.
	roomless []wantedImage
	// unfit are the prompts without memory to begin, which are held while others have KV.
	unfit []*sequence
}

// keepRoomless keeps those of images that have waited for room.
func (b *blocks) keepRoomless(images ...wantedImage) {
	for _, w := range images {
		if !w.image.waitsSince.IsZero() && !slices.Contains(b.roomless, w) {
			b.roomless = append(b.roomless, w)
		}
	}
}

// held returns the prompts that others pass: those that are restored later, those without room for
// an image or to begin, and more.
func (b *blocks) held(more ...batch.ID) []batch.ID {
	more = append(more, b.later...)
	for _, w := range b.roomless {
		more = append(more, w.sequence.id)
	}
	for _, s := range b.unfit {
		more = append(more, s.id)
	}
	return more
}

// leave forgets what a sequence that is preempted waits for, and what the back end holds of its images.
func (b *blocks) leave(s *sequence) {
	b.pending = slices.DeleteFunc(b.pending, func(id batch.ID) bool { return id == s.id })
	b.later = slices.DeleteFunc(b.later, func(id batch.ID) bool { return id == s.id })
	b.roomless = slices.DeleteFunc(b.roomless, func(w wantedImage) bool { return w.sequence == s })
	b.unfit = slices.DeleteFunc(b.unfit, func(u *sequence) bool { return u == s })
	if s.prefix.chain != nil {
		s.prefix.chain.Forget()
	}
	s.images.forget(s.prompt)
	s.images.waits(s.generated() > 0)
}

// others counts the requests for whose steps the work on one of this owner has to end: those that
// decode, and prompts of other owners that are not held, also those that have just come.
func (b *blocks) others(owner string, held ...batch.ID) int {
	n := b.sched.Others(owner, held...)
	if b.came != nil && b.came(owner) {
		n++
	}
	return n
}

// restore has admitted sequences continue from their cached prefixes. Those that have no
// room for it yet, or have to wait for steps of others, are tried again before the next step.
func (b *blocks) restore(admitted []batch.ID) {
	if b.prefixes == nil {
		for _, id := range admitted {
			if s := b.byID[id]; s != nil {
				s.begin(0)
			}
		}
		return
	}
	pending := append(b.pending, admitted...)
	b.pending, b.later = nil, nil
	for _, id := range pending {
		if s := b.byID[id]; s != nil && b.sched.InKV(id) == 0 && !b.restoreOne(s) {
			b.pending = append(b.pending, id)
		}
	}
}

// restoreOne restores the cached prefix of a sequence, of which at least one token is left
// to compute. done is false if there is no room yet, or steps come first.
func (b *blocks) restoreOne(s *sequence) (done bool) {
	p := b.prefixes
	if s.wantsPromptLogprobs() {
		b.continueFrom(s, kv.Point{})
		return true
	}
	point := s.prefix.chain.Find(s.tokens, len(s.tokens)-1, p.ram.Has)
	if point.Tokens > 0 && b.side.waits(b.others(s.owner)) {
		b.pinBefore(s, point) // used last, they are evicted last
		b.later = append(b.later, s.id)
		return false
	}
	views, ok := p.views(s.prefix.chain.Under(s.tokens, point))
	defer func() {
		for _, v := range views {
			v.Close()
		}
	}()
	if !ok || point.Tokens == 0 {
		b.restored(s, kv.Point{})
		return true
	}
	if !b.roomToRestore(s, point) {
		return false
	}
	began := time.Now()
	defer func() { b.side.did(began, b.others(s.owner)) }()
	slices, state := b.slices(point, views)
	if err := b.kv.Restore(tensor.RequestID(s.id), point.Tokens, slices, state); err != nil {
		b.log.Error("could not restore a prompt from the prefix cache", "tokens", point.Tokens, "error", err.Error())
		b.restored(s, kv.Point{})
		return true
	}
	if err := b.sched.Restored(s.id, point.Tokens); err != nil { // a bug of this package: it is computed instead
		b.log.Error("could not restore a prompt from the prefix cache", "tokens", point.Tokens, "error", err.Error())
		b.kv.Drop(tensor.RequestID(s.id))
		point = kv.Point{}
	}
	b.restored(s, point)
	return true
}

// restored counts a lookup, and continues from its result.
func (b *blocks) restored(s *sequence, point kv.Point) {
	p := b.prefixes
	p.queried.Add(int64(len(s.tokens)))
	if point.Tokens > 0 {
		p.hits.Add(1)
		p.restored.Add(int64(point.Tokens))
	} else {
		p.misses.Add(1)
	}
	b.continueFrom(s, point)
}

// continueFrom has a sequence continue from a point, and pins the blocks before it.
func (b *blocks) continueFrom(s *sequence, point kv.Point) {
	s.begin(point.Tokens)
	s.prefix.saved, s.prefix.disabled = point.Blocks, false
	b.pinBefore(s, point)
	s.prefix.chain.Forget()
}

// pinBefore pins the blocks before a point for a sequence, and no others.
func (b *blocks) pinBefore(s *sequence, point kv.Point) {
	old := s.prefix.pins
	s.prefix.pins = nil
	for _, key := range s.prefix.chain.Under(s.tokens, point) {
		b.prefixes.pin(s, key)
	}
	b.prefixes.ram.Unpin(old)
}

// roomToRestore reports whether the restored prefix fits in addition to what is held, with
// the smallest chunk of the rest. Cached prefixes of others are evicted for it.
func (b *blocks) roomToRestore(s *sequence, point kv.Point) bool {
	needed, r, err := b.guard.FitsAtMinChunk(footprint.Prefill{
		New: int64(len(s.tokens) - point.Tokens), Cached: int64(point.Tokens), Restored: int64(point.Tokens),
	})
	if err != nil {
		return false // the guard reports it when the prompt is to be computed
	}
	if !r.Fits(needed) {
		b.prefixes.ram.Shed(needed - (r.Limit - r.Held))
		r = b.guard.Room()
	}
	return r.Fits(needed)
}

// slices divides the blocks of a point into what the back end takes: slices of its own
// blocks, of which the last may be shorter, and the state.
func (b *blocks) slices(point kv.Point, views []*kv.View) (slices [][]byte, state []byte) {
	p := b.prefixes
	for at := 0; at < point.Tokens || len(views) > 0; {
		var payload []byte // a bare block has none
		last := point.State && at+p.shape.Block > point.Tokens
		if last || !p.shape.Bare {
			payload, views = views[0].Bytes(), views[1:]
		}
		for end := min(at+p.shape.Block, point.Tokens); at < end; {
			n := min(end-at, p.blockTokens)
			bytes := b.kv.SliceBytes(n)
			slices = append(slices, payload[:bytes])
			payload, at = payload[bytes:], at+n
		}
		if last {
			state = payload
		}
	}
	return slices, state
}

// makeRoom gives the KV that the next step takes back to requests. Those that are restored later take
// none in it: it may have the blocks that they wait for.
func (b *blocks) makeRoom() {
	if b.prefixes == nil {
		return
	}
	free := b.sched.FreeTokens()
	for _, id := range b.later {
		if s := b.byID[id]; s != nil {
			free += len(s.tokens)
		}
	}
	b.prefixes.resize(free)
}

// prepare makes room for the blocks that sequences are about to fill, while a step is
// computed.
func (b *blocks) prepare() {
	p := b.prefixes
	if p == nil || p.shape.Bare {
		return
	}
	count, size := 0, p.shape.Block
	for _, s := range b.byID {
		if s.prefix.looked && !s.prefix.disabled {
			count += max(0, max(s.prompt, b.sched.InKV(s.id)+soonTokens)/size-s.prefix.saved)
		}
	}
	p.ram.Prepare(b.kv.SliceBytes(size), min(count, maxPrepared))
}

// save saves what a step completed of a sequence: blocks that are full now, and the state
// where prompts are divided. Once a block has no room, the blocks after it are worth
// nothing, and no more are saved.
func (b *blocks) save(s *sequence) {
	p := b.prefixes
	s.prefix.staged = false
	if p == nil || s.prefix.disabled {
		return
	}
	n, size := b.sched.InKV(s.id), p.shape.Block
	s.prefix.chain.Grow(s.tokens[:n])
	for (s.prefix.saved+1)*size <= n {
		at := s.prefix.saved
		if !p.shape.Bare && !b.saveBlock(s, s.prefix.chain.Keys()[at], at*size, (at+1)*size, false) {
			s.prefix.disabled = true
			return
		}
		s.prefix.saved++
	}
	if n > 0 && p.shape.Stop(n-1, s.prompt) == n {
		b.saveBlock(s, s.prefix.chain.State(s.tokens, n), n/size*size, n, true)
	}
}

// due reports whether a sequence has blocks that are full and not saved.
func (b *blocks) due(s *sequence) bool {
	p := b.prefixes
	return p != nil && !s.prefix.disabled && (s.prefix.saved+1)*p.shape.Block <= b.sched.InKV(s.id)
}

// saveLater saves blocks while the next step, which was built on the one that filled them,
// is computed: what is written of a token does not change. The back end begins to copy
// them, and when the next step has completed, they are saved.
func (b *blocks) saveLater(filled []*sequence) {
	for _, s := range filled {
		if s.prefix.staged {
			b.save(s)
		} else {
			b.stage(s)
		}
	}
}

// stage has the back end begin to copy blocks that will be saved.
func (b *blocks) stage(s *sequence) {
	p := b.prefixes
	n, size := b.sched.InKV(s.id), p.shape.Block
	s.prefix.chain.Grow(s.tokens[:n])
	s.prefix.staged = true
	for at := s.prefix.saved; (at+1)*size <= n && !p.shape.Bare; at++ {
		if p.ram.Has(s.prefix.chain.Keys()[at]) {
			continue
		}
		for first, last := at*size, (at+1)*size; first < last; first += p.blockTokens {
			b.kv.Stage(tensor.RequestID(s.id), first, min(first+p.blockTokens, last))
		}
	}
}

// saveLast saves what was staged of a sequence that has ended since.
func (b *blocks) saveLast(s *sequence) {
	if s.prefix.staged {
		b.save(s)
		b.prefixes.unpin(s)
	}
}

// saveBlock saves tokens [first, last) of a sequence under a key, and, if wanted, the state
// after them.
func (b *blocks) saveBlock(s *sequence, key kv.Key, first, last int, state bool) bool {
	p, id := b.prefixes, tensor.RequestID(s.id)
	if p.ram.Has(key) { // not Size: this goroutine reads no disk
		p.pin(s, key)
		return true
	}
	bytes := b.kv.SliceBytes(last - first)
	if state {
		bytes += b.kv.StateBytes(last)
	}
	saved, err := p.ram.Make(key, bytes, func(dst []byte) error {
		for at := first; at < last; {
			to := min(at+p.blockTokens, last)
			n := b.kv.SliceBytes(to - at)
			if err := b.kv.Save(id, at, to, dst[:n]); err != nil {
				return err
			}
			at, dst = to, dst[n:]
		}
		if !state {
			return nil
		}
		return b.kv.SaveState(id, dst)
	})
	if err != nil {
		b.log.Error("could not save a prompt to the prefix cache", "tokens", last, "error", err.Error())
		return false
	}
	if saved == kv.Dropped {
		return false
	}
	p.pin(s, key)
	return true
}

// propose returns the prefill chunks of a step of at most this many tokens, without those of the held
// prompts. A prompt whose next tokens are those of an image that is not there leaves the step to the others.
func (b *blocks) propose(tokens int, held []batch.ID) []batch.Row {
	var waiting []wantedImage
	for {
		b.wanted = slices.Delete(b.wanted, 0, len(b.wanted)) // no sequence stays after its end
		chunks, left := b.cut(b.sched.ProposeChunks(tokens, held...))
		waiting = append(waiting, left...)
		if len(left) == 0 {
			b.wanted = append(b.wanted, waiting...)
			return chunks
		}
		for _, w := range left {
			held = append(held, w.sequence.id)
		}
	}
}

// cut ends prefill chunks where a state has to be saved, those whose tokens are ranked
// where their logits would take too much, and those with an image before it, until its
// tokens are there. It leaves out those that would begin with such an image.
func (b *blocks) cut(chunks []batch.Row) (kept []batch.Row, left []wantedImage) {
	kept = chunks[:0]
	for _, row := range chunks {
		s := b.byID[row.ID]
		length := s.maxChunk(row.Length)
		if b.prefixes != nil {
			if stop := b.prefixes.shape.Stop(row.Start, s.prompt); stop > 0 {
				length = min(length, stop-row.Start)
			}
		}
		row = b.sched.Shorten(row, length)
		if m := s.images.missing(row.Start, row.Start+row.Length); m != nil {
			if row.Length = m.span.At - row.Start; row.Length <= 0 {
				left = append(left, wantedImage{s, m})
				continue
			}
			b.wanted = append(b.wanted, wantedImage{s, m})
			row = b.sched.Shorten(row, row.Length)
		}
		kept = append(kept, row)
	}
	return kept, left
}

// savesState reports whether a step ends where a state of one of its sequences is saved,
// which happens before the next step is built on it.
func (b *blocks) savesState(step batch.Step) bool {
	if b.prefixes == nil {
		return false
	}
	for _, r := range step.Rows {
		s, end := b.byID[r.ID], r.Start+r.Length
		if s != nil && b.prefixes.shape.Stop(end-1, s.prompt) == end {
			return true
		}
	}
	return false
}

// distrust drops the prefix cache after a step that the back end could not compute: what it
// computed lately may be wrong. Nothing more is saved of the sequences that there are.
func (b *blocks) distrust(cause error) {
	if b.prefixes == nil || errors.Is(cause, tensor.ErrMemory) {
		return
	}
	bytes := b.prefixes.ram.Bytes()
	b.prefixes.ram.Distrust()
	for _, s := range b.byID {
		s.prefix.disabled = true
	}
	b.log.Warn("prefix cache dropped because the back end failed", "bytes", bytes)
}
