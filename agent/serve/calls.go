package serve

import (
	"encoding/json"
	"fmt"
	"strings"

	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/metal/wire"
)

// toolCaller is a form that can return tool calls.
type toolCaller interface {
	form
	// calls returns the chunk for a part of a tool call; nil if there is none.
	calls(c *wire.CallDelta) any
}

// toolCall is a tool call as chat templates expect it.
type toolCall struct {
	ID       string `json:"id"`
	Type     string `json:"type"`
	Function struct {
		Name      string          `json:"name"`
		Arguments json.RawMessage `json:"arguments"`
	} `json:"function"`
}

func newToolCall(id, name string, arguments json.RawMessage) toolCall {
	c := toolCall{ID: id, Type: "function"}
	c.Function.Name, c.Function.Arguments = name, arguments
	return c
}

// extra is the content of a message in addition to its text.
type extra struct {
	Reasoning  string     `json:"reasoning_content,omitempty"`
	ToolCalls  []toolCall `json:"tool_calls,omitempty"`
	ToolCallID string     `json:"tool_call_id,omitempty"`
}

// extraOf returns the members of a message that templates read.
func extraOf(m openai.Message) extra {
	e := extra{Reasoning: m.Reasoning, ToolCallID: m.CallID}
	for _, c := range m.Calls {
		e.ToolCalls = append(e.ToolCalls, newToolCall(c.ID, c.Name, c.Arguments))
	}
	return e
}

func (e extra) into(turn *wire.ChatMessage) error {
	if e.Reasoning == "" && e.ToolCalls == nil && e.ToolCallID == "" {
		return nil
	}
	raw, err := openai.Marshal(e)
	if err != nil {
		return fmt.Errorf("encode message fields: %w", err)
	}
	turn.ExtraJson = string(raw)
	return nil
}

// offer adds the tools that the model may call to the engine's request.
func offer(chat *wire.Chat, u *openai.ToolUse) error {
	tools := u.Offered()
	if len(tools) == 0 {
		return nil
	}
	var err error
	chat.ToolsJson, err = openai.Definitions(tools)
	chat.Calls = &wire.Calls{Required: u.Choice == openai.ChoiceRequired || u.Function != "", Name: u.Function, Single: u.Single, Strict: u.Strict()}
	return err
}

// calling returns the finish reason of an answer that may contain tool calls.
func calling(reason string, calls bool) string {
	if calls && reason == openai.FinishStop {
		return openai.FinishCalls
	}
	return reason
}

// part of an answer: text, with log-probabilities if requested, or a tool call.
type part struct {
	text   string
	ranked []openai.Ranked
	call   *call
}

// call of a function. An incomplete one has written, the text that the model
// generated for it.
type call struct{ name, arguments, written string }

// gathered collects an answer.
type gathered struct {
	thoughts strings.Builder
	prompt   echoed
	parts    []part
	last     strings.Builder // the text under way
	ranked   []openai.Ranked // of the text under way
	open     *call
	written  strings.Builder // the arguments of open so far
	raw      strings.Builder // the raw text of open so far
}

func (g *gathered) add(d *wire.Delta) {
	g.prompt.add(d.GetPrompt())
	g.thoughts.WriteString(d.GetReasoning())
	g.ranked = append(g.ranked, rankedOf(d.GetLogprobs())...)
	g.last.WriteString(d.GetText())
	for _, c := range d.GetCalls() {
		if c.GetName() != "" {
			g.cut()
			g.open = &call{name: c.GetName()}
			g.written.Reset()
			g.raw.Reset()
		}
		if g.open == nil {
			continue
		}
		g.written.WriteString(c.GetArguments())
		g.raw.WriteString(c.GetWritten())
		if !c.GetEnded() {
			continue
		}
		g.open.arguments, g.open.written = g.written.String(), g.raw.String()
		g.parts = append(g.parts, part{call: g.open})
		g.open = nil
	}
}

// cut ends the current text.
func (g *gathered) cut() {
	if g.last.Len() > 0 || len(g.ranked) > 0 {
		g.parts = append(g.parts, part{text: g.last.String(), ranked: g.ranked})
		g.last.Reset()
		g.ranked = nil
	}
}

// piece returns the complete answer. An incomplete call was cut by a limit; if
// the model ended the answer it is text.
func (g *gathered) piece(reason string) piece {
	g.cut()
	p := piece{thoughts: g.thoughts.String(), prompt: g.prompt}
	var text strings.Builder
	var begins []int // of parts, in text
	for _, one := range g.parts {
		if one.call != nil && one.call.written != "" && reason != openai.FinishLength {
			one = part{text: one.call.written}
		}
		if n := len(p.parts); one.call == nil && n > 0 && p.parts[n-1].call == nil {
			p.parts[n-1].ranked = append(p.parts[n-1].ranked, one.ranked...)
		} else {
			p.parts, begins = append(p.parts, one), append(begins, text.Len())
		}
		text.WriteString(one.text)
		p.ranked = append(p.ranked, one.ranked...)
	}
	p.text = text.String()
	begins = append(begins, text.Len())
	for i := range p.parts {
		p.parts[i].text = p.text[begins[i]:begins[i+1]]
	}
	return p
}

// members returns the arguments as an object, or the complete members of
// arguments that a limit cut.
func (c *call) members() json.RawMessage {
	if c.written == "" {
		return json.RawMessage(c.arguments)
	}
	dec := json.NewDecoder(strings.NewReader(c.arguments))
	out := []byte{'{'}
	if open, err := dec.Token(); err != nil || open != json.Delim('{') {
		return json.RawMessage("{}")
	}
	for dec.More() {
		name, err := dec.Token()
		var value json.RawMessage
		if err != nil || dec.Decode(&value) != nil {
			break
		}
		key, err := json.Marshal(name)
		if err != nil {
			break
		}
		if len(out) > 1 {
			out = append(out, ',')
		}
		out = append(append(append(out, key...), ':'), value...)
	}
	return append(out, '}')
}
