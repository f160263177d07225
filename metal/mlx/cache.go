//go:build mlx

package mlx

// #include "bridge.h"
import "C"

import (
	"fmt"
	"math"
	"slices"
	"unsafe"

	"metalfleet.dev/metalfleet/metal/quant"
	"metalfleet.dev/metalfleet/metal/tensor"
)

// cache holds keys and values in slabs. Capacity is the number of tokens of a
// request rounded up to a multiple of the spec's BlockTokens, so what requests
// hold is what a scheduler that counts blocks thinks they hold. Requests of
// one capacity share slabs, and those of a slab that get one token each are
// written and attended by one call. Layers that rotate have slabs of their own,
// where tokens that no window sees make way for new ones.
type cache struct {
	b    *Backend
	spec tensor.CacheSpec
	// learned is true, and what is saved of requests is known, once the first keys
	// came, whose type is that of all others.
	learned bool
	saved   tensor.Saved
	// ragged: there is a kernel for segments of these keys (ragged.h).
	ragged bool
	// index is the number of each layer among those of its kind; there are
	// growing and rotating layers, and the latter see window tokens.
	index             []int
	growing, rotating layers
	window            int
	states            []*states
	requests          map[tensor.RequestID]*held
	// expected tokens of requests, those that hold nothing yet among them.
	expected map[tensor.RequestID]int
	// staged copies on the device, and their total size in bytes.
	staged      map[stage]handle
	stagedBytes int64
	released    bool
}

// layers are those of one kind, and the slabs that have their keys and values.
type layers struct {
	b      *Backend
	number int
	slabs  []*slab
	// heads is what each keeps of a token, and shape what the bridge knows of that.
	heads tensor.HeadSpec
	shape C.bridge_kv_shape
}

// spot is a slot of a slab; of none where slab is nil.
type spot struct {
	slab *slab
	slot int
}

// held is the memory of one request: a slot for growing layers, and one for
// rotating layers, whose tokens at describes.
type held struct {
	grown, rotated spot
	at             tensor.Rotation
	// lengths is how many tokens each layer holds; they differ only inside a
	// step.
	lengths []int
	// state is where the recurrent state lies, in no slab until the first layer recurs;
	// recurred is how many tokens each layer has seen.
	state    stateSpot
	recurred []int
	// kept is the state before a draft, in no slab until there is one, and keptAt how many
	// tokens each layer had seen then; 0 means that it has none.
	kept   stateSpot
	keptAt []int
}

// NewCache returns an empty cache.
func (b *Backend) NewCache(spec tensor.CacheSpec) (tensor.Cache, error) {
	if !spec.Fits() {
		return nil, &tensor.ShapeError{Op: "NewCache", Detail: fmt.Sprintf("%+v", spec)}
	}
	saved, err := tensor.SavedOf(spec.Kept(4))
	if err != nil {
		return nil, fmt.Errorf("NewCache: %w", err)
	}
	saved.TokenBytes, saved.RotatingBytes = 0, 0 // until it learns them
	if err := b.check(); err != nil {
		return nil, fmt.Errorf("NewCache: %w", err)
	}
	if b.precision == quant.BFloat16 && b.opts.Ragged >= 0 { // as most models are: compiled before it is needed
		if _, err := b.hasRagged(C.BRIDGE_BFLOAT16, spec.Heads(false)); err != nil {
			return nil, fmt.Errorf("NewCache: %w", err)
		}
	}
	b.caches++
	c := &cache{b: b, spec: spec, saved: saved, requests: make(map[tensor.RequestID]*held)}
	c.growing, c.rotating = layers{b: b, heads: spec.Heads(false)}, layers{b: b, heads: spec.Heads(true)}
	for layer := range spec.Layers {
		of := c.kind(layer)
		c.window = max(c.window, spec.WindowOf(layer))
		c.index = append(c.index, of.number)
		of.number++
	}
	return c, nil
}

