package serve

import (
	"encoding/json"
	"fmt"
	"strings"

	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/metal/wire"
)

// caller is a form that tells calls of tools.
type caller interface {
	form
	// calls makes a chunk of a piece of a call; nil where nothing is to be said.
	calls(c *wire.CallDelta) any
}

// toolCall is a tool's use as chat templates know it.
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

// extra is what a message has beside its text.
type extra struct {
	Reasoning  string     `json:"reasoning_content,omitempty"`
	ToolCalls  []toolCall `json:"tool_calls,omitempty"`
	ToolCallID string     `json:"tool_call_id,omitempty"`
}

// extraOf are the members of a message that templates read.
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

// offer tells an engine of the tools that its model may call.
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

// calling is why an answer ended that may have calls in it.
func calling(reason string, calls bool) string {
	if calls && reason == openai.FinishStop {
		return openai.FinishCalls
	}
	return reason
}

// part of an answer: text, with how likely its tokens were where that is wanted, or a
// call.
type part struct {
	text   string
	ranked []openai.Ranked
	call   *call
}

// call of a function. One that is not complete has written, what the model wrote of it.
type call struct{ name, arguments, written string }

// gathered is an answer while it is collected.
type gathered struct {
	thoughts strings.Builder
	prompt   echoed
	parts    []part
	last     strings.Builder // the text under way
	ranked   []openai.Ranked // of the text under way
	open     *call
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
		}
		if g.open == nil {
			continue
		}
		g.open.arguments += c.GetArguments()
		if !c.GetEnded() {
			continue
		}
		g.open.written = c.GetWritten()
		g.parts = append(g.parts, part{call: g.open})
		g.open = nil
	}
}

// cut ends the text under way.
func (g *gathered) cut() {
	if g.last.Len() > 0 || len(g.ranked) > 0 {
		g.parts = append(g.parts, part{text: g.last.String(), ranked: g.ranked})
		g.last.Reset()
		g.ranked = nil
	}
}

// piece is the whole answer. A call that is not complete is one that a limit cut; where the
// model ended the answer it is text.
func (g *gathered) piece(reason string) piece {
	g.cut()
	p := piece{thoughts: g.thoughts.String(), prompt: g.prompt}
	var text strings.Builder
	for _, one := range g.parts {
		if one.call != nil && one.call.written != "" && reason != openai.FinishLength {
			one = part{text: one.call.written}
		}
		if n := len(p.parts); one.call == nil && n > 0 && p.parts[n-1].call == nil {
			p.parts[n-1].text += one.text
			p.parts[n-1].ranked = append(p.parts[n-1].ranked, one.ranked...)
		} else {
			p.parts = append(p.parts, one)
		}
		text.WriteString(one.text)
		p.ranked = append(p.ranked, one.ranked...)
	}
	p.text = text.String()
	return p
}

// members is the object that arguments are, or the complete members of those that a limit
// cut.
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
