package serve

import (
	"encoding/json"
	"net/http"
	"strings"

	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/anthropic"
	"metalfleet.dev/metalfleet/api/dialect"
	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/metal/wire"
)

// anthropicVersion refuses unsupported versions of that API. A client that names
// none gets this one.
func anthropicVersion(r *http.Request) error {
	given := r.Header.Get(anthropic.HeaderVersion)
	if dialect.Of(r.URL.Path) != dialect.Anthropic || given == "" || given == anthropic.Version || given == anthropic.VersionNext {
		return nil
	}
	return openai.Invalid("anthropic-version", "The header 'anthropic-version' is %s, but this server supports %s and %s.", openai.Shorten(given), anthropic.Version, anthropic.VersionNext)
}

// decodeMessage decodes a request in Anthropic's format.
func decodeMessage(d *openai.Decoder, h http.Header, body []byte) (*request, error) {
	r, err := anthropic.Decode(d, body)
	if err != nil {
		return nil, err
	}
	g, err := messageRequest(d, h, r)
	if err != nil {
		return nil, err
	}
	g.MaxTokens = int64(r.MaxTokens)
	return &request{model: r.Model, stream: r.Stream, includeUsage: true, wire: g,
		answer: func(model string, _ int64) form {
			return &messageForm{a: anthropic.Answer{ID: anthropic.NewID(), Model: model}, thinking: r.Thinks()}
		}}, nil
}

// decodeCount decodes a request for the number of prompt tokens. The engine
// counts them when it admits the request, which is then canceled.
func decodeCount(d *openai.Decoder, h http.Header, body []byte) (*request, error) {
	r, err := anthropic.DecodeCount(d, body)
	if err != nil {
		return nil, err
	}
	g, err := messageRequest(d, h, r)
	if err != nil {
		return nil, err
	}
	g.MaxTokens = 1
	return &request{model: r.Model, wire: g, count: func(n int) any { return anthropic.CountAnswer{InputTokens: n} }}, nil
}

// attributionBlock is the name of the attribution block among ignored fields.
const attributionBlock = "system[x-anthropic-billing-header]"

// systemPrompt returns the system prompt. The attribution block differs between
// sessions and would keep every prompt out of the prefix cache, so it is left out
// unless the gateway requests it.
func systemPrompt(d *openai.Decoder, h http.Header, r *anthropic.Request) string {
	switch {
	case r.Attribution == "":
		return r.System
	case h.Get(agentapi.HeaderAttribution) != agentapi.AttributionKeep:
		d.Ignore(attributionBlock)
		return r.System
	case r.System == "":
		return r.Attribution
	}
	return r.Attribution + "\n\n" + r.System
}

// messageRequest returns the request for an engine.
func messageRequest(d *openai.Decoder, h http.Header, r *anthropic.Request) (*wire.GenerateRequest, error) {
	if last := r.Messages[len(r.Messages)-1]; last.Role == openai.RoleAssistant {
		return nil, openai.Unsupported("messages", "The last message has the role assistant, but this server does not continue a partial response. End with a user message.")
	}
	chat := &wire.Chat{SplitReasoning: true, ReasoningEffort: r.Effort}
	if r.Thinking != nil && !*r.Thinking && r.Effort == "" {
		chat.ReasoningEffort = openai.EffortNone
	}
	// In this API the model reasons only if the request asks for it.
	if err := toggle(chat, r.Thinks(), nil); err != nil {
		return nil, err
	}
	if err := offer(chat, &r.Use); err != nil {
		return nil, err
	}
	if system := systemPrompt(d, h, r); system != "" {
		chat.Messages = append(chat.Messages, &wire.ChatMessage{Role: openai.RoleSystem, Content: system})
	}
	tools := map[string]string{} // names by the ids of their uses
	for _, m := range r.Messages {
		turns, err := turnsOf(m, tools)
		if err != nil {
			return nil, err
		}
		chat.Messages = append(chat.Messages, turns...)
	}
	g := generation(&openai.Parameters{Temperature: r.Temperature, TopP: r.TopP, TopK: r.TopK, Stop: r.Stop, Constraint: r.Constraint})
	g.Input = &wire.GenerateRequest_Chat{Chat: chat}
	return g, nil
}

