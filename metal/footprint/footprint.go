// Package footprint is the one arithmetic of memory: how many bytes a model
// needs, and how many a Mac may promise. Placement reserves by it, the agent's
// ledger admits by it, the engine's guard refuses by it.
//
// It owns the formulas and their constants. It refuses unknown dimensions:
// what cannot be computed cannot be admitted, and is never zero bytes. Every
// figure it returns is an estimate and is labelled so wherever it is shown.
// It measures nothing and imports the standard library and api/model alone.
//
// Start reading at Estimate, then at Limits in ceiling.go.
package footprint

import (
	"fmt"
	"math"

	"metalfleet.dev/metalfleet/api/model"
)

// Sizes in bytes.
const (
	MiB = int64(1) << 20
	GiB = int64(1) << 30
)

// PrefillChunk is how many tokens of a prompt are computed in one step at most.
const PrefillChunk = 512

// Context is what memory is promised for.
type Context struct {
	// Tokens of the longest request, prompt and answer together.
	Tokens int64
	// Sequences that run at once at most.
	Sequences int64
	// CacheTokens of keys and values that all running requests share.
	CacheTokens int64
}

// Terms are the parts of an engine's memory, in bytes, all estimates.
type Terms struct {
	// Weights as loaded.
	Weights int64
	// KV for CacheTokens over the layers that grow.
	KV int64
	// Transient of one prefill chunk: activations, attention scores, logits.
	Transient int64
	// Overhead of the process: runtime, tokenizer, buffers.
	Overhead int64
}

// Total is the sum of the terms.
func (t Terms) Total() int64 { return t.Weights + t.KV + t.Transient + t.Overhead }

// Estimate computes what an engine needs. It returns an error wrapping
// model.ErrIncomplete when a dimension is unknown, and an error when the
// context cannot be meant or the sum does not fit 63 bits.
func Estimate(f model.Facts, c Context) (Terms, error) {
	if err := f.Validate(); err != nil {
		return Terms{}, err
	}
	if c.Tokens < 1 || c.Sequences < 1 || c.CacheTokens < c.Tokens {
		return Terms{}, fmt.Errorf("context of %d tokens, %d sequences, %d cache tokens cannot be served: want at least 1, 1 and as many cache tokens as tokens", c.Tokens, c.Sequences, c.CacheTokens)
	}
	t := Terms{Weights: f.WeightBytes, Overhead: overhead(f)}
	var ok1, ok2 bool
	t.KV, ok1 = product(2, c.CacheTokens, f.GrowingLayers, f.KeyValueHeads, f.HeadSize, f.KeyValueElementBytes)
	t.Transient, ok2 = transient(f, c)
	if !ok1 || !ok2 || float64(t.Weights)+float64(t.KV)+float64(t.Transient) > math.MaxInt64/2 {
		return Terms{}, fmt.Errorf("memory of a context of %d cache tokens does not fit 63 bits: the dimensions in the file header cannot be right", c.CacheTokens)
	}
	return t, nil
}

// overhead is the process without weights: Go runtime and code about 48 MiB,
// and the tokenizer's tables, about 200 bytes a token.
func overhead(f model.Facts) int64 { return 48*MiB + 200*f.VocabularySize }

// transient is what one prefill chunk needs beside weights and KV: for each
// token the residual stream, its normalised copy, queries, keys, values,
// attention output and the three feed-forward vectors, in float32; one row of
// attention scores per query head (kernels that never form the whole score
// matrix); and logits for every sequence.
func transient(f model.Facts, c Context) (int64, bool) {
	chunk := min(PrefillChunk, c.Tokens)
	perToken := 4*f.HiddenSize + 2*f.QueryHeads*f.HeadSize + 2*f.KeyValueHeads*f.HeadSize + 3*f.FeedForwardSize
	activations, ok1 := product(4, chunk+c.Sequences, perToken)
	scores, ok2 := product(4, f.QueryHeads, c.Tokens)
	logits, ok3 := product(4, c.Sequences, f.VocabularySize)
	return activations + scores + logits, ok1 && ok2 && ok3
}

// product multiplies non-negative factors and reports whether it fits a
// quarter of 63 bits, so that a few products can be added.
func product(factors ...int64) (int64, bool) {
	p := int64(1)
	for _, f := range factors {
		if f < 0 || f != 0 && p > math.MaxInt64/4/f {
			return 0, false
		}
		p *= f
	}
	return p, true
}
