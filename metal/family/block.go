package family

import "math"

// Block is one layer of a decoder: something that mixes tokens, and a
// feed-forward, each added to what it was given. Either may be absent.
type Block struct {
	// Before and After norm what the mixer reads and what it returns; BeforeFeed
	// and AfterFeed do the same around the feed-forward. Those without a path do
	// not exist.
	Before, After, BeforeFeed, AfterFeed Norm
	// Parallel feed-forwards read what the mixer reads, and both results are added
	// at once.
	Parallel bool
	// The mixer is Attention, of a Latent vector where there is one, or Recurrent.
	Attention *Attention
	Latent    *Latent
	Recurrent *Hybrid
	// Feed is the feed-forward: Experts, or a dense one of this width.
	Feed    *Feed
	Experts *Experts
	// Residual multiplies both results before they are added; 0 means 1.
	Residual float64
}

// Norm is a norm of a layer, by its path. The zero value is none.
type Norm struct {
	Path string
	// Mean is taken from the values first (LayerNorm); Bias is added last.
	Mean, Bias bool
}

// rms is the norm of most families.
func rms(path string) Norm { return Norm{Path: path} }

// Attention is what the attention of a layer is made of.
type Attention struct {
	// Path of its tensors; empty means self_attn.
	Path string
	// Bias is added to queries, keys and values, OutBias to the result.
	Bias, OutBias bool
	// Gated heads of queries have a gate of their size after them, whose sigmoid
	// multiplies what the head reads.
	Gated bool
	// Sinks are scores of query heads that take part in the softmax and add
	// nothing.
	Sinks bool
	// HeadNorm is how queries and keys are normed, and NormLast whether that
	// happens after they were rotated.
	HeadNorm HeadNorm
	NormLast bool
	// Rope is how heads are rotated; nil means that they are not.
	Rope *Rope
	// Temper makes queries grow with their position; nil means that they do not.
	Temper *Temper
	// Window is how many latest positions a token sees; 0 means all.
	Window int
	// Scale multiplies scores; Cap, where it is not 0, bounds them:
	// Cap*tanh(score/Cap).
	Scale, Cap float64
}

// HeadNorm is how queries and keys are normed.
type HeadNorm int

// The kinds of norms: none, one weight for all heads, one run of all heads
// together, one weight for each head.
const (
	NoHeadNorm HeadNorm = iota
	EachHead
	AllHeads
)

// Feed is a dense feed-forward.
type Feed struct {
	// Path of its tensors; empty means mlp.
	Path string
	// Width of what is between the matrices.
	Width int
	// Activation of the gate, or of the first product where it is Plain.
	Activation Activation
	// Plain ones have no gate: up_proj, activation, down_proj.
	Plain bool
	// Bias is added to every product.
	Bias bool
}

// Activation is a function of the feed-forward.
type Activation int

// The activations. GELUTanh is GELU in the form of tanh, ReLU2 the square of
// max(0, x).
const (
	SiLU Activation = iota
	GELU
	GELUTanh
	ReLU2
	XIELU
)

// preNorm is the block of most decoders: attention and feed-forward, each on
// the normed input and added to it.
func preNorm(d Dimensions, i int) Block {
	b := Block{Before: d.norm("input_layernorm"), BeforeFeed: d.norm("post_attention_layernorm"), Attention: d.attention(i), Latent: d.Latent, Residual: d.Residual}
	if d.Experts.In(i) {
		b.Experts = &d.Experts
	} else {
		b.Feed = &Feed{Width: d.FeedForward, Bias: d.FeedBias}
	}
	return b
}

// sandwich has a norm before and after both halves.
func sandwich(d Dimensions, i int) Block {
	b := preNorm(d, i)
	b.After, b.BeforeFeed, b.AfterFeed = rms("post_attention_layernorm"), rms("pre_feedforward_layernorm"), rms("post_feedforward_layernorm")
	return b
}

// postNorm norms the results of both halves, and nothing before them.
func postNorm(d Dimensions, i int) Block {
	b := sandwich(d, i)
	b.Before, b.BeforeFeed = Norm{}, Norm{}
	return b
}

// norm is a norm of the kind that the family has.
func (d Dimensions) norm(path string) Norm {
	return Norm{Path: path, Mean: d.MeanNorm, Bias: d.NormBias}
}

// attention is that of layer i, by the numbers alone.
func (d Dimensions) attention(i int) *Attention {
	a := &Attention{Bias: d.Bias, OutBias: d.OutBias, HeadNorm: d.HeadNorm, Rope: &d.Rope, Temper: d.Temper, Window: d.WindowOf(i), Scale: d.ScoreScale(), Cap: d.ScoreCap}
	if d.LocalRope != nil && a.Window > 0 {
		a.Rope = d.LocalRope
	}
	if i < len(d.Still) && d.Still[i] {
		a.Rope = nil
	}
	return a
}

// Block describes layer i of a decoder.
func (d Dimensions) Block(i int) Block { return d.family().Block(d, i) }

// WindowOf is how many latest positions a layer sees; 0 means all.
func (d Dimensions) WindowOf(layer int) int {
	if layer < len(d.Everywhere) && d.Everywhere[layer] {
		return 0
	}
	return d.Window
}

// ScoreScale multiplies the scores of attention.
func (d Dimensions) ScoreScale() float64 {
	if d.Scale > 0 {
		return d.Scale
	}
	if d.QueryScalar > 0 {
		return 1 / math.Sqrt(d.QueryScalar)
	}
	return 1 / math.Sqrt(float64(d.HeadSize))
}

// Layers counts the layers of a decoder by what they keep.
type Kinds struct{ Growing, Window, Recurrent int }

// Kinds counts the layers by what they keep of a request.
func (d Dimensions) Kinds() (k Kinds) {
	for i := range d.Layers {
		switch b := d.Block(i); {
		case b.Recurrent != nil:
			k.Recurrent++
		case b.Attention != nil && b.Attention.Window > 0:
			k.Window++
		case b.Attention != nil:
			k.Growing++
		}
	}
	return k
}

// NormsLessOne reports whether folders of the family hold its norms less one.
// GGUF files hold them as they are meant (llama.cpp's convert_hf_to_gguf.py).
func (d Dimensions) NormsLessOne() bool { return d.Layout().NormsLessOne }