// kind of a layer that attends.
func (c *cache) kind(layer int) *layers {
	if c.spec.WindowOf(layer) > 0 {
		return &c.rotating
	}
	return &c.growing
}

// Length is the number of tokens of a request that every layer holds.
func (c *cache) Length(id tensor.RequestID) int {
	h := c.requests[id]
	if h == nil {
		return 0
	}
	return slices.Min(append(h.recurred, h.lengths...))
}

// Expect records the expected number of tokens of a request, because growing
// copies a slab.
func (c *cache) Expect(id tensor.RequestID, tokens int) {
	if c.expected == nil {
		c.expected = map[tensor.RequestID]int{}
	}
	c.expected[id] = tokens
}

// Room is the capacity of the request's slot in growing layers; without such
// layers, its length.
func (c *cache) Room(id tensor.RequestID) int {
	if h := c.requests[id]; h != nil && h.grown.slab != nil {
		return h.grown.slab.capacity
	}
	return c.Length(id)
}

// Drop frees the memory of a request. If a foreign thread calls it nothing is
// freed, and Close reports the leak.
func (c *cache) Drop(id tensor.RequestID) {
	if c.b.check() == nil {
		delete(c.expected, id)
		c.unstage(id)
	}
	h := c.requests[id]
	if h == nil || c.b.check() != nil {
		return
	}
	delete(c.requests, id)
	c.growing.leave(&h.grown)
	c.rotating.leave(&h.rotated)
	c.leaveStates(h)
	_ = c.b.measure() // it cannot fail on the thread that just freed
}

// Truncate forgets the tokens of all layers after the first ones, or all tokens
// if a recurrent layer or a window cannot go back. A call from a foreign thread
// has no effect.
func (c *cache) Truncate(id tensor.RequestID, tokens int) {
	h := c.requests[id]
	if h == nil || c.b.check() != nil {
		return
	}
	c.unstage(id)
	tokens = max(0, tokens)
	if _, most := c.rotated(h); most > tokens && !h.at.Holds(tokens, c.window) {
		tokens = 0
	}
	if len(h.recurred) > 0 && slices.Max(h.recurred) > tokens && !h.takeBack(tokens) {
		tokens = 0
		c.leaveStates(h)
	}
	if tokens == 0 {
		h.at.Base = 0
	}
	for i, n := range h.lengths {
		h.lengths[i] = min(n, tokens)
	}
}

// Bytes held by requests.
func (c *cache) Bytes() int64 {
	var n int64
	for _, s := range slices.Concat(c.growing.slabs, c.rotating.slabs) {
		n += s.slotBytes * int64(len(s.slots))
	}
	for _, s := range c.states {
		n += s.slotBytes * int64(len(s.rows))
	}
	return n
}

// Release drops all requests.
func (c *cache) Release() {
	if c.released || c.b.check() != nil {
		return
	}
	for id := range c.requests {
		c.unstage(id)
	}
	clear(c.requests)
	for _, of := range []*layers{&c.growing, &c.rotating} {
		for len(of.slabs) > 0 {
			of.free(of.slabs[0])
		}
	}
	for len(c.states) > 0 {
		c.freeStates(c.states[0])
	}
	_ = c.b.measure()
	c.released = true
	c.b.caches--
}

// learn takes the type of all keys from the first.
func (c *cache) learn(keys *array) error {
	if c.learned {
		return nil
	}
	var kind C.int32_t
	if err := fault(C.bridge_type(c.b.token(), keys.h, &kind)); err != nil {
		return err
	}
	saved, err := tensor.SavedOf(c.spec.Kept(keys.width()))
	if err != nil {
		return err
	}
	if c.ragged, err = c.b.hasRagged(kind, c.growing.heads); err != nil {
		return err
	}
	c.ragged = c.b.opts.Ragged > 0 || c.ragged && c.b.opts.Ragged == 0
	for _, of := range []*layers{&c.growing, &c.rotating} {
		of.shape = C.bridge_kv_shape{kv_heads: C.int32_t(of.heads.KVHeads), size: C.int32_t(of.heads.HeadSize), value_size: C.int32_t(of.heads.Stored()), _type: kind}
	}
	c.learned, c.saved = true, saved
	return nil
}

