//go:build mlx

package mlx

// #include "bridge.h"
import "C"

import (
	"fmt"
	"slices"

	"metalfleet.dev/metalfleet/metal/tensor"
)

// slab holds keys and values of requests that have room for equally many
// tokens: two arrays per layer, [slots, kvHeads, capacity, size]. Every slot is
// a request's; who leaves closes the gap, so that a slab holds no byte that
// nobody was promised. Coming, growing and leaving copy the slab, some layers
// at a time; all other tokens are written in place: the replaced handle goes
// before anything is computed, and the framework then reuses its buffer.
type slab struct {
	row      *C.bridge_slab
	capacity int
	// slotBytes is one slot in all layers; charged is what the gauge counts.
	slotBytes, charged int64
	slots              []*held
	// broken is why computing it failed; nil if it did not.
	broken error
}

// maxSlabBytes bounds a slab, and with it what coming and leaving copies.
const maxSlabBytes = 2 << 30

// layersAtOnce are rearranged together (bridge.cpp): so much of a slab exists
// twice meanwhile.
const layersAtOnce = 4

// slabFor finds a slab with room for one more request, or makes one.
func (c *cache) slabFor(capacity int) (*slab, error) {
	slotBytes := c.saved.TokenBytes * int64(capacity)
	for _, s := range c.slabs {
		if s.capacity == capacity && s.broken == nil && s.slotBytes*int64(len(s.slots)+1) <= maxSlabBytes {
			return s, c.admitSlot(s)
		}
	}
	s := &slab{capacity: capacity, slotBytes: slotBytes}
	if err := c.admitSlot(s); err != nil {
		return nil, err
	}
	if s.row = C.bridge_slab_new(C.int32_t(c.spec.Layers), C.int32_t(capacity), *c.shape); s.row == nil {
		return nil, fmt.Errorf("slab of a cache: %w", tensor.ErrMemory)
	}
	c.slabs = append(c.slabs, s)
	return s, nil
}

// admitSlot refuses a slot that does not fit, the copy of the layers under way
// included.
func (c *cache) admitSlot(s *slab) error {
	layers := min(layersAtOnce, c.spec.Layers)
	twice := s.slotBytes / int64(c.spec.Layers) * int64(layers) * int64(len(s.slots)+1)
	return c.b.admit(s.slotBytes + twice)
}

// move puts a request behind the last of a slab. Where that fails, neither slab
// is of use any more.
func (c *cache) move(h *held, to *slab) error {
	from := h.slab
	var source *C.bridge_slab
	if from != nil {
		source = from.row
	}
	c.charge(to, to.slotBytes)
	if err := fault(C.bridge_slab_move(c.b.token(), source, C.int32_t(h.slot), to.row)); err != nil {
		to.broken = err
		if from != nil {
			from.broken = err
		}
		c.sweep(to)
		return fmt.Errorf("move to %d tokens: %w", to.capacity, err)
	}
	if from != nil {
		c.charge(from, -from.slotBytes)
		from.close(h.slot)
		c.sweep(from)
	}
	h.slab, h.slot = to, len(to.slots)
	to.slots = append(to.slots, h)
	return nil
}

// leave takes a request out of its slab. Arrays of a broken one stay as they
// are until all have left.
func (c *cache) leave(h *held) {
	s := h.slab
	if len(s.slots) > 1 && s.broken == nil {
		s.broken = fault(C.bridge_slab_remove(c.b.token(), s.row, C.int32_t(h.slot)))
	}
	if s.broken == nil {
		c.charge(s, -s.slotBytes)
		s.close(h.slot)
	} else {
		s.slots[h.slot] = nil
	}
	c.sweep(s)
}

func (c *cache) charge(s *slab, bytes int64) {
	s.charged += bytes
	c.b.gauges.kv.Add(bytes)
}

// close forgets a slot whose gap was closed.
func (s *slab) close(slot int) {
	s.slots = slices.Delete(s.slots, slot, slot+1)
	for i, h := range s.slots {
		h.slot = i
	}
}

// sweep frees a slab that nobody is left in.
func (c *cache) sweep(s *slab) {
	if !slices.ContainsFunc(s.slots, func(h *held) bool { return h != nil }) {
		c.free(s)
	}
}

// free returns a slab, whoever is in it.
func (c *cache) free(s *slab) {
	if fault(C.bridge_slab_free(c.b.token(), s.row)) != nil {
		return // another thread's: it stays, and Close says so
	}
	c.charge(s, -s.charged)
	delete(c.b.pending, s)
	c.slabs = slices.DeleteFunc(c.slabs, func(o *slab) bool { return o == s })
}
