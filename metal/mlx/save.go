//go:build mlx

package mlx

// #include "bridge.h"
import "C"

import (
	"fmt"
	"runtime"
	"slices"
	"unsafe"

	"metalfleet.dev/metalfleet/metal/tensor"
)

// SliceBytes is the size of Save's output for this many tokens; 0 before the
// first keys.
func (c *cache) SliceBytes(tokens int) int64 { return c.saved.TokenBytes * int64(max(0, tokens)) }

// StateBytes is the size of SaveState's output for this many tokens.
func (c *cache) StateBytes(tokens int) int64 { return c.saved.State(tokens) }

// Save copies the keys and values of tokens [first, last): for every layer keys
// then values, each [kvHeads, tokens, size].
func (c *cache) Save(id tensor.RequestID, first, last int, dst []byte) error {
	return c.save("Save", id, dst, func(h *held) error {
		if err := c.saved.FitsSave(c.Length(id), first, last, len(dst)); err != nil {
			return err
		}
		if a, ok := c.take(stage{id, first, last}); ok {
			defer c.drop(a)
			return fault(C.bridge_staged(c.b.token(), a, (*C.uint8_t)(unsafe.SliceData(dst))))
		}
		return c.read(&h.grown, first, last, dst)
	})
}

// SaveState copies the recurrent states, followed by what windows can still
// see, in the order of Save.
func (c *cache) SaveState(id tensor.RequestID, dst []byte) error {
	return c.save("SaveState", id, dst, func(h *held) error {
		length := c.Length(id)
		if err := c.saved.FitsState(length, c.whole(h), len(dst)); err != nil {
			return err
		}
		states, windows := dst[:c.saved.StateBytes], dst[c.saved.StateBytes:]
		if len(states) > 0 {
			if err := c.mayRead(&h.state.in.slab, len(states), c.spec.Recurrent.Layers); err != nil {
				return err
			}
			if err := fault(C.bridge_state_save(c.b.token(), h.state.in.row, C.int32_t(h.state.slot), (*C.uint8_t)(unsafe.SliceData(states)))); err != nil {
				return err
			}
		}
		end := length - h.at.Base
		return c.read(&h.rotated, end-c.saved.RotatingOf(length), end, windows)
	})
}

// read copies tokens [first, last) of a slot.
func (c *cache) read(at *spot, first, last int, dst []byte) error {
	if len(dst) == 0 {
		return nil
	}
	if err := c.mayRead(at.slab, len(dst), at.slab.layers); err != nil {
		return err
	}
	return fault(C.bridge_slab_save(c.b.token(), at.slab.row, C.int32_t(at.slot), C.int32_t(first), C.int32_t(last), (*C.uint8_t)(unsafe.SliceData(dst))))
}

// whole is how many tokens each layer holds of which all is saved at once.
func (c *cache) whole(h *held) []int {
	out := slices.Clone(h.recurred)
	for layer, n := range h.lengths {
		if c.spec.WindowOf(layer) > 0 {
			out = append(out, n)
		}
	}
	return out
}

// save is what both have in common.
func (c *cache) save(op string, id tensor.RequestID, dst []byte, copies func(*held) error) error {
	h, err := c.requests[id], c.mayCopy(op)
	if err == nil && h == nil {
		err = fmt.Errorf("the request has no tokens: %w", tensor.ErrSegment)
	}
	if err == nil {
		err = copies(h)
	}
	if err != nil {
		return fmt.Errorf("%s: request %d: %w", op, id, err)
	}
	return c.b.settle()
}

// mayCopy comes before bytes of a cache are read or written.
func (c *cache) mayCopy(op string) error {
	if c.released {
		return fmt.Errorf("cache: %w", tensor.ErrReleased)
	}
	if err := c.b.check(); err != nil {
		return err
	}
	return c.b.enter(op)
}

// computed waits for what slabs were given, and refuses one that was lost.
func (c *cache) computed(s *slab) error {
	if s.broken != nil {
		return fmt.Errorf("lost in an earlier step: %w", s.broken)
	}
	if len(c.b.pending) == 0 {
		return nil
	}
	return c.b.compute(nil, true)
}

// copiedAtOnce is how many bytes are copied out together on CUDA (bridge_slab.cpp):
// each time costs milliseconds there (H100: 70 for 256 tokens of 36 layers, four
// at a time).
const copiedAtOnce = 64 << 20

