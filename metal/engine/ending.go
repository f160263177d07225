package engine

import (
	"math"
	"slices"
)

// maxStopTokens bounds Request.StopTokens.
const maxStopTokens = 128

// ending is which tokens end an answer, and from when on.
type ending struct {
	tokens map[int32]bool
	// least is how many tokens come before that.
	least int
}

// checkLength refuses lengths and stop tokens that cannot be meant.
func (s *serving) checkLength(r Request) *Refusal {
	switch {
	case r.MaxTokens < 0:
		return invalid("max_tokens", "max_tokens is %d, want 1 or more", r.MaxTokens)
	case r.MinTokens < 0:
		return invalid("min_tokens", "min_tokens is %d, want 0 or more", r.MinTokens)
	case r.MaxTokens > 0 && r.MinTokens > r.MaxTokens:
		return invalid("min_tokens", "min_tokens is %d, more than max_tokens, which is %d", r.MinTokens, r.MaxTokens)
	case len(r.StopTokens) > maxStopTokens:
		return invalid("stop_token_ids", "%d stop tokens, want at most %d", len(r.StopTokens), maxStopTokens)
	}
	for _, id := range r.StopTokens {
		if id < 0 || int(id) >= s.tok.Size() {
			return invalid("stop_token_ids", "stop_token_ids contains token %d, but the vocabulary has tokens 0 to %d", id, s.tok.Size()-1)
		}
	}
	return nil
}

// endingOf is how an answer ends that may have calls of tools. An answer that is
// held to a form has to end with the form, so the model's own ends count there.
func (s *serving) endingOf(r Request, c *caller) ending {
	e := ending{tokens: map[int32]bool{}, least: r.MinTokens}
	for _, id := range r.StopTokens {
		e.tokens[id] = true
	}
	if r.IgnoreEnd && r.Constraint == nil {
		return e
	}
	for id := range s.ends {
		e.tokens[id] = true
	}
	if c != nil {
		for id := range c.ends {
			e.tokens[id] = true
		}
	}
	return e
}

// free reports whether an answer of n tokens may end with the next one.
func (e ending) free(n int) bool { return n >= e.least }

// forbid makes the tokens that end an answer impossible, unless nothing else is
// possible: a form may be complete.
func (e ending) forbid(logits []float32) {
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
