package serve

import (
	"context"
	"strings"

	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/api/responses"
	"metalfleet.dev/metalfleet/metal/wire"
)

// turn is one message for a template, made of one or several items: consecutive
// reasoning, text and calls of the assistant are one turn.
type turn struct {
	role, name string
	// texts are joined once, in the message: a client may send many for one turn.
	texts []string
	more  extra
	// parts of a message with images, in place of texts.
	parts []*wire.ContentPart
}

// talkOf returns the turns for a template, unless ctx ends. named returns the function name
// of a tool.
func talkOf(ctx context.Context, items []responses.Item, named func(namespace, name string) string) ([]*wire.ChatMessage, error) {
	var turns []turn
	answered, names := map[string]bool{}, map[string]string{} // names of functions, by the ids of their calls
	for _, i := range items {
		answered[i.CallID] = answered[i.CallID] || i.IsOutput()
	}
	for k, i := range items {
		if k%256 == 255 && ctx.Err() != nil {
			return nil, ended(ctx, context.Cause(ctx))
		}
		switch {
		case i.IsCall():
			if i.Status != responses.StatusCompleted && !answered[i.CallID] {
				continue // it was interrupted and not executed
			}
			arguments, err := i.FunctionArguments()
			if err != nil {
				return nil, err
			}
			names[i.CallID] = named(i.Namespace, i.Name)
			t := assistantTurn(&turns, false)
			t.more.ToolCalls = append(t.more.ToolCalls, newToolCall(i.CallID, names[i.CallID], arguments))
		case i.IsOutput():
			name, ok := names[i.CallID]
			if !ok {
				return nil, openai.Invalid("input", "A '%s' item refers to the 'call_id' %s, but no earlier call has that id.", i.Type, openai.Shorten(i.CallID))
			}
			turns = append(turns, turn{role: openai.RoleTool, texts: []string{*i.Output}, name: name, more: extra{ToolCallID: i.CallID}})
		case i.Type == responses.ItemReasoning:
			if i.Text() != "" {
				turns = append(turns, turn{role: openai.RoleAssistant, more: extra{Reasoning: i.Text()}})
			}
		case i.Role != openai.RoleAssistant:
			turns = append(turns, turn{role: templateRole(i.Role), texts: []string{i.Text()}, parts: imageParts(i)})
		default:
			t := assistantTurn(&turns, true)
			if text := i.Text(); text != "" {
				t.texts = append(t.texts, text)
			}
		}
	}
	return messagesOf(turns)
}

func messagesOf(turns []turn) ([]*wire.ChatMessage, error) {
	var out []*wire.ChatMessage
	for _, t := range turns {
		m := &wire.ChatMessage{Role: t.role, Content: strings.Join(t.texts, ""), Name: t.name, Parts: t.parts}
		if t.parts != nil {
			m.Content = ""
		}
		if err := t.more.into(m); err != nil {
			return nil, err
		}
		out = append(out, m)
	}
	return out, nil
}

// assistantTurn returns the assistant's turn in progress, or a new one. Two
// consecutive texts are two messages.
func assistantTurn(turns *[]turn, text bool) *turn {
	if n := len(*turns); n > 0 {
		last := &(*turns)[n-1]
		said := last.texts != nil && last.more.ToolCalls == nil
		if last.role == openai.RoleAssistant && !(text && said) {
			return last
		}
	}
	*turns = append(*turns, turn{role: openai.RoleAssistant})
	return &(*turns)[len(*turns)-1]
}
