package kv

import "fmt"

// Layer is how the cache of a layer can be divided between blocks of tokens.
type Layer int

// The kinds of layers. The zero value is invalid.
const (
	// Sliced layers keep keys and values per token, which can be divided
	// anywhere.
	Sliced Layer = iota + 1
	// Rotating layers keep a sliding window and forget older tokens.
	Rotating
	// Recurrent layers keep a state of constant size.
	Recurrent
)

// Kept describes the cache of one kind of layer of a model.
type Kept struct {
	Layer Layer
	// Window of Rotating layers, in tokens.
	Window int
}

const (
	// Block sizes in tokens: of plain models, of models with a window (the
	// smallest multiple of the window in this range), and of recurrent models.
	plainBlock                  = 256
	leastRotating, mostRotating = 512, 1024
	recurrentBlock              = 2048
	// leastBlock is the smallest block size, used for small contexts.
	leastBlock = 16
	// grids is the number of points within a block of a recurrent model at
	// which a prompt's state can be saved.
	grids = 32
)

// Shape describes how the prompts of one engine are divided into blocks.
type Shape struct {
	// Block is the block size in tokens.
	Block int
	// States: some layer cannot be divided, so that a sequence can only
	// continue from a point whose state was saved.
	States bool
	// Bare: no layer can be divided, so that blocks only have keys and no
	// bytes.
	Bare bool
	// Grid is the distance in tokens between the points within a block at which
	// the state at a prompt's end may be saved; 0 means only at the ends of
	// blocks.
	Grid int
}

// ShapeOf returns the shape for a model with these kinds of layers and a
// context length in tokens. The context has at least four blocks, so that small
// contexts are cached too. Unknown kinds of layers are an error.
func ShapeOf(kept []Kept, context int) (Shape, error) {
	s := Shape{Bare: true}
	recurs := false
	for _, k := range kept {
		block := plainBlock
		switch k.Layer {
		case Sliced:
			s.Bare = false
		case Rotating:
			if k.Window < 1 {
				return Shape{}, fmt.Errorf("a rotating layer has a window of %d tokens, want at least 1", k.Window)
			}
			block, s.States = mostRotating, true
			if n := (leastRotating + k.Window - 1) / k.Window * k.Window; n <= mostRotating {
				block = n
			}
		case Recurrent:
			block, s.States, recurs = recurrentBlock, true, true
		default:
			return Shape{}, fmt.Errorf("unknown layer kind %d: want one of %d to %d", k.Layer, Sliced, Recurrent)
		}
		s.Block = max(s.Block, block)
	}
	if len(kept) == 0 || context < 1 {
		return Shape{}, fmt.Errorf("%d layer kinds and a context of %d tokens: want at least 1 of each", len(kept), context)
	}
	for s.Block > leastBlock && s.Block > context/4 {
		s.Block = max(leastBlock, s.Block/2)
	}
	if recurs {
		s.Grid = max(1, s.Block/grids)
	}
	return s, nil
}

// String formats the shape for Origin.Layout.
func (s Shape) String() string {
	return fmt.Sprintf("blocks of %d, grid of %d, states %t, bare %t", s.Block, s.Grid, s.States, s.Bare)
}

// Stop returns the next point after the given number of tokens at which the
// state must be saved, so that a step has to end there: the end of a block, or
// the last grid point before the end of the prompt that leaves at least one
// token of it. It returns 0 if there is none.
//
// The state at a prompt's end is saved on a grid because Find has to guess the
// point: it knows the tokens of a new prompt, but not where earlier prompts
// ended. Little is lost by saving earlier: the next turn of a conversation
// often does not contain the last tokens of this prompt (the template's
// generation prompt), and if the same prompt is sent again its last token must
// be computed anyway.
func (s Shape) Stop(after, prompt int) int {
	if !s.States {
		return 0
	}
	stop := (after/s.Block + 1) * s.Block
	if s.Grid > 0 && prompt > 0 {
		if end := (prompt - 1) / s.Grid * s.Grid; end > after && end < stop {
			stop = end
		}
	}
	return stop
}

// Chain computes the keys of one growing sequence of tokens. Its methods
// receive all tokens; it stores the keys of full blocks.
type Chain struct {
	shape Shape
	root  Key
	keys  []Key
	// The first shared tokens have keys derived from the root common.
	shared int
	common Key
	images []Image
	// states are the keys that Find computed, by the tokens before them, until Forget.
	states map[int]Key
}

