//go:build mlx

package mlx

// #include "bridge.h"
import "C"

import (
	"fmt"
	"slices"
	"unsafe"

	"metalfleet.dev/metalfleet/metal/tensor"
)

// states holds the recurrent states of requests, a slot for each, in float32.
// Rows of one token each of all its requests are computed by one call; those of
// a longer segment by blocks. Coming and leaving copy it, as they do a slab of
// keys and values.
type states struct {
	slab
	rows []*stateSpot
	// kept states are those before drafts, which lie by themselves.
	kept bool
}

// stateSpot is a slot of a slab of states; of none where in is nil.
type stateSpot struct {
	in   *states
	slot int
}

// stateShape is what the bridge wants to know of recurrent layers.
func stateShape(r tensor.RecurrentSpec) C.bridge_state_shape {
	return C.bridge_state_shape{
		key_heads: C.int32_t(r.KeyHeads), key_size: C.int32_t(r.KeySize), value_heads: C.int32_t(r.ValueHeads), value_size: C.int32_t(r.ValueSize), taps: C.int32_t(r.Taps),
	}
}

// joinStates gives a request a state of zeros, or one that is kept before a draft.
func (c *cache) joinStates(to *stateSpot, kept bool) error {
	bytes := c.spec.Recurrent.StateBytes()
	at := slices.IndexFunc(c.states, func(s *states) bool {
		return s.kept == kept && s.broken == nil && bytes*int64(len(s.rows)+1) <= maxSlabBytes
	})
	slots := int64(1)
	if at >= 0 {
		slots += int64(len(c.states[at].rows))
	}
	layers := c.spec.Recurrent.Layers
	if err := c.b.admit(bytes + bytes/int64(layers)*int64(min(layersAtOnce, layers))*slots); err != nil {
		return fmt.Errorf("recurrent state: %w", err)
	}
	if at < 0 {
		s := &states{slab: slab{slotBytes: bytes}, kept: kept}
		if s.row = C.bridge_slab_new(C.int32_t(layers), 0, C.bridge_kv_shape{}); s.row == nil {
			return fmt.Errorf("slab of states: %w", tensor.ErrMemory)
		}
		c.states, at = append(c.states, s), len(c.states)
	}
	s, shape := c.states[at], stateShape(c.spec.Recurrent)
	s.slab.charge(c.b, bytes)
	to.in, to.slot = s, len(s.rows)
	s.rows = append(s.rows, to)
	if err := fault(C.bridge_state_join(c.b.token(), s.row, &shape)); err != nil {
		s.broken = err
		return fmt.Errorf("recurrent state: %w", err)
	}
	return nil
}

// leaveStates takes a request's states away; it is as if nothing had recurred.
func (c *cache) leaveStates(h *held) {
	c.leaveState(&h.state)
	c.leaveState(&h.kept)
	clear(h.recurred)
	clear(h.keptAt)
}

// leaveState frees a slot. Arrays of a broken slab stay as they are until all have left.
func (c *cache) leaveState(of *stateSpot) {
	s := of.in
	if s == nil {
		return
	}
	if len(s.rows) > 1 && s.broken == nil {
		s.broken = fault(C.bridge_slab_remove(c.b.token(), s.row, C.int32_t(of.slot)))
	}
	if s.broken == nil {
		s.slab.charge(c.b, -s.slotBytes)
		s.rows = slices.Delete(s.rows, of.slot, of.slot+1)
		for i, o := range s.rows {
			o.slot = i
		}
	} else {
		s.rows[of.slot] = nil
	}
	of.in = nil
	if !slices.ContainsFunc(s.rows, func(o *stateSpot) bool { return o != nil }) {
		c.freeStates(s)
	}
}

// takeBack gives recurrent layers the state before a draft, if all of them have kept that.
func (h *held) takeBack(tokens int) bool {
	if tokens == 0 || h.kept.in == nil || h.kept.in.broken != nil || h.state.in.broken != nil {
		return false
	}
	for i, n := range h.recurred {
		if n <= tokens || h.keptAt[i] != tokens {
			return false
		}
	}
	h.state, h.kept = h.kept, h.state
	h.state.in.rows[h.state.slot], h.kept.in.rows[h.kept.slot] = &h.state, &h.kept
	for i := range h.recurred {
		h.recurred[i], h.keptAt[i] = tokens, 0
	}
	return true
}

// freeStates frees a slab of states, even one in use.
func (c *cache) freeStates(s *states) {
	s.slab.freeArrays(c.b)
	c.states = slices.DeleteFunc(c.states, func(o *states) bool { return o == s })
}

