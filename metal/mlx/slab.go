//go:build mlx

package mlx

// #include "bridge.h"
import "C"

import (
	"fmt"
	"slices"

	"metalfleet.dev/metalfleet/metal/tensor"
)

// slab holds keys and values of requests with equal capacity: two arrays per
// layer, [slots, kvHeads, capacity, size], or one where values are within keys.
// Every slot belongs to a request;
// when one leaves, the last takes its slot, so that a slab has no unused slots.
// Adding, growing and removing requests copy the slab, a few layers at a time.
// Other tokens are written in place: the replaced handle is released before
// anything is computed, so that the framework reuses its buffer.
type slab struct {
	row *C.bridge_slab
	// capacity of a slot, in tokens that a request may hold, and layers.
	capacity, layers int
	// slotBytes is one slot in all layers; charged is what the gauge counts.
	slotBytes, charged int64
	slots              []*spot
	// broken is why computing it failed; nil if it did not.
	broken error
}

// maxSlabBytes bounds a slab, and with it what coming and leaving copies.
const maxSlabBytes = 2 << 30

// layersAtOnce is the number of layers rearranged together (bridge_slab.cpp),
// of which two copies exist meanwhile.
const layersAtOnce = 4

// extraTokens is the room of a slab in addition to whole blocks, on CUDA: with
// a multiple of 256, the framework attends one query with cuDNN, which costs
// the host 1.4 ms per step of 36 layers (H100, 512 tokens) and the GPU no less
// than the framework's own kernel.
const extraTokens = 8

// slabFor finds a slab with room for one more request, or makes one; tokenBytes
// is one token in all layers of the kind.
func (c *cache) slabFor(of *layers, capacity int, tokenBytes int64) (*slab, error) {
	wide := capacity
	if c.b.cuda.Load() {
		wide += extraTokens
	}
	slotBytes := tokenBytes * int64(wide)
	for _, s := range of.slabs {
		if s.capacity == capacity && s.broken == nil && s.slotBytes*int64(len(s.slots)+1) <= maxSlabBytes {
			return s, c.admitSlot(s)
		}
	}
	s := &slab{capacity: capacity, layers: of.number, slotBytes: slotBytes}
	if err := c.admitSlot(s); err != nil {
		return nil, err
	}
	if s.row = C.bridge_slab_new(C.int32_t(of.number), C.int32_t(wide), of.shape); s.row == nil {
		return nil, fmt.Errorf("slab of a cache: %w", tensor.ErrMemory)
	}
	of.slabs = append(of.slabs, s)
	return s, nil
}

// admitSlot refuses a slot that does not fit, the copy of the layers under way
// included.
func (c *cache) admitSlot(s *slab) error {
	twice := s.slotBytes / int64(s.layers) * int64(min(layersAtOnce, s.layers)) * int64(len(s.slots)+1)
	return c.b.admit(s.slotBytes + twice)
}

// move appends a request to a slab. If that fails, neither slab is usable.
func (c *cache) move(of *layers, at *spot, to *slab) error {
	from := at.slab
	var source *C.bridge_slab
	if from != nil {
		source = from.row
	}
	c.charge(to, to.slotBytes)
	if err := fault(C.bridge_slab_move(c.b.token(), source, C.int32_t(at.slot), to.row)); err != nil {
		to.broken = err
		if from != nil {
			from.broken = err
		}
		c.sweep(of, to)
		return fmt.Errorf("move to %d tokens: %w", to.capacity, err)
	}
	if from != nil {
		c.charge(from, -from.slotBytes)
		from.close(at.slot)
		c.sweep(of, from)
	}
	at.slab, at.slot = to, len(to.slots)
	to.slots = append(to.slots, at)
	c.b.pending[to] = struct{}{}
	return nil
}

// leave takes a request out of a slab, if it is in one. Arrays of a broken one
// stay as they are until all have left.
func (c *cache) leave(of *layers, at *spot) {
	s := at.slab
	if s == nil {
		return
	}
	if len(s.slots) > 1 && s.broken == nil {
		s.broken = fault(C.bridge_slab_remove(c.b.token(), s.row, C.int32_t(at.slot)))
	}
	if s.broken == nil {
		c.charge(s, -s.slotBytes)
		s.close(at.slot)
	} else {
		s.slots[at.slot] = nil
	}
	at.slab = nil
	c.sweep(of, s)
}

func (c *cache) charge(s *slab, bytes int64) {
	s.charged += bytes
	c.b.gauges.kv.Add(bytes)
}

// close forgets a slot whose gap was closed.
func (s *slab) close(slot int) {
	s.slots = slices.Delete(s.slots, slot, slot+1)
	for i, at := range s.slots {
		at.slot = i
	}
}

// sweep frees an empty slab.
func (c *cache) sweep(of *layers, s *slab) {
	if !slices.ContainsFunc(s.slots, func(at *spot) bool { return at != nil }) {
		c.free(of, s)
	}
}

// free frees a slab, even one in use.
func (c *cache) free(of *layers, s *slab) {
	if c.freeArrays(s) {
		of.slabs = slices.DeleteFunc(of.slabs, func(o *slab) bool { return o == s })
	}
}

// freeArrays is false on another thread: the slab stays, and Close says so.
func (c *cache) freeArrays(s *slab) bool {
	if fault(C.bridge_slab_free(c.b.token(), s.row)) != nil {
		return false
	}
	c.charge(s, -s.charged)
	delete(c.b.pending, s)
	return true
}
