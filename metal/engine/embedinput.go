package engine

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"metalfleet.dev/metalfleet/metal/embed"
)

// maxInputs of one request.
const maxInputs = 2048

// embedding is an admitted request for vectors or scores.
type embedding struct {
	inputs []embed.Input
	// begun inputs are computed or in flight, out is what was computed.
	begun int
	out   [][]float32
	// cancelled is set by any goroutine and read between passes.
	cancelled atomic.Bool
	// ended gets exactly one value: nil after the last input.
	ended chan *Refusal
}

// tokens of all inputs.
func (e *embedding) tokens() (n int) {
	for _, in := range e.inputs {
		n += len(in.IDs)
	}
	return n
}

// passTokens is what the largest pass over inputs takes: as many as the back end takes at
// once, or one input that is longer.
func passTokens(inputs []embed.Input, maxPass int) int {
	all, longest := 0, 0
	for _, in := range inputs {
		all, longest = all+len(in.IDs), max(longest, len(in.IDs))
	}
	return max(longest, min(all, maxPass))
}

// texts are the inputs of a request, which came in the field param.
type texts struct {
	param string
	count int
	// bytes of one that its tokenizer would read.
	bytes func(i int) int
	input func(i int) (embed.Input, error)
}

// embedTexts are the texts or token lists to embed.
func (p *inputProcessor) embedTexts(r EmbedRequest) texts {
	if len(r.Texts) == 0 {
		return texts{"input", len(r.Tokens), func(int) int { return 0 }, func(i int) (embed.Input, error) {
			return p.conventions.Tokens(p.tok, r.Tokens[i], r.Options)
		}}
	}
	return texts{"input", len(r.Texts), func(i int) int { return len(r.Texts[i]) }, func(i int) (embed.Input, error) {
		return p.conventions.Text(p.tok, r.Texts[i], r.Options)
	}}
}

// rerankTexts are the documents to score, each with the query.
func (p *inputProcessor) rerankTexts(r RerankRequest) (texts, *Refusal) {
	if n := len(r.Query); n > p.conventions.Limit*bytesPerToken {
		return texts{}, inputTooLong("query", fmt.Sprintf("the query has %d bytes, but the model supports %d tokens", n, p.conventions.Limit))
	}
	return texts{"documents", len(r.Documents), func(i int) int { return len(r.Documents[i]) }, func(i int) (embed.Input, error) {
		return p.conventions.Pair(p.tok, r.Query, r.Documents[i], r.Options)
	}}, nil
}

func inputTooLong(param, detail string) *Refusal {
	return &Refusal{Kind: ContextLength, Param: param, Message: detail + "; shorten it, or enable truncation"}
}

// embeddingOf tokenizes texts, or refuses what is wrong with them.
func (p *inputProcessor) embeddingOf(ctx context.Context, all texts) (*embedding, *Refusal) {
	if all.count == 0 || all.count > maxInputs {
		return nil, invalid(all.param, "%d texts, want 1 to %d", all.count, maxInputs)
	}
	e := &embedding{inputs: make([]embed.Input, all.count), ended: make(chan *Refusal, 1)}
	for i := range all.count {
		if ctx.Err() != nil {
			return nil, &Refusal{Kind: Cancelled, Message: "the request was cancelled"}
		}
		if n := all.bytes(i); n > p.conventions.Limit*bytesPerToken {
			return nil, inputTooLong(all.param, fmt.Sprintf("text %d has %d bytes, but the model supports %d tokens", i, n, p.conventions.Limit))
		}
		var err error
		switch e.inputs[i], err = all.input(i); {
		case errors.Is(err, embed.ErrTooLong):
			return nil, inputTooLong(all.param, fmt.Sprintf("text %d: %v", i, err))
		case err != nil:
			return nil, invalid(all.param, "text %d: %v", i, err)
		}
	}
	return e, nil
}
