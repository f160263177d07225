package server

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"

	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/metal/chat"
	"metalfleet.dev/metalfleet/metal/engine"
	"metalfleet.dev/metalfleet/metal/engine/guard"
	"metalfleet.dev/metalfleet/metal/grammar"
	"metalfleet.dev/metalfleet/metal/sample"
	"metalfleet.dev/metalfleet/metal/text"
	"metalfleet.dev/metalfleet/metal/wire"
)

func toStatus(s engine.Status) *wire.Status {
	state := map[engine.State]wire.State{
		engine.Loading: wire.State_STATE_LOADING, engine.Ready: wire.State_STATE_READY,
		engine.Draining: wire.State_STATE_DRAINING, engine.Stopped: wire.State_STATE_DRAINING, engine.Failed: wire.State_STATE_FAILED,
	}
	task := map[model.Task]wire.Task{model.Generate: wire.Task_TASK_GENERATE, model.Embed: wire.Task_TASK_EMBED, model.Rerank: wire.Task_TASK_RERANK}
	return &wire.Status{
		Task: task[s.Task], State: state[s.State], Reason: s.Reason, Message: s.Message,
		Load:   &wire.LoadProgress{BytesDone: s.LoadedBytes, BytesTotal: s.LoadBytes},
		Memory: toMemory(s), PrefixCache: toPrefixCache(s.Prefixes),
		Activity: &wire.Activity{Running: s.Running, Queued: s.Queued, Steps: s.Steps,
			PromptTokensTotal: s.PromptTokens, GeneratedTokensTotal: s.GeneratedTokens, IterationMilliseconds: s.Iteration.Milliseconds()},
		Guard: toGuard(s.Guard),
	}
}

func toGuard(g guard.Status) *wire.Guard {
	return &wire.Guard{Active: g.Active, InactiveReason: g.Inactive, LimitsSequence: g.Sequence,
		HeadroomRequest: g.HeadroomRequest, HeadroomBytes: g.HeadroomBytes,
		ThrottledChunks: g.Throttled, RefusedRequests: g.Refused, AbortedPrefills: g.Aborted}
}

func fromLimits(l *wire.Limits) guard.Limits {
	return guard.Limits{Memory: l.GetMemoryBytes(), Cache: l.GetCacheBytes(), PausePrefill: l.GetPausePrefill(), Sequence: l.GetSequence(),
		Footprint: l.GetFootprintBytes(), Headroom: l.GetHeadroomBytes(), HeadroomKnown: l.GetHeadroomKnown(),
		HeadroomAnswered: l.GetHeadroomAnswered(), CanMakeRoom: l.GetCanMakeRoom()}
}

func toMemory(s engine.Status) *wire.Memory {
	m := s.Memory
	return &wire.Memory{WeightsBytes: m.Weights, KvInUseBytes: m.KV, ActiveBytes: m.Active() + s.Prefixes.Bytes, PooledBytes: m.Pooled, PrefixCacheBytes: s.Prefixes.Bytes}
}

// toPrefixCache is nil where nothing is remembered.
func toPrefixCache(p engine.PrefixStatus) *wire.PrefixCache {
	if p.Budget == 0 {
		return nil
	}
	return &wire.PrefixCache{Bytes: p.Bytes, BudgetBytes: p.Budget, Blocks: int64(p.Blocks), Hits: p.Hits, Misses: p.Misses, RestoredTokens: p.Restored,
		QueriedTokens: p.Queried,
		Saved:         p.Saved, Dropped: p.Dropped, Evicted: p.Evicted}
}

