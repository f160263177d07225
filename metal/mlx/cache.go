//go:build mlx

package mlx

// #include "bridge.h"
import "C"

import (
	"fmt"
	"unsafe"

	"metalfleet.dev/metalfleet/metal/tensor"
)

// cache holds, for every request and layer, keys and values in one array each:
// [1, kvHeads, capacity, size]. Capacity is the number of tokens rounded up to
// a multiple of the spec's BlockTokens, so what a request holds is what a
// scheduler that counts blocks thinks it holds. A request that outgrows its
// arrays is copied into larger ones, once in BlockTokens tokens; until that
// step is computed, both count (and on a processor, which is told of many
// layers before it has computed the first, both exist). All other tokens are
// written in place: the replaced handle goes before anything is computed, and
// the framework then reuses its buffer.
type cache struct {
	b        *Backend
	spec     tensor.CacheSpec
	requests map[tensor.RequestID]*held
	released bool
}

// held is what one request occupies.
type held struct {
	row *C.bridge_row
	// lengths is how many tokens each layer holds; they differ only inside a
	// step. capacities is for how many it has room.
	lengths, capacities []int
	// width of a number in bytes, from the first keys.
	width int
	// broken is why computing it failed; nil if it did not.
	broken error
}

// NewCache makes an empty cache.
func (b *Backend) NewCache(spec tensor.CacheSpec) (tensor.Cache, error) {
	if spec.Layers <= 0 || spec.KVHeads <= 0 || spec.HeadSize <= 0 || spec.BlockTokens <= 0 {
		return nil, &tensor.ShapeError{Op: "NewCache", Detail: fmt.Sprintf("%+v", spec)}
	}
	if err := b.check(); err != nil {
		return nil, fmt.Errorf("NewCache: %w", err)
	}
	b.caches++
	return &cache{b: b, spec: spec, requests: make(map[tensor.RequestID]*held)}, nil
}

// Length is how many tokens of a request every layer holds.
func (c *cache) Length(id tensor.RequestID) int {
	h := c.requests[id]
	if h == nil {
		return 0
	}
	n := h.lengths[0]
	for _, l := range h.lengths {
		n = min(n, l)
	}
	return n
}

// bytesOf what a request holds.
func (c *cache) bytesOf(h *held) int64 {
	tokens := 0
	for _, n := range h.capacities {
		tokens += n
	}
	return c.tokenBytes(h) * int64(tokens)
}

// tokenBytes is one token of one layer.
func (c *cache) tokenBytes(h *held) int64 {
	return 2 * int64(c.spec.KVHeads) * int64(c.spec.HeadSize) * int64(h.width)
}

// Drop returns what a request holds.
func (c *cache) Drop(id tensor.RequestID) {
	h := c.requests[id]
	if h == nil {
		return
	}
	n := c.bytesOf(h)
	c.b.gauges.kv.Add(-n)
	if fault(C.bridge_row_free(c.b.token(), h.row)) != nil {
		c.b.gauges.kv.Add(n) // another thread's: it stays, and Close says so
		return
	}
	delete(c.b.pending, h)
	delete(c.requests, id)
	_ = c.b.measure() // it cannot fail on the thread that just freed
}

// Bytes held by requests.
func (c *cache) Bytes() int64 {
	var n int64
	for _, h := range c.requests {
		n += c.bytesOf(h)
	}
	return n
}

// Release drops all requests.
func (c *cache) Release() {
	if c.released || c.b.check() != nil {
		return
	}
	for id := range c.requests {
		c.Drop(id)
	}
	c.released = true
	c.b.caches--
}

// reserve makes room so that a layer of a request may hold n tokens, in
// numbers of so many bytes if it is the first.
func (c *cache) reserve(id tensor.RequestID, layer, n, width int) (*held, error) {
	h := c.requests[id]
	if h == nil {
		row := C.bridge_row_new(C.int32_t(c.spec.Layers))
		if row == nil {
			return nil, fmt.Errorf("row of a cache: %w", tensor.ErrMemory)
		}
		h = &held{row: row, lengths: make([]int, c.spec.Layers), capacities: make([]int, c.spec.Layers), width: width}
		c.requests[id] = h
	}
	if h.broken != nil {
		return nil, fmt.Errorf("request %d was lost in an earlier step: %w", id, h.broken)
	}
	blocks := (n + c.spec.BlockTokens - 1) / c.spec.BlockTokens
	capacity := blocks * c.spec.BlockTokens
	if capacity <= h.capacities[layer] {
		return h, nil
	}
	if err := c.b.admit(c.tokenBytes(h) * int64(capacity)); err != nil {
		return nil, fmt.Errorf("KV for %d tokens: %w", n, err)
	}
	c.b.gauges.kv.Add(c.tokenBytes(h) * int64(capacity-h.capacities[layer]))
	c.b.outgrown += c.tokenBytes(h) * int64(h.capacities[layer])
	h.capacities[layer] = capacity
	return h, nil
}

