package engine

import (
	"math"
	"slices"
)

// endTokens are the tokens that end an answer after a minimum number of tokens.
type endTokens struct {
	tokens map[int32]bool
	min    int
}

// allowedAfter reports whether an answer of n tokens may end with the next one.
func (e endTokens) allowedAfter(n int) bool { return n >= e.min }

// forbid makes the tokens that end an answer impossible, unless nothing else is possible:
// a form may be complete.
func (e endTokens) forbid(logits []float32) {
	never := float32(math.Inf(-1))
	kept := make(map[int32]float32, len(e.tokens))
	for id := range e.tokens {
		if int(id) < len(logits) {
			kept[id], logits[id] = logits[id], never
		}
	}
	if slices.ContainsFunc(logits, func(v float32) bool { return v > never }) {
		return
	}
	for id, v := range kept {
		logits[id] = v
	}
}
