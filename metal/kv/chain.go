package kv

import "fmt"

// Layer says how what a layer keeps of its tokens can be cut.
type Layer int

// The kinds of layers. The zero value is none of them and is refused.
const (
	// Sliced layers keep keys and values of each token, which can be cut anywhere.
	Sliced Layer = iota + 1
	// Rotating layers keep a window that forgets.
	Rotating
	// Recurrent layers keep a state of constant size.
	Recurrent
)

// Kept is what one kind of layer of a model keeps.
type Kept struct {
	Layer Layer
	// Window of Rotating layers, in tokens.
	Window int
}

const (
	// Blocks of plain models, of those with a window (the smallest multiple of it
	// in between), and of recurrent ones, in tokens.
	plainBlock                  = 256
	leastRotating, mostRotating = 512, 1024
	recurrentBlock              = 2048
	// leastBlock is the smallest, where the context is small.
	leastBlock = 16
	// grids is how many points a recurrent model can be restored from within a
	// block.
	grids = 32
)

// Shape says where the prompts of one engine are cut.
type Shape struct {
	// Block is how many tokens a block has.
	Block int
	// States says that some layer cannot be cut: a point is one to go on from only
	// where its state was saved as it stood there.
	States bool
	// Bare says that no layer can be cut: blocks have keys and nothing under them.
	Bare bool
	// Grid is the distance of the points within a block at which a prompt's end may
	// be saved; 0 where only the ends of blocks are.
	Grid int
}

// ShapeOf is how a model is cut all of whose kinds of layers are given, and
// that serves so many tokens at most: at least four blocks fit into them, so
// that tiny contexts have any. Kinds that are not known are refused.
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

// String names the shape as Origin.Layout has it.
func (s Shape) String() string {
	return fmt.Sprintf("blocks of %d, grid of %d, states %t, bare %t", s.Block, s.Grid, s.States, s.Bare)
}

// Stop is the next point after so many tokens at which a state has to be saved
// as it stands there, so that a step must end at it: the end of a block, or of
// the prompt, on the grid and with at least one token of it left. 0 where
// nothing has to be.
//
// A prompt's end lies on a grid because a lookup has to find it by trying: it
// knows the tokens of a new prompt, and not where earlier ones ended. The last
// words of a prompt, with which a template asks for an answer, are often not in
// the next turn; and the same prompt sent again has its last token to compute.
// So little is lost by stopping short of it.
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

// Chain is the keys of one sequence of tokens that only grows. Its methods are
// given all of its tokens; it keeps the keys of the whole blocks among them.
type Chain struct {
	shape Shape
	root  Key
	keys  []Key
	// shared of the tokens, at the beginning, have keys from the root common.
	shared int
	common Key
}

// NewChain begins a sequence.
func NewChain(s Shape, root Key) *Chain { return &Chain{shape: s, root: root, common: root} }

// Share gives the first tokens of a new chain keys from another root, so that others
// find them too. What holds a token after these has keys of the chain's own root.
func (c *Chain) Share(common Key, tokens int) { c.common, c.shared = common, tokens }

// Grow computes the keys of blocks that are full, up to the number of tokens.
func (c *Chain) Grow(tokens []int32) {
	for n := c.shape.Block; (len(c.keys)+1)*n <= len(tokens); {
		at := len(c.keys)
		c.keys = append(c.keys, c.parent(at, (at+1)*n).Next(tokens[at*n:][:n]))
	}
}

// Keys of the whole blocks, in order.
func (c *Chain) Keys() []Key { return c.keys }

// parent is the key before what begins with block i and ends after end tokens.
func (c *Chain) parent(i, end int) Key {
	own := c.shared / c.shape.Block // the first block with a token that is not shared
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

// State is the key of what cannot be cut as it stands after the first n of the
// tokens. What lies under it begins with the slice of the tokens that no whole
// block has.
func (c *Chain) State(tokens []int32, n int) Key {
	block := n / c.shape.Block
	return c.parent(block, n).State(tokens[block*c.shape.Block : n])
}

// Point is where a sequence can go on.
type Point struct {
	// Tokens before it; 0 is the beginning, where nothing is restored.
	Tokens int
	// Blocks are whole, State says that a state is needed too.
	Blocks int
	State  bool
}

// Find is the longest point within the first most of the tokens from which
// every layer can be restored: all blocks before it are there, and, where some
// layer cannot be cut, so is a state at that very point. has is asked for a key
// at most once.
//
// Points within a block are tried from the last on: no index says where earlier
// prompts ended, so that a tier needs none, and a file that is there is found.
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
			if has(c.State(tokens, at)) {
				return Point{Tokens: at, Blocks: blocks, State: true}
			}
		}
	}
	return Point{}
}

// Under is the keys of what is restored at a point, the state last.
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

// lastWithin is the last point of the block that begins there.
func (c *Chain) lastWithin(begin, most int) int {
	if c.shape.Grid == 0 {
		return begin
	}
	return begin + min(most-begin, c.shape.Block-1)/c.shape.Grid*c.shape.Grid
}
