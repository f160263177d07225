package ref

import (
	"fmt"
	"math"
	"slices"

	"metalfleet.dev/metalfleet/metal/tensor"
)

// cache holds keys and values of layers that grow in blocks of tokens, one
// mapping per request and block, allocated when the first token of a block
// arrives. In a block lie, for every layer, keys then values, each head's tokens
// one after another. Pages that no token reached yet are not resident. Those of
// layers that rotate lie in the same order in one mapping per request, in which
// tokens that no window sees make way for new ones.
type cache struct {
	b     *Backend
	spec  tensor.CacheSpec
	saved tensor.Saved
	// index is the number of each layer among those of its kind; there are
	// growing and rotating layers, and the latter see window tokens.
	index                     []int
	growing, rotating, window int
	requests                  map[tensor.RequestID]*held
	released                  bool
}

// held is what one request occupies.
type held struct {
	blocks [][]byte
	// rotated are the keys and values of rotating layers; at describes which
	// tokens they are.
	rotated []byte
	at      tensor.Rotation
	// lengths is how many tokens each layer holds; they differ only inside a
	// step.
	lengths []int
	// state of all recurrent layers, one after another, nil until the first of
	// them recurs, and how many tokens each has seen.
	state    []byte
	recurred []int
	// kept are the states before drafts, nil until there is one, and keptAt how many
	// tokens each had seen; 0 means none.
	kept   []byte
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
	b.caches++
	c := &cache{b: b, spec: spec, saved: saved, requests: make(map[tensor.RequestID]*held)}
	for layer := range spec.Layers {
		of := &c.growing
		if spec.WindowOf(layer) > 0 {
			of, c.window = &c.rotating, spec.WindowOf(layer)
		}
		c.index = append(c.index, *of)
		*of++
	}
	return c, nil
}

// blockBytes of growing layers.
func (c *cache) blockBytes() int64 { return c.saved.TokenBytes * int64(c.spec.BlockTokens) }

// Length is the number of tokens of a request that every layer holds.
func (c *cache) Length(id tensor.RequestID) int {
	h := c.requests[id]
	if h == nil {
		return 0
	}
	n := slices.Min(h.lengths)
	for _, l := range h.recurred {
		n = min(n, l)
	}
	return n
}

// Expect changes nothing: blocks are taken as they are needed, without a copy.
func (c *cache) Expect(tensor.RequestID, int) {}

// Room is the number of tokens that a request holds: free space in its last
// block does not count.
func (c *cache) Room(id tensor.RequestID) int { return c.Length(id) }

// Stage does nothing: a step has written everything when it returns.
func (c *cache) Stage(tensor.RequestID, int, int) {}

// Drop returns the blocks of a request.
func (c *cache) Drop(id tensor.RequestID) {
	h := c.requests[id]
	if h == nil {
		return
	}
	for _, p := range append(h.blocks, h.rotated, h.state, h.kept) {
		if p != nil {
			c.b.mem.releaseExact(p, &c.b.mem.kv)
		}
	}
	delete(c.requests, id)
}

// Truncate forgets what any layer holds past the first tokens, and everything
// where a recurrent layer has seen more, or a window has gone too far.
func (c *cache) Truncate(id tensor.RequestID, tokens int) {
	h := c.requests[id]
	if h == nil {
		return
	}
	tokens = max(0, tokens)
	if len(h.recurred) > 0 && slices.Max(h.recurred) > tokens && !h.takeBack(tokens) {
		tokens = 0
	}
	if _, most := c.rotated(h); most > tokens && !h.at.Holds(tokens, c.window) {
		tokens = 0
	}
	if tokens == 0 {
		h.at.Base = 0
	}
	for i, n := range h.lengths {
		h.lengths[i] = min(n, tokens)
	}
	for i, n := range h.recurred {
		h.recurred[i] = min(n, tokens)
	}
}

// takeBack gives recurrent layers the state before a draft, if all that saw more tokens
// have kept that.
func (h *held) takeBack(tokens int) bool {
	for i, n := range h.recurred {
		if n > tokens && (tokens == 0 || h.keptAt[i] != tokens) {
			return false
		}
	}
	size := len(h.state) / len(h.recurred)
	for i, n := range h.recurred {
		if n > tokens {
			copy(h.state[i*size:(i+1)*size], h.kept[i*size:])
		}
	}
	return true
}

// Bytes held by requests.
func (c *cache) Bytes() int64 {
	var n int64
	for _, h := range c.requests {
		n += int64(len(h.blocks))*c.blockBytes() + int64(len(h.rotated)+len(h.state)+len(h.kept))
	}
	return n
}

// Release drops all requests.
func (c *cache) Release() {
	if c.released {
		return
	}
	for id := range c.requests {
		c.Drop(id)
	}
	c.released = true
	c.b.caches--
}

