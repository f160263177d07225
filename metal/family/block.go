package family

import "math"

// Block is one layer of a decoder: a token mixer (attention or a recurrence)
// and a feed-forward, each with a residual connection. Either may be absent.
type Block struct {
	// Before and After norm the input and the output of the mixer; BeforeFeed
	// and AfterFeed do the same around the feed-forward. A norm without a path
	// is absent.
	Before, After, BeforeFeed, AfterFeed Norm
	// Parallel means that the feed-forward reads the mixer's input, and that
	// both results are added to the residual in one step.
	Parallel bool
	// The mixer is Attention, optionally Latent attention, or Recurrent.
	Attention *Attention
	Latent    *Latent
	Recurrent *Hybrid
	// Feed is the feed-forward: Experts, or a dense one of this width.
	Feed    *Feed
	Experts *Experts
	// Residual multiplies both results before they are added; 0 means 1.
	Residual float64
	// Inner is the width of what each token brings to the layer besides (per-layer
	// embeddings of Gemma); 0 is none. Scaled layers end with a factor of their own.
	Inner  int
	Scaled bool
	// Streams are several residuals next to one another; nil means one. The attention
	// and the feed-forward then read and change one of them.
	Streams *Streams
}

// Streams are the residuals of AltUp (https://arxiv.org/abs/2301.13310): each layer predicts
// all of them, computes one, and corrects all by the error of that prediction.
type Streams struct {
	// Count is their number, and Active the index of the one that is computed.
	Count, Active int
	// Rank of a learned residual connection around the attention (LAuReL).
	Rank int
	// Clip bounds the weights of coefficients; 0 means no bound.
	Clip float64
	// Scaled means that the input of the layer reads the active one times a weight.
	Scaled bool
}

// Norm is a norm of a layer, identified by its path. The zero value means no
// norm.
type Norm struct {
	Path string
	// Mean subtracts the mean first (LayerNorm); Bias adds a bias last.
	Mean, Bias bool
}

// rms is the RMS norm that most families use.
func rms(path string) Norm { return Norm{Path: path} }

// Attention describes the attention of a layer.
type Attention struct {
	// Path of its tensors; empty means self_attn.
	Path string
	// Heads of queries and KVHeads of keys have HeadSize elements each, values
	// ValueSize.
	Heads, KVHeads, HeadSize, ValueSize int
	// Shared layers have no keys and values, but read those of layer Lender. Same
	// keys, before their norm, are the values.
	Shared bool
	Lender int
	Same   bool
	// Bias: queries, keys and values have biases. OutBias: the output
	// projection has one.
	Bias, OutBias bool
	// ValueNorm norms each head of values, with a weight of ones; ValueScale
	// multiplies values, where it is not 0.
	ValueNorm  bool
	ValueScale float64
	// HeadGate selects the function of g_proj, a number per head, that multiplies
	// the output of the head.
	HeadGate HeadGate
	// Gated: each query head is followed by a gate of the same size, whose
	// sigmoid multiplies the head's output.
	Gated bool
	// Sinks: each query head has a learned score that joins the softmax and
	// contributes no value (attention sinks).
	Sinks bool
	// HeadNorm is the norm of queries and keys. NormLast applies it after the
	// rotation instead of before.
	HeadNorm HeadNorm
	NormLast bool
	// Rope is the rotary embedding of the heads; nil means none.
	Rope *Rope
	// Temper scales queries up with their position; nil means that it does not.
	Temper *Temper
	// Window is the number of latest positions that a token attends to; 0 means
	// all.
	Window int
	// Chunk, unless 0, cuts positions into chunks; a token attends to none before its own.
	Chunk int
	// Scale multiplies scores. Cap, unless 0, bounds them: Cap*tanh(score/Cap).
	Scale, Cap float64
}

// HeadNorm selects how queries and keys are normed.
type HeadNorm int

// The kinds of norms: none, one weight for all heads, one run of all heads
// together, each head with a weight of ones.
const (
	NoHeadNorm HeadNorm = iota
	EachHead
	AllHeads
	BareHead
)

// HeadGate selects how the output of heads is gated.
type HeadGate int

// The gates: none, sigmoid, softplus.
const (
	NoGate HeadGate = iota
	SigmoidGate
	SoftplusGate
)

// Feed is a dense feed-forward.
type Feed struct {
	// Path of its tensors; empty means mlp.
	Path string
	// Width of the hidden layer.
	Width int
	// Activation of the gate, or of the first product if Plain.
	Activation Activation
	// Plain means no gate: up_proj, activation, down_proj.
	Plain bool
	// Bias is added to every product.
	Bias bool
	// Sparsity is the part of a gate's elements that become 0, if they are normally
	// distributed: a threshold is subtracted from all, and negative ones are 0. 0 keeps all.
	Sparsity float64
	// Limit bounds SiLU of the gate from above, and what it multiplies on both
	// sides; 0 means no bound.
	Limit float64
}

