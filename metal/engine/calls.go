package engine

import (
	"context"
	"maps"
	"slices"
	"strings"

	"metalfleet.dev/metalfleet/metal/grammar"
	"metalfleet.dev/metalfleet/metal/text"
	"metalfleet.dev/metalfleet/metal/tokenizer"
	"metalfleet.dev/metalfleet/metal/toolcall"
)

// Calls is what a model may do with the tools of a Chat.
type Calls struct {
	// Required: the answer is calls and nothing else; Name, where it is set, is the
	// one function that is called, once.
	Required bool
	Name     string
	// Single ends the answer after its first call.
	Single bool
	// Strict holds arguments to all of their schema that can be enforced. Otherwise a call of
	// an answer that need not be calls is held to the names of functions and to what schemas
	// declare of types and members.
	Strict bool
}

// Call is a piece of a call.
type Call struct {
	// Name of the function, where the call begins.
	Name string
	// Arguments is the next piece of a JSON object.
	Arguments string
	// Ended is set where the arguments are whole, or never will be: Written is then what the
	// model wrote of the call.
	Ended   bool
	Written string
}

// caller reads the calls of tools in an answer.
type caller struct {
	parser *toolcall.Parser
	// hidden are control tokens of the format that decoders leave out, and the text that
	// stands for each; ends are those that end the model's turn.
	hidden map[int32]string
	ends   map[int32]bool
	single bool
	// over is set once a single call has ended.
	over bool
}

// said is a piece of an answer: thoughts or text, or pieces of calls.
type said struct {
	thoughts, text string
	calls          []Call
}

// toolsParam is the field of a request that has the tools.
const toolsParam = "tools"

// callsOf has the calls read that a request allows, and holds them to the form that parses;
// nil where the request has no tools.
func (s *serving) callsOf(ctx context.Context, r Request, prompt []int32) (*caller, *constrained, *Refusal) {
	if r.Calls == nil {
		return nil, nil, nil
	}
	if r.Chat == nil || len(r.Chat.Tools) == 0 {
		return nil, nil, invalid("tools", "tool calls are requested but there are no tools")
	}
	format := s.text.Calls()
	if format == toolcall.None {
		return nil, nil, invalid("tools", "this engine does not know the tool-call format of this model's chat template (supported: %s); send the request without tools, or use a model whose template has a supported format", toolcall.Names())
	}
	tools, err := toolcall.ReadTools(r.Chat.Tools)
	if err != nil {
		return nil, nil, invalid("tools", "%v", err)
	}
	if _, declared := tools[r.Calls.Name]; r.Calls.Name != "" && !declared {
		return nil, nil, invalid("tool_choice", "tool_choice requires %q, but no tool has that name", r.Calls.Name)
	}
	c := s.markers(format)
	c.single = r.Calls.Single
	tokens := slices.Collect(maps.Values(c.hidden))
	other := r.Constraint != nil && !r.Calls.Required
	form, refusal := s.hold(ctx, r, prompt, format.Grammar(tools, toolcall.Hold{
		Tokens: tokens, Required: r.Calls.Required || other, Name: r.Calls.Name, Single: r.Calls.Single, Strict: r.Calls.Strict}))
	if refusal != nil {
		return nil, nil, refusal
	}
	if c.parser, err = toolcall.New(format, tools, toolcall.Options{Tokens: tokens, Held: form != nil && !other}); err != nil {
		form.finish()
		return nil, nil, invalid("tools", "%v", err)
	}
	for id, marker := range c.hidden {
		c.hidden[id] = format.Mark(marker)
	}
	if form != nil {
		form.marks = c.hidden
	}
	return c, form, nil
}

