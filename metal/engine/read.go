package engine

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/metal/embed"
)

// maxInputs of one request.
const maxInputs = 2048

// EmbedRequest asks for a vector of each text, or of each list of tokens where
// there are no texts.
type EmbedRequest struct {
	Texts   []string
	Tokens  [][]int32
	Options embed.Options
}

// Embedded is the answer; vectors stand in the order of the texts.
type Embedded struct {
	Vectors      [][]float32
	PromptTokens int
}

// RerankRequest asks for a score of each document.
type RerankRequest struct {
	Query     string
	Documents []string
	Options   embed.Options
}

// Reranked is the answer; scores stand in the order of the documents.
type Reranked struct {
	Scores       []float32
	PromptTokens int
}

// reading is an admitted request for vectors or scores.
type reading struct {
	inputs []embed.Input
	// begun inputs are computed or on their way, out is what was computed.
	begun int
	out   [][]float32
	// cancelled is set from outside and seen between passes.
	cancelled atomic.Bool
	// ended gets exactly one value: nil after the last input.
	ended chan *Refusal
}

// Embed makes vectors. The error is a *Refusal; what ctx ends is Cancelled.
func (e *Engine) Embed(ctx context.Context, r EmbedRequest) (*Embedded, error) {
	s, refusal := e.readyFor(model.Embed)
	if refusal != nil {
		return nil, refusal
	}
	out, tokens, refusal := e.readAll(ctx, s, inputsOf(s, r))
	if refusal != nil {
		return nil, refusal
	}
	return &Embedded{out, tokens}, nil
}

// Rerank scores documents. The error is a *Refusal; what ctx ends is Cancelled.
func (e *Engine) Rerank(ctx context.Context, r RerankRequest) (*Reranked, error) {
	s, refusal := e.readyFor(model.Rerank)
	if refusal != nil {
		return nil, refusal
	}
	if n := len(r.Query); n > s.conventions.Limit*bytesPerToken {
		return nil, s.tooLongToRead("query", fmt.Sprintf("the query has %d bytes, but the model supports %d tokens", n, s.conventions.Limit))
	}
	out, tokens, refusal := e.readAll(ctx, s, texts{"documents", len(r.Documents), func(i int) int { return len(r.Documents[i]) }, func(i int) (embed.Input, error) {
		return s.conventions.Pair(s.tok, r.Query, r.Documents[i], r.Options)
	}})
	if refusal != nil {
		return nil, refusal
	}
	scores := make([]float32, len(out))
	for i, v := range out {
		scores[i] = v[0]
	}
	return &Reranked{scores, tokens}, nil
}

func (s *serving) tooLongToRead(param, detail string) *Refusal {
	return &Refusal{Kind: ContextLength, Param: param, Message: detail + "; shorten it, or enable truncation"}
}

// texts are what a request wants to be read.
type texts struct {
	param string
	count int
	// bytes of one that its tokenizer would look at.
	bytes func(i int) int
	write func(i int) (embed.Input, error)
}

func inputsOf(s *serving, r EmbedRequest) texts {
	if len(r.Texts) == 0 {
		return texts{"input", len(r.Tokens), func(int) int { return 0 }, func(i int) (embed.Input, error) {
			return s.conventions.Tokens(s.tok, r.Tokens[i], r.Options)
		}}
	}
	return texts{"input", len(r.Texts), func(i int) int { return len(r.Texts[i]) }, func(i int) (embed.Input, error) {
		return s.conventions.Text(s.tok, r.Texts[i], r.Options)
	}}
}

// readAll writes inputs, weighs and queues them, and waits for their end.
func (e *Engine) readAll(ctx context.Context, s *serving, all texts) ([][]float32, int, *Refusal) {
	r, refusal := s.written(ctx, all)
	if refusal != nil {
		return nil, 0, refusal
	}
	tokens := 0
	for _, in := range r.inputs {
		tokens += len(in.IDs)
	}
	if refusal := e.checkMemory(ctx, s, &active{prompt: e.passTokens(r.inputs)}, 0); refusal != nil {
		refusal.Param = all.param
		return nil, 0, refusal
	}
	if refusal := e.admitReading(r, tokens); refusal != nil {
		return nil, 0, refusal
	}
	e.poke()
	select {
	case refusal := <-r.ended:
		return r.out, tokens, refusal
	case <-ctx.Done():
		r.cancelled.Store(true)
		e.poke()
		return nil, 0, &Refusal{Kind: Cancelled, Message: "the request was cancelled"}
	}
}

// written is everything that can be refused about texts by themselves.
func (s *serving) written(ctx context.Context, all texts) (*reading, *Refusal) {
	if all.count == 0 || all.count > maxInputs {
		return nil, invalid(all.param, "%d texts, want 1 to %d", all.count, maxInputs)
	}
	r := &reading{inputs: make([]embed.Input, all.count), ended: make(chan *Refusal, 1)}
	for i := range all.count {
		if ctx.Err() != nil {
			return nil, &Refusal{Kind: Cancelled, Message: "the request was cancelled"}
		}
		if n := all.bytes(i); n > s.conventions.Limit*bytesPerToken {
			return nil, s.tooLongToRead(all.param, fmt.Sprintf("text %d has %d bytes, but the model supports %d tokens", i, n, s.conventions.Limit))
		}
		var err error
		switch r.inputs[i], err = all.write(i); {
		case errors.Is(err, embed.ErrTooLong):
			return nil, s.tooLongToRead(all.param, fmt.Sprintf("text %d: %v", i, err))
		case err != nil:
			return nil, invalid(all.param, "text %d: %v", i, err)
		}
	}
	return r, nil
}

// passTokens is what the largest pass over inputs takes: as many as the back end
// takes at once, or one input that is longer.
func (e *Engine) passTokens(inputs []embed.Input) int {
	all, longest := 0, 0
	for _, in := range inputs {
		all, longest = all+len(in.IDs), max(longest, len(in.IDs))
	}
	return max(longest, min(all, embed.PassTokens(e.opts.Backend)))
}

// admitReading queues a request unless too many wait already.
func (e *Engine) admitReading(r *reading, tokens int) *Refusal {
	e.mu.Lock()
	defer e.mu.Unlock()
	if refusal := e.enter(); refusal != nil {
		return refusal
	}
	e.readings = append(e.readings, r)
	e.promptTokensTotal.Add(int64(tokens))
	return nil
}
