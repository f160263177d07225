package embed

import (
	"context"
	"fmt"
	"math"
	"slices"

	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/metal/arch"
	"metalfleet.dev/metalfleet/metal/nn"
	"metalfleet.dev/metalfleet/metal/tensor"
	"metalfleet.dev/metalfleet/metal/weights"
)

// Model computes embeddings of texts, or scores of pairs. Only the goroutine
// that owns the back end may use it.
type Model struct {
	*Conventions
	b tensor.Backend
	// encoder, or decoder with its cache.
	encoder arch.Encoder
	decoder arch.Model
	cache   tensor.Cache
	vocab   int
	last    tensor.RequestID
}

// Load loads the network of a model that is not for writing text; c is what
// ConventionsOf said. After an error nothing stays loaded.
func Load(ctx context.Context, b tensor.Backend, f *weights.File, c *Conventions, progress func(int64)) (*Model, error) {
	if c.Task == model.Generate {
		return nil, fmt.Errorf("the model is for %s: %w", c.Task, weights.ErrUnsupported)
	}
	m := &Model{Conventions: c, b: b, vocab: f.Dim.Vocabulary}
	var err error
	if f.Dim.Encoder != nil {
		if m.encoder, err = arch.LoadEncoder(ctx, b, f, progress); err != nil {
			return nil, err
		}
		return m, nil
	}
	f.DropDraft()
	if m.decoder, err = arch.Load(ctx, b, f, progress); err != nil {
		return nil, err
	}
	if m.cache, err = b.NewCache(m.decoder.CacheSpec()); err != nil {
		m.Release()
		return nil, err
	}
	return m, nil
}

// Release frees the weights.
func (m *Model) Release() {
	if m.cache != nil {
		m.cache.Release()
	}
	if m.decoder != nil {
		m.decoder.Release()
	}
	if m.encoder != nil {
		m.encoder.Release()
	}
}

// BlockTokens is the KV block size of a decoder during a pass; 0 for an
// encoder, which has no cache.
func (m *Model) BlockTokens() int {
	if m.decoder == nil {
		return 0
	}
	return m.decoder.CacheSpec().BlockTokens
}

// PassTokens is the maximum number of tokens of a pass, except for a single
// input of an encoder, which is computed whole.
func PassTokens(b tensor.Backend) int { return max(1, b.Chunk()) }

// Fit is the number of leading inputs that one pass takes, at least one.
func (m *Model) Fit(inputs []Input) int {
	room := PassTokens(m.b)
	for i, in := range inputs {
		if room -= len(in.IDs); room < 0 {
			return max(1, i)
		}
	}
	return len(inputs)
}

// Compute returns one embedding per input, or one score per input for a
// reranker, for as many inputs as Fit returns, in one pass. Errors are those of
// the back end.
func (m *Model) Compute(ctx context.Context, inputs []Input) ([][]float32, error) {
	if m.encoder != nil {
		return m.encode(ctx, inputs)
	}
	if len(inputs) == 1 && m.Long(len(inputs[0].IDs)) {
		w := m.Walk(ctx, inputs[0])
		defer w.Release()
		for {
			if result, err := w.Next(PassTokens(m.b)); err != nil || w.Left() == 0 {
				return [][]float32{result}, err
			}
		}
	}
	return m.decode(ctx, inputs)
}

// flat concatenates inputs.
func (m *Model) flat(inputs []Input) nn.Texts {
	var t nn.Texts
	for _, in := range inputs {
		m.last++
		t.IDs, t.Types = append(t.IDs, in.IDs...), append(t.Types, in.Types...)
		t.Segments = append(t.Segments, tensor.Segment{Request: m.last, Length: len(in.IDs)})
	}
	return t
}

func (m *Model) encode(ctx context.Context, inputs []Input) ([][]float32, error) {
	t := m.flat(inputs)
	out, err := m.read(ctx, len(inputs), func(s tensor.Scope) tensor.Array { return m.encoded(s, m.encoder.Hidden(s, t), t.Segments) })
	own(out)
	m.squash(out)
	return out, err
}

// own makes rows of one array arrays of their own: a request keeps its rows until it ends, and would
// keep those of the others in the pass.
func own(rows [][]float32) {
	for i, row := range rows {
		rows[i] = slices.Clone(row)
	}
}

