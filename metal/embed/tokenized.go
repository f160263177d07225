package embed

import (
	"math"
	"slices"

	"metalfleet.dev/metalfleet/metal/tokenizer"
)

// Tokenized is a text, or a query and a document, as tokens that only Input puts together.
// Until then the inputs of one request share the tokens of their query or prompt, so that many
// of them with a long query take little memory.
type Tokenized struct {
	c   *Conventions
	tok *tokenizer.Tokenizer
	// shared tokens precede own. In a pair they are the query, a text by itself.
	shared, own []int32
	pair        bool
	tokens      int
}

// Len is the number of tokens of the input.
func (t *Tokenized) Len() int { return t.tokens }

// Own is the number of tokens that it keeps for itself.
func (t *Tokenized) Own() int { return len(t.own) }

// Shared is the number of tokens that are kept for it and others, with those of a query that
// are truncated.
func (t *Tokenized) Shared() int { return cap(t.shared) }

// Share makes it share the tokens that it begins with in common with another text, of which
// it then keeps only the others. Pairs share their query already.
func (t *Tokenized) Share(with Tokenized) {
	if t.pair || with.pair || len(t.shared) > 0 || len(with.shared) > 0 {
		return
	}
	n := 0
	for n < min(len(t.own), len(with.own)) && t.own[n] == with.own[n] {
		n++
	}
	t.shared, t.own = with.own[:n:n], slices.Clone(t.own[n:])
}

// Input puts the tokens into the model's template.
func (t *Tokenized) Input() Input {
	if t.pair {
		ids, types, _ := t.tok.Around(math.MaxInt, t.shared, t.own)
		return Input{ids, types}
	}
	ids, types, _ := t.tok.Around(math.MaxInt, slices.Concat(t.shared, t.own))
	if j := t.c.judge; j != nil {
		return Input{IDs: slices.Concat(j.prefix, ids, j.suffix)}
	}
	return Input{ids, types}
}

// around returns one text or two as they fit into the model's template within the limit.
func (c *Conventions) around(tok *tokenizer.Tokenizer, limit int, truncate bool, texts ...[]int32) (Tokenized, error) {
	whole := 0
	for _, t := range texts {
		whole += len(t)
	}
	within, n, cut := tok.Within(limit, texts...)
	switch {
	case cut && !truncate, n > limit:
		return Tokenized{}, tooLong(whole, limit)
	case n == 0:
		return Tokenized{}, ErrEmpty
	}
	last := len(within) - 1
	t := Tokenized{c: c, tok: tok, own: slices.Clone(within[last]), pair: last > 0, tokens: n}
	if t.pair {
		t.shared = within[0]
	}
	special, _, _ := tok.Around(math.MaxInt, make([][]int32, len(texts))...)
	for _, ids := range append([][]int32{special}, within...) {
		if err := c.checkRows(tok, ids); err != nil {
			return Tokenized{}, err
		}
	}
	return t, nil
}
