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
	"metalfleet.dev/metalfleet/metal/batch"
	"metalfleet.dev/metalfleet/metal/kv"
	"metalfleet.dev/metalfleet/metal/sample"
	"metalfleet.dev/metalfleet/metal/text"
	"metalfleet.dev/metalfleet/metal/tokenizer"
)

const (
	maxStops     = 16
	maxStopBytes = 1 << 10
	// bytesPerToken bounds the text that is looked at: no vocabulary has
	// tokens that are longer on average.
	bytesPerToken = 256
	retryAfter    = time.Second
)

// Request is what to generate. Exactly one of Chat, Prompt and Tokens is set.
type Request struct {
	Chat   *text.Chat
	Prompt *string
	Tokens []int32
	// Sampling parameters; nil means Neutral with a seed of the engine's own.
	Sampling *sample.Params
	// MaxTokens to generate, within the room that the context leaves; 0 means all of
	// that room.
	MaxTokens int
	// PromptOnly computes the prompt and generates nothing.
	PromptOnly bool
	// MinTokens come before an end of turn, a token of StopTokens or a string of Stop
	// can end the answer. A Constraint that nothing can follow ends it earlier.
	MinTokens int
	// IgnoreEnd continues after the tokens that end the model's turn; an answer with a
	// Constraint ends there all the same.
	IgnoreEnd bool
	// StopTokens end the text like the end of the model's turn.
	StopTokens []int32
	// Stop strings end the text; none of them is shown.
	Stop []string
	// Priority: higher ones are admitted first; 0 is everybody's.
	Priority int
	// Tenant whose request it is: what is remembered of its prompt is found by
	// requests of the same tenant only. Empty where there is one tenant.
	Tenant string
	// CacheSalt is the client's own: requests with another one, or none, do not find
	// what is remembered either.
	CacheSalt string
	// Constraint is the form of the answer; nil is any.
	Constraint *Constraint
	// SplitReasoning tells what a model thinks before it answers a Chat apart from
	// the answer. Stop strings then end the answer alone.
	SplitReasoning bool
	// Calls tells calls of the Chat's tools apart from the answer; nil has none.
	Calls *Calls
	// Logprobs is how many alternatives are told beside the log-probability of
	// each token, as sample.Rank has them; nil tells none of it.
	Logprobs *int
	// Progress asks for events that report how much of the prompt is computed.
	Progress bool
	// Echo returns the text of a Prompt or of Tokens before the answer and, with
	// Logprobs, how likely each of its tokens was.
	Echo bool
}

// Generate checks a request whole and queues it. The error is a *Refusal.
// After it returned a stream, the stream ends with exactly one Finished; the
// request is cancelled when ctx is.
func (e *Engine) Generate(ctx context.Context, r Request) (*Stream, error) {
	s, refusal := e.readyFor(model.Generate)
	if refusal != nil {
		return nil, refusal
	}
	a, refusal := s.preflight(ctx, r)
	if refusal != nil {
		return nil, refusal
	}
	if refusal := e.checkMemory(ctx, s, a, e.recall(ctx, a)); refusal != nil {
		e.letGo(a)
		return nil, refusal
	}
	if refusal := e.admit(a); refusal != nil {
		e.letGo(a)
		return nil, refusal
	}
	unhook := context.AfterFunc(ctx, a.stream.cancel)
	a.stream.onFinish(func() { unhook() })
	e.poke()
	return a.stream, nil
}

// readyFor says what serves a task, or refuses a request of another kind than
// the model is made for.
func (e *Engine) readyFor(task model.Task) (*serving, *Refusal) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.state != Ready {
		return nil, notReady(e.state)
	}
	if e.serving.task != task {
		return nil, invalid("model", "%s", misfit(e.serving.task, task))
	}
	return e.serving, nil
}

// misfit says what to ask a model for instead.
func misfit(made, asked model.Task) string {
	does := map[model.Task]string{model.Generate: "generates text", model.Embed: "computes embeddings of texts", model.Rerank: "scores documents for a query"}
	instead := map[model.Task]string{model.Generate: "chat or completions", model.Embed: "embeddings", model.Rerank: "rerank"}
	return fmt.Sprintf("this model %s and does not support %s; use it for %s, or choose another model", does[made], instead[asked], instead[made])
}

func notReady(s State) *Refusal {
	what := map[State]string{Loading: "the model is still loading", Draining: "the engine is draining", Failed: "the engine has failed", Stopped: "the engine has stopped"}[s]
	return &Refusal{Kind: NotReady, Message: what, RetryAfter: retryAfter}
}

// preflight is everything that can be refused about a request by itself.
func (s *serving) preflight(ctx context.Context, r Request) (*active, *Refusal) {
	params, refusal := s.paramsOf(r)
	if refusal != nil {
		return nil, refusal
	}
	if n := r.Logprobs; n != nil && (*n < 0 || *n > sample.MostAlternatives) {
		return nil, invalid("top_logprobs", "top_logprobs is %d, want 0 to %d", *n, sample.MostAlternatives)
	}
	if refusal := checkStops(r.Stop); refusal != nil {
		return nil, refusal
	}
	if refusal := s.checkLength(r); refusal != nil {
		return nil, refusal
	}
	tokens, refusal := s.tokens(ctx, r)
	if refusal != nil {
		return nil, refusal
	}
	most, clamped, refusal := s.roomFor(r, len(tokens))
	if refusal != nil {
		return nil, refusal
	}
	a := &active{
		tokens: tokens, prompt: len(tokens), maxTokens: most, clamped: clamped, priority: r.Priority, params: params, logprobs: r.Logprobs, progress: r.Progress,
		salt:    kv.Salt{Tenant: r.Tenant, Extra: r.CacheSalt},
		decoder: s.tok.NewDecoder(true), stops: sample.NewStopMatcher(r.Stop), stream: newStream(tokens[:len(tokens):len(tokens)], s.tok.Bytes),
	}
	if params.Repeats() {
		a.counts.Prompt(tokens)
	}
	if r.SplitReasoning && r.Chat != nil {
		a.reasoner = reasonerOf(s.tok, s.text.Reasoning(), tokens)
	}
	if a.caller, a.constraint, refusal = s.callsOf(ctx, r, tokens); refusal != nil {
		return nil, refusal
	}
	a.census = a.reasoner
	if a.caller != nil && reasonsIn(s.text) {
		a.reasoner = nil
	}
	if a.caller == nil {
		if a.constraint, refusal = s.constrain(ctx, r, tokens); refusal != nil {
			return nil, refusal
		}
	}
	if a.caller != nil && a.constraint != nil && !a.constraint.free {
		r.IgnoreEnd = false // the answer has to end with its form
	}
	a.ending = s.endingOf(r, a.caller)
	return a, s.echo(a, r)
}

