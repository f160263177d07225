package family

// Dimensions are the numbers a decoder family is built from.
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
	// Window is how many latest positions attention sees; 0 means all. Layers that
	// are Everywhere see all in any case.
	Window     int
	Everywhere []bool
	// LocalRope is how layers under the window turn heads; nil means as others.
	LocalRope *Rope
	// QueryScalar is what scores are divided by the root of; 0 means HeadSize.
	QueryScalar float64
	// EmbedScale multiplies what is looked up in the embedding; 0 means 1.
	EmbedScale float64
	// Temper makes queries grow with their position; nil means that they do not.
	Temper *Temper
	// Latent is set where keys and values come from a latent vector.
	Latent *Latent
	// Experts of layers that are mixtures.
	Experts Experts
	// Hybrid describes the recurrent layers.
	Hybrid Hybrid
	// Scale multiplies scores; 0 means that QueryScalar or HeadSize decides.
	Scale float64
	// Bias is added to queries, keys and values, OutBias to the result of attention,
	// FeedBias to the products of the feed-forward.
	Bias, OutBias, FeedBias bool
	// HeadNorm is how queries and keys are normed.
	HeadNorm HeadNorm
	// Still lists layers whose heads are not rotated; nil means none.
	Still []bool
	// Parallel blocks compute both halves of the same input.
	Parallel bool
	// Residual multiplies what a block adds; 0 means 1.
	Residual float64
	// ScoreCap bounds the scores of attention: Cap*tanh(score/Cap); 0 means that it
	// does not.
	ScoreCap float64
	// LogitScale multiplies logits, LogitCap then bounds them: Cap*tanh(logit/Cap).
	// 0 means neither.
	LogitScale, LogitCap float64
	// MeanNorm is set where norms take the mean from values (LayerNorm), NormBias
	// where they add a bias.
	MeanNorm, NormBias bool
	// Encoder is set for families whose tokens see one another all at once.
	Encoder *Encoder
}

// Temper multiplies the query at a position by 1 + Beta*ln(1 +
// floor(position/Every)), as transformers' modeling_ministral3.py (version 5).
type Temper struct {
	Beta  float64
	Every int
}

// Rope is how a family turns heads by position: pairs (i, i+Size/2) of the
// first Size elements, by position/Linear * Theta^(-2i/Size) / Factors[i],
// times Magnitude.
type Rope struct {
	Theta float64
	Size  int
	// Linear and Magnitude are 1 where the file does not say.
	Linear, Magnitude float64
	// Factors divide the frequencies; nil means 1.
	Factors []float32
	// Interleaved pairs are (2i, 2i+1) instead.
	Interleaved bool
}

// consistent checks the numbers against one another.
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

// Layout is how folders hold the tensors.
func (d Dimensions) Layout() Layout { return d.family().Layout }