// hasRagged says whether there is a kernel for segments of keys of a type and
// shape.
func (b *Backend) hasRagged(kind C.int32_t, heads tensor.HeadSpec) (bool, error) {
	if heads.Stored() != heads.HeadSize {
		return false, nil
	}
	var has C.int32_t
	err := fault(C.bridge_ragged(b.token(), kind, C.int32_t(heads.HeadSize), &has))
	return has != 0, err
}

// reserve makes room so that a request may hold n tokens. One that is new and
// does not fit holds nothing.
func (c *cache) reserve(id tensor.RequestID, n int) (*held, error) {
	h, known := c.requests[id]
	if !known {
		h = c.holding()
		c.requests[id] = h
	}
	for _, s := range []*slab{h.grown.slab, h.rotated.slab} {
		if s != nil && s.broken != nil {
			return nil, fmt.Errorf("request %d was lost in an earlier step: %w", id, s.broken)
		}
	}
	err := c.grow(h, n, c.expected[id])
	if err == nil && c.rotating.number > 0 {
		least, _ := c.rotated(h)
		err = c.rotate(h, h.at.For(least, n, c.window, c.spec.BlockTokens))
	}
	if err != nil {
		if !known {
			c.Drop(id)
		}
		return nil, fmt.Errorf("KV for %d tokens: %w", n, err)
	}
	return h, nil
}

// grow makes room in layers that grow: for n tokens, and for those that are expected
// where there is no room for n.
func (c *cache) grow(h *held, n, expected int) error {
	if c.growing.number == 0 || h.grown.slab != nil && n <= h.grown.slab.capacity {
		return nil
	}
	blocks := (max(n, expected) + c.spec.BlockTokens - 1) / c.spec.BlockTokens
	to, err := c.growing.slabFor(blocks*c.spec.BlockTokens, c.saved.TokenBytes)
	if err != nil {
		return err
	}
	return c.growing.move(&h.grown, to)
}

// rotated is how few and how many tokens rotating layers hold.
func (c *cache) rotated(h *held) (least, most int) {
	least = math.MaxInt
	for layer, n := range h.lengths {
		if c.spec.WindowOf(layer) > 0 {
			least, most = min(least, n), max(most, n)
		}
	}
	return least, most
}

// rotate moves what rotating layers hold to where it is to lie.
func (c *cache) rotate(h *held, to tensor.Rotation) error {
	if _, most := c.rotated(h); to.Base > h.at.Base && most > to.Base {
		s := h.rotated.slab
		if err := fault(C.bridge_slab_slide(c.b.token(), s.row, C.int32_t(h.rotated.slot), C.int32_t(to.Base-h.at.Base), C.int32_t(most-to.Base))); err != nil {
			s.broken = err
			return err
		}
		c.b.pending[s] = struct{}{}
	}
	h.at.Base = to.Base
	if to.Room == h.at.Room {
		return nil
	}
	slab, err := c.rotating.slabFor(to.Room, c.saved.RotatingBytes)
	if err == nil {
		err = c.rotating.move(&h.rotated, slab)
	}
	if err == nil {
		h.at.Room = to.Room
	}
	return err
}

