// Package embed computes embeddings of texts, and relevance scores of pairs of a
// query and a document, with the conventions of each model.
//
// The conventions are read from the model's folder or file: pooling, prompts before a
// text, templates around a pair, and the maximum length. The package batches inputs
// into passes and splits long ones. Conventions that would change the result and are
// not implemented are refused by name: other poolings, several poolings at once,
// layers after the pooling, and scores of other tokens. The special tokens around a
// text are the tokenizer's responsibility.
//
// Start reading at Conventions and Model, then Pooling and Of; Run computes one text
// with a decoder.
package embed

import (
	"context"
	"errors"
	"fmt"
	"math"

	"metalfleet.dev/metalfleet/metal/tensor"
)

// ErrEmpty means that the text has no tokens to embed.
var ErrEmpty = errors.New("nothing to embed: the text has no tokens")

// Mode is which states of a text count.
type Mode int

// The modes. Last suits decoders: only the last token has seen the whole text.
const (
	Last Mode = iota
	Mean
	First
)

func (m Mode) String() string {
	switch m {
	case Last:
		return "last token"
	case Mean:
		return "mean"
	case First:
		return "first token"
	}
	return fmt.Sprintf("mode %d", int(m))
}

// Pooling is the method that reduces the states of a text to one vector.
type Pooling struct {
	Mode Mode
	// Normalize scales the vector to an L2 norm of 1; zeros stay zeros.
	Normalize bool
}

// Default is the pooling of a decoder that declares none: its last token,
// normalized (the convention of Qwen3-Embedding).
func Default() Pooling { return Pooling{Mode: Last, Normalize: true} }

// Pool pools the states [T, hidden] of whole texts, one per segment, into
// [segments, hidden]. mask has one number per row, 0 or 1 (nil: all 1); rows of
// 0 do not count. A segment has at least one row; one whose rows are all 0 has
// a mean of 0, and otherwise counts as if they were 1.
func (p Pooling) Pool(s tensor.Scope, states tensor.Array, segments []tensor.Segment, mask []float32) tensor.Array {
	var out tensor.Array
	if p.Mode == Mean {
		out = s.Mean(states, segments, mask)
	} else {
		out = s.Rows(states, p.rows(segments, mask))
	}
	if p.Normalize {
		out = s.Unit(out)
	}
	return out
}

// rows are the first or the last that counts of each segment.
func (p Pooling) rows(segments []tensor.Segment, mask []float32) []int {
	out := make([]int, 0, len(segments))
	at := 0
	for _, g := range segments {
		found, next := at, at+g.Length
		if p.Mode == Last {
			found = next - 1
		}
		for row := at; row < next; row++ {
			if mask == nil || mask[row] == 0 {
				continue
			}
			if found = row; p.Mode == First {
				break
			}
		}
		out, at = append(out, found), next
	}
	return out
}

// Network computes states: an arch.Model.
type Network interface {
	Step(s tensor.Scope, cache tensor.Cache, ids tensor.Array, segments []tensor.Segment, rows []int) tensor.Array
	Hidden(s tensor.Scope, cache tensor.Cache, ids tensor.Array, segments []tensor.Segment) tensor.Array
}

// Run embeds one text: a vector of the model's hidden width. A text that is
// longer than a step of the back end is walked through in chunks; its mean is
// put together in float64. id is a request that the cache does not know yet; it
// is dropped at the end. ErrEmpty without tokens, else errors of the back end.
func Run(ctx context.Context, b tensor.Backend, n Network, cache tensor.Cache, id tensor.RequestID, tokens []int32, p Pooling) ([]float32, error) {
	if len(tokens) == 0 {
		return nil, ErrEmpty
	}
	defer cache.Drop(id)
	w := walk{b: b, n: n, cache: cache, id: id}
	chunk := max(1, b.Chunk())
	if p.Mode == First { // what follows cannot change it: families are causal
		tokens = tokens[:min(chunk, len(tokens))]
	}
	if p.Mode == Mean && len(tokens) > chunk {
		return w.mean(ctx, tokens, chunk, p.Normalize)
	}
	for len(tokens) > chunk {
		if err := w.extend(ctx, tokens[:chunk]); err != nil {
			return nil, err
		}
		tokens = tokens[chunk:]
	}
	return w.pool(ctx, tokens, p)
}

// walk is one text on its way through the network.
type walk struct {
	b     tensor.Backend
	n     Network
	cache tensor.Cache
	id    tensor.RequestID
}

func (w *walk) segment(tokens []int32) []tensor.Segment {
	return []tensor.Segment{{Request: w.id, Start: w.cache.Length(w.id), Length: len(tokens)}}
}

// extend only fills the cache.
func (w *walk) extend(ctx context.Context, tokens []int32) error {
	s := w.b.NewScope(ctx)
	defer s.Close()
	w.n.Step(s, w.cache, s.IDs(tokens), w.segment(tokens), nil)
	return s.Err()
}

// pool reads the pooled states of tokens.
func (w *walk) pool(ctx context.Context, tokens []int32, p Pooling) ([]float32, error) {
	s := w.b.NewScope(ctx)
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

// mean weighs the means of chunks by their lengths.
func (w *walk) mean(ctx context.Context, tokens []int32, chunk int, normalize bool) ([]float32, error) {
	var sum []float64
	for at := 0; at < len(tokens); at += chunk {
		piece := tokens[at:min(at+chunk, len(tokens))]
		v, err := w.pool(ctx, piece, Pooling{Mode: Mean})
		if err != nil {
			return nil, err
		}
		if sum == nil {
			sum = make([]float64, len(v))
		}
		for i, x := range v {
			sum[i] += float64(x) * float64(len(piece))
		}
	}
	scale := 1 / float64(len(tokens))
	if normalize {
		var squares float64
		for _, x := range sum {
			squares += x * x
		}
		if scale = 0; squares > 0 {
			scale = 1 / math.Sqrt(squares)
		}
	}
	out := make([]float32, len(sum))
	for i, x := range sum {
		out[i] = float32(x * scale)
	}
	return out, nil
}
