package engine

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/metal/embed"
	"metalfleet.dev/metalfleet/metal/engine/constraint"
	"metalfleet.dev/metalfleet/metal/engine/output"
	"metalfleet.dev/metalfleet/metal/kv"
	"metalfleet.dev/metalfleet/metal/sample"
	"metalfleet.dev/metalfleet/metal/share"
	"metalfleet.dev/metalfleet/metal/text"
	"metalfleet.dev/metalfleet/metal/tokenizer"
)

const (
	maxStops      = 16
	maxStopBytes  = 1 << 10
	maxStopTokens = 128
	// bytesPerToken bounds the text that is tokenized: no vocabulary has tokens that are
	// longer on average.
	bytesPerToken = 64
	// chatBytesPerToken bounds messages and tools, of which a template may leave out much,
	// and textBytesPerToken texts of embeddings and rerankings, which may be truncated.
	chatBytesPerToken = 4 * bytesPerToken
	textBytesPerToken = 4 * bytesPerToken
	// usualBytesPerToken is more than the tokens of a conversation have on average: 3 to 6.
	usualBytesPerToken = 16
	// longBytes is the length from which texts are turned into tokens one after another:
	// together they would take more memory than the engine reserved. A value of JSON counts
	// as valueBytes, which it takes at least while a template is rendered, and a message, or a
	// part of one, as shownBytes: what a template sees of it took 390 to 500 bytes.
	longBytes = 1 << 20
	// longTextBytes is the length of one text of embeddings and rerankings, and of prompts of models
	// with a normal form, from which it is long: normalized it may be eight times as long, in
	// several copies.
	longTextBytes = 128 << 10
	valueBytes    = 150
	shownBytes    = 512
	retryAfter    = time.Second
	// grammarBytes bounds the compiled grammars that are kept for later requests, with the
	// vocabulary, and leastGrammarBytes is what they may take in any engine.
	grammarBytes, leastGrammarBytes = 48 << 20, 8 << 20
)

// inputProcessor checks requests by themselves and turns them into sequences and
// embeddings. It does not change once the model is loaded; any goroutine may use it.
type inputProcessor struct {
	facts model.Facts
	// adapters are the digests of the model's adapters by name.
	adapters map[string]string
	text     *text.Text
	tok      *tokenizer.Tokenizer
	ends     map[int32]bool
	context  int
	// task of the model, and the conventions of an embedding model or reranker.
	task        model.Task
	conventions *embed.Conventions
	// constraints on output; nil if the model does not generate text.
	constraints *constraint.Compiler
	// long has one place for a long text that is turned into tokens; tenants take turns.
	long *share.Turns
	// texts are the tokens of all requests for vectors or scores.
	texts *share.Bytes
	// received is the input of all requests until it is turned into tokens, and prompts are these
	// until the requests have ended.
	received, prompts *share.Bytes
	// tools are the schemas of all requests, until these have ended.
	tools *share.Bytes
	// unread is the output of all requests that was not sent.
	unread *share.Bytes
	// renders bounds the requests that turn short text into tokens at once. A conversation whose
	// text gets long gives its place back and waits for its turn in long.
	renders *share.Turns
	// images of prompts; nil if the model has no image input.
	images *imageProcessor
}

