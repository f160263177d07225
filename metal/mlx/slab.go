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
func (l *layers) slabFor(capacity int, tokenBytes int64) (*slab, error) {
	wide := capacity
	if l.b.cuda.Load() {
		wide += extraTokens
	}
	slotBytes := tokenBytes * int64(wide)
	for _, s := range l.slabs {
		if s.capacity == capacity && s.broken == nil && s.slotBytes*int64(len(s.slots)+1) <= maxSlabBytes {
			return s, l.admitSlot(s)
		}
	}
	s := &slab{capacity: capacity, layers: l.number, slotBytes: slotBytes}
	if err := l.admitSlot(s); err != nil {
		return nil, err
	}
	if s.row = C.bridge_slab_new(C.int32_t(l.number), C.int32_t(wide), l.shape); s.row == nil {
		return nil, fmt.Errorf("slab of a cache: %w", tensor.ErrMemory)
	}
	l.slabs = append(l.slabs, s)
	return s, nil
}

// admitSlot refuses a slot that does not fit, the copy of the layers under way
// included.
func (l *layers) admitSlot(s *slab) error {
	twice := s.slotBytes / int64(s.layers) * int64(min(layersAtOnce, s.layers)) * int64(len(s.slots)+1)
	return l.b.admit(s.slotBytes + twice)
}

// move appends a request to a slab. If that fails, neither slab is usable.
func (l *layers) move(at *spot, to *slab) error {
	from := at.slab
	var source *C.bridge_slab
	if from != nil {
		source = from.row
	}
	to.charge(l.b, to.slotBytes)
	if err := fault(C.bridge_slab_move(l.b.token(), source, C.int32_t(at.slot), to.row)); err != nil {
		to.broken = err
		if from != nil {
			from.broken = err
		}
		l.sweep(to)
		return fmt.Errorf("move to %d tokens: %w", to.capacity, err)
	}
	if from != nil {
		from.charge(l.b, -from.slotBytes)
		from.close(at.slot)
		l.sweep(from)
	}
	at.slab, at.slot = to, len(to.slots)
	to.slots = append(to.slots, at)
	l.b.pending[to] = struct{}{}
	return nil
}

// leave takes a request out of a slab, if it is in one. Arrays of a broken one
// stay as they are until all have left.
func (l *layers) leave(at *spot) {
	s := at.slab
	if s == nil {
		return
	}
	if len(s.slots) > 1 && s.broken == nil {
		s.broken = fault(C.bridge_slab_remove(l.b.token(), s.row, C.int32_t(at.slot)))
	}
	if s.broken == nil {
		s.charge(l.b, -s.slotBytes)
		s.close(at.slot)
	} else {
		s.slots[at.slot] = nil
	}
	at.slab = nil
	l.sweep(s)
}

// charge counts bytes of the slab as memory in use.
func (s *slab) charge(b *Backend, bytes int64) {
	s.charged += bytes
	b.gauges.kv.Add(bytes)
}

// close forgets a slot whose gap was closed.
func (s *slab) close(slot int) {
	s.slots = slices.Delete(s.slots, slot, slot+1)
	for i, at := range s.slots {
		at.slot = i
	}
}

// sweep frees an empty slab.
func (l *layers) sweep(s *slab) {
	if !slices.ContainsFunc(s.slots, func(at *spot) bool { return at != nil }) {
		l.free(s)
	}
}

// free frees a slab, even one in use.
func (l *layers) free(s *slab) {
	if s.freeArrays(l.b) {
		l.slabs = slices.DeleteFunc(l.slabs, func(o *slab) bool { return o == s })
	}
}

// freeArrays returns false on another thread: the slab stays, and Close reports it.
func (s *slab) freeArrays(b *Backend) bool {
	if fault(C.bridge_slab_free(b.token(), s.row)) != nil {
		return false
	}
	s.charge(b, -s.charged)
	delete(b.pending, s)
	return true
}