// toDeltas are the messages of an event: progress, the prompt and the answer, as far as there are
// any. An event has few log-probabilities.
//
// Its texts become UTF-8: gRPC ends the call of a message that has another.
func toDeltas(ev engine.Event, spell func(int32) []byte) (out []*wire.Delta) {
	if p := ev.Progress; p != nil {
		out = append(out, &wire.Delta{Progress: &wire.Progress{ProcessedTokens: int64(p.Processed), CachedTokens: int64(p.Cached)}})
	}
	if ev.Prompt != "" || len(ev.PromptLogprobs) > 0 {
		prompt := &wire.PromptDelta{Text: utf8(ev.Prompt)}
		for _, r := range ev.PromptLogprobs {
			prompt.Logprobs = append(prompt.Logprobs, toLogprobs(r, spell))
		}
		out = append(out, &wire.Delta{Prompt: prompt})
	}
	if ev.Text == "" && ev.Reasoning == "" && len(ev.Tokens) == 0 && len(ev.Calls) == 0 && len(ev.Logprobs) == 0 {
		return out
	}
	answer := &wire.Delta{Text: utf8(ev.Text), Reasoning: utf8(ev.Reasoning), Tokens: ev.Tokens}
	for _, c := range ev.Calls {
		answer.Calls = append(answer.Calls, &wire.CallDelta{Name: utf8(c.Name), Arguments: utf8(c.Arguments), Ended: c.Ended, Written: utf8(c.Written)})
	}
	for _, r := range ev.Logprobs {
		answer.Logprobs = append(answer.Logprobs, toLogprobs(r, spell))
	}
	return append(out, answer)
}

// utf8 is a text with U+FFFD in place of what is not UTF-8.
func utf8(s string) string { return strings.ToValidUTF8(s, "\ufffd") }

// toLogprobs spells the tokens, which a vocabulary can make long, up to wire.MaxSpelled.
func toLogprobs(r sample.Ranked, spell func(int32) []byte) *wire.TokenLogprobs {
	one := func(l sample.Likely) *wire.Logprob {
		text := spell(l.ID)
		return &wire.Logprob{Token: l.ID, Logprob: float32(l.Logprob), Text: text[:min(len(text), wire.MaxSpelled)]}
	}
	out := &wire.TokenLogprobs{Chosen: one(r.Chosen)}
	for _, l := range r.Top {
		out.Top = append(out.Top, one(l))
	}
	return out
}

func toFinished(f *engine.Finished) *wire.Finished {
	reason := map[engine.FinishReason]wire.FinishReason{
		engine.Stop: wire.FinishReason_FINISH_REASON_STOP, engine.Length: wire.FinishReason_FINISH_REASON_LENGTH, engine.Error: wire.FinishReason_FINISH_REASON_ERROR,
	}
	u := f.Usage
	out := &wire.Finished{Reason: reason[f.Reason], Stop: f.Stop, ContextFull: f.Full, TextCalls: int32(f.TextCalls),
		Usage: &wire.Usage{PromptTokens: int64(u.Prompt), GeneratedTokens: int64(u.Generated), CachedTokens: int64(u.Cached), ReasoningTokens: int64(u.Reasoning)}}
	if f.Err != nil {
		out.Error = toRefusal(f.Err)
	}
	return out
}

func toRefusal(r *engine.Refusal) *wire.Refusal {
	code := map[engine.Kind]wire.Code{
		engine.Invalid: wire.Code_CODE_INVALID, engine.ContextLength: wire.Code_CODE_CONTEXT_LENGTH, engine.OutOfMemory: wire.Code_CODE_MEMORY,
		engine.QueueFull: wire.Code_CODE_QUEUE_FULL, engine.NotReady: wire.Code_CODE_NOT_READY, engine.Cancelled: wire.Code_CODE_CANCELLED,
		engine.Internal: wire.Code_CODE_INTERNAL, engine.Aborted: wire.Code_CODE_ABORTED,
	}
	out := &wire.Refusal{Code: code[r.Kind], Message: r.Message, Param: r.Param,
		UsedBytes: r.Used, NeededBytes: r.Needed, LimitBytes: r.Limit, RetryAfterMilliseconds: r.RetryAfter.Milliseconds()}
	return out.Bounded()
}

// refuse turns an error of the engine into one of the wire.
func refuse(err error) error {
	var r *engine.Refusal
	if errors.As(err, &r) {
		return wire.Refuse(toRefusal(r))
	}
	return wire.Refuse(&wire.Refusal{Code: wire.Code_CODE_INTERNAL, Message: err.Error()})
}

