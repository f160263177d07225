package footprint

import (
	"cmp"
	"slices"

	"metalfleet.dev/metalfleet/api/model"
)

// Prefill is a prompt that is about to be computed, in tokens.
type Prefill struct {
	// New tokens are to be computed; 0 or fewer need no memory.
	New int64
	// Cached tokens before them are in the cache already; negative counts as 0.
	Cached int64
	// Restored are those of the Cached tokens that are copied into the cache
	// first, where they take as much as computed ones.
	Restored int64
	// Room is for how many tokens of the prompt the cache has made room already, which
	// is in use then; fewer than Cached count as those.
	Room int64
	// Chunk of them are computed in one step at most; 0 or less: all at once.
	Chunk int64
	// AllLogits are wanted: those of each token of a chunk, not of the prompt's last
	// token alone.
	AllLogits bool
}

// Peak is the memory in bytes that a prefill needs in addition to what is in
// use.
type Peak struct {
	// KV of the new tokens, and of those that are restored.
	KV int64
	// Growth is the part of the cache that exists twice while it grows.
	Growth int64
	// Attention of one chunk in one layer: its output, and scores where the
	// kernels write them out.
	Attention int64
	// Activations of one chunk in the layers that are computed at once, without
	// those of Attention.
	Activations int64
	// Logits of the prompt's last token, or of each token of a chunk.
	Logits int64
}

// Total is the peak: growth happens before a step computes, so only the larger
// of both counts.
func (p Peak) Total() int64 { return p.KV + max(p.Growth, p.Attention+p.Activations+p.Logits) }

// Fusion is a family of attention kernels that never write scores out.
type Fusion struct {
	// HeadSizes that it has kernels for.
	HeadSizes []int64
	// MinQueries and MaxQueries bound the query tokens of one call; MaxQueries
	// 0 is no bound.
	MinQueries, MaxQueries int64
	// MaxRows bounds query tokens times query heads for one KV head; 0 is no
	// bound.
	MaxRows int64
}

// Kernels describes the memory of a backend's attention and caches. The zero
// value writes all scores once, in no bytes each, and keeps keys and values in
// the model's type.
type Kernels struct {
	// Fusions are the kernels that cost their output only.
	Fusions []Fusion
	// ScoreBytes is the width of one written score, and ScoreCopies how often
	// each is written (0 counts as 1).
	ScoreBytes, ScoreCopies int64
	// SoftmaxInPlace: scores that no mask hides are written once in spite of ScoreCopies.
	SoftmaxInPlace bool
	// ScoreRows, unless 0, is the maximum number of rows of scores that exist
	// at a time, for any chunk size: one for each computing thread.
	ScoreRows int64
	// TowerRounding is how many times its size an array of a vision tower takes at most; 0
	// counts as 1.
	TowerRounding int64
	// LatentCopies is how many layers at once have a copy in float32 of latent vectors
	// for every query head; 0 means that kernels read them in the cache.
	LatentCopies int64
	// MaskBytes is the size per query and key of a mask, which is written if a
	// window hides keys.
	MaskBytes int64
	// ElementBytes is the least width of a stored key or value and of an
	// activation; 0 means that of the model.
	ElementBytes int64
	// WidenedBytes is the element size in which narrower activations around
	// attention and norms are computed while the narrow ones still exist:
	// kernels that are not fused widen their input. The feed-forward does not.
	// 0 means no widening.
	WidenedBytes int64
	// BlockTokens is the granularity in which the cache grows; 0 means none.
	BlockTokens int64
	// Rotates: layers with a window keep only the window, with room for
	// WindowSlack more tokens: those of a step, and of moving the window.
	Rotates     bool
	WindowSlack int64
	// When a cache grows by copying, GrowLayers layers exist twice at once, and
	// at least GrowWhole bytes of it, but no more than GrowMost. One of up to
	// GrowInStep bytes is copied as a step gets to its layers: of GrowLayers layers
	// in order, those that grow exist twice. All are 0 if growing copies nothing.
	GrowLayers, GrowWhole, GrowMost, GrowInStep int64
	// RecurrentCopies is how many times the width of a recurrent layer is
	// written, in 4 bytes, while it computes; less than 2 counts as 2.
	RecurrentCopies int64
	// TwiceStates: a step that computes a prompt gathers the states of the sequences
	// that decode, of all layers before the first is done with, so that they exist
	// twice, and those of the layers that are written back a third time.
	TwiceStates bool
	// LogitBytes is the size of one logit in all its copies.
	LogitBytes int64
	// LayersAhead is the number of layers whose activations exist at a time,
	// because work is queued on the device before earlier work is done; 0
	// counts as 1.
	LayersAhead int64
	// Adapted rows may have adapters, whose products are added to those of the model.
	Adapted bool
	// EncoderAhead is LayersAhead for an encoder, whose layers have more
	// operations; 0 means the same.
	EncoderAhead int64
}