// of is what a request holds; a new one holds nothing.
func (c *cache) of(id tensor.RequestID) *held {
	h := c.requests[id]
	if h == nil {
		h = &held{lengths: make([]int, c.spec.Layers), recurred: make([]int, c.spec.Recurrent.Layers), keptAt: make([]int, c.spec.Recurrent.Layers)}
		c.requests[id] = h
	}
	return h
}

// reserve makes room so that a layer of the request may hold n tokens.
func (c *cache) reserve(id tensor.RequestID, n int) (*held, error) {
	h := c.of(id)
	for c.growing > 0 && len(h.blocks)*c.spec.BlockTokens < n {
		p, err := c.b.mem.exact(c.blockBytes(), &c.b.mem.kv)
		if err != nil {
			return nil, fmt.Errorf("KV block for %d tokens: %w", n, err)
		}
		h.blocks = append(h.blocks, p)
	}
	if c.rotating == 0 {
		return h, nil
	}
	least, _ := c.rotated(h)
	if err := c.rotate(h, h.at.For(least, n, c.window, c.spec.BlockTokens)); err != nil {
		return nil, fmt.Errorf("windows of %d tokens: %w", n, err)
	}
	return h, nil
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
	if to == h.at {
		return nil
	}
	p := h.rotated
	if to.Room != h.at.Room {
		var err error
		if p, err = c.b.mem.exact(c.saved.RotatingBytes*int64(to.Room), &c.b.mem.kv); err != nil {
			return err
		}
	}
	if _, most := c.rotated(h); most > to.Base && h.rotated != nil {
		from, dst := 0, 0
		for _, token := range c.widths(true) {
			copy(p[dst:dst+(most-to.Base)*token], h.rotated[from+(to.Base-h.at.Base)*token:])
			from, dst = from+h.at.Room*token, dst+to.Room*token
		}
	}
	if to.Room != h.at.Room && h.rotated != nil {
		c.b.mem.releaseExact(h.rotated, &c.b.mem.kv)
	}
	h.rotated, h.at = p, to
	return nil
}

// widths are the bytes of a token in each run of a block: for every layer, of each
// head of keys, then of each head of values.
func (c *cache) widths(local bool) []int {
	layers, heads := c.growing, c.spec.Heads(local)
	if local {
		layers = c.rotating
	}
	var out []int
	for range layers {
		for range heads.KVHeads {
			out = append(out, 4*heads.HeadSize)
		}
		for range heads.KVHeads * min(1, heads.Stored()) {
			out = append(out, 4*heads.ValueSize)
		}
	}
	return out
}

// tokens are keys and values of one head, of n tokens from one on that lie in one
// block. Values that are within keys are not there.
func (c *cache) tokens(h *held, layer, head, from, n int) (keys, values []float32) {
	block, at, room := h.rotated, from-h.at.Base, h.at.Room
	if c.spec.WindowOf(layer) == 0 {
		block, at, room = h.blocks[from/c.spec.BlockTokens], from%c.spec.BlockTokens, c.spec.BlockTokens
	}
	heads := c.spec.HeadsOf(layer)
	size, stored := heads.HeadSize, heads.Stored()
	all := floats(block)[c.index[layer]*heads.Elements()*room:]
	first := (head*room + at) * size
	second := heads.KVHeads*room*size + (head*room+at)*stored
	return all[first : first+n*size], all[second : second+n*stored]
}

// span returns consecutive tokens. If they lie in several blocks, or values are within
// keys, they are copied to room.
func (c *cache) span(h *held, layer, head, from, n int, room *[]float32) (keys, values []float32) {
	block, heads := c.spec.BlockTokens, c.spec.HeadsOf(layer)
	size, wide := heads.HeadSize, heads.ValueSize
	whole := c.spec.WindowOf(layer) > 0 || from%block+n <= block
	if whole && !heads.Within {
		return c.tokens(h, layer, head, from, n)
	}
	both := grow(room, n*(size+wide))
	keys, values = both[:n*size], both[n*size:]
	for at := 0; at < n; {
		part := min(block-(from+at)%block, n-at)
		if whole {
			part = n
		}
		k, v := c.tokens(h, layer, head, from+at, part)
		copy(keys[at*size:], k)
		copy(values[at*wide:], v)
		at += part
	}
	if heads.Within {
		for i := range n {
			copy(values[i*wide:(i+1)*wide], keys[i*size:])
		}
	}
	return keys, values
}

// append copies keys and values of one segment into a layer.
func (c *cache) append(h *held, layer, start int, k, v *array, row, length int) {
	heads := c.spec.HeadsOf(layer)
	for i := range length {
		kr := k.row(row + i)
		for head := range heads.KVHeads {
			keys, values := c.tokens(h, layer, head, start+i, 1)
			copy(keys, kr[head*heads.HeadSize:])
			if v != nil {
				copy(values, v.row(row + i)[head*heads.ValueSize:])
			}
		}
	}
	h.lengths[layer] = start + length
}
