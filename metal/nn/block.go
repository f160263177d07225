package nn

import (
	"metalfleet.dev/metalfleet/metal/family"
	"metalfleet.dev/metalfleet/metal/tensor"
)

// Block is one layer of a decoder.
type Block interface {
	// Apply runs x [T, hidden] through the layer and extends its cache. The
	// result has the given rows, or all T if rows is nil. If rows is empty,
	// only the cache is extended and the result is nil.
	Apply(s tensor.Scope, x tensor.Array, p Pass, rows []int) tensor.Array
}

// Mixer is the half of a block that lets tokens read those before them.
type Mixer interface {
	// Attend extends the cache by x [T, hidden] and returns the output of the
	// heads; Output projects it to [T, hidden].
	Attend(s tensor.Scope, x tensor.Array, p Pass) tensor.Array
	Output() Linear
}

// block is a layer as a family describes it.
type block struct {
	before, after, beforeFeed, afterFeed *Norm
	mixer                                Mixer
	feed                                 FeedForward
	parallel                             bool
	// residual multiplies what both halves add; 0 means 1.
	residual float32
	// layer is its number, input what it does with an input of its own, nil where it
	// has none; scalar multiplies the result, where there is one.
	layer  int
	input  *layerInput
	scalar []float32
	// eager blocks release what was only passed on at once, so that those with
	// four norms or a recurrent mixer hold no more than one of two norms.
	eager bool
}

// newBlock declares layer i as f describes it. Its tensors lie under path; number counts the
// layers that keep the same.
func newBlock(l *Loader, path string, d family.Dimensions, f family.Block, i, number int) *block {
	b := &block{parallel: f.Parallel, residual: float32(f.Residual), layer: i, eager: f.After.Path != "" || d.Hybrid.Any()}
	b.before, b.after = newNorm(l, path, f.Before, d), newNorm(l, path, f.After, d)
	switch {
	case f.Recurrent != nil:
		b.mixer = newRecurrent(l, path, number, d)
	case f.Latent != nil:
		b.mixer = newLatent(l, path+"."+f.Attention.Prefix(), d, *f.Attention, *f.Latent, number)
	case f.Attention != nil:
		b.mixer = newAttention(l, path+"."+f.Attention.Prefix(), d, *f.Attention, number)
	}
	b.beforeFeed, b.afterFeed = newNorm(l, path, f.BeforeFeed, d), newNorm(l, path, f.AfterFeed, d)
	if f.Inner > 0 {
		b.input = newLayerInput(l, path, d)
	}
	if f.Scaled {
		l.host(path+".layer_scalar", &b.scalar)
	}
	switch {
	case f.Experts != nil && f.Experts.Clamped:
		b.feed = newClampedExperts(l, path+".mlp", *f.Experts)
	case f.Experts != nil && f.Experts.Aside > 0:
		b.feed = newAside(l, path, d, *f.Experts)
	case f.Experts != nil:
		b.feed = newExperts(l, path+"."+f.Experts.Prefix(), *f.Experts)
	case f.Feed != nil:
		b.feed = newFeed(l, path+"."+f.Feed.Prefix(), *f.Feed)
	}
	return b
}

// Apply runs the block.
func (b *block) Apply(s tensor.Scope, x tensor.Array, p Pass, rows []int) tensor.Array {
	normed := b.before.apply(s, x)
	if b.mixer != nil {
		seen := b.mixer.Attend(s, normed, p)
		if !b.parallel {
			b.free(s, normed, x)
		}
		if rows != nil {
			if len(rows) == 0 {
				return nil
			}
			x, seen = s.Rows(x, rows), s.Rows(seen, rows)
			if b.parallel {
				normed = s.Rows(normed, rows)
			}
			s = only(s, rows)
		}
		mixed := b.normed(s, b.after, b.mixer.Output().Apply(s, seen))
		b.free(s, seen, nil)
		x = b.add(s, x, mixed)
	}
	if b.feed == nil {
		return x
	}
	if b.mixer == nil && rows != nil { // a feed-forward alone
		if len(rows) == 0 {
			return nil
		}
		x = s.Rows(x, rows)
		s = only(s, rows)
	}
	if !b.parallel {
		normed = b.beforeFeed.apply(s, x)
	}
	out := b.normed(s, b.afterFeed, b.feed.Apply(s, normed))
	b.free(s, normed, x)
	x = b.add(s, x, out)
	if b.input != nil {
		input := p.Inner[b.layer]
		if rows != nil {
			input = s.Rows(input, rows)
		}
		x = s.Add(x, b.input.apply(s, x, input))
	}
	if b.scalar != nil {
		x = s.Map(x, tensor.ScaleShift{Scale: b.scalar[0]})
	}
	return x
}

// normed norms y, and releases it where the block is eager.
func (b *block) normed(s tensor.Scope, n *Norm, y tensor.Array) tensor.Array {
	out := n.apply(s, y)
	b.free(s, y, out)
	return out
}

// add adds y to x, and releases y where the block is eager.
func (b *block) add(s tensor.Scope, x, y tensor.Array) tensor.Array {
	if b.residual != 0 && b.residual != 1 {
		scaled := s.Map(y, tensor.ScaleShift{Scale: b.residual})
		b.free(s, y, nil)
		y = scaled
	}
	sum := s.Add(x, y)
	b.free(s, y, nil)
	return sum
}

// free releases a where the block is eager, unless it is keep.
func (b *block) free(s tensor.Scope, a, keep tensor.Array) {
	if b.eager && a != keep {
		s.Release(a)
	}
}

// Norm is RMSNorm, or LayerNorm if it has a bias.
type Norm struct {
	Weight, Bias tensor.Array
	Eps          float32
}

// apply normalises x; nil changes nothing.
func (n *Norm) apply(s tensor.Scope, x tensor.Array) tensor.Array {
	switch {
	case n == nil:
		return x
	case n.Bias != nil:
		return s.LayerNorm(x, n.Weight, n.Bias, n.Eps)
	}
	return s.RMSNorm(x, n.Weight, n.Eps)
}

// newNorm declares a norm under path; nil where there is none.
func newNorm(l *Loader, path string, n family.Norm, d family.Dimensions) *Norm {
	if n.Path == "" {
		return nil
	}
	if path != "" {
		path += "."
	}
	out := &Norm{Eps: float32(d.NormEps)}
	set := func(v tensor.Array) {
		out.Weight = v
		if n.Mean && !n.Bias {
			out.Bias = l.zeros(d.Hidden)
		}
	}
	if l.normsLessOne {
		l.vector(path+n.Path+".weight", func(v tensor.Array) { set(l.plusOne(v)) })
	} else {
		l.vector(path+n.Path+".weight", set)
	}
	if n.Bias {
		l.vector(path+n.Path+".bias", func(v tensor.Array) { out.Bias = v })
	}
	return out
}