// turnsOf returns the turns for a template of one message: tool results are turns
// of their own, before the user's text.
func turnsOf(m anthropic.Message, tools map[string]string) ([]*wire.ChatMessage, error) {
	var out []*wire.ChatMessage
	var texts, thoughts []string
	var parts []*wire.ContentPart
	seen := false
	var more extra
	for _, b := range m.Blocks {
		switch b.Type {
		case anthropic.BlockText:
			texts = append(texts, b.Text)
			parts = append(parts, contentPart(b.Text, nil))
		case anthropic.BlockImage:
			seen = true
			parts = append(parts, contentPart("", b.Image))
		case anthropic.BlockThinking:
			thoughts = append(thoughts, b.Text)
		case anthropic.BlockToolUse:
			more.ToolCalls = append(more.ToolCalls, newToolCall(b.ID, b.Name, b.Input))
			tools[b.ID] = b.Name
		case anthropic.BlockToolResult:
			result, err := resultOf(b, tools)
			if err != nil {
				return nil, err
			}
			out = append(out, result)
		}
	}
	more.Reasoning = strings.Join(thoughts, "\n\n")
	if len(texts) == 0 && !seen && len(more.ToolCalls) == 0 && more.Reasoning == "" && len(m.Blocks) > 0 {
		return out, nil
	}
	turn := &wire.ChatMessage{Role: m.Role, Content: strings.Join(texts, "\n\n")}
	if seen {
		turn.Content, turn.Parts = "", parts
	}
	return append(out, turn), more.into(turn)
}

// resultOf returns the turn of a tool result.
func resultOf(b anthropic.Block, tools map[string]string) (*wire.ChatMessage, error) {
	name, ok := tools[b.ID]
	if !ok {
		return nil, openai.Invalid("messages", "A 'tool_result' block refers to the 'tool_use_id' %s, but no earlier 'tool_use' block has that id.", openai.Shorten(b.ID))
	}
	turn := &wire.ChatMessage{Role: "tool", Name: name, Content: b.Text}
	if b.Failed {
		turn.Content = "Error: " + b.Text
	}
	return turn, extra{ToolCallID: b.ID}.into(turn)
}

// messageForm builds Anthropic's bodies.
type messageForm struct {
	a      anthropic.Answer
	stop   anthropic.Stop
	reason string
	// thinking is true if reasoning is returned, callable if a call is complete,
	// full if the context is used up.
	thinking, callable, full bool
}

func (f *messageForm) thinks(text string) any {
	if !f.thinking {
		return nil
	}
	return f.a.Thinking(text)
}

func (f *messageForm) calls(c *wire.CallDelta) any {
	var out []openai.NamedEvent
	if c.GetName() != "" {
		out = f.a.Call(c.GetName())
	}
	if c.GetArguments() != "" {
		out = append(out, f.a.Input(c.GetArguments())...)
	}
	f.callable = f.callable || c.GetEnded() && c.GetWritten() == ""
	if out == nil {
		return nil
	}
	return out
}

func (f *messageForm) admitted(n int, _ func()) { f.a.PromptTokens = n }
func (f *messageForm) over()                    {}

func (f *messageForm) keepAlive(p *openai.PromptProgress) any { return anthropic.Ping(p) }

func (f *messageForm) stopped(end *wire.Finished) {
	f.stop.Sequence, f.full = end.GetStop(), end.GetContextFull()
}

func (f *messageForm) opening() any        { return f.a.Opening() }
func (f *messageForm) text(p piece) any    { return f.a.Text(p.text) }
func (f *messageForm) finish(r string) any { f.reason = r; return []openai.NamedEvent(nil) }
func (f *messageForm) usage(u openai.Usage) any {
	return f.a.Finish(f.ending(f.reason), messageUsage(u))
}

func (f *messageForm) whole(p piece, reason string, u openai.Usage) any {
	var blocks []anthropic.AnswerBlock
	if p.thoughts != "" && f.thinking {
		blocks = append(blocks, anthropic.ThinkingBlock(p.thoughts))
	}
	for _, one := range p.parts {
		if one.call == nil {
			blocks = append(blocks, anthropic.TextBlock(one.text))
			continue
		}
		f.callable = f.callable || one.call.written == ""
		blocks = append(blocks, anthropic.ToolUseBlock(one.call.name, one.call.members()))
	}
	return f.a.Whole(blocks, f.ending(reason), messageUsage(u))
}

func (f *messageForm) failed(e *openai.Error, id string) any {
	body, err := anthropic.ErrorBody(e, id)
	if err != nil {
		return []openai.NamedEvent(nil)
	}
	return []openai.NamedEvent{{Name: "error", Data: json.RawMessage(body)}}
}

// ending returns Anthropic's stop reason.
func (f *messageForm) ending(reason string) anthropic.Stop {
	switch {
	case reason == openai.FinishLength && f.full:
		return anthropic.Stop{Reason: anthropic.StopContext}
	case reason == openai.FinishLength:
		return anthropic.Stop{Reason: anthropic.StopMaxTokens}
	case f.stop.Sequence != "":
		return anthropic.Stop{Reason: anthropic.StopSequence, Sequence: f.stop.Sequence}
	case f.callable:
		return anthropic.Stop{Reason: anthropic.StopToolUse}
	}
	return anthropic.Stop{Reason: anthropic.StopEndTurn}
}

func messageUsage(u openai.Usage) anthropic.Usage {
	return anthropic.NewUsage(u.PromptTokens, u.PromptTokensDetails.CachedTokens, u.CompletionTokens).WithThinking(u.Reasoning())
}