// sequenceOf makes a sequence of a request, or refuses what is wrong with it.
func (p *inputProcessor) sequenceOf(ctx context.Context, r Request) (*sequence, *Refusal) {
	if _, known := p.adapters[r.Adapter]; r.Adapter != "" && !known {
		return nil, invalid("model", "the model has no adapter %q", r.Adapter)
	}
	params, refusal := p.paramsOf(r)
	if refusal != nil {
		return nil, refusal
	}
	if n := r.Logprobs; n != nil && (*n < 0 || *n > sample.MostAlternatives) {
		return nil, invalid("top_logprobs", "top_logprobs is %d, want 0 to %d", *n, sample.MostAlternatives)
	}
	if refusal := checkStops(r.Stop); refusal != nil {
		return nil, refusal
	}
	if refusal := p.checkLength(r); refusal != nil {
		return nil, refusal
	}
	if refusal := p.checkInput(r); refusal != nil {
		return nil, refusal
	}
	release, refusal := p.receive(r.owner(), r.inputParam(), r.inputBytes())
	if refusal != nil {
		return nil, refusal
	}
	defer release()
	releaseImages, refusal := p.images.receive(r.owner(), r.Images)
	if refusal != nil {
		return nil, refusal
	}
	defer releaseImages()
	images, refusal := p.images.measured(ctx, r.owner(), r.Images)
	if refusal != nil {
		return nil, refusal
	}
	tokens, refusal := p.tokens(ctx, r, images)
	if refusal != nil {
		return nil, refusal
	}
	if cap(tokens) > len(tokens)+len(tokens)/4 { // the tokenizer makes room for more, and the request may wait long
		tokens = slices.Clone(tokens)
	}
	maxTokens, clamped, refusal := p.roomFor(r, len(tokens))
	if refusal != nil {
		return nil, refusal
	}
	s := &sequence{
		tokens: tokens, prompt: len(tokens), maxTokens: maxTokens, clamped: clamped, priority: r.Priority, params: params, logprobs: r.Logprobs, progress: r.Progress,
		owner: r.owner(), adapter: r.Adapter, prefix: prefixState{salt: kv.Salt{Tenant: r.Tenant, Extra: r.CacheSalt, Adapter: p.adapters[r.Adapter]}},
		stream: newStream(tokens[:len(tokens):len(tokens)], p.tok.Bytes, unread{share: p.unread, tenant: r.owner()}), images: newPromptImages(p.images, r.owner(), images),
	}
	if params.Repeats() {
		s.counts.Prompt(tokens)
	}
	if refusal := p.complete(ctx, s, r, images, release); refusal != nil {
		return nil, refusal
	}
	return s, nil
}

// complete prepares the output of a sequence and decodes its images. The tokens of its prompt count in
// place of its input, which read ends; next to it while images wait: these have many tokens. Its
// constraint, tools and tokens are released and its stream closed where that fails, also in a panic.
func (p *inputProcessor) complete(ctx context.Context, s *sequence, r Request, images []*promptImage, read func()) *Refusal {
	complete := false
	defer func() {
		if !complete {
			s.constraint.Release()
			s.tools.release()
			s.held.release()
			s.stream.Close()
		}
	}()
	if refusal := p.prepareOutput(ctx, s, r); refusal != nil {
		return refusal
	}
	if refusal := p.echo(s, r); refusal != nil {
		return refusal
	}
	if len(images) == 0 {
		read()
	}
	if refusal := p.holdPrompt(s, r.Stop); refusal != nil {
		return refusal
	}
	if len(images) > 0 {
		if refusal := p.images.decode(ctx, r.owner(), images, r.Images); refusal != nil {
			return refusal
		}
		read()
	}
	complete = true
	return nil
}

// prepareOutput sets how the output of a sequence is constrained and assembled.
func (p *inputProcessor) prepareOutput(ctx context.Context, s *sequence, r Request) *Refusal {
	var calls *output.Calls
	var refusal *Refusal
	if r.Calls != nil {
		if calls, refusal = p.toolCalls(ctx, s, r); refusal != nil {
			return refusal
		}
	} else if r.Constraint != nil {
		if s.constraint, refusal = p.constrain(ctx, r, s.tokens); refusal != nil {
			return refusal
		}
		s.constraintParam = r.Constraint.Param
	}
	if calls != nil && s.constraint != nil && !s.constraint.Free() {
		r.IgnoreEnd = false // the answer has to end with its form
	}
	s.ends = p.endTokens(r, calls.Ends())
	o := output.Options{Tokenizer: p.tok, Continues: p.continues(r, s.tokens), Stop: r.Stop, Ends: s.ends.tokens, MinTokens: s.ends.min, Calls: calls}
	if r.SplitReasoning && r.Chat != nil {
		o.Reasoner = output.NewReasoner(p.tok, p.text.Reasoning(), s.tokens)
		o.SplitReasoning = calls == nil || !callsHaveReasoning(p.text)
	}
	s.output = output.New(o)
	return nil
}

// continues reports whether an answer begins in the middle of a text: a template ends the text
// before it, and control tokens show none.
func (p *inputProcessor) continues(r Request, prompt []int32) bool {
	return r.Chat == nil && slices.ContainsFunc(prompt, func(id int32) bool { return !p.tok.IsControl(id) })
}

