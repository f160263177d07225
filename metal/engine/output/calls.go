package output

import (
	"strings"

	"metalfleet.dev/metalfleet/metal/tokenizer"
	"metalfleet.dev/metalfleet/metal/toolcall"
)

// Call is a piece of a tool call.
type Call struct {
	// Name of the function, where the call begins.
	Name string
	// Arguments is the next piece of a JSON object.
	Arguments string
	// Ended is true if the arguments are complete, or never will be: Written is then
	// what the model wrote of the call.
	Ended   bool
	Written string
}

// Calls parses the tool calls in an answer. A nil Calls takes everything for text.
type Calls struct {
	format toolcall.Format
	parser *toolcall.Parser
	// hidden are control tokens of the format that decoders omit, and the text that
	// stands for each.
	hidden map[int32]string
	// ends are the tokens that end the model's turn.
	ends   map[int32]bool
	single bool
	// held bytes were parsed since the parser was in the text: it may keep them.
	held int
	// over is true once a single call has ended.
	over bool
}

// NewCalls finds the control tokens of a format. Call Parse before the first token.
// With single, the answer ends after its first call.
func NewCalls(tok *tokenizer.Tokenizer, format toolcall.Format, single bool) *Calls {
	c := &Calls{format: format, single: single, hidden: map[int32]string{}, ends: map[int32]bool{}}
	for _, marker := range format.Markers() {
		id, known := tok.ID(marker)
		if !known {
			continue
		}
		if shown, err := tok.Decode([]int32{id}, true); err == nil && shown == "" {
			c.hidden[id] = marker
		}
	}
	for _, marker := range format.Ends() {
		if id, known := tok.ID(marker); known {
			c.ends[id] = true
		}
	}
	return c
}

// Markers are the control tokens of the format that decoders omit.
func (c *Calls) Markers() []string {
	var out []string
	for _, marker := range c.hidden {
		out = append(out, marker)
	}
	return out
}

// Ends are the tokens that end the model's turn.
func (c *Calls) Ends() map[int32]bool {
	if c == nil {
		return nil
	}
	return c.ends
}

// Parse makes the parser, and returns the text that stands for each control token.
// With constrained, the answer follows the grammar of the calls.
func (c *Calls) Parse(tools toolcall.Tools, constrained bool) (marks map[int32]string, err error) {
	if c.parser, err = toolcall.New(c.format, tools, toolcall.Options{Tokens: c.Markers(), Held: constrained}); err != nil {
		return nil, err
	}
	for id, marker := range c.hidden {
		c.hidden[id] = c.format.Mark(marker)
	}
	return c.hidden, nil
}

// segment is a part of an answer: reasoning or text, or pieces of calls.
type segment struct {
	reasoning, text string
	calls           []Call
}

// marksBegin is how the texts that stand for control tokens begin in UTF-8.
const marksBegin = "\xef\xb7"

// shown is the text of a token, without characters that stand for control tokens.
func (c *Calls) shown(text string) string {
	if c == nil || !strings.Contains(text, marksBegin) {
		return text
	}
	return strings.Map(func(r rune) rune {
		if r >= 0xfdd0 && r <= 0xfdef {
			return '\ufffd'
		}
		return r
	}, text)
}

// mark is the text that stands for a control token that the parser reads, after the
// incomplete character that the decoder may hold.
func (c *Calls) mark(token int32, d *tokenizer.Decoder) string {
	if c == nil || c.hidden[token] == "" {
		return ""
	}
	before := d.Flush()
	d.Continue()
	return before + c.hidden[token]
}

// push parses more text of the answer, and returns its parts in order.
func (c *Calls) push(text string) []segment {
	if c == nil {
		return []segment{{text: text}}
	}
	events := c.parser.Push(text)
	if c.held += len(text); !c.parser.Inside() {
		c.held = 0
	}
	return c.segments(events)
}

// flush returns what the parser held back at the end. cut is true if a limit ended the
// answer.
func (c *Calls) flush(cut bool) []segment {
	if c == nil {
		return nil
	}
	return c.segments(c.parser.Flush(cut))
}

// broken counts what began as a call and was returned as text.
func (c *Calls) broken() int {
	if c == nil {
		return 0
	}
	return c.parser.Broken()
}

func (c *Calls) segments(events []toolcall.Event) (out []segment) {
	for _, e := range events {
		if c.over {
			break
		}
		switch e.Kind {
		case toolcall.Text:
			out = append(out, segment{text: e.Text})
		case toolcall.Thought:
			out = append(out, segment{reasoning: e.Text})
		default:
			out = append(out, segment{calls: []Call{callOf(e)}})
		}
		c.over = c.single && e.Kind == toolcall.End && e.Text == ""
	}
	return out
}

func callOf(e toolcall.Event) Call {
	switch e.Kind {
	case toolcall.Begin:
		return Call{Name: e.Text}
	case toolcall.Arguments:
		return Call{Arguments: e.Text}
	}
	return Call{Ended: true, Written: e.Text}
}

// called reports whether a call was returned.
func (c *Calls) called() bool { return c != nil && c.parser.Calls() > 0 }

// closed reports whether the last text is neither shown nor held back: it closed a
// call.
func (c *Calls) closed(segments []segment) bool {
	return c != nil && len(segments) == 0 && !c.parser.Inside()
}

// done reports whether the only call has ended.
func (c *Calls) done() bool { return c != nil && c.over }
