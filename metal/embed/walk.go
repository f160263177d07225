package embed

import (
	"context"
	"math"

	"metalfleet.dev/metalfleet/metal/nn"
	"metalfleet.dev/metalfleet/metal/tensor"
)

// Run embeds one text: a vector of the model's hidden width. A text that is
// longer than a step of the back end is walked through in chunks; its mean is
// put together in float64. id is a request that the cache does not know yet; it
// is dropped at the end. ErrEmpty without tokens, else errors of the back end.
func Run(ctx context.Context, b tensor.Backend, n Network, cache tensor.Cache, id tensor.RequestID, tokens []int32, p Pooling) ([]float32, error) {
	if len(tokens) == 0 {
		return nil, ErrEmpty
	}
	w := newChunks(ctx, b, n, cache, id, tokens, p)
	defer w.Release()
	return w.rest()
}

// Walk is one input that is longer than a pass, and computed in parts. Other inputs may be
// computed between two of them.
type Walk interface {
	// Next computes the next part: of a decoder that is at most as many tokens. The result is nil until the last
	// one is computed. An error is that of the back end, after which the walk can only be released.
	Next(tokens int) (result []float32, err error)
	// Computed is how many tokens were computed, or as many as are as much work.
	Computed() int
	// Left is how many were not; 0 once there is a result.
	Left() int
	// Release drops what is kept between two parts.
	Release()
}

// chunks is one text on its way through a decoder, a chunk at a time. What it has so far stays
// in the cache.
type chunks struct {
	ctx   context.Context
	b     tensor.Backend
	n     Network
	cache tensor.Cache
	id    tensor.RequestID
	// tokens are left of whole, and chunk is how many are computed at once.
	tokens       []int32
	whole, chunk int
	// end computes the last chunk and returns the result.
	end func(tokens []int32) ([]float32, error)
	// mean is set if the result is put together from the means of all chunks, which sum
	// weighs by their lengths.
	mean bool
	sum  []float64
	p    Pooling
}

func newChunks(ctx context.Context, b tensor.Backend, n Network, cache tensor.Cache, id tensor.RequestID, tokens []int32, p Pooling) *chunks {
	w := &chunks{ctx: ctx, b: b, n: n, cache: cache, id: id, chunk: max(1, b.Chunk())}
	w.tokens, w.whole, w.p = tokens, len(tokens), p
	w.end = func(tokens []int32) ([]float32, error) { return w.pool(tokens, p) }
	return w
}

func (w *chunks) Computed() int { return w.whole - len(w.tokens) }

func (w *chunks) Left() int { return len(w.tokens) }

func (w *chunks) Release() { w.cache.Drop(w.id) }

func (w *chunks) Next(tokens int) (result []float32, err error) {
	piece := w.tokens[:min(w.chunk, max(1, tokens), len(w.tokens))]
	if w.p.Mode == First { // what follows cannot change it: families are causal
		w.tokens, w.whole = piece, len(piece)
	}
	w.mean = w.mean || w.p.Mode == Mean && len(piece) < len(w.tokens)
	switch last := len(piece) == len(w.tokens); {
	case w.mean:
		result, err = w.add(piece, last)
	case last:
		result, err = w.end(piece)
	default:
		err = w.extend(piece)
	}
	if err != nil {
		return nil, err
	}
	w.tokens = w.tokens[len(piece):]
	return result, nil
}

// rest computes all that is left.
func (w *chunks) rest() ([]float32, error) {
	for {
		if result, err := w.Next(w.chunk); err != nil || w.Left() == 0 {
			return result, err
		}
	}
}

func (w *chunks) segment(tokens []int32) []tensor.Segment {
	return []tensor.Segment{{Request: w.id, Start: w.cache.Length(w.id), Length: len(tokens)}}
}

// extend only fills the cache.
func (w *chunks) extend(tokens []int32) error {
	s := w.b.NewScope(w.ctx)
	defer s.Close()
	w.n.Step(s, w.cache, s.IDs(tokens), w.segment(tokens), nil)
	return s.Err()
}

// pool reads the pooled states of tokens.
func (w *chunks) pool(tokens []int32, p Pooling) ([]float32, error) {
	s := w.b.NewScope(w.ctx)
	defer s.Close()
	segments := w.segment(tokens)
	inner := s.Child()
	states := w.n.Hidden(inner, w.cache, inner.IDs(tokens), segments)
	if inner.Err() != nil {
		inner.Close()
		return nil, s.Err()
	}
	out := inner.Keep(p.Pool(inner, states, segments, nil))
	inner.Close()
	if err := s.Err(); err != nil {
		return nil, err
	}
	values := make([]float32, out.Shape()[1])
	s.Read(out, values)
	return values, s.Err()
}

// add adds the mean of a chunk, and returns that of the text after the last one.
func (w *chunks) add(piece []int32, last bool) ([]float32, error) {
	v, err := w.pool(piece, Pooling{Mode: Mean})
	if err != nil {
		return nil, err
	}
	if w.sum == nil {
		w.sum = make([]float64, len(v))
	}
	for i, x := range v {
		w.sum[i] += float64(x) * float64(len(piece))
	}
	if !last {
		return nil, nil
	}
	scale := 1 / float64(w.whole)
	if w.p.Normalize {
		var squares float64
		for _, x := range w.sum {
			squares += x * x
		}
		if scale = 0; squares > 0 {
			scale = 1 / math.Sqrt(squares)
		}
	}
	out := make([]float32, len(w.sum))
	for i, x := range w.sum {
		out[i] = float32(x * scale)
	}
	return out, nil
}

// layers is one text on its way through an encoder, a layer at a time.
type layers struct {
	m      *Model
	texts  nn.Texts
	scope  tensor.Scope
	pass   *nn.EncoderPass
	ended  bool
	tokens int
}

func (w *layers) Next(int) ([]float32, error) {
	if w.pass == nil {
		w.pass = w.m.encoder.Begin(w.scope, w.texts)
	}
	more := w.pass.Next()
	if w.scope.Err() == nil {
		w.pass.Wait()
	}
	if err := w.scope.Err(); err != nil || more {
		return nil, err
	}
	w.ended = true
	out, err := w.m.readIn(w.scope, 1, func(s tensor.Scope) tensor.Array { return w.m.encoded(s, w.pass.States(), w.texts.Segments) })
	if err != nil {
		return nil, err
	}
	w.m.squash(out)
	return out[0], nil
}

func (w *layers) Computed() int { return w.tokens - w.Left() }

func (w *layers) Left() int {
	switch {
	case w.ended:
		return 0
	case w.pass == nil:
		return w.tokens
	}
	computed, all := w.pass.Layers()
	return max(1, w.tokens*(all-computed)/all)
}

func (w *layers) Release() { w.scope.Close() }