// paramsOf returns the parameters of the sampler.
func (p *inputProcessor) paramsOf(r Request) (sample.Params, *Refusal) {
	params := sample.Neutral()
	if r.Sampling != nil {
		params = *r.Sampling
	} else {
		params.Seed = rand.Uint64()
	}
	if err := params.Validate(); err != nil {
		refusal := invalid("", "%v", err)
		if p := new(sample.ParamError); errors.As(err, &p) {
			refusal.Param = p.Param
		}
		return params, refusal
	}
	return params, p.checkBias(params.Bias)
}

func checkStops(stops []string) *Refusal {
	if len(stops) > maxStops {
		return invalid("stop", "%d stop strings, want at most %d", len(stops), maxStops)
	}
	for _, s := range stops {
		if len(s) > maxStopBytes {
			return invalid("stop", "a stop string has %d bytes, want at most %d", len(s), maxStopBytes)
		}
	}
	return nil
}

// checkBias refuses tokens that the model does not have: their bias would be ignored.
func (p *inputProcessor) checkBias(bias map[int32]float32) *Refusal {
	for _, id := range slices.Sorted(maps.Keys(bias)) {
		if id < 0 || int(id) >= p.text.Rows() {
			return invalid("logit_bias", "logit_bias contains token %d, but the model has tokens 0 to %d", id, p.text.Rows()-1)
		}
	}
	return nil
}

// checkLength refuses impossible lengths and stop tokens.
func (p *inputProcessor) checkLength(r Request) *Refusal {
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
		if id < 0 || int(id) >= p.tok.Size() {
			return invalid("stop_token_ids", "stop_token_ids contains token %d, but the vocabulary has tokens 0 to %d", id, p.tok.Size()-1)
		}
	}
	return nil
}

// endTokens returns how an answer ends; calls are the tokens that end one with tool calls.
// An answer that is held to a form has to end with the form, so the model's own ends count
// there.
func (p *inputProcessor) endTokens(r Request, calls map[int32]bool) endTokens {
	e := endTokens{tokens: map[int32]bool{}, min: r.MinTokens}
	for _, id := range r.StopTokens {
		e.tokens[id] = true
	}
	if r.IgnoreEnd && r.Constraint == nil {
		return e
	}
	for id := range p.ends {
		e.tokens[id] = true
	}
	for id := range calls {
		e.tokens[id] = true
	}
	return e
}

func (p *inputProcessor) tooLong(detail string) *Refusal {
	return &Refusal{Kind: ContextLength, Param: "messages", Limit: int64(p.context) * usualBytesPerToken, Message: fmt.Sprintf("%s, but the context length is %d tokens in total; shorten the prompt", detail, p.context)}
}

// roomFor returns the maximum number of tokens to generate after a prompt. The limit
// of a request is cut to the room that the context leaves; clamped is true if it was.
// Only a prompt that leaves no room is refused.
func (p *inputProcessor) roomFor(r Request, prompt int) (maxTokens int, clamped bool, refusal *Refusal) {
	room := p.context - prompt
	switch {
	case r.PromptOnly && room >= 0:
		return 1, false, nil // of the step that computes the last of the prompt; it is not sampled
	case room < 1:
		return 0, false, p.tooLong(fmt.Sprintf("the prompt has %d tokens, and at least one must be left for the answer", prompt))
	case r.MaxTokens == 0 || r.MaxTokens > room:
		return room, true, nil
	}
	return r.MaxTokens, false, nil
}

// tokens turns the input of a request, which checkInput takes, into ids, with those of its
// images.
func (p *inputProcessor) tokens(ctx context.Context, r Request, images []*promptImage) ([]int32, *Refusal) {
	if r.Tokens != nil {
		return p.checkTokens(r.Tokens)
	}
	turns := p.textTurns(r.owner())
	defer turns.give()
	if turns.take(ctx, r.bytes() > longBytes || p.lengthens(r.textBytes())) != nil {
		return nil, cancelled()
	}
	var written string
	opts := tokenizer.EncodeOptions{AddBOS: true, ParseSpecial: true, Limit: p.context, Stop: ctx.Err}
	if r.Prompt != nil {
		written = *r.Prompt
	} else {
		rendered, refusal := p.render(ctx, r, turns)
		if refusal != nil {
			return nil, refusal
		}
		if len(images) > 0 {
			if rendered, refusal = p.placed(rendered, len(images), p.tok.Bytes); refusal != nil {
				return nil, refusal
			}
		}
		written, opts.AddBOS = rendered, false
	}
	if refusal := p.checkWritten(written); refusal != nil {
		return nil, refusal
	}
	ids, err := p.tok.Encode(written, opts)
	switch {
	case ctx.Err() != nil:
		return nil, cancelled()
	case errors.Is(err, tokenizer.ErrTooMany):
		return nil, p.tooLong(fmt.Sprintf("the prompt has more than %d tokens", p.context))
	case err != nil:
		return nil, invalid("prompt", "%v", err)
	}
	if len(ids) == 0 {
		return nil, invalid("prompt", "the prompt is empty")
	}
	if len(images) > 0 {
		var refusal *Refusal
		if ids, refusal = p.images.expand(ids, images); refusal != nil {
			return nil, refusal
		}
	}
	return ids, p.checkRows(ids)
}