// ahead is of how many layers activations exist at once.
func (k Kernels) ahead(f model.Facts) int64 {
	if f.EncoderLayers > 0 && k.EncoderAhead > 0 {
		return min(k.EncoderAhead, f.Layers)
	}
	return max(1, min(k.LayersAhead, f.Layers))
}

// outputBytes is the width of an element of attention's output, a float32.
const outputBytes = 4

// Fused reports whether attention of this many query tokens, each with group
// query heads for one KV head, only needs memory for its output.
func (k Kernels) Fused(headSize, queryTokens, group int64) bool {
	for _, f := range k.Fusions {
		if slices.Contains(f.HeadSizes, headSize) && queryTokens >= f.MinQueries &&
			(f.MaxQueries == 0 || queryTokens <= f.MaxQueries) &&
			(f.MaxRows == 0 || queryTokens <= f.MaxRows/max(1, group)) {
			return true
		}
	}
	return false
}

// PrefillPeak computes the peak memory of a prefill. It returns an error
// wrapping model.ErrIncomplete if a dimension is unknown or invalid.
func PrefillPeak(f model.Facts, k Kernels, p Prefill) (Peak, error) {
	if err := f.Validate(); err != nil {
		return Peak{}, err
	}
	if p.New <= 0 {
		return Peak{}, nil
	}
	p.Cached = max(0, p.Cached)
	if p.New > most-p.Cached {
		return Peak{}, check("a prompt", p.New, amount{over: true})
	}
	chunk := p.New
	if p.Chunk > 0 && f.EncoderLayers == 0 { // an encoder reads a text whole
		chunk = min(chunk, p.Chunk)
	}
	made := p.Cached - min(max(0, p.Restored), p.Cached)
	if !k.Rotates || f.WindowLayers == 0 { // room for windows is made as they grow
		made = max(made, min(p.Room, p.Cached+p.New))
	}
	before, after := k.held(f, 1, made), k.held(f, 1, p.Cached+p.New)
	attention, activations := k.attention(f, chunk, p.New+p.Cached), k.activations(f, chunk)
	rows := int64(1)
	if p.AllLogits {
		rows = chunk
	}
	logits := k.logits(f, rows)
	if err := check("a prompt", p.New, before, after, attention, activations, logits); err != nil {
		return Peak{}, err
	}
	return Peak{
		KV: after.bytes - before.bytes, Growth: k.growth(f, after.bytes, 1),
		Attention: attention.bytes, Activations: activations.bytes, Logits: logits.bytes,
	}, nil
}

// FitChunk returns the largest chunk, up to that of p, with which the prefill
// fits into room bytes. ok is false if not even floor tokens at once fit, or if
// the peak cannot be computed; a prompt shorter than floor needs only its own
// length.
func FitChunk(f model.Facts, k Kernels, p Prefill, room, floor int64) (chunk int64, ok bool) {
	whole := p.Chunk
	if whole <= 0 {
		whole = max(1, p.New)
	}
	fits := func(chunk int64) bool {
		p.Chunk = chunk
		peak, err := PrefillPeak(f, k, p)
		return err == nil && peak.Total() <= room
	}
	if fits(whole) {
		return whole, true
	}
	low := max(1, min(floor, whole, p.New))
	if !fits(low) {
		return 0, false
	}
	for high := whole; high-low > 1; { // low fits, high does not
		if middle := low + (high-low)/2; fits(middle) {
			low = middle
		} else {
			high = middle
		}
	}
	return low, true
}