// holding is what a new request holds: nothing.
func (c *cache) holding() *held {
	return &held{lengths: make([]int, c.spec.Layers), recurred: make([]int, c.spec.Recurrent.Layers), keptAt: make([]int, c.spec.Recurrent.Layers)}
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
	heads := c.spec.HeadsOf(spec.Layer)
	wide := q.shape[1] / spec.QuerySize(heads)
	var segments []C.bridge_segment
	var runs []C.int32_t
	var scores int64
	if err == nil {
		segments, runs, scores, err = c.extend(&spec, k, wide)
	}
	if err == nil {
		err = s.b.admit(scores * int64(q.width()))
	}
	if err != nil {
		s.fail(fmt.Errorf("%s: %w", op, err))
		return &array{}
	}
	how := C.bridge_attend_spec{
		layer: C.int32_t(c.index[spec.Layer]), heads: C.int32_t(wide), kv_heads: C.int32_t(heads.KVHeads),
		size: C.int32_t(heads.HeadSize), value_size: C.int32_t(heads.ValueSize), window: C.int32_t(spec.Window), scale: C.float(spec.Scale), cap: C.float(spec.Cap), chunk: C.int32_t(spec.Chunk),
	}
	var indexQ, indexWeights *array
	if x := spec.Indexer; x != nil {
		indexQ, _ = s.operand(op, x.Q, 2)
		indexWeights, _ = s.operand(op, x.Weights, 2)
		how.index_heads, how.index_size, how.index_topk = C.int32_t(indexWeights.shape[1]), C.int32_t(x.Size), C.int32_t(x.TopK)
	}
	return s.made(op, C.bridge_attend(s.b.token(), q.h, k.handle(), v.handle(), indexQ.handle(), indexWeights.handle(), &how, (*C.float)(unsafe.SliceData(spec.Sinks)), unsafe.SliceData(segments), C.int32_t(len(segments)), unsafe.SliceData(runs)), q.shape[0], wide*heads.ValueSize)
}

// handle is what the bridge knows of an array; nil of none.
func (a *array) handle() handle {
	if a == nil {
		return nil
	}
	return a.h
}

// extend makes room for the segments of a step in one layer and returns the
// work for the bridge; runs are the positions of those that see one another,
// scores is the maximum size of attention scores that exist at a time.
func (c *cache) extend(spec *tensor.AttendSpec, keys *array, heads int) (out []C.bridge_segment, runs []C.int32_t, scores int64, err error) {
	if keys != nil {
		if err := c.learn(keys); err != nil {
			return nil, nil, 0, err
		}
	}
	if err := c.room(spec); err != nil {
		return nil, nil, 0, err
	}
	var all []stretch
	mutual, _ := tensor.Positions(spec.Mutual, spec.Segments)
	for i, g := range spec.Segments { // once all of them lie where they stay
		if g.Length == 0 {
			continue
		}
		h := c.requests[g.Request]
		in, start := h.grown, g.Start
		if c.spec.WindowOf(spec.Layer) > 0 {
			in, start = h.rotated, g.Start-h.at.Base
		}
		if keys != nil {
			h.lengths[spec.Layer] += g.Length
			c.b.pending[in.slab] = struct{}{}
		}
		whole := stretch{slab: in.slab, slot: in.slot, start: start, length: g.Length, seen: g.Start + g.Length, shift: start - g.Start, runs: mutual[i]}
		all = append(all, whole.chunks(spec.Chunk)...)
	}
	if c.ragged && len(spec.Mutual) == 0 && spec.Window == 0 && spec.Chunk == 0 && spec.Sinks == nil && spec.Cap == 0 && spec.Indexer == nil {
		c.b.ragged.Add(chooseRagged(all))
	}
	for _, g := range all {
		if spec.Window > 0 {
			g.seen = min(g.seen, g.length+spec.Window-1)
		}
		how, written := C.int32_t(C.BRIDGE_RAGGED), int64(0)
		switch {
		case spec.Indexer != nil && g.length > 1: // whose mask no fused kernel has
			how, written = C.BRIDGE_PRODUCTS, 3*(int64(heads)+2)*int64(g.length)*int64(g.seen)
		case spec.Cap > 0: // which no fused kernel has
			how, written = C.BRIDGE_PRODUCTS, 3*int64(heads)*int64(g.length)*int64(g.seen)
		case !g.ragged:
			how, written = c.b.attention(heads, g.length, g.seen)
		}
		scores = max(scores, written)
		out = append(out, C.bridge_segment{slab: g.slab.row, slot: C.int32_t(g.slot), start: C.int32_t(g.start), length: C.int32_t(g.length), how: how, first: C.int32_t(g.first), first_run: C.int32_t(len(runs) / 2), runs: C.int32_t(len(g.runs))})
		for _, r := range g.runs {
			runs = append(runs, C.int32_t(r[0]+g.shift), C.int32_t(r[1]+g.shift))
		}
	}
	return out, runs, scores, nil
}