// markers finds the control tokens of a format.
func (s *serving) markers(format toolcall.Format) *caller {
	c := &caller{hidden: map[int32]string{}, ends: map[int32]bool{}}
	for _, marker := range format.Markers() {
		id, known := s.tok.ID(marker)
		if !known {
			continue
		}
		if shown, err := s.tok.Decode([]int32{id}, true); err == nil && shown == "" {
			c.hidden[id] = marker
		}
	}
	for _, marker := range format.Ends() {
		if id, known := s.tok.ID(marker); known {
			c.ends[id] = true
		}
	}
	return c
}

// hold compiles the form of calls, and the other form that an answer may have. Where calls
// are free and not strict, an answer is not held to a form that cannot be compiled: what is no
// call is then text.
func (s *serving) hold(ctx context.Context, r Request, prompt []int32, calls *grammar.Calls) (*constrained, *Refusal) {
	form := &Constraint{Spec: grammar.Spec{Kind: grammar.Functions, Calls: calls}, Param: toolsParam}
	switch other := r.Constraint; {
	case r.Calls.Required:
		form.Param = "tool_choice"
	case other != nil:
		form.Else, form.Param = &other.Spec, other.Param
	}
	r.Constraint = form
	c, refusal := s.constrain(ctx, r, prompt)
	if refusal != nil && calls.Free && !r.Calls.Strict && ctx.Err() == nil {
		return nil, nil
	}
	return c, refusal
}

// reasonsIn says that calls and thoughts of an answer are told apart together.
func reasonsIn(t *text.Text) bool { return t.Calls() == toolcall.Harmony }

// shown is the text of a token, where calls are read without what stands for control tokens.
func (c *caller) shown(text string) string {
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

// marksBegin is how the texts that stand for control tokens begin in UTF-8.
const marksBegin = "\xef\xb7"

// mark is what stands for a control token that the parser reads, after what waits in the
// decoder: a character that broke off.
func (c *caller) mark(token int32, d *tokenizer.Decoder) string {
	if c == nil || c.hidden[token] == "" {
		return ""
	}
	return d.Flush() + c.hidden[token]
}

// read takes more text of the answer, and says what it brings, in order.
func (c *caller) read(text string) []said {
	if c == nil {
		return []said{{text: text}}
	}
	return c.sort(c.parser.Push(text))
}

// rest is what the parser held back at the end; cut is set where a limit ended the answer.
func (c *caller) rest(cut bool) []said {
	if c == nil {
		return nil
	}
	return c.sort(c.parser.Flush(cut))
}

// broken counts what began as a call and was returned as text.
func (c *caller) broken() int {
	if c == nil {
		return 0
	}
	return c.parser.Broken()
}

func (c *caller) sort(events []toolcall.Event) (out []said) {
	for _, e := range events {
		if c.over {
			break
		}
		switch e.Kind {
		case toolcall.Text:
			out = append(out, said{text: e.Text})
		case toolcall.Thought:
			out = append(out, said{thoughts: e.Text})
		default:
			out = append(out, said{calls: []Call{callOf(e)}})
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

// called says that a call was told.
func (c *caller) called() bool { return c != nil && c.parser.Calls() > 0 }

// idle says that the text that came last is neither shown nor held back: it closed
// a call.
func (c *caller) idle(brought []said) bool {
	return c != nil && len(brought) == 0 && !c.parser.Inside()
}

// tell streams what a piece of the answer brings; stopped says that a stop string
// ended it, or its only call.
func (l *looping) tell(a *active, brought []said) (stopped bool) {
	for _, s := range brought {
		if s.calls != nil {
			a.untold.drop()
			a.stream.pushText(a.stops.Break(), "", nil)
			a.stream.pushCalls(s.calls)
			continue
		}
		shown, stopped := s.text, false
		if least := a.ending.least; least == 0 || a.generated() > least {
			shown, stopped = a.stops.Push(s.text)
		}
		a.untold.decodes(len(s.text))
		a.stream.pushText(shown, s.thoughts, a.untold.shows(len(shown)))
		if stopped {
			return true
		}
	}
	if a.caller.idle(brought) {
		a.untold.drop()
	}
	return a.caller != nil && a.caller.over
}
