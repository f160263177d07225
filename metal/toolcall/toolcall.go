// Package toolcall reads the calls of tools out of what a model writes, in the
// way of writing that its chat template teaches it.
//
// It owns these ways (Format), how a template shows which one it is (Detect), and
// for each a parser that takes the text as it comes and tells text, thoughts and
// calls apart, arguments while they are written. It refuses to guess: a template
// that shows none of them has no format. What is no call in the end is text, with
// everything that was written; a name that was not declared makes no call.
//
// It knows no tokens and no requests. Start reading at New and Parser.
package toolcall

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
)

// Format is a way of writing calls.
type Format string

// The formats.
const (
	// None: the template shows none that is known here.
	None Format = ""
	// Hermes: <tool_call>{"name": "f", "arguments": {…}}</tool_call>, of Hermes and
	// Qwen.
	Hermes Format = "hermes"
	// QwenXML: <tool_call><function=f><parameter=a>…</parameter></function></tool_call>,
	// of Qwen3-Coder.
	QwenXML Format = "qwen-xml"
	// Llama: the answer is {"name": "f", "parameters": {…}}, with or without
	// <|python_tag|> before it.
	Llama Format = "llama3"
	// Mistral: [TOOL_CALLS] and a list of objects, or a name and its arguments.
	Mistral Format = "mistral"
	// Harmony: messages to functions.f in channels, of GPT-OSS.
	Harmony Format = "harmony"
)

// Formats are all that can be read.
func Formats() []Format { return []Format{Hermes, QwenXML, Llama, Mistral, Harmony} }

// Names lists the formats for people.
func Names() string { return "Qwen and Hermes, Qwen3-Coder, Llama 3, Mistral, GPT-OSS" }

// Markers are texts of the format for which vocabularies have control tokens,
// which decoders leave out: whoever feeds a parser puts them back.
func (f Format) Markers() []string {
	switch f {
	case Hermes, QwenXML:
		return []string{openCall, closeCall}
	case Llama:
		return []string{pythonTag}
	case Mistral:
		return []string{mistralCalls, mistralArgs, mistralID}
	case Harmony:
		return []string{harmonyStart, harmonyChannel, harmonyMessage, harmonyConstrain, harmonyEnd, harmonyCall, harmonyReturn}
	}
	return nil
}

// Ends are markers that end the model's turn.
func (f Format) Ends() []string {
	if f == Harmony {
		return []string{harmonyCall, harmonyReturn}
	}
	return nil
}

// Kind is what an event tells.
type Kind int

// The kinds of events.
const (
	// Text of the answer, and Thought before it.
	Text Kind = iota
	Thought
	// Begin of a call, whose name is Event.Text.
	Begin
	// Arguments of the call that began last: a piece of a JSON object.
	Arguments
	// End of the call. Event.Text is empty where it is whole; else it is what the
	// model wrote of it, which cannot be called.
	End
)

// Event is a piece of an answer.
type Event struct {
	Kind Kind
	Text string
}

// Parser tells calls from text. What it tells does not depend on how the text is
// cut. It is for one goroutine.
type Parser struct {
	out   sink
	m     machine
	ended bool
}

// machine reads one format, byte by byte.
type machine interface {
	push(b byte, out *sink)
	// end is told that nothing more comes.
	end(out *sink)
	// inside says that what came last is no text so far.
	inside() bool
}

// New makes a parser of an answer to a request that declares these tools.
func New(f Format, tools Tools) (*Parser, error) {
	p := new(Parser)
	switch f {
	case Hermes:
		p.m = newMarked(tools, []string{openCall}, func(string) body { return newTagged(tools) })
	case QwenXML:
		p.m = newMarked(tools, []string{openCall, openFunction}, func(marker string) body { return newXML(tools, marker) })
	case Llama:
		p.m = newLlama(tools)
	case Mistral:
		p.m = newMarked(tools, []string{mistralCalls}, func(string) body { return newMistral(tools) })
	case Harmony:
		p.m = newHarmony(tools)
	default:
		return nil, fmt.Errorf("%w: no parser for the tool-call format %q", ErrTools, f)
	}
	return p, nil
}

