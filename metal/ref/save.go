package ref

import (
	"fmt"
	"slices"

	"metalfleet.dev/metalfleet/metal/tensor"
)

// SliceBytes is the size of Save's output for this many tokens.
func (c *cache) SliceBytes(tokens int) int64 { return c.saved.TokenBytes * int64(max(0, tokens)) }

// StateBytes is the size of SaveState's output for this many tokens.
func (c *cache) StateBytes(tokens int) int64 { return c.saved.State(tokens) }

// Save copies the keys and values of tokens [first, last) to dst in the layout
// of a block: for every layer keys then values, each head's tokens one after
// another.
func (c *cache) Save(id tensor.RequestID, first, last int, dst []byte) error {
	if c.released {
		return fmt.Errorf("Save: cache: %w", tensor.ErrReleased)
	}
	if err := c.saved.FitsSave(c.Length(id), first, last, len(dst)); err != nil {
		return fmt.Errorf("Save: request %d: %w", id, err)
	}
	if c.growing == 0 {
		return nil
	}
	c.eachBlock(c.requests[id].blocks, first, last, func(block []byte, at, in, n int) {
		c.runs(last-first, at, in, n, func(saved, held, bytes int) { copy(dst[saved:saved+bytes], block[held:]) })
	})
	return nil
}

// SaveState copies the recurrent states, followed by what windows can still
// see, in the order of Save.
func (c *cache) SaveState(id tensor.RequestID, dst []byte) error {
	if c.released {
		return fmt.Errorf("SaveState: cache: %w", tensor.ErrReleased)
	}
	held := c.requests[id]
	if held == nil {
		return fmt.Errorf("SaveState: request %d: %w", id, tensor.ErrSegment)
	}
	length := c.Length(id)
	if err := c.saved.FitsState(length, c.whole(held), len(dst)); err != nil {
		return fmt.Errorf("SaveState: request %d: %w", id, err)
	}
	windows := dst[copy(dst, held.state):]
	c.visible(held, length, func(saved, at, bytes int) { copy(windows[saved:saved+bytes], held.rotated[at:]) })
	return nil
}

// Restore makes a request hold saved tokens.
func (c *cache) Restore(id tensor.RequestID, tokens int, blocks [][]byte, state []byte) error {
	if c.released {
		return fmt.Errorf("Restore: cache: %w", tensor.ErrReleased)
	}
	if c.requests[id] != nil {
		return fmt.Errorf("Restore: request %d already exists: %w", id, tensor.ErrSegment)
	}
	if err := c.saved.FitsRestore(tokens, c.spec.BlockTokens, blocks, state); err != nil {
		return fmt.Errorf("request %d: %w", id, err)
	}
	err := c.rotate(c.of(id), c.restored(tokens))
	var h *held
	if err == nil {
		h, err = c.reserve(id, tokens)
	}
	if err == nil && c.saved.StateBytes > 0 {
		h.state, err = c.b.mem.exact(c.saved.StateBytes, &c.b.mem.kv)
	}
	if err != nil {
		c.Drop(id)
		return fmt.Errorf("Restore: request %d: %w", id, err)
	}
	for i := range h.blocks {
		p, n := blocks[i], min(c.spec.BlockTokens, tokens-i*c.spec.BlockTokens)
		c.runs(n, 0, 0, n, func(saved, held, bytes int) { copy(h.blocks[i][held:held+bytes], p[saved:]) })
	}
	windows := state[copy(h.state, state):]
	c.visible(h, tokens, func(saved, at, bytes int) { copy(h.rotated[at:at+bytes], windows[saved:]) })
	for i := range h.lengths {
		h.lengths[i] = tokens
	}
	for i := range h.recurred {
		h.recurred[i] = tokens
	}
	return nil
}

// restored is where what windows see lies of a request that comes back.
func (c *cache) restored(tokens int) tensor.Rotation {
	if c.rotating == 0 {
		return tensor.Rotation{}
	}
	return tensor.Restored(tokens, c.window, c.spec.BlockTokens)
}

// eachBlock visits the blocks that hold tokens [first, last): n of them from
// token in of the block on, which are those from at on of all.
func (c *cache) eachBlock(blocks [][]byte, first, last int, visit func(block []byte, at, in, n int)) {
	for at := first; at < last; {
		in := at % c.spec.BlockTokens
		n := min(c.spec.BlockTokens-in, last-at)
		visit(blocks[at/c.spec.BlockTokens], at-first, in, n)
		at += n
	}
}

// runs visits the bytes of n tokens, which stand from at on among saved ones and
// from in on in a block: one run for each head, or one alone where both are a
// whole block.
func (c *cache) runs(saved, at, in, n int, visit func(saved, held, bytes int)) {
	block := c.spec.BlockTokens
	if saved == block && n == block {
		visit(0, 0, int(c.blockBytes()))
		return
	}
	before := 0
	for _, token := range c.widths(false) {
		visit(before*saved+at*token, before*block+in*token, n*token)
		before += token
	}
}

// visible visits the bytes that windows can still see of a request with this
// many tokens, one run per head.
func (c *cache) visible(h *held, tokens int, visit func(saved, at, bytes int)) {
	n := c.saved.RotatingOf(tokens)
	if n == 0 {
		return
	}
	before := 0
	for _, token := range c.widths(true) {
		visit(before*n, before*h.at.Room+(tokens-n-h.at.Base)*token, n*token)
		before += token
	}
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
