package engine

import (
	"context"
	"errors"
	"fmt"

	"metalfleet.dev/metalfleet/metal/embed"
	"metalfleet.dev/metalfleet/metal/share"
)

const (
	// maxInputs of one request, if their results are one message to the agent: answerBytes are the
	// most of one, and vectorBytes what each vector takes in it besides its numbers.
	maxInputs   = 2048
	answerBytes = 64<<20 - 1<<10
	vectorBytes = 16
	// maxInputBytes and maxInputTokens bound all texts of a request, in which a query, a prompt
	// and an instruction count for each text that they are read with.
	maxInputBytes  = 32 << 20
	maxInputTokens = 4 << 20
	// waitingTextBytes are what the tokens and vectors of all requests take until they have ended,
	// if these are short (see resultBytes). They are part of the slack of footprint.EngineLimit,
	// like receivedTextBytes. The half of them that one tenant gets is enough for a request of
	// maxInputTokens, and for maxInputs vectors of 2048 numbers.
	waitingTextBytes = 40 << 20
	// tokenBytes is what a token takes, and textBytes what each text takes besides its tokens and
	// its vector, of which each number takes numberBytes.
	tokenBytes, textBytes, numberBytes = 4, 128, 4
)

// embedding is an admitted request for vectors or scores.
type embedding struct {
	tenant string
	inputs []embed.Tokenized
	// held are the bytes of the inputs and their results that are counted in account.
	held    int64
	account *share.Bytes
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

	// The fields after it belong to the loop. walk is the next input, once a part of it was
	// computed, and leave ends it. restarted is set if that began again, and waits while the next
	// input has no room.
	walk             embed.Walk
	leave            func()
	restarted, waits bool
}

// allTokens are those of all inputs.
func (e *embedding) allTokens() (n int) {
	for _, in := range e.inputs {
		n += in.Len()
	}
	return n
}

// hold counts more bytes, and reports false if they exceed the share of the tenant; less
// than 0 gives bytes back.
func (e *embedding) hold(n int64) bool {
	if n > 0 && !e.account.Take(e.tenant, n) {
		return false
	}
	if n < 0 {
		e.account.Give(e.tenant, -n)
	}
	e.held += n
	return true
}

// release gives all bytes back.
func (e *embedding) release() { e.hold(-e.held) }

// end ends a request that was admitted, once.
func (e *embedding) end(refusal *Refusal) {
	e.release()
	e.ended <- refusal
}

// passTokens is what the largest pass over inputs takes: as many as the back end takes at
// once, or one input that is longer.
func passTokens(inputs []embed.Tokenized, maxPass int) int {
	all, longest := 0, 0
	for i := range inputs {
		all, longest = all+inputs[i].Len(), max(longest, inputs[i].Len())
	}
	return max(longest, min(all, maxPass))
}

// texts are the inputs of a request, which came in the field param.
type texts struct {
	param string
	count int
	// bytes of one that its tokenizer would read.
	bytes func(i int) int
	input func(ctx context.Context, i int) (embed.Tokenized, error)
	// each has as many bytes in addition that are read again for each text, and once are
	// those that are read with the first.
	each, once int
	// tokens of one that needs no tokenizer; nil if these are texts. common bytes were sent
	// once for all texts.
	tokens func(i int) int
	common int
}

// embedTexts are the texts or token lists to embed.
func (p *inputProcessor) embedTexts(r EmbedRequest) texts {
	if len(r.Texts) == 0 {
		return texts{param: "input", count: len(r.Tokens), bytes: func(int) int { return 0 }, tokens: func(i int) int { return len(r.Tokens[i]) }, input: func(_ context.Context, i int) (embed.Tokenized, error) {
			return p.conventions.Tokens(p.tok, r.Tokens[i], r.Options)
		}}
	}
	each, options := p.conventions.Repeated("", r.Options), r.Options.OfOneRequest()
	return texts{param: "input", count: len(r.Texts), each: each, common: len(r.Options.Prompt) + len(r.Options.Instruction), bytes: func(i int) int { return len(r.Texts[i]) }, input: func(ctx context.Context, i int) (embed.Tokenized, error) {
		return p.conventions.Text(ctx, p.tok, r.Texts[i], options)
	}}
}