// encoded are the results of the states of the last layer of an encoder.
func (m *Model) encoded(s tensor.Scope, states tensor.Array, segments []tensor.Segment) tensor.Array {
	switch {
	case s.Err() != nil:
		return states
	case m.Task == model.Rerank:
		return m.encoder.Score(s, states, segments)
	}
	return m.Pooling.Pool(s, states, segments, nil)
}

// squash makes scores of the results of an encoder, if it ranks.
func (m *Model) squash(out [][]float32) {
	if m.Task != model.Rerank || m.identity {
		return
	}
	for _, v := range out {
		v[0] = sigmoid(v[0])
	}
}

// decode runs several whole inputs through a decoder in one step.
func (m *Model) decode(ctx context.Context, inputs []Input) ([][]float32, error) {
	t := m.flat(inputs)
	defer func() {
		for _, g := range t.Segments {
			m.cache.Drop(g.Request)
		}
	}()
	if m.Task == model.Embed {
		out, err := m.read(ctx, len(inputs), func(s tensor.Scope) tensor.Array {
			states := m.decoder.Hidden(s, m.cache, s.IDs(t.IDs), t.Segments)
			if s.Err() != nil {
				return states
			}
			return m.Pooling.Pool(s, states, t.Segments, nil)
		})
		own(out)
		return out, err
	}
	lasts, at := make([]int, len(inputs)), 0
	for i, g := range t.Segments {
		at += g.Length
		lasts[i] = at - 1
	}
	out, err := m.read(ctx, len(inputs), func(s tensor.Scope) tensor.Array {
		return m.decoder.Step(s, m.cache, s.IDs(t.IDs), t.Segments, lasts)
	})
	return m.judge.scores(out), err
}

// Long reports whether an input of this many tokens is longer than a pass, and so computed in
// parts by Walk.
func (m *Model) Long(tokens int) bool {
	return (m.decoder != nil || m.encoder != nil) && tokens > PassTokens(m.b)
}

// Walk begins to compute a long input. It ends early if ctx does. The caller releases it.
func (m *Model) Walk(ctx context.Context, in Input) Walk {
	if m.encoder != nil {
		return &layers{m: m, texts: m.flat([]Input{in}), scope: m.b.NewScope(ctx), tokens: len(in.IDs)}
	}
	m.last++
	w := newChunks(ctx, m.b, m.decoder, m.cache, m.last, in.IDs, m.Pooling)
	if m.Task == model.Rerank {
		w.end = func(tokens []int32) ([]float32, error) { return m.score(w, tokens) }
	}
	return w
}

// score is that of a text whose last tokens are these.
func (m *Model) score(w *chunks, tokens []int32) ([]float32, error) {
	out, err := m.read(w.ctx, 1, func(s tensor.Scope) tensor.Array {
		return m.decoder.Step(s, m.cache, s.IDs(tokens), w.segment(tokens), []int{len(tokens) - 1})
	})
	if err != nil {
		return nil, err
	}
	return m.judge.scores(out)[0], nil
}

// read computes [n, width] and copies the rows out, into one array.
func (m *Model) read(ctx context.Context, n int, compute func(tensor.Scope) tensor.Array) ([][]float32, error) {
	s := m.b.NewScope(ctx)
	defer s.Close()
	return m.readIn(s, n, compute)
}

// readIn is read in a scope.
func (m *Model) readIn(s tensor.Scope, n int, compute func(tensor.Scope) tensor.Array) ([][]float32, error) {
	inner := s.Child()
	a := compute(inner)
	if inner.Err() == nil {
		a = inner.Keep(a)
	}
	inner.Close()
	if err := s.Err(); err != nil {
		return nil, err
	}
	width := a.Shape()[1]
	flat := make([]float32, n*width)
	s.Read(a, flat)
	if err := s.Err(); err != nil {
		return nil, err
	}
	out := make([][]float32, n)
	for i := range out {
		out[i] = flat[i*width : (i+1)*width : (i+1)*width]
	}
	return out, nil
}

// scores converts rows of logits to the probability of yes against no.
func (j *judge) scores(logits [][]float32) [][]float32 {
	out := make([][]float32, len(logits))
	for i, row := range logits {
		out[i] = []float32{sigmoid(row[j.yes] - row[j.no])}
	}
	return out
}

func sigmoid(x float32) float32 { return float32(1 / (1 + math.Exp(-float64(x)))) }
