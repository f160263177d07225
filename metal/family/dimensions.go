package family

// maxLayers bounds the layers of a decoder, and with them what is computed for each.
const maxLayers = 1 << 12

// Dimensions are the sizes and options that determine the network of a model.
type Dimensions struct {
	Architecture string
	Layers       int
	Hidden       int
	FeedForward  int
	QueryHeads   int
	KVHeads      int
	HeadSize     int
	Vocabulary   int
	Context      int
	Rope         Rope
	NormEps      float64
	// Window is the number of latest positions that attention sees; 0 means
	// all. Layers marked in Everywhere always see all.
	Window     int
	Everywhere []bool
	// Chunked means that layers with a window attend within chunks of its length instead.
	Chunked bool
	// LocalRope is the rotary embedding of layers with a window; nil means the
	// same as in other layers.
	LocalRope *Rope
	// Local are the heads of layers under the window; the zero value is those of the
	// others. ValueSize is that of heads of values, 0 that of keys.
	Local     Heads
	ValueSize int
	// LayerHeads are the query heads of each layer, and Ropes the rotary embeddings;
	// nil means that layers do not differ.
	LayerHeads []int
	Ropes      []Rope
	// HeadGate is the gate of heads.
	HeadGate HeadGate
	// Limits and SharedLimits bound the factors of experts, and of shared experts
	// and dense feed-forwards, by layer; 0 and past the end mean no bound.
	Limits, SharedLimits []float64
	// Lenders says whose keys and values each layer reads: its own, or those of an
	// earlier layer; nil means its own.
	Lenders []int
	// Sinks are those of layers that see everything, and of those under the window;
	// ValueScale multiplies values, where it is not 0.
	Sinks      [2]bool
	ValueScale float64
	// Pattern has a letter for what each layer is, in families of single halves.
	Pattern string
	// SameValues is set where keys are the values in layers that see everything,
	// WideLenders where feed-forwards of layers that read another's are twice as wide.
	SameValues, WideLenders bool
	// QueryScalar: scores are divided by its square root; 0 means HeadSize.
	QueryScalar float64
	// EmbedScale multiplies token embeddings; 0 means 1.
	EmbedScale float64
	// Temper scales queries up with their position; nil means that it does not.
	Temper *Temper
	// Latent is set for multi-head latent attention.
	Latent *Latent
	// Experts describes the layers that are mixtures of experts.
	Experts Experts
	// Hybrid describes the recurrent layers.
	Hybrid Hybrid
	// Scale multiplies scores; 0 means that QueryScalar or HeadSize decides.
	Scale float64
	// Bias: queries, keys and values have biases. OutBias: the output
	// projection of attention has one. FeedBias: the products of the
	// feed-forward have one.
	// HeadBias is the bias of the output head.
	Bias, OutBias, FeedBias, HeadBias bool
	// HeadNorm is the norm of queries and keys.
	HeadNorm HeadNorm
	// Still marks layers whose heads are not rotated (NoPE); nil means none.
	Still []bool
	// Parallel means that attention and feed-forward read the same input.
	Parallel bool
	// Residual multiplies the output of a block before it is added; 0 means 1.
	Residual float64
	// ScoreCap bounds attention scores: ScoreCap*tanh(score/ScoreCap); 0 means
	// no bound.
	ScoreCap float64
	// LogitScale multiplies logits; LogitCap then bounds them:
	// LogitCap*tanh(logit/LogitCap). 0 means neither.
	LogitScale, LogitCap float64
	// MeanNorm: norms subtract the mean (LayerNorm). NormBias: norms have a
	// bias.
	MeanNorm, NormBias bool
	// Inner is the width of what each token brings to every layer besides; 0 is none.
	Inner int
	// InnerVocabulary is how many tokens have layer inputs of their own; the others have
	// those of token 0. 0 means all.
	InnerVocabulary int
	// Streams are the residuals of a layer; nil means one.
	Streams *Streams
	// Widths are those of the feed-forwards by layer, and Sparsities what their gates leave
	// out (Feed.Sparsity); nil means that layers do not differ.
	Widths     []int
	Sparsities []float64
	// Drafts means that the files have the tensors of the family's draft head.
	Drafts bool
	// Encoder is set for families with bidirectional attention.
	Encoder *Encoder
	// Tower is the vision tower; nil if the model has none, or if it is not
	// supported, for which TowerFault is the reason.
	Tower      *Tower
	TowerFault error
}

// Heads are the numbers and sizes of a layer's heads.
type Heads struct{ Queries, KeyValues, Size, ValueSize int }

// Temper multiplies the query at a position by 1 + Beta*ln(1 +
// floor((position+Lead)/Every)), as in transformers' modeling_ministral3.py and, with a
// lead of 1, modeling_llama4.py (version 5).
type Temper struct {
	Beta        float64
	Every, Lead int
}

// Rope is a rotary position embedding: the pairs (i, i+Size/2) of the first
// Size elements of a head are rotated by the angle position/Linear *
// Theta^(-2i/Size) / Factors[i], and multiplied by Magnitude.
type Rope struct {
	Theta float64
	Size  int
	// Linear and Magnitude are 1 if the file does not contain them.
	Linear, Magnitude float64
	// Factors divide the frequencies; nil means 1.
	Factors []float32
	// Interleaved rotates the pairs (2i, 2i+1) instead.
	Interleaved bool
}

// consistent checks the dimensions against one another.
func (d Dimensions) consistent() error {
	switch {
	case d.QueryHeads%d.KVHeads != 0:
		return Invalidf("%d query heads are not a multiple of %d key-value heads", d.QueryHeads, d.KVHeads)
	case d.HeadSize%2 != 0 || d.HeadSize < 2:
		return Invalidf("head size %d is not an even number", d.HeadSize)
	case d.Rope.Size < 2 || d.Rope.Size%2 != 0 || d.Rope.Size > d.HeadSize:
		return Invalidf("%d rotary elements do not fit a head of %d", d.Rope.Size, d.HeadSize)
	}
	return d.Experts.consistent()
}

// Layout describes how model folders store the tensors.
func (d Dimensions) Layout() Layout { return d.family().Layout }
