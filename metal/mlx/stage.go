//go:build mlx

package mlx

// #include "bridge.h"
import "C"

import "metalfleet.dev/metalfleet/metal/tensor"

// stage names tokens [first, last) of a request, of which a copy was begun.
type stage struct {
	id          tensor.RequestID
	first, last int
}

// Stage on CUDA copies tokens to a separate array after the step in flight:
// Save would wait for that step, and meanwhile nothing would be dispatched
// (H100, 47 tokens of a prompt with a decode: 12 ms). It stages as many tokens
// as one copy takes. On other devices it does nothing: the guard counts on the
// memory, and dispatching takes no time.
func (c *cache) Stage(id tensor.RequestID, first, last int) {
	h, s := c.requests[id], stage{id, first, last}
	if c.b.staged == 0 || h == nil || h.grown.slab == nil || c.mayCopy("Stage") != nil || len(c.b.pending) > 0 {
		return
	}
	bytes := c.SliceBytes(last - first)
	if c.saved.FitsSave(c.Length(id), first, last, int(bytes)) != nil || c.stagedBytes+bytes > c.b.staged || c.b.admit(bytes) != nil {
		return
	}
	if _, ok := c.staged[s]; ok {
		return
	}
	made := C.bridge_slab_stage(c.b.token(), h.grown.slab.row, C.int32_t(h.grown.slot), C.int32_t(first), C.int32_t(last))
	if fault(made.status) != nil { // Save reports the error
		return
	}
	if c.staged == nil {
		c.staged = map[stage]handle{}
	}
	c.staged[s] = made.array
	c.stagedBytes += bytes
	c.b.gauges.live.Add(1)
	_ = c.b.measure() // it cannot fail on the thread that just computed
}

// take is what was staged, which the caller frees with drop.
func (c *cache) take(s stage) (handle, bool) {
	a, ok := c.staged[s]
	if ok {
		delete(c.staged, s)
		c.stagedBytes -= c.SliceBytes(s.last - s.first)
	}
	return a, ok
}

// drop frees a copy.
func (c *cache) drop(a handle) {
	if c.b.free([]handle{a}, false) == nil {
		c.b.gauges.live.Add(-1)
	}
}

// unstage frees what was staged of a request.
func (c *cache) unstage(id tensor.RequestID) {
	for s := range c.staged {
		if s.id != id {
			continue
		}
		if a, ok := c.take(s); ok {
			c.drop(a)
		}
	}
}
