package ref

import (
	"fmt"
	"slices"

	"metalfleet.dev/metalfleet/metal/tensor"
)

// cache holds keys and values in blocks of tokens, one mapping per request and
// block, allocated when the first token of a block arrives. In a block lie,
// for every layer, keys then values, each head's tokens one after another.
// Pages that no token reached yet are not resident.
type cache struct {
	b        *Backend
	spec     tensor.CacheSpec
	saved    tensor.Saved
	requests map[tensor.RequestID]*held
	released bool
}

// held is what one request occupies.
type held struct {
	blocks [][]byte
	// lengths is how many tokens each layer holds; they differ only inside a
	// step.
	lengths []int
	// state of all recurrent layers, one after another, nil until the first of
	// them recurs, and how many tokens each has seen.
	state    []byte
	recurred []int
}

// NewCache makes an empty cache.
func (b *Backend) NewCache(spec tensor.CacheSpec) (tensor.Cache, error) {
	if spec.Layers <= 0 || spec.KVHeads <= 0 || spec.HeadSize <= 0 || spec.BlockTokens <= 0 || !spec.Recurrent.Fits() {
		return nil, &tensor.ShapeError{Op: "NewCache", Detail: fmt.Sprintf("%+v", spec)}
	}
	saved, err := tensor.SavedOf(spec.Kept(4))
	if err != nil {
		return nil, fmt.Errorf("NewCache: %w", err)
	}
	b.caches++
	return &cache{b: b, spec: spec, saved: saved, requests: make(map[tensor.RequestID]*held)}, nil
}

func (c *cache) blockBytes() int64 {
	return c.spec.TokenBytes(4) * int64(c.spec.BlockTokens)
}

// Length is how many tokens of a request every layer holds.
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

// Drop returns the blocks of a request.
func (c *cache) Drop(id tensor.RequestID) {
	h := c.requests[id]
	if h == nil {
		return
	}
	for _, p := range h.blocks {
		c.b.mem.releaseExact(p, &c.b.mem.kv)
	}
	if h.state != nil {
		c.b.mem.releaseExact(h.state, &c.b.mem.kv)
	}
	delete(c.requests, id)
}

// Truncate forgets what any layer holds past the first tokens, and everything
// where a recurrent layer has seen more.
func (c *cache) Truncate(id tensor.RequestID, tokens int) {
	h := c.requests[id]
	if h == nil {
		return
	}
	tokens = max(0, tokens)
	if len(h.recurred) > 0 && slices.Max(h.recurred) > tokens {
		tokens = 0
	}
	for i, n := range h.lengths {
		h.lengths[i] = min(n, tokens)
	}
	for i, n := range h.recurred {
		h.recurred[i] = min(n, tokens)
	}
}

// Bytes held by requests.
func (c *cache) Bytes() int64 {
	var n int64
	for _, h := range c.requests {
		n += int64(len(h.blocks))*c.blockBytes() + int64(len(h.state))
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
		h = &held{lengths: make([]int, c.spec.Layers), recurred: make([]int, c.spec.Recurrent.Layers)}
		c.requests[id] = h
	}
	return h
}

// reserve makes room so that a layer of the request may hold n tokens.
func (c *cache) reserve(id tensor.RequestID, n int) (*held, error) {
	h := c.of(id)
	for len(h.blocks)*c.spec.BlockTokens < n {
		p, err := c.b.mem.exact(c.blockBytes(), &c.b.mem.kv)
		if err != nil {
			return nil, fmt.Errorf("KV block for %d tokens: %w", n, err)
		}
		h.blocks = append(h.blocks, p)
	}
	return h, nil
}

// head is one head's tokens in one block: keys and values, [BlockTokens, HeadSize].
func (c *cache) head(block []byte, layer, head int) (keys, values []float32) {
	all := floats(block)
	size := c.spec.BlockTokens * c.spec.HeadSize
	at := (layer*2*c.spec.KVHeads + head) * size
	return all[at : at+size], all[at+c.spec.KVHeads*size : at+(c.spec.KVHeads+1)*size]
}

// append copies keys and values of one segment into a layer.
func (c *cache) append(h *held, layer, start int, k, v *array, row, length int) {
	for i := range length {
		pos := start + i
		block, at := h.blocks[pos/c.spec.BlockTokens], pos%c.spec.BlockTokens*c.spec.HeadSize
		kr, vr := k.row(row+i), v.row(row+i)
		for head := range c.spec.KVHeads {
			keys, values := c.head(block, layer, head)
			copy(keys[at:at+c.spec.HeadSize], kr[head*c.spec.HeadSize:])
			copy(values[at:at+c.spec.HeadSize], vr[head*c.spec.HeadSize:])
		}
	}
	h.lengths[layer] = start + length
}