// AppendAttend extends the cache by the keys and values of a step, then lets
// every query see the keys up to its own position.
func (s *scope) AppendAttend(spec tensor.AttendSpec) tensor.Array {
	const op = "AppendAttend"
	q, k, v, c, ok := s.attendOperands(op, &spec)
	if !ok || !s.begin(op) {
		return &array{}
	}
	err := s.b.check() // before the cache changes
	var segments []C.bridge_segment
	var scores int64
	if err == nil {
		segments, scores, err = c.extend(&spec, k.width())
	}
	if err == nil && !s.b.gpu.Load() {
		// A processor writes the scores of a segment out, twice.
		err = s.b.admit(2 * scores * int64(q.shape[1]/c.spec.HeadSize) * int64(q.width()))
	}
	if err != nil {
		s.fail(fmt.Errorf("%s: %w", op, err))
		return &array{}
	}
	how := C.bridge_attend_spec{
		layer: C.int32_t(spec.Layer), heads: C.int32_t(q.shape[1] / c.spec.HeadSize), kv_heads: C.int32_t(c.spec.KVHeads),
		size: C.int32_t(c.spec.HeadSize), window: C.int32_t(spec.Window), scale: C.float(spec.Scale),
	}
	return s.made(op, C.bridge_attend(s.b.token(), q.h, k.h, v.h, &how, (*C.float)(unsafe.SliceData(spec.Sinks)), unsafe.SliceData(segments), C.int32_t(len(segments))), q.shape...)
}

// extend makes room for the segments of a step in one layer and says what the
// bridge is to do; scores is the largest number of scores of one head.
func (c *cache) extend(spec *tensor.AttendSpec, width int) (out []C.bridge_segment, scores int64, err error) {
	for _, g := range spec.Segments {
		if g.Length == 0 {
			continue
		}
		has := 0
		if h := c.requests[g.Request]; h != nil {
			has = h.lengths[spec.Layer]
		}
		if has != g.Start {
			return nil, 0, fmt.Errorf("request %d, layer %d holds %d tokens, segment starts at %d: %w", g.Request, spec.Layer, has, g.Start, tensor.ErrSegment)
		}
		h, err := c.reserve(g.Request, spec.Layer, g.Start+g.Length, width)
		if err != nil {
			return nil, 0, err
		}
		h.lengths[spec.Layer] += g.Length
		c.b.pending[h] = struct{}{}
		out = append(out, C.bridge_segment{row: h.row, start: C.int32_t(g.Start), length: C.int32_t(g.Length), capacity: C.int32_t(h.capacities[spec.Layer])})
		scores = max(scores, int64(g.Length)*int64(g.Start+g.Length))
	}
	return out, scores, nil
}

func (s *scope) attendOperands(op string, spec *tensor.AttendSpec) (q, k, v *array, c *cache, ok bool) {
	if s.failed() {
		return nil, nil, nil, nil, false
	}
	c, ok = spec.Cache.(*cache)
	if !ok || c.released {
		s.fail(fmt.Errorf("%s: cache: %w", op, tensor.ErrReleased))
		return nil, nil, nil, nil, false
	}
	q, _ = s.operand(op, spec.Q, 2)
	k, _ = s.operand(op, spec.K, 2)
	v, _ = s.operand(op, spec.V, 2)
	if s.failed() {
		return nil, nil, nil, nil, false
	}
	width, tokens, least := c.spec.KVHeads*c.spec.HeadSize, q.shape[0], 0
	for _, g := range spec.Segments {
		least = min(least, g.Length, g.Start)
	}
	switch {
	case spec.Layer < 0 || spec.Layer >= c.spec.Layers,
		tokens != tensor.Tokens(spec.Segments), least < 0,
		k.shape[0] != tokens || v.shape[0] != tokens || k.shape[1] != width || v.shape[1] != width,
		q.shape[1]%width != 0,
		spec.Sinks != nil && len(spec.Sinks) != q.shape[1]/c.spec.HeadSize,
		spec.Window < 0:
		s.misfit(op, "q %v, k %v, v %v, %d rows in segments, layer %d of %+v", q.shape, k.shape, v.shape, tensor.Tokens(spec.Segments), spec.Layer, c.spec)
		return nil, nil, nil, nil, false
	}
	return q, k, v, c, true
}
