package engine

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"metalfleet.dev/metalfleet/metal/batch"
	"metalfleet.dev/metalfleet/metal/footprint"
	"metalfleet.dev/metalfleet/metal/nn"
	"metalfleet.dev/metalfleet/metal/tensor"
)

// imageEncoder runs images through the vision tower between the steps of a loop.
type imageEncoder struct {
	*sequences
	tower   *nn.Tower
	input   *inputProcessor
	backend tensor.Backend
	kernels footprint.Kernels
	shared  *shared
	blocks  *blocks
	side    *sideWork
	// turns number the parts that were computed, by the tenant of the last of them: of those that
	// have requests. One that comes is before the tenant of the latest, and after all others.
	turns  map[string]int
	latest int
}

const (
	// encodeBeside and encodeAlone are how long layers of the tower are computed at a time, at
	// least one: while there are others (see sideWork), and else.
	encodeBeside, encodeAlone = 20 * time.Millisecond, 200 * time.Millisecond
	// roomWait is how long an image waits for memory before its request is refused.
	roomWait = time.Minute
)

// wantedImage is an image that the next chunk of a prompt needs.
type wantedImage struct {
	sequence *sequence
	image    *promptImage
}

// advance computes layers of the first image that there is room for, for a short time: of those
// that have waited for room, and of the wanted ones, whose tenants take turns. worked is false if
// there is none, or steps come first. A refusal ends the sequence.
func (e *imageEncoder) advance() (worked bool, failed *sequence, refusal *Refusal, err error) {
	all := e.inTurn(slices.Concat(e.blocks.roomless, e.blocks.wanted))
	var held []batch.ID // wait for an image themselves
	for _, w := range all {
		held = append(held, w.sequence.id)
	}
	e.blocks.roomless = slices.Delete(e.blocks.roomless, 0, len(e.blocks.roomless))
	for i, w := range all {
		s, m := w.sequence, w.image
		if e.byID[s.id] != s || s.cancelled.Load() || m.seen.States != nil {
			continue
		}
		if e.side.waits(e.blocks.others(s.owner, held...)) {
			e.blocks.keepRoomless(all[i:]...)
			return false, nil, nil, nil
		}
		if m.encoding == nil {
			if !s.images.processor.scaled.keep(m, s.images.list) {
				e.blocks.keepRoomless(all[i+1:]...)
				return true, s, s.imagesGone(), nil
			}
			room, refusal := e.makeRoom(m, slices.ContainsFunc(all, func(o wantedImage) bool { return o.image.encoding != nil }))
			if refusal != nil {
				e.blocks.keepRoomless(all[i+1:]...)
				return true, s, refusal, nil
			}
			if !room {
				e.blocks.keepRoomless(w)
				continue
			}
		}
		e.blocks.keepRoomless(all[i+1:]...)
		e.took(s.owner)
		if err := e.encode(w, held); err != nil {
			m.forget()
			return true, s, e.refusalOf(err), backendError(err)
		}
		return true, nil, nil, nil
	}
	return false, nil, nil, nil
}

// inTurn orders images: those of the tenant whose last part is the oldest come first.
func (e *imageEncoder) inTurn(all []wantedImage) []wantedImage {
	turns := map[string]int{}
	for _, s := range e.byID {
		if n, waited := e.turns[s.owner]; waited {
			turns[s.owner] = n
		}
	}
	for _, w := range all {
		if _, waited := turns[w.sequence.owner]; !waited {
			turns[w.sequence.owner] = e.latest - 1
		}
	}
	e.turns = turns
	slices.SortStableFunc(all, func(a, b wantedImage) int {
		return cmp.Compare(turns[a.sequence.owner], turns[b.sequence.owner])
	})
	return all
}

// took gives a tenant the latest turn.
func (e *imageEncoder) took(tenant string) {
	e.latest += 2
	e.turns[tenant] = e.latest
}

// encode computes layers of an image, for a shorter time once others come.
func (e *imageEncoder) encode(w wantedImage, held []batch.ID) error {
	began, m := time.Now(), w.image
	others := func() int { return e.blocks.others(w.sequence.owner, held...) }
	defer func() { e.side.did(began, others()) }()
	if m.encoding == nil {
		m.scope = e.backend.NewScope(e.shared.hard)
		m.encoding = e.tower.Begin(m.scope, e.input.images.processor.Cut(m.scaled.pixels))
	}
	more := true
	for more && (time.Since(began) < encodeBeside || time.Since(began) < encodeAlone && others() == 0) {
		more = m.encoding.Next()
		m.encoding.Wait()
	}
	if err := m.scope.Err(); err != nil {
		return err
	}
	if !more {
		m.seen, m.encoding = m.encoding.Seen(), nil
	}
	return nil
}

// makeRoom reports whether there is memory for an image in the tower. The pool and the
// prefix cache give way to it. Without room, it waits for the answers of others to end, and for
// images that are under way, up to roomWait; other prompts pass meanwhile.
func (e *imageEncoder) makeRoom(m *promptImage, others bool) (bool, *Refusal) {
	g := e.shared.guard
	needed, err := footprint.ImagePeak(e.input.facts, e.kernels, int64(m.span.Tokens()*e.input.images.tower.Block()))
	if err != nil {
		return false, &Refusal{Kind: Internal, Message: err.Error()}
	}
	r := g.Room()
	if !r.Fits(needed+r.Pooled) && r.Pooled > 0 {
		if _, err := g.Reclaim(); err != nil {
			e.shared.log.Error("could not free pooled memory", "error", err.Error())
		}
		r = g.Room()
	}
	if !r.Fits(needed) && r.Cached > 0 {
		e.blocks.prefixes.ram.Shed(needed - (r.Limit - r.Held))
		r = g.Room()
	}
	switch {
	case r.Fits(needed):
		m.waitsSince = time.Time{}
		return true, nil
	case others || e.sched.Decodes() > 0:
		if m.waitsSince.IsZero() {
			m.waitsSince = time.Now()
		}
		if time.Since(m.waitsSince) < roomWait {
			return false, nil
		}
	}
	return false, outOfMemory(g.Abort(needed, r))
}

// imagesGone ends a request whose images were given up, and its KV lost.
func (s *sequence) imagesGone() *Refusal {
	if s.generated() == 0 {
		return imagesFull()
	}
	return &Refusal{Kind: Aborted, RetryAfter: abortRetry, Message: "the answer was ended because memory for its images was needed by other requests; send it again"}
}

// refusalOf an error of the back end.
func (e *imageEncoder) refusalOf(err error) *Refusal {
	if errors.Is(err, tensor.ErrMemory) {
		return outOfMemory(e.shared.guard.Abort(0, e.shared.guard.Room()))
	}
	return &Refusal{Kind: Internal, Message: "the back end failed: " + err.Error()}
}

// backendError is err if it counts against the back end.
func backendError(err error) error {
	if errors.Is(err, tensor.ErrMemory) || errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}