// Recur extends recurrent states by the rows of a step and reads them.
func (s *scope) Recur(spec tensor.RecurSpec) tensor.Array {
	const op = "Recur"
	in, c, ok := s.recurOperands(op, &spec)
	if !ok || !s.begin(op) {
		return &array{}
	}
	err := s.b.check() // before the cache changes
	if err == nil {
		err = s.b.admit(recurScratch(c.spec.Recurrent, spec))
	}
	var segments []C.bridge_segment
	if err == nil {
		segments, err = c.recur(&spec)
	}
	if err != nil {
		s.fail(fmt.Errorf("%s: %w", op, err))
		return &array{}
	}
	shape := stateShape(c.spec.Recurrent)
	operands := C.bridge_recur_operands{
		rule: C.int32_t(spec.Rule), low: C.float(spec.Low), high: C.float(spec.High), q: in[0].handle(), k: in[1].handle(), v: in[2].h,
		decay: in[3].handle(), beta: in[4].handle(), kernel: in[5].h, shift: in[6].handle(), rate: in[7].handle(), bias: in[8].handle(), skip: in[9].handle(),
	}
	return s.made(op, C.bridge_recur(s.b.token(), &operands, C.int32_t(spec.Layer), &shape, unsafe.SliceData(segments), C.int32_t(len(segments))), in[2].shape...)
}

// rowsAtOnce of a sequence are a block (bridge_recur.cpp, rows_at_once).
const rowsAtOnce = 64

// rowsByChannel is the same where a state is forgotten by channel (rows_by_channel).
const rowsByChannel = 16

// recurScratch is about what a layer takes while it computes the longest
// segment, or one row of each: rows and windows, queries, keys and values by
// head in some forms each, and squares of blocks.
func recurScratch(r tensor.RecurrentSpec, spec tensor.RecurSpec) int64 {
	longest := 0
	for _, g := range spec.Segments {
		longest = max(longest, g.Length)
	}
	rows, block := int64(tensor.Tokens(spec.Segments)), int64(min(rowsAtOnce, longest))
	perHead := 4*int64(r.KeySize) + 3*int64(r.ValueSize) + 4*block
	if spec.Decay != nil && spec.Decay.Shape()[1] > r.ValueHeads {
		perHead += 4 * min(rowsByChannel, block) * int64(r.KeySize)
	}
	return 4 * (3*rows*int64(r.Channels()) + int64(longest)*int64(r.ValueHeads)*perHead)
}

// recur makes room for the states of a step in one layer and returns the work
// for the bridge. Nothing changes if a segment does not fit.
func (c *cache) recur(spec *tensor.RecurSpec) (out []C.bridge_segment, err error) {
	for _, g := range spec.Segments {
		has := 0
		if h := c.requests[g.Request]; h != nil {
			has = h.recurred[spec.Layer]
			for _, in := range []*states{h.state.in, h.kept.in} {
				if in != nil && in.broken != nil {
					return nil, fmt.Errorf("request %d was lost in an earlier step: %w", g.Request, in.broken)
				}
			}
		}
		if g.Length > 0 && has != g.Start {
			return nil, fmt.Errorf("request %d, recurrent layer %d has seen %d tokens, but the segment starts at %d: %w", g.Request, spec.Layer, has, g.Start, tensor.ErrSegment)
		}
	}
	for _, g := range spec.Segments {
		h := c.requests[g.Request]
		if h == nil {
			h = c.holding()
			c.requests[g.Request] = h
		}
		if h.state.in == nil {
			if err := c.joinStates(&h.state, false); err != nil {
				return nil, err
			}
		}
		if g.Draft > 0 && h.kept.in == nil {
			if err := c.joinStates(&h.kept, true); err != nil {
				return nil, err
			}
		}
	}
	for _, g := range spec.Segments { // once all of them lie where they stay
		if g.Length == 0 {
			continue
		}
		h := c.requests[g.Request]
		h.recurred[spec.Layer] += g.Length
		c.b.pending[&h.state.in.slab] = struct{}{}
		segment := C.bridge_segment{slab: h.state.in.row, slot: C.int32_t(h.state.slot), start: C.int32_t(g.Start), length: C.int32_t(g.Length)}
		h.keptAt[spec.Layer] = 0
		if g.Draft > 0 {
			h.keptAt[spec.Layer] = g.Start + g.Length - g.Draft
			c.b.pending[&h.kept.in.slab] = struct{}{}
			segment.draft, segment.kept, segment.kept_slot = C.int32_t(g.Draft), h.kept.in.row, C.int32_t(h.kept.slot)
		}
		out = append(out, segment)
	}
	return out, nil
}

func (s *scope) recurOperands(op string, spec *tensor.RecurSpec) (in [10]*array, c *cache, ok bool) {
	if s.failed() {
		return in, nil, false
	}
	c, ok = spec.Cache.(*cache)
	if !ok || c.released {
		s.fail(fmt.Errorf("%s: cache: %w", op, tensor.ErrReleased))
		return in, nil, false
	}
	for i, a := range spec.Operands() {
		dims := 2
		if i >= 5 {
			dims = 1
		}
		if a == nil && i != 2 {
			continue
		}
		if in[i], ok = s.operand(op, a, dims); !ok {
			return in, nil, false
		}
	}
	if err := spec.Check(c.spec.Recurrent); err != nil {
		s.fail(err)
		return in, nil, false
	}
	return in, c, true
}
