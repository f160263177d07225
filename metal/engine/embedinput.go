package engine

import (
	"context"
	"errors"
	"fmt"

	"metalfleet.dev/metalfleet/metal/embed"
)

const (
	// maxInputs of one request.
	maxInputs = 2048
	// maxInputBytes and maxInputTokens bound all texts of a request, in which a query, a prompt
	// and an instruction count for each text that they are read with.
	maxInputBytes  = 32 << 20
	maxInputTokens = 4 << 20
)

// embedding is an admitted request for vectors or scores.
type embedding struct {
	tenant string
	inputs []embed.Input
	// begun inputs are computed or in flight, out is what was computed.
	begun int
	out   [][]float32
	// ctx is that of the client; nothing is computed for it once it has ended.
	ctx context.Context
	// ended gets exactly one value: nil after the last input.
	ended chan *Refusal

	// The fields after it belong to embedTurns. of is the tenant, and taken are the inputs
	// after the begun ones that are in the pass.
	of *embedTenant
	turn
	taken int
}

// allTokens are those of all inputs.
func (e *embedding) allTokens() (n int) {
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
	input func(ctx context.Context, i int) (embed.Input, error)
	// each has as many bytes in addition that are read again for each text.
	each int
}

// embedTexts are the texts or token lists to embed.
func (p *inputProcessor) embedTexts(r EmbedRequest) texts {
	if len(r.Texts) == 0 {
		return texts{param: "input", count: len(r.Tokens), bytes: func(int) int { return 0 }, input: func(_ context.Context, i int) (embed.Input, error) {
			return p.conventions.Tokens(p.tok, r.Tokens[i], r.Options)
		}}
	}
	each := p.conventions.Repeated("", r.Options)
	return texts{param: "input", count: len(r.Texts), each: each, bytes: func(i int) int { return len(r.Texts[i]) }, input: func(ctx context.Context, i int) (embed.Input, error) {
		return p.conventions.Text(ctx, p.tok, r.Texts[i], r.Options)
	}}
}

// rerankTexts are the documents to score, each with the query.
func (p *inputProcessor) rerankTexts(r RerankRequest) (texts, *Refusal) {
	if n := len(r.Query); n > p.conventions.Limit*textBytesPerToken {
		return texts{}, inputTooLong("query", fmt.Sprintf("the query has %d bytes, but the model supports %d tokens", n, p.conventions.Limit))
	}
	all := texts{param: "documents", count: len(r.Documents), bytes: func(i int) int { return len(r.Documents[i]) }}
	all.each = p.conventions.Repeated(r.Query, r.Options)
	var write func(document string) (embed.Input, error)
	all.input = func(ctx context.Context, i int) (in embed.Input, err error) {
		if write == nil {
			if write, err = p.conventions.Pairs(ctx, p.tok, r.Query, r.Options); err != nil {
				return in, err
			}
		}
		return write(r.Documents[i])
	}
	return all, nil
}

// tooMany refuses texts that are too much work or memory together.
func (all texts) tooMany() *Refusal {
	return invalid(all.param, "the %d texts, with the query, prompt or instruction for each of them, are too long together; send fewer in one request", all.count)
}

// allBytes is what is tokenized.
func (all texts) allBytes() int {
	n := all.count * all.each
	for i := range all.count {
		n += all.bytes(i)
	}
	return n
}

func inputTooLong(param, detail string) *Refusal {
	return &Refusal{Kind: ContextLength, Param: param, Message: detail + "; shorten it, or enable truncation"}
}

// checkBytes refuses texts that are too long before any of them is tokenized.
func (p *inputProcessor) checkBytes(all texts) *Refusal {
	if all.allBytes() > maxInputBytes {
		return all.tooMany()
	}
	for i := range all.count {
		if n := all.bytes(i) + all.each; n > p.conventions.Limit*textBytesPerToken {
			return inputTooLong(all.param, fmt.Sprintf("text %d has %d bytes, with the query, prompt or instruction before it, but the model supports %d tokens", i, n, p.conventions.Limit))
		}
	}
	return nil
}

// embeddingOf tokenizes texts, or refuses what is wrong with them.
func (p *inputProcessor) embeddingOf(ctx context.Context, tenant string, all texts) (*embedding, *Refusal) {
	if all.count == 0 || all.count > maxInputs {
		return nil, invalid(all.param, "%d texts, want 1 to %d", all.count, maxInputs)
	}
	if refusal := p.checkBytes(all); refusal != nil {
		return nil, refusal
	}
	turn := &longTurn{turns: p.long, tenant: tenant}
	defer turn.give()
	if all.allBytes() > longBytes && turn.take(ctx) != nil {
		return nil, cancelled()
	}
	tokens := 0
	e := &embedding{tenant: tenant, inputs: make([]embed.Input, all.count), ctx: ctx, ended: make(chan *Refusal, 1)}
	for i := range all.count {
		var err error
		switch e.inputs[i], err = all.input(ctx, i); {
		case ctx.Err() != nil:
			return nil, cancelled()
		case errors.Is(err, embed.ErrTooLong):
			return nil, inputTooLong(all.param, fmt.Sprintf("text %d: %v", i, err))
		case err != nil:
			return nil, invalid(all.param, "text %d: %v", i, err)
		}
		if tokens += len(e.inputs[i].IDs); tokens > maxInputTokens {
			return nil, all.tooMany()
		}
	}
	return e, nil
}