// Activation is an activation function of a feed-forward.
type Activation int

// The activations. GELUTanh is the tanh approximation of GELU, ReLU2 the square
// of max(0, x).
const (
	SiLU Activation = iota
	GELU
	GELUTanh
	ReLU2
	XIELU
)

// preNorm is the block of most decoders: attention and feed-forward each read
// the normed input and add their result to it.
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

// postNorm norms the results of both halves, and no inputs.
func postNorm(d Dimensions, i int) Block {
	b := sandwich(d, i)
	b.Before, b.BeforeFeed = Norm{}, Norm{}
	return b
}

// norm returns the family's kind of norm (RMS or LayerNorm) at path.
func (d Dimensions) norm(path string) Norm {
	return Norm{Path: path, Mean: d.MeanNorm, Bias: d.NormBias}
}

// attention returns the attention of layer i as far as the dimensions determine
// it.
func (d Dimensions) attention(i int) *Attention {
	a := &Attention{Heads: d.QueryHeads, KVHeads: d.KVHeads, HeadSize: d.HeadSize, ValueSize: d.HeadSize, Bias: d.Bias, OutBias: d.OutBias, HeadNorm: d.HeadNorm, Rope: &d.Rope, Temper: d.Temper, Window: d.WindowOf(i), Scale: d.ScoreScale(), Cap: d.ScoreCap}
	if d.ValueSize > 0 {
		a.ValueSize = d.ValueSize
	}
	if d.LocalRope != nil && a.Window > 0 {
		a.Rope = d.LocalRope
	}
	if d.Chunked {
		a.Chunk = a.Window
	}
	if l := d.Local; a.Window > 0 && l != (Heads{}) {
		a.Heads, a.KVHeads, a.HeadSize, a.ValueSize = l.Queries, l.KeyValues, l.Size, l.ValueSize
	}
	if i < len(d.LayerHeads) {
		a.Heads = d.LayerHeads[i]
	}
	if i < len(d.Ropes) {
		a.Rope = &d.Ropes[i]
	}
	if i < len(d.Lenders) && d.Lenders[i] != i {
		a.Shared, a.Lender = true, d.Lenders[i]
	}
	if i < len(d.Still) && d.Still[i] {
		a.Rope = nil
	}
	return a
}

// at is the number of layer i, 0 past the end.
func at(list []float64, i int) float64 {
	if i < len(list) {
		return list[i]
	}
	return 0
}

// Block describes layer i of a decoder.
func (d Dimensions) Block(i int) Block { return d.family().Block(d, i) }

// WindowOf returns the number of latest positions that a layer attends to; 0
// means all.
func (d Dimensions) WindowOf(layer int) int {
	if layer < len(d.Everywhere) && d.Everywhere[layer] {
		return 0
	}
	return d.Window
}

// ScoreScale is the factor of attention scores.
func (d Dimensions) ScoreScale() float64 {
	if d.Scale > 0 {
		return d.Scale
	}
	if d.QueryScalar > 0 {
		return 1 / math.Sqrt(d.QueryScalar)
	}
	return 1 / math.Sqrt(float64(d.HeadSize))
}

// Kinds counts the layers of a decoder by what they keep of a request.
type Kinds struct {
	Growing, Window, Recurrent, Stateless int
	// Heads and Local are the elements that layers of both kinds keep of a token.
	Heads, Local int
	// Widest is the attention whose queries are widest; nil where no layer attends.
	Widest *Attention
}

// Kinds counts the layers by the cache they need for a request.
func (d Dimensions) Kinds() (k Kinds) {
	for i := range d.Layers {
		b := d.Block(i)
		if a := b.Attention; a != nil && (k.Widest == nil || a.Heads*a.HeadSize > k.Widest.Heads*k.Widest.HeadSize) {
			k.Widest = a
		}
		switch {
		case b.Recurrent != nil:
			k.Recurrent++
		case b.Attention == nil || b.Attention.Shared:
			k.Stateless++
		case b.Attention.Window > 0:
			k.Window++
			k.Local = d.kept(b)
		default:
			k.Growing++
			k.Heads = d.kept(b)
		}
	}
	return k
}

// kept is how many elements of keys and values a layer keeps of a token.
func (d Dimensions) kept(b Block) int {
	if b.Latent != nil {
		return b.Latent.Stored()
	}
	return b.Attention.KVHeads * (b.Attention.HeadSize + b.Attention.ValueSize)
}

// NormsLessOne reports whether model folders of the family store the weights of
// norms minus one. GGUF files store the weights themselves (llama.cpp's
// convert_hf_to_gguf.py adds the one).
func (d Dimensions) NormsLessOne() bool { return d.Layout().NormsLessOne }
