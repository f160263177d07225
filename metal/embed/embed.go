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
	"errors"
	"fmt"

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
