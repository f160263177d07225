package engine

import (
	"maps"
	"slices"

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
	// Single ends the answer behind its first call.
	Single bool
	// Strict: functions are called with arguments of their schema or not at all. Where
	// a call is Required and this is not set, a schema that cannot be enforced is not.
	Strict bool
}

// Call is a piece of a call.
type Call struct {
	// Name of the function, where the call begins.
	Name string
	// Arguments is the next piece of a JSON object.
	Arguments string
	// Ended says that the arguments are whole, or that they never will be: Written is
	// then what the model wrote of the call.
	Ended   bool
	Written string
}

// caller reads the calls of tools in an answer.
type caller struct {
	parser *toolcall.Parser
	// hidden are control tokens of the format that decoders leave out; ends are those
	// that end the model's turn.
	hidden map[int32]string
	ends   map[int32]bool
	single bool
	// over says that a single call has ended.
	over bool
	// form that the answer is held to; nil for none.
	form *Constraint
}

// said is a piece of an answer: thoughts or text, or pieces of calls.
type said struct {
	thoughts, text string
	calls          []Call
}

// toolsParam is the field of a request that has the tools.
const toolsParam = "tools"

// callsOf reads the calls that a request allows; nil where it has no tools.
func (s *serving) callsOf(r Request) (*caller, *Refusal) {
	if r.Calls == nil {
		return nil, nil
	}
	if r.Chat == nil || len(r.Chat.Tools) == 0 {
		return nil, invalid("tools", "tool calls are requested but there are no tools")
	}
	format := s.text.Calls()
	if format == toolcall.None {
		return nil, invalid("tools", "this engine does not know the tool-call format of this model's chat template (supported: %s); send the request without tools, or use a model whose template has a supported format", toolcall.Names())
	}
	tools, err := toolcall.ReadTools(r.Chat.Tools)
	if err != nil {
		return nil, invalid("tools", "%v", err)
	}
	p, err := toolcall.New(format, tools)
	if err != nil {
		return nil, invalid("tools", "%v", err)
	}
	form, refusal := formOf(r.Calls, r.Constraint, format, tools)
	if refusal != nil {
		return nil, refusal
	}
	c := &caller{parser: p, hidden: map[int32]string{}, ends: map[int32]bool{}, single: r.Calls.Single, form: form}
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
	return c, nil
}

// formOf is what the answer is held to: calls alone where one is required; calls, or
// an answer of the other form where there is one; else calls of their schema wherever
// they begin. It is nil where the model is free.
func formOf(c *Calls, other *Constraint, format toolcall.Format, tools toolcall.Tools) (*Constraint, *Refusal) {
	if !c.Required && !c.Strict && other == nil {
		return nil, nil
	}
	shape, known := format.Shape()
	switch {
	case !known && other != nil && !c.Required:
		return nil, invalid(other.Param, "this engine cannot combine tools with an output constraint for models with the tool-call format %s, only with %s; send only one of them", format, toolcall.Held())
	case !known && c.Required:
		return nil, invalid("tool_choice", "this engine cannot force a tool call for models with the tool-call format %s, only with %s; set tool_choice to auto or none, or use response_format", format, toolcall.Held())
	case !known:
		return nil, invalid("tools", "this engine cannot enforce the schema of a tool for models with the tool-call format %s, only with %s; omit strict, and validate the arguments of each call", format, toolcall.Held())
	case !c.Required && shape.Begin == "" && other == nil:
		return nil, invalid("tools", "this engine cannot detect where a tool call begins in the format %s, so strict works only for forced calls: set tool_choice to required or to a function's name, or omit strict", format)
	}
	names := slices.Sorted(maps.Keys(tools))
	if c.Name != "" {
		if !slices.Contains(names, c.Name) {
			return nil, invalid("tool_choice", "tool_choice requires %q, but no tool has that name", c.Name)
		}
		names = []string{c.Name}
	}
	calls := &grammar.Calls{Begin: shape.Begin, End: shape.End, Between: shape.Between, Many: shape.Many && !c.Single && c.Name == "", Free: !c.Required && other == nil}
	for _, name := range names {
		before, behind := shape.Around(name)
		calls.Ways = append(calls.Ways, grammar.Way{Name: name, Open: before, Schema: tools.Schema(name), Close: behind, Loose: !c.Strict})
	}
	form := &Constraint{Spec: grammar.Spec{Kind: grammar.Functions, Calls: calls}, Param: toolsParam}
	if other != nil && !c.Required {
		form.Else, form.Param = &other.Spec, other.Param
	}
	return form, nil
}

// holds is the form that the answer is held to, where calls are wanted or another.
func (c *caller) holds(other *Constraint) *Constraint {
	if c == nil || c.form == nil {
		return other
	}
	return c.form
}

// reasonsIn says that calls and thoughts of an answer are told apart together.
func reasonsIn(t *text.Text) bool { return t.Calls() == toolcall.Harmony }

// shown is the text of a token with the control tokens that the parser needs, which
// come behind whatever waits in the decoder: a character that broke off.
func (c *caller) shown(token int32, text string, d *tokenizer.Decoder) string {
	if c == nil || c.hidden[token] == "" {
		return text
	}
	return text + d.Flush() + c.hidden[token]
}

// read takes more text of the answer, and says what it brings, in order.
func (c *caller) read(text string) []said {
	if c == nil {
		return []said{{text: text}}
	}
	return c.sort(c.parser.Push(text))
}

// rest is what the parser held back at the end.
func (c *caller) rest() []said {
	if c == nil {
		return nil
	}
	return c.sort(c.parser.Flush())
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