// paramsOf returns the parameters of the sampler.
func (s *serving) paramsOf(r Request) (sample.Params, *Refusal) {
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
	return params, s.checkBias(params.Bias)
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

// checkBias refuses tokens that the model does not have: a bias of theirs would be
// dropped.
func (s *serving) checkBias(bias map[int32]float32) *Refusal {
	for _, id := range slices.Sorted(maps.Keys(bias)) {
		if id < 0 || int(id) >= s.tok.Size() {
			return invalid("logit_bias", "logit_bias contains token %d, but the vocabulary has tokens 0 to %d", id, s.tok.Size()-1)
		}
	}
	return nil
}

func (s *serving) tooLong(detail string) *Refusal {
	return &Refusal{Kind: ContextLength, Param: "messages", Message: fmt.Sprintf("%s, but the context length is %d tokens in total; shorten the prompt", detail, s.context)}
}

// roomFor returns the maximum number of tokens to generate after a prompt. The limit
// of a request is cut to the room that the context leaves; clamped is true if it was.
// Only a prompt that leaves no room is refused.
func (s *serving) roomFor(r Request, prompt int) (most int, clamped bool, refusal *Refusal) {
	room := s.context - prompt
	switch {
	case r.PromptOnly && room >= 0:
		return 1, false, nil // of the step that computes the last of the prompt; it is not drawn
	case room < 1:
		return 0, false, s.tooLong(fmt.Sprintf("the prompt has %d tokens, and at least one must be left for the answer", prompt))
	case r.MaxTokens == 0 || r.MaxTokens > room:
		return room, true, nil
	}
	return r.MaxTokens, false, nil
}

// tokens turns the input of a request into ids.
func (s *serving) tokens(ctx context.Context, r Request) ([]int32, *Refusal) {
	var written string
	opts := tokenizer.EncodeOptions{AddBOS: true, ParseSpecial: true}
	switch {
	case r.Chat != nil && r.Prompt == nil && r.Tokens == nil:
		if n := r.Chat.Bytes(); n > s.context*bytesPerToken {
			return nil, s.tooLong(fmt.Sprintf("the messages have %d bytes", n))
		}
		rendered, err := s.text.Render(ctx, *r.Chat)
		if err != nil {
			return nil, invalid("messages", "%v", err)
		}
		written, opts = rendered, tokenizer.EncodeOptions{ParseSpecial: true}
	case r.Prompt != nil && r.Chat == nil && r.Tokens == nil:
		written = *r.Prompt
	case r.Tokens != nil && r.Chat == nil && r.Prompt == nil:
		return s.checkTokens(r.Tokens)
	default:
		return nil, invalid("prompt", "want exactly one of messages, prompt and tokens")
	}
	if len(written) > s.context*bytesPerToken {
		return nil, s.tooLong(fmt.Sprintf("the prompt has %d bytes", len(written)))
	}
	ids, err := s.tok.Encode(written, opts)
	if err != nil {
		return nil, invalid("prompt", "%v", err)
	}
	if len(ids) == 0 {
		return nil, invalid("prompt", "the prompt is empty")
	}
	return ids, nil
}

func (s *serving) checkTokens(ids []int32) ([]int32, *Refusal) {
	if len(ids) == 0 {
		return nil, invalid("prompt", "the prompt is empty")
	}
	for i, id := range ids {
		if id < 0 || int(id) >= s.tok.Size() {
			return nil, invalid("prompt", "token %d is %d, but the vocabulary has %d", i, id, s.tok.Size())
		}
	}
	return append([]int32(nil), ids...), nil
}

// admit puts a request into the inbox unless too many wait already.
func (e *Engine) admit(a *active) *Refusal {
	e.mu.Lock()
	defer e.mu.Unlock()
	if refusal := e.enter(); refusal != nil {
		return refusal
	}
	e.nextID++
	a.id = batch.ID(e.nextID)
	a.stream.cancel = func() {
		a.cancelled.Store(true)
		e.poke()
	}
	e.inbox = append(e.inbox, a)
	e.promptTokensTotal.Add(int64(a.prompt))
	return nil
}

// enter counts one more request, unless too many wait already; it is called with
// mu held.
func (e *Engine) enter() *Refusal {
	if e.state != Ready {
		return notReady(e.state)
	}
	if e.admitted >= e.opts.Sequences+e.opts.Queue {
		return &Refusal{Kind: QueueFull, Message: fmt.Sprintf("%d requests are already running or waiting", e.admitted), RetryAfter: retryAfter}
	}
	e.admitted++
	return nil
}

// release makes room for another request.
func (e *Engine) release() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.admitted--
}

func (e *Engine) countCancelled(n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.cancelled += n
}