// attention is what one layer's attention of a chunk takes, over keys in all,
// at most: the last piece of a prompt may be shorter than the chunk, and some
// kernels that have no fused form for few queries have one for many.
func (k Kernels) attention(f model.Facts, chunk, keys int64) amount {
	a := k.attend(f, chunk, keys)
	for _, fusion := range k.Fusions {
		for _, n := range []int64{fusion.MinQueries - 1, fusion.MaxQueries} {
			if n < 1 || n > chunk {
				continue
			}
			if b := k.attend(f, n, keys); b.over || b.bytes > a.bytes {
				a = b
			}
		}
	}
	return a
}

// attend is the memory of attention of exactly this many queries: output = q c
// d 4, plus scores q c L w unless a fused kernel computes it.
func (k Kernels) attend(f model.Facts, queries, keys int64) amount {
	a := product(f.QueryHeads, queries, f.HeadSize, outputBytes)
	windowed := min(keys, f.WindowTokens+queries)
	switch {
	case f.GrowingLayers > 0, f.EncoderLayers > 0:
	case f.WindowLayers > 0:
		keys = windowed
	default:
		return a
	}
	switch {
	case k.ScoreRows > 0:
		a.add(k.ScoreRows, keys, k.ScoreBytes)
	case !k.Fused(f.HeadSize, queries, f.QueryHeads/f.KeyValueHeads):
		a.add(f.QueryHeads, queries, keys, k.ScoreBytes, max(1, k.ScoreCopies))
	}
	if f.GrowingElements > 0 && f.GrowingElements == f.KeyValueHeads*f.HeadSize { // values are within keys
		a.add(f.QueryHeads, keys, f.HeadSize, outputBytes, k.LatentCopies)
	}
	if f.WindowLayers > 0 {
		a.add(queries, windowed, k.MaskBytes)
	}
	return a
}

// activations of tokens. A block of metal/nn (PreNorm.Apply) holds
// until its end: its input and result, two normed inputs and two sums, what
// attention and feed-forward add; queries and keys as projected, normed and
// turned, values; gate, up and their product. A product has a second half of
// its result for the time being (metal/ref, Linear).
func (k Kernels) activations(f model.Facts, tokens int64) amount {
	if max(f.HiddenSize, f.FeedForwardSize, f.LayerInputSize) > most/32 || f.QueryHeads > most/32/f.HeadSize || f.RecurrentSize > most/32 || f.Experts > most/64 ||
		f.ExpertsPerToken > 0 && max(f.HiddenSize, f.ExpertFeedForwardSize) > most/64/f.ExpertsPerToken {
		return amount{over: true}
	}
	queries, keys := f.QueryHeads*f.HeadSize, f.KeyValueHeads*f.HeadSize
	around := 7*f.HiddenSize + 3*queries + 4*keys
	gated := int64(3)
	if f.EncoderLayers > 0 { // which has no gate
		gated = 2
	}
	feedForward := gated*f.FeedForwardSize + max(2*f.FeedForwardSize, queries+2*keys, f.HiddenSize)
	if f.Experts > 0 {
		feedForward = max(feedForward, sparse(f))
	}
	narrow := k.elementBytes(f)
	widened := narrow
	if narrow < k.WidenedBytes {
		widened += k.WidenedBytes
	}
	layers := k.ahead(f)
	if k.Adapted {
		around, feedForward = around+adaptedCopies*max(f.HiddenSize, queries), feedForward+adaptedCopies*max(f.FeedForwardSize, f.HiddenSize, f.ExpertsPerToken*f.ExpertFeedForwardSize)
	}
	if f.RecurrentLayers > 0 {
		return k.hybrid(f, tokens, around, feedForward, widened, layers)
	}
	a := product(tokens, around, widened, layers)
	a.add(tokens, feedForward, narrow, layers)
	a.add(tokens, layerInputs*f.LayerInputSize, widened)
	return a
}

// adaptedCopies is how often the product of a layer exists in addition while an adapter
// changes it: what is added, scaled; the rows that it is added to; and their sum (metal/nn,
// adapted). What is added may have twice the width of the model's type.
const adaptedCopies = 4

// layerInputs is how often the inputs of all layers exist at once: as they are made
// of embeddings and projections, or next to a layer once (metal/nn, layerInputs). Parallel
// residuals do as well: read, predicted and corrected (metal/nn, altUp).
const layerInputs = 3