// mayRead computes what a slab was given, and asks for the room that some of its
// layers take in arrays of their own.
func (c *cache) mayRead(s *slab, bytes, layers int) error {
	if err := c.computed(s); err != nil {
		return err
	}
	if c.b.cuda.Load() {
		return c.b.admit(int64(max(bytes/layers, min(bytes, copiedAtOnce))))
	}
	return c.b.admit(int64(bytes / layers * min(layersAtOnce, layers)))
}

// Restore makes a request hold saved tokens.
func (c *cache) Restore(id tensor.RequestID, tokens int, blocks [][]byte, state []byte) error {
	err := c.mayRestore(id, tokens, blocks, state)
	if err == nil {
		if err = c.restore(id, tokens, blocks, state); err != nil {
			c.Drop(id)
		}
	}
	if err != nil {
		return fmt.Errorf("Restore: request %d: %w", id, err)
	}
	return c.b.settle()
}

func (c *cache) mayRestore(id tensor.RequestID, tokens int, blocks [][]byte, state []byte) error {
	if err := c.mayCopy("Restore"); err != nil {
		return err
	}
	switch {
	case c.requests[id] != nil:
		return fmt.Errorf("the request already exists: %w", tensor.ErrSegment)
	case !c.learned:
		return fmt.Errorf("no step has determined the width of keys yet: %w", tensor.ErrUnsupported)
	}
	return c.saved.FitsRestore(tokens, c.spec.BlockTokens, blocks, state)
}

func (c *cache) restore(id tensor.RequestID, tokens int, blocks [][]byte, state []byte) error {
	h := c.holding()
	c.requests[id] = h
	if c.rotating.number > 0 {
		if err := c.rotate(h, tensor.Restored(tokens, c.window, c.spec.BlockTokens)); err != nil {
			return err
		}
	}
	if _, err := c.reserve(id, tokens); err != nil {
		return err
	}
	states, windows := state[:c.saved.StateBytes], state[c.saved.StateBytes:]
	if len(states) > 0 {
		if err := c.joinStates(&h.state, false); err != nil {
			return err
		}
		if err := c.put(&h.state.in.slab, func() C.bridge_status {
			return C.bridge_state_put(c.b.token(), h.state.in.row, C.int32_t(h.state.slot), (*C.uint8_t)(unsafe.SliceData(states)))
		}); err != nil {
			return err
		}
	}
	if err := c.write(&h.grown, tokens, c.spec.BlockTokens, blocks...); err != nil {
		return err
	}
	visible := c.saved.RotatingOf(tokens)
	if err := c.write(&h.rotated, visible, visible, windows); err != nil {
		return err
	}
	for i := range h.lengths {
		h.lengths[i] = tokens
	}
	for i := range h.recurred {
		h.recurred[i] = tokens
	}
	return nil
}

// write copies tokens into a slot, from slices of block tokens each.
func (c *cache) write(at *spot, tokens, block int, from ...[]byte) error {
	if tokens == 0 || len(from) == 0 || len(from[0]) == 0 {
		return nil
	}
	var pins runtime.Pinner // C reads them through a list
	defer pins.Unpin()
	list := make([]C.bridge_block, len(from))
	for i, p := range from {
		bytes := unsafe.SliceData(p)
		pins.Pin(bytes)
		list[i] = C.bridge_block{bytes: (*C.uint8_t)(bytes), length: C.int32_t(min(block, tokens-i*block))}
	}
	if c.b.whole > 0 { // as it came, and in the order of the slab
		all := int64(0)
		for _, p := range from {
			all += int64(len(p))
		}
		if err := c.b.admit(2 * max(int64(len(from[0])), min(all, c.b.whole))); err != nil {
			return err
		}
	}
	return c.put(at.slab, func() C.bridge_status {
		return C.bridge_slab_put(c.b.token(), at.slab.row, C.int32_t(at.slot), unsafe.SliceData(list), C.int32_t(len(list)))
	})
}

// put has the bridge write bytes into a slab that made room for them, and for
// some layers twice. Where that fails, the slab is of no use any more.
func (c *cache) put(s *slab, write func() C.bridge_status) error {
	if err := c.computed(s); err != nil {
		return err
	}
	s.broken = fault(write())
	return s.broken
}