// rerankTexts are the documents to score, each with the query.
func (p *inputProcessor) rerankTexts(r RerankRequest) (texts, *Refusal) {
	if n := len(r.Query); n > p.conventions.Limit*textBytesPerToken {
		return texts{}, inputTooLong("query", fmt.Sprintf("the query has %d bytes, but the model supports %d tokens", n, p.conventions.Limit))
	}
	all := texts{param: "documents", count: len(r.Documents), common: len(r.Query) + len(r.Options.Instruction), bytes: func(i int) int { return len(r.Documents[i]) }}
	if all.each = p.conventions.Repeated(r.Query, r.Options); all.each == 0 {
		all.once = len(r.Query)
	}
	options := r.Options.OfOneRequest()
	var write func(document string) (embed.Tokenized, error)
	all.input = func(ctx context.Context, i int) (in embed.Tokenized, err error) {
		if write == nil {
			if write, err = p.conventions.Pairs(ctx, p.tok, r.Query, options); err != nil {
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

// long reports whether the texts take much memory while they are turned into tokens, together or
// one of them.
func (all texts) long() bool {
	longest := all.once
	for i := range all.count {
		longest = max(longest, all.bytes(i)+all.each)
	}
	return longest > longTextBytes || all.allBytes()+all.once > longBytes
}

// received is what the texts take until they are tokens.
func (all texts) received() int64 {
	n := int64(all.common)
	for i := range all.count {
		n += textBytes + int64(all.bytes(i))
		if all.tokens != nil {
			n += tokenBytes * int64(all.tokens(i))
		}
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
	if most := p.mostInputs(); all.count == 0 || all.count > most {
		return nil, invalid(all.param, "%d texts, want 1 to %d", all.count, most)
	}
	if refusal := p.checkBytes(all); refusal != nil {
		return nil, refusal
	}
	release, refusal := p.receive(tenant, all.param, all.received())
	if refusal != nil {
		return nil, refusal
	}
	defer release()
	turns := p.textTurns(tenant)
	defer turns.give()
	if turns.take(ctx, all.long()) != nil {
		return nil, cancelled()
	}
	e := &embedding{tenant: tenant, account: p.texts, ctx: ctx, ended: make(chan *Refusal, 1)}
	complete := false
	defer func() {
		if !complete { // also after a panic
			e.release()
		}
	}()
	if refusal := p.read(ctx, e, all, turns); refusal != nil {
		return nil, refusal
	}
	complete = true
	return e, nil
}

// read tokenizes texts into the inputs of e. Other tenants may have the turn or the place between
// two texts, of which each takes little memory besides its tokens once it is read.
func (p *inputProcessor) read(ctx context.Context, e *embedding, all texts, turns *textTurns) *Refusal {
	if each := int64(all.count) * (textBytes + p.resultBytes()); !e.hold(each) {
		return all.noRoom(e, each)
	}
	e.inputs = make([]embed.Tokenized, 0, all.count)
	tokens := 0
	for i := range all.count {
		if i > 0 && turns.yield(ctx) != nil {
			return cancelled()
		}
		expected := int64(p.mostTokens(all, i)) * tokenBytes
		if !e.hold(expected) {
			return all.noRoom(e, expected)
		}
		in, err := all.input(ctx, i)
		switch {
		case ctx.Err() != nil:
			return cancelled()
		case errors.Is(err, embed.ErrTooLong):
			return inputTooLong(all.param, fmt.Sprintf("text %d: %v", i, err))
		case err != nil:
			return invalid(all.param, "text %d: %v", i, err)
		}
		if tokens += in.Len(); tokens > maxInputTokens {
			return all.tooMany()
		}
		actual := in.Own()
		if i == 0 {
			actual += in.Shared()
		} else {
			in.Share(e.inputs[0])
			actual = in.Own()
		}
		if more := int64(actual)*tokenBytes - expected; !e.hold(more) {
			return all.noRoom(e, more)
		}
		e.inputs = append(e.inputs, in)
	}
	return nil
}

// mostInputs is how many texts a request of the model has at most.
func (p *inputProcessor) mostInputs() int {
	return max(1, min(maxInputs, int(answerBytes/(vectorBytes+p.resultBytes()))))
}

// resultBytes is what the result of one text takes until its request has ended.
func (p *inputProcessor) resultBytes() int64 { return numberBytes * int64(p.conventions.Width) }

// waitingBytes are what texts and their results may take until their requests have ended: as much as
// the two longest lists, of a limit with this slack no more than a part.
func (p *inputProcessor) waitingBytes(limited bool, slack int64) int64 {
	most := waitingTextBytes + 2*maxInputs*p.resultBytes()
	if limited {
		return min(most, max(waitingTextBytes, slack*5/8))
	}
	return most
}

// mostTokens is how many tokens a text takes at most, unless the normalization of the model
// makes it longer.
func (p *inputProcessor) mostTokens(all texts, i int) int {
	n := all.bytes(i) + all.each
	if i == 0 {
		n += all.once
	}
	return min(n, p.conventions.Limit) + 1
}

// noRoom refuses texts that need n more bytes than the tenant has left.
func (all texts) noRoom(e *embedding, n int64) *Refusal {
	if e.held+n > e.account.Limit(e.tenant) {
		return all.tooMany()
	}
	return &Refusal{Kind: QueueFull, Message: "other requests hold too many texts; try again", RetryAfter: retryAfter}
}