// hybrid is the memory of a block without its cached state (metal/family,
// qwen3_next): the largest of attention, recurrence and feed-forward. A
// recurrent layer holds its input and its projections, in parts, together with
// the output of the convolution and of the state.
func (k Kernels) hybrid(f model.Facts, tokens, around, feedForward, widened, layers int64) amount {
	attention, inner := product(tokens, around, widened, layers), product(tokens, 3*f.HiddenSize, widened, layers)
	recurs := product(tokens, 2*f.HiddenSize, widened, layers)
	recurs.add(tokens, f.RecurrentSize, max(2, k.RecurrentCopies), stateBytes, layers)
	inner.add(tokens, feedForward, k.elementBytes(f), layers)
	largest := attention
	for _, a := range []amount{recurs, inner} {
		if a.over || a.bytes > largest.bytes {
			largest = a
		}
	}
	return largest
}

// stateBytes is the width in which recurrent layers compute.
const stateBytes = 4

// sparse is what a mixture holds for a token (metal/nn, Experts): scores of all
// experts and what comes of them, and for each that the token goes to its share
// and id, gate, up, their product and what comes back; besides, rows that are
// gathered for their experts, and gate and up a second time while they are
// computed.
func sparse(f model.Facts) int64 {
	return 2*f.Experts + f.ExpertsPerToken*(2+5*f.ExpertFeedForwardSize+2*f.HiddenSize)
}

// logits is the memory of this many rows of logits; an encoder has none.
func (k Kernels) logits(f model.Facts, rows int64) amount {
	if f.EncoderLayers == f.Layers {
		return amount{}
	}
	return product(rows, f.VocabularySize, k.LogitBytes)
}

// elementBytes is the width of a stored key or value.
func (k Kernels) elementBytes(f model.Facts) int64 {
	return max(k.ElementBytes, f.KeyValueElementBytes)
}

// held is what the caches of sequences hold that share tokens: keys and values
// of growing layers for every token, those of window layers for no more than a
// window of each sequence, and the states of recurrent layers.
func (k Kernels) held(f model.Facts, sequences, tokens int64) amount {
	var a amount
	if tokens <= 0 {
		return a
	}
	usual := product(2, f.KeyValueHeads, f.HeadSize)
	a.over = usual.over
	growing, local := cmp.Or(f.GrowingElements, usual.bytes), cmp.Or(f.WindowElements, usual.bytes)
	kept := roundUp(tokens, k.BlockTokens)
	a.add(growing, k.elementBytes(f), f.GrowingLayers, kept)
	if f.WindowLayers > 0 {
		if k.Rotates {
			window := product(sequences, roundUp(f.WindowTokens+k.WindowSlack, k.BlockTokens))
			a.over = a.over || window.over
			kept = min(kept, window.bytes)
		}
		a.add(local, k.elementBytes(f), f.WindowLayers, kept)
	}
	a.add(sequences, f.RecurrentStateBytes)
	return a
}

// growth is the part of the cache of sequences, this many bytes, that exists twice
// while it grows: the previous one, which had a block less, or the states of all
// sequences but the last, which lie by themselves.
func (k Kernels) growth(f model.Facts, held, sequences int64) int64 {
	states := (sequences - 1) * f.RecurrentStateBytes
	before := max(0, held-k.held(f, 1, 1).bytes-states)
	layers := max(1, f.Layers-f.RecurrentLayers-f.StatelessLayers)
	if k.Rotates && f.GrowingLayers > 0 { // which lie by themselves, and hold most of it
		layers = f.GrowingLayers
	}
	return max(k.twice(before, layers, f.Layers), k.twice(states, max(1, f.RecurrentLayers), f.Layers))
}

// gathered is what states take in addition while the prompt of one sequence is computed.
func (k Kernels) gathered(f model.Facts, sequences int64) amount {
	states := product(sequences-1, f.RecurrentStateBytes)
	if !k.TwiceStates || states.over {
		return amount{over: states.over}
	}
	states.add(k.twice(states.bytes, max(1, f.RecurrentLayers), f.Layers))
	return states
}

// twice is how much of this many bytes, in some of all layers, is copied at once.
func (k Kernels) twice(bytes, layers, all int64) int64 {
	copied, together := bytes, min(k.GrowLayers, layers)
	if k.GrowMost > 0 {
		copied = min(bytes, k.GrowMost)
	}
	if bytes <= k.GrowInStep {
		together = (together*layers + all - 1) / all
	}
	return max(min(bytes, k.GrowWhole), copied/layers*together)
}