// Image is where a prompt has placeholders of an image, [From, To), and the digest of
// what they stand for.
type Image struct {
	From, To int
	Digest   [32]byte
}

// NewChain returns the chain of an empty sequence.
func NewChain(s Shape, root Key) *Chain { return &Chain{shape: s, root: root, common: root} }

// Share derives the keys of the first tokens of a new chain from another root,
// so that other chains find them too. Blocks with any later token have keys of
// the chain's own root.
func (c *Chain) Share(common Key, tokens int) { c.common, c.shared = common, tokens }

// See makes the keys of a new chain depend on images, which are in ascending order:
// blocks and states with any of their tokens depend on all of their content.
func (c *Chain) See(images []Image) { c.images = images }

// Grow computes the keys of the blocks that are full.
func (c *Chain) Grow(tokens []int32) {
	for n := c.shape.Block; (len(c.keys)+1)*n <= len(tokens); {
		at := len(c.keys)
		c.keys = append(c.keys, c.seen(c.parent(at, (at+1)*n), at*n, (at+1)*n).Next(tokens[at*n:][:n]))
	}
}

// Keys returns the keys of full blocks, in order.
func (c *Chain) Keys() []Key { return c.keys }

// parent is the key that precedes a block or state which begins with block i
// and ends after end tokens.
func (c *Chain) parent(i, end int) Key {
	own := c.shared / c.shape.Block // the first block with an unshared token
	switch {
	case i == 0 && end <= c.shared:
		return c.common
	case i == 0:
		return c.root
	case i == own && end > c.shared:
		return c.root.after(c.keys[i-1])
	}
	return c.keys[i-1]
}

// seen is the key that precedes tokens [first, last), made dependent on their images.
func (c *Chain) seen(parent Key, first, last int) Key {
	for _, m := range c.images {
		if m.From < last && m.To > first {
			parent = parent.image(m)
		}
	}
	return parent
}

// State is the key of the undividable state after the first n tokens. Its bytes
// begin with the keys and values of the tokens after the last full block.
func (c *Chain) State(tokens []int32, n int) Key {
	if key, ok := c.states[n]; ok {
		return key
	}
	block := n / c.shape.Block
	return c.seen(c.parent(block, n), block*c.shape.Block, n).State(tokens[block*c.shape.Block : n])
}

// Point is a position from which a sequence can continue.
type Point struct {
	// Tokens before the point; 0 means that nothing is restored.
	Tokens int
	// Blocks is the number of full blocks before the point; State is set if a
	// state is needed too.
	Blocks int
	State  bool
}

// Find returns the longest point within the first most tokens from which every
// layer can be restored: all blocks before it are cached and, if some layer
// cannot be divided, so is the state at exactly that point. It calls has at
// most once per key.
//
// Points within a block are tried from the last to the first. Tiers need no
// index of where earlier prompts ended. The keys of these points, of which a
// long prompt has thousands, are kept for the next call, until Forget.
func (c *Chain) Find(tokens []int32, most int, has func(Key) bool) Point {
	c.Grow(tokens)
	most = min(most, len(tokens))
	blocks := 0
	for (blocks+1)*c.shape.Block <= most && (c.shape.Bare || has(c.keys[blocks])) {
		blocks++
	}
	if !c.shape.States {
		return Point{Tokens: blocks * c.shape.Block, Blocks: blocks}
	}
	for ; blocks >= 0; blocks-- {
		begin := blocks * c.shape.Block
		for at := c.lastWithin(begin, most); at > 0 && at >= begin; at -= max(1, c.shape.Grid) {
			key := c.State(tokens, at)
			if c.states == nil {
				c.states = map[int]Key{}
			}
			c.states[at] = key
			if has(key) {
				return Point{Tokens: at, Blocks: blocks, State: true}
			}
		}
	}
	return Point{}
}

// Forget frees the keys of states that Find keeps.
func (c *Chain) Forget() { c.states = nil }

// Under lists the keys to restore for a point, the state last.
func (c *Chain) Under(tokens []int32, p Point) []Key {
	var keys []Key
	if !c.shape.Bare {
		keys = append(keys, c.keys[:p.Blocks]...)
	}
	if p.State {
		keys = append(keys, c.State(tokens, p.Tokens))
	}
	return keys
}

// lastWithin is the last possible point in the block that starts at begin.
func (c *Chain) lastWithin(begin, most int) int {
	if c.shape.Grid == 0 {
		return begin
	}
	return begin + min(most-begin, c.shape.Block-1)/c.shape.Grid*c.shape.Grid
}