func fromRequest(r *wire.GenerateRequest) (engine.Request, *engine.Refusal) {
	out := engine.Request{MaxTokens: int(r.GetMaxTokens()), MinTokens: int(r.GetMinTokens()), IgnoreEnd: r.GetIgnoreEos(), StopTokens: r.GetStopTokenIds(),
		Stop: r.GetStop(), Priority: int(r.GetPriority()), Progress: r.GetProgress(), Echo: r.GetEcho(), PromptOnly: r.GetPromptOnly(),
		Tenant: r.GetTenant(), Client: r.GetClient(), CacheSalt: r.GetCacheSalt(), Adapter: r.GetAdapter()}
	switch in := r.GetInput().(type) {
	case *wire.GenerateRequest_Prompt:
		out.Prompt = &in.Prompt
	case *wire.GenerateRequest_Tokens:
		out.Tokens = in.Tokens.GetIds()
	case *wire.GenerateRequest_Chat:
		conv := &text.Chat{Arguments: []byte(in.Chat.GetTemplateArgumentsJson()), Tools: []byte(in.Chat.GetToolsJson())}
		for _, m := range in.Chat.GetMessages() {
			turn := chat.Message{Role: m.GetRole(), Content: m.GetContent(), Name: m.GetName(), Extra: []byte(m.GetExtraJson())}
			for _, p := range m.GetParts() {
				image, ok := p.GetPart().(*wire.ContentPart_Image)
				turn.Parts = append(turn.Parts, chat.Part{Text: p.GetText(), Image: ok})
				if ok {
					out.Images = append(out.Images, image.Image)
				}
			}
			conv.Messages = append(conv.Messages, turn)
		}
		conv.Effort = in.Chat.GetReasoningEffort()
		out.Chat, out.SplitReasoning, out.Calls = conv, in.Chat.GetSplitReasoning(), fromCalls(in.Chat.GetCalls())
	default:
		return out, &engine.Refusal{Kind: engine.Invalid, Param: "prompt", Message: fmt.Sprintf("request %q has neither messages nor prompt nor tokens", r.GetId())}
	}
	out.Sampling = fromSampling(r.GetSampling())
	out.Constraint = fromConstraint(r.GetConstraint())
	if r.TopLogprobs != nil {
		n := int(r.GetTopLogprobs())
		out.Logprobs = &n
	}
	return out, nil
}

// fromCalls is nil where none are wanted.
func fromCalls(c *wire.Calls) *engine.Calls {
	if c == nil {
		return nil
	}
	return &engine.Calls{Required: c.GetRequired(), Name: c.GetName(), Single: c.GetSingle(), Strict: c.GetStrict()}
}

// fromConstraint reads the form of an answer; one of no known form is refused when
// it is compiled.
func fromConstraint(c *wire.Constraint) *engine.Constraint {
	if c == nil {
		return nil
	}
	out := &engine.Constraint{Param: c.GetParam(), Spec: grammar.Spec{Kind: -1}}
	switch f := c.GetForm().(type) {
	case *wire.Constraint_JsonObject:
		out.Kind = grammar.JSONObject
	case *wire.Constraint_JsonSchema:
		out.Kind, out.Source = grammar.JSONSchema, f.JsonSchema
	case *wire.Constraint_Regex:
		out.Kind, out.Source = grammar.Regex, f.Regex
	case *wire.Constraint_Grammar:
		out.Kind, out.Source = grammar.EBNF, f.Grammar
	case *wire.Constraint_Choice:
		out.Kind, out.Choices = grammar.Choice, f.Choice.GetTexts()
	}
	return out
}

// fromSampling fills what is absent with neutral values and a fresh seed.
func fromSampling(s *wire.Sampling) *sample.Params {
	p := sample.Neutral()
	p.Seed = rand.Uint64()
	if s == nil {
		return &p
	}
	for _, f := range []struct {
		from *float32
		to   *float64
	}{
		{s.Temperature, &p.Temperature}, {s.TopP, &p.TopP}, {s.MinP, &p.MinP},
		{s.FrequencyPenalty, &p.FrequencyPenalty}, {s.PresencePenalty, &p.PresencePenalty}, {s.RepetitionPenalty, &p.RepetitionPenalty},
	} {
		if f.from != nil {
			*f.to = float64(*f.from)
		}
	}
	if s.TopK != nil {
		p.TopK = int(*s.TopK)
	}
	if s.Seed != nil {
		p.Seed = uint64(*s.Seed)
	}
	p.Bias = s.GetLogitBias()
	return &p
}