// Push takes more of the answer.
func (p *Parser) Push(text string) []Event {
	for i := range len(text) {
		p.m.push(text[i], &p.out)
	}
	return p.out.take()
}

// Flush ends the answer.
func (p *Parser) Flush() []Event {
	if !p.ended {
		p.ended = true
		p.m.end(&p.out)
	}
	return p.out.take()
}

// Inside says that what came last is part of a call, or may become one.
func (p *Parser) Inside() bool { return p.m.inside() }

// Calls counts the calls that were whole.
func (p *Parser) Calls() int { return p.out.calls }

// sink joins what is told.
type sink struct {
	events []Event
	// last is more text of the event told last.
	last  []byte
	calls int
}

func (s *sink) tell(k Kind, text string) {
	if text == "" && k != Begin && k != End {
		return
	}
	if n := len(s.events); n > 0 && s.events[n-1].Kind == k && k != Begin && k != End {
		s.last = append(s.last, text...)
		return
	}
	s.join()
	s.events = append(s.events, Event{k, text})
}

// one tells a byte.
func (s *sink) one(k Kind, b byte) {
	if n := len(s.events); n > 0 && s.events[n-1].Kind == k {
		s.last = append(s.last, b)
		return
	}
	s.tell(k, string([]byte{b}))
}

func (s *sink) join() {
	if len(s.last) > 0 {
		s.events[len(s.events)-1].Text += string(s.last)
		s.last = s.last[:0]
	}
}

// whole ends a call.
func (s *sink) whole() {
	s.calls++
	s.tell(End, "")
}

func (s *sink) take() []Event {
	s.join()
	out := s.events
	s.events = nil
	return out
}

// ErrTools says that definitions of tools cannot be read.
var ErrTools = errors.New("invalid tools")

// Tools are what a request declares: the parameters of each function by name.
type Tools map[string]parameters

// parameters is what is read of a function's schema.
type parameters struct {
	Properties map[string]struct {
		Type  types `json:"type"`
		AnyOf []struct {
			Type types `json:"type"`
		} `json:"anyOf"`
	} `json:"properties"`
	// whole is the schema.
	whole json.RawMessage
}

// types of a schema: one, or a list.
type types []string

func (t *types) UnmarshalJSON(raw []byte) error {
	var one string
	if json.Unmarshal(raw, &one) == nil {
		*t = types{one}
		return nil
	}
	return json.Unmarshal(raw, (*[]string)(t))
}

// ReadTools reads definitions as OpenAI's chat completions have them.
func ReadTools(raw json.RawMessage) (Tools, error) {
	var list []struct {
		Function struct {
			Name       string          `json:"name"`
			Parameters json.RawMessage `json:"parameters"`
		} `json:"function"`
	}
	if err := json.Unmarshal(raw, &list); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrTools, err)
	}
	out := Tools{}
	for i, t := range list {
		f := t.Function
		if f.Name == "" {
			return nil, fmt.Errorf("%w: tool %d is not a function with a name", ErrTools, i)
		}
		if _, twice := out[f.Name]; twice {
			return nil, fmt.Errorf("%w: two tools are named %q", ErrTools, f.Name)
		}
		p := parameters{whole: f.Parameters}
		if len(f.Parameters) > 0 {
			if err := json.Unmarshal(f.Parameters, &p); err != nil {
				return nil, fmt.Errorf("%w: the parameters of %q: %w", ErrTools, f.Name, err)
			}
		}
		out[f.Name] = p
	}
	return out, nil
}

// typesOf are the types that a parameter may have; nil where nothing is said.
func (t Tools) typesOf(function, parameter string) []string {
	p, ok := t[function].Properties[parameter]
	if !ok {
		return nil
	}
	all := slices.Clone([]string(p.Type))
	for _, one := range p.AnyOf {
		all = append(all, one.Type...)
	}
	return all
}
