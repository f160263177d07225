package nn

import (
	"metalfleet.dev/metalfleet/metal/family"
	"metalfleet.dev/metalfleet/metal/tensor"
)

// draft is a draft head: of the normed state of a token and the embedding of the next one
// it makes a state from which the output head predicts the token after that. Its layer
// attends to what it has read before. It reads each token of a request at the position of
// that token, with the state before it; the first with zeros.
type draft struct {
	embedNorm, stateNorm, norm *Norm
	// join maps both to one state.
	join  Linear
	block Block
}

// newDraft declares the draft head; number is that of its layer among those that attend.
func newDraft(l *Loader, d family.Dimensions, number int) *draft {
	out := new(draft)
	embedding, state, result := family.DraftNorms()
	out.embedNorm, out.stateNorm, out.norm = newNorm(l, "", embedding, d), newNorm(l, "", state, d), newNorm(l, "", result, d)
	l.Linear(family.DraftPrefix+"fc", &out.join)
	out.block = newBlock(l, family.DraftPrefix+"layers.0", d, d.DraftBlock(), d.Layers, number)
	return out
}

// read has the head read tokens: their embeddings and the states before them, both [T,
// hidden]. The result has the given rows, or all if rows is nil; nil if rows is empty.
func (h *draft) read(s tensor.Scope, embeddings, before tensor.Array, p Pass, rows []int) tensor.Array {
	if s.Err() != nil { // the arrays may have no shape
		return nil
	}
	width := embeddings.Shape()[1]
	both := s.Join([]tensor.Array{h.embedNorm.apply(s, embeddings), h.stateNorm.apply(s, before)}, width, width)
	x := h.block.Apply(s, h.join.Apply(s, both), p, rows)
	if x == nil || s.Err() != nil {
		return nil
	}
	return h.norm.apply(s, x)
}

// Drafting is what a step has of the draft head. The zero value is a step whose requests
// have no states from earlier steps.
type Drafting struct {
	// Before are the states that StepDrafting returned of the tokens before the segments:
	// [segments, hidden]; zeros where there is none.
	Before tensor.Array
	// Drafted segments begin with a token that the head has read (Draft); nil means none.
	Drafted []bool
	// Wanted rows of the step are those whose states are returned.
	Wanted []int
}

// Drafts reports whether the model has a draft head.
func (m *Decoder) Drafts() bool { return m.draft != nil }

// Draft has the head read one token of each segment with the state before it, [segments,
// hidden], and returns the logits [segments, vocabulary] of the token after it. The step
// that computes these tokens follows.
func (m *Decoder) Draft(s tensor.Scope, cache tensor.Cache, ids tensor.Array, segments []tensor.Segment, before tensor.Array) tensor.Array {
	inner := s.Child()
	defer inner.Close()
	embeddings := m.embed.Lookup(inner, ids)
	if inner.Err() != nil {
		return nil
	}
	x := m.draft.read(inner, embeddings, alike(inner, embeddings, before), Pass{Cache: cache, Segments: segments}, nil)
	if inner.Err() != nil {
		return nil
	}
	return inner.Keep(m.logits(inner, m.head.Apply(inner, x)))
}

// alike is x in the type of another array of its shape.
func alike(s tensor.Scope, like, x tensor.Array) tensor.Array {
	rows := make([]int, like.Shape()[0])
	for i := range rows {
		rows[i] = i
	}
	return s.Place(like, rows, x)
}

// StepDrafting is StepSeeing of a model with a draft head, which reads the tokens of the
// step too. It also returns the normed states [len(Wanted), hidden] of wanted rows.
func (m *Decoder) StepDrafting(s tensor.Scope, cache tensor.Cache, ids tensor.Array, segments []tensor.Segment, rows []int, sight Sight, d Drafting) (logits, states tensor.Array) {
	x := m.stack(s, cache, ids, segments, nil, sight)
	if s.Err() != nil {
		return nil, nil
	}
	normed := m.norm.apply(s, x)
	s.Release(x)
	if len(rows) > 0 {
		of := normed
		if !inOrder(rows, tensor.Tokens(segments)) {
			of = s.Rows(normed, rows)
		}
		logits = m.logits(s, m.head.Apply(only(s, rows), of))
	}
	if len(d.Wanted) > 0 {
		states = s.Rows(normed, d.Wanted)
	}
	m.follow(s, cache, ids, segments, normed, d)
	if s.Err() != nil {
		return nil, nil
	}
	return logits, states
}

// follow has the draft head read the tokens of a step that it has not read yet.
func (m *Decoder) follow(s tensor.Scope, cache tensor.Cache, ids tensor.Array, segments []tensor.Segment, normed tensor.Array, d Drafting) {
	var unread []tensor.Segment
	var rows, before, firsts, of []int // of the step, of the states before them; which begin a segment, and which
	at := 0
	for i, g := range segments {
		skip := 0
		if d.Drafted != nil && d.Drafted[i] {
			skip = min(1, g.Length)
		}
		if g.Length > skip {
			unread = append(unread, tensor.Segment{Request: g.Request, Start: g.Start + skip, Length: g.Length - skip})
		}
		for j := skip; j < g.Length; j++ {
			if j == 0 {
				firsts, of = append(firsts, len(rows)), append(of, i)
			}
			rows, before = append(rows, at+j), append(before, max(0, at+j-1))
		}
		at += g.Length
	}
	if len(rows) == 0 {
		return
	}
	inner := plain(s).Child()
	defer inner.Close()
	embeddings := m.embed.Lookup(inner, ids)
	if inner.Err() != nil {
		return
	}
	if len(rows) < at {
		embeddings = inner.Rows(embeddings, rows)
	}
	states := inner.Rows(normed, before)
	if len(firsts) > 0 {
		begun := d.Before
		if begun == nil {
			width := normed.Shape()[1]
			begun, of = inner.From(make([]float32, len(firsts)*width), len(firsts), width), nil
		}
		if of != nil {
			begun = inner.Rows(begun, of)
		}
		states = inner.Place(states, firsts, begun)
	}
	m.draft.read(inner, embeddings, states, Pass{Cache: cache, Segments: unread}, []int{})
}

// plain is the scope without adapters, which do not change the draft head.
func plain(s tensor.Scope) tensor.Scope {
	if a, ok := s.(*adapted); ok {
		return a.Scope
	}
	return s
}