// checkRows refuses tokens that the tokenizer has and the model has not.
func (p *inputProcessor) checkRows(ids []int32) *Refusal {
	for _, id := range ids {
		if int(id) >= p.text.Rows() {
			return invalid("prompt", "the text has the token %q (%d), but the model has no embedding for it, only for tokens 0 to %d; remove it from the text", p.tok.Bytes(id), id, p.text.Rows()-1)
		}
	}
	return nil
}

// lengthens reports whether a text of n bytes may take much memory once it is normalized.
func (p *inputProcessor) lengthens(n int) bool { return n > longTextBytes && p.tok.Lengthens() }

// textBytes is the length of the text of a request.
func (r Request) textBytes() int {
	n := 0
	if r.Chat != nil {
		n += r.Chat.Bytes()
	}
	if r.Prompt != nil {
		n += len(*r.Prompt)
	}
	return n
}

// bytes is the length of the text of a request, and the memory of its JSON and messages while
// a template is rendered.
func (r Request) bytes() int {
	n := r.textBytes()
	if r.Chat != nil {
		n += valueBytes*r.Chat.Values() + shownBytes*r.messages()
	}
	return n
}

func (p *inputProcessor) checkTokens(ids []int32) ([]int32, *Refusal) {
	if len(ids) == 0 {
		return nil, invalid("prompt", "the prompt is empty")
	}
	for i, id := range ids {
		if id < 0 || int(id) >= p.text.Rows() {
			return nil, invalid("prompt", "token %d is %d, but the model has %d", i, id, p.text.Rows())
		}
	}
	return append([]int32(nil), ids...), nil
}

// echo returns the text of the prompt to the client, and its first token, which has no
// log-probability.
func (p *inputProcessor) echo(s *sequence, r Request) *Refusal {
	s.echo.only = r.PromptOnly
	if !r.Echo {
		return nil
	}
	if r.Chat != nil {
		return invalid("echo", "only a prompt of text or tokens can be echoed, not a conversation")
	}
	text, refusal := p.echoed(s, r)
	if refusal != nil {
		return refusal
	}
	var first []sample.Ranked
	if r.Logprobs != nil {
		s.echo.logprobs, s.echo.returned = true, 1
		first = []sample.Ranked{{Chosen: sample.Likely{ID: s.tokens[0]}}}
	}
	if !s.stream.pushPrompt(text, first) {
		return muchUnread()
	}
	return nil
}

// echoed is the text of the prompt. That of tokens may be many times as long as they are, so it
// counts as output before it is made.
func (p *inputProcessor) echoed(s *sequence, r Request) (string, *Refusal) {
	if r.Prompt != nil {
		return *r.Prompt, nil
	}
	n, err := p.tok.DecodedBytes(s.tokens, false)
	if err != nil {
		return "", invalid("prompt", "%v", err)
	}
	if most := p.unread.Limit(r.owner()); int64(n) > most {
		return "", invalid("echo", "the prompt has %d bytes of text, but at most %d can be echoed; shorten it, or do not ask for echo", n, most)
	}
	if !s.stream.expectPrompt(int64(n)) {
		return "", muchUnread()
	}
	text, err := p.tok.DecodeOf(n, s.tokens, false)
	if err != nil {
		return "", invalid("prompt", "%v", err)
	}
	return text, nil
}

func muchUnread() *Refusal {
	return &Refusal{Kind: QueueFull, Message: "clients of the same tenant have left too much output unread; try again", RetryAfter: retryAfter}
}