// room makes room for the segments of a step in one layer.
func (c *cache) room(spec *tensor.AttendSpec) error {
	for _, g := range spec.Segments {
		if g.Length == 0 {
			continue
		}
		has := 0
		if h := c.requests[g.Request]; h != nil {
			has = h.lengths[spec.Layer]
		}
		want := g.Start
		if spec.K == nil {
			want += g.Length
		}
		if has != want {
			return fmt.Errorf("request %d, layer %d has %d tokens, want %d: %w", g.Request, spec.Layer, has, want, tensor.ErrSegment)
		}
		if spec.K == nil {
			continue
		}
		if _, err := c.reserve(g.Request, g.Start+g.Length); err != nil {
			return err
		}
	}
	return nil
}

// The fused attention of CUDA's framework plans, for up to a third of a second,
// every pair of lengths of queries and keys, and keeps 256 plans. It is left to
// pieces where both are multiples of planned, which are few, and to those with
// more scores than written out take little memory.
const (
	planned      = 256
	mostProducts = 64 << 20
)

// attention selects fused attention by the framework, or products and a softmax
// as separate operations, for a segment of length queries. scores is the number
// of attention scores that exist at once, including copies.
func (b *Backend) attention(heads, length, seen int) (how C.int32_t, scores int64) {
	all := int64(heads) * int64(length) * int64(seen)
	switch {
	case !b.gpu.Load() && b.products == 0:
		return C.BRIDGE_FUSED, 2 * all // a processor writes them out, twice
	case length == 1 || all > b.products || length%planned == 0 && seen%planned == 0:
		return C.BRIDGE_FUSED, 0
	}
	return C.BRIDGE_PRODUCTS, 3 * all
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
	heads := c.spec.HeadsOf(spec.Layer)
	if spec.K != nil {
		k, _ = s.operand(op, spec.K, 2)
		if !heads.Within {
			v, _ = s.operand(op, spec.V, 2)
		}
	}
	if x := spec.Indexer; x != nil {
		_, _ = s.operand(op, x.Q, 2)
		_, _ = s.operand(op, x.Weights, 2)
	}
	if s.failed() {
		return nil, nil, nil, nil, false
	}
	tokens, least := q.shape[0], 0
	_, mutual := tensor.Positions(spec.Mutual, spec.Segments)
	for _, g := range spec.Segments {
		least = min(least, g.Length, g.Start)
	}
	misfit := func(a *array, size int) bool {
		return a != nil && (a.shape[0] != tokens || a.shape[1] != heads.KVHeads*size)
	}
	switch {
	case spec.Layer < 0 || spec.Layer >= c.spec.Layers,
		tokens != tensor.Tokens(spec.Segments), least < 0, misfit(k, heads.HeadSize), misfit(v, heads.ValueSize),
		!spec.Indexer.Fits(*spec, heads), !spec.ChunksFit(), q.shape[1]%(heads.KVHeads*spec.QuerySize(heads)) != 0,
		spec.Sinks != nil && len(spec.Sinks) != q.shape[1]/spec.QuerySize(heads), !mutual,
		spec.Window < 0, c.spec.WindowOf(spec.Layer) > 0 && (spec.Window == 0 || spec.Window > c.spec.WindowOf(spec.Layer)):
		s.misfit(op, "q %v, k and v as %+v, %d rows in segments, layer %d of %+v", q.shape, heads, tensor.Tokens(spec.Segments), spec.Layer, c.spec)
		return nil, nil, nil, nil, false
	}
	return q, k, v, c, true
}
