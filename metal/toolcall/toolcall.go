// Package toolcall reads the calls of tools out of what a model writes, in the
// way of writing that its chat template teaches it.
//
// It owns these ways (Format), how a template shows which one it is (Detect), and
// for each a parser that takes the text as it comes and tells text, thoughts and
// calls apart, arguments while they are written. It refuses to guess: a template
// that shows none of them has no format. What is no call in the end is text, with
// everything that was written; a name that was not declared makes no call.
//
// It knows no tokens and no requests. Start reading at New and Parser; Grammar is what an
// answer is held to so that the parser finds calls in it.
package toolcall

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"metalfleet.dev/metalfleet/metal/grammar"
)

// Format is a way of writing calls.
type Format string

// The formats.
const (
	// None: the template has no known format.
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
	// Mistral: [TOOL_CALLS] and a list of objects, or MistralNamed, a name and its arguments.
	Mistral      Format = "mistral"
	MistralNamed Format = "mistral-named"
	// GLM: <tool_call>f<arg_key>a</arg_key><arg_value>…</arg_value></tool_call>.
	GLM Format = "glm"
	// MiniMax: <minimax:tool_call><invoke name="f"><parameter name="a">…</parameter></invoke>
	// </minimax:tool_call>, and DeepSeekV32 the same with other names of the tags.
	MiniMax     Format = "minimax"
	DeepSeekV32 Format = "deepseek-v3.2"
	// Kimi, DeepSeekV3 and DeepSeekV31: sections of calls, each a name, a separator and an
	// object.
	Kimi        Format = "kimi-k2"
	DeepSeekV3  Format = "deepseek-v3"
	DeepSeekV31 Format = "deepseek-v3.1"
	// Gemma: <|tool_call>call:f{a:<|"|>…<|"|>}<tool_call|>, of Gemma 4.
	Gemma Format = "gemma4"
	// LFM: <|tool_call_start|>[f(a='…')]<|tool_call_end|>, of LFM2.
	LFM Format = "lfm2"
	// Harmony: messages to functions.f in channels, of GPT-OSS.
	Harmony Format = "harmony"
)

// Formats are all that can be read.
func Formats() []Format {
	return []Format{Hermes, QwenXML, Llama, Mistral, MistralNamed, Harmony, GLM, MiniMax, DeepSeekV32, Kimi, DeepSeekV3, DeepSeekV31, Gemma, LFM}
}

// Names lists the formats for people.
func Names() string {
	return "Qwen and Hermes, Qwen3-Coder, Llama 3, Mistral, GPT-OSS, GLM-4.5 to 4.7, MiniMax M2, Kimi K2, DeepSeek V3 to V3.2, Gemma 4, LFM2"
}

// Markers are texts of the format that are control tokens in some vocabularies,
// which decoders leave out: the caller of a parser must restore them.
func (f Format) Markers() []string {
	switch f {
	case Hermes, QwenXML, GLM:
		return []string{openCall, closeCall}
	case Gemma:
		return []string{gemmaCall, gemmaCallEnd, gemmaQuote}
	case LFM:
		return []string{lfmCalls, lfmCallsEnd}
	case MiniMax:
		return []string{miniCall, miniCallEnd}
	case DeepSeekV32:
		return []string{dsmlCall, dsmlCallEnd}
	case Kimi:
		return []string{kimiCalls, kimiCallsEnd, kimiCall, kimiSep, kimiCallEnd}
	case DeepSeekV3, DeepSeekV31:
		return []string{deepCalls, deepCallsEnd, deepCall, deepSep, deepCallEnd}
	case Llama:
		return []string{pythonTag}
	case Mistral, MistralNamed:
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

// Kind is the kind of an event.
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
	// End of the call. Event.Text is empty if the call is complete; else it is
	// the incomplete text of the model, which cannot be called.
	End
)

// Event is a piece of an answer.
type Event struct {
	Kind Kind
	Text string
}

// Options of a parser.
type Options struct {
	// Tokens are the markers of the format that are control tokens of the
	// vocabulary: Mark represents them in the text, and the same letters in an
	// answer are ordinary text.
	Tokens []string
	// Held is set if the model cannot write an invalid call: calls are then
	// reported while they are written, otherwise once they are complete.
	Held bool
}

// Parser separates calls from text. The result does not depend on how the text
// is divided. It is not safe for concurrent use.
type Parser struct {
	lex   *lexer
	out   sink
	m     machine
	ended bool
}

// machine reads one format.
type machine interface {
	push(s symbol, out *sink)
	// tail takes the beginning of a tag that a limit cut, which is not held against a call.
	tail(all []symbol, out *sink)
	// end is called where nothing follows; cut is set where a limit ended the answer.
	end(cut bool, out *sink)
	// inside reports whether what came last is no text so far.
	inside() bool
}

// New returns a parser of an answer to a request that declares these tools.
func New(f Format, tools Tools, o Options) (*Parser, error) {
	l := newLexer(f, o.Tokens, f.further()...)
	p := &Parser{lex: l, out: sink{held: o.Held, control: f.Markers()}}
	p.out.control = slices.DeleteFunc(p.out.control, func(m string) bool { return slices.Contains(o.Tokens, m) })
	qwen := func(tag symbol) body { return newQwen(l, tools, tag) }
	switch f {
	case Hermes, GLM:
		p.m = newMarked(l, []symbol{tagCall}, qwen)
	case Kimi, DeepSeekV3, DeepSeekV31:
		p.m = newMarked(l, []symbol{tagSection, tagHead}, func(tag symbol) body { return newHeaded(l, tools, tag) })
	case Gemma, LFM:
		p.m = newMarked(l, []symbol{tagBare}, func(symbol) body { return newBare(l, tools, f == LFM) })
	case QwenXML, MiniMax, DeepSeekV32:
		p.m = newMarked(l, []symbol{tagCall, tagFunction}, qwen)
	case Llama:
		p.m = newLlama(l, tools)
	case Mistral, MistralNamed:
		p.m = newMarked(l, []symbol{tagCalls}, func(symbol) body { return &mistral{lex: l, tools: tools} })
	case Harmony:
		p.m = newHarmony(l, tools)
	default:
		return nil, fmt.Errorf("%w: no parser for the tool-call format %q", errTools, f)
	}
	return p, nil
}

// Mark is the text that represents a marker of the format that is a control
// token; empty for other texts. It is a noncharacter of Unicode, which no other
// text contains.
func (f Format) Mark(marker string) string {
	i := slices.Index(f.Markers(), marker)
	if i < 0 {
		return ""
	}
	return grammar.Mark(i)
}

// Push accepts more of the answer.
func (p *Parser) Push(text string) []Event {
	for i := range len(text) {
		p.lex.push(text[i], p.symbol)
	}
	return p.out.take()
}

func (p *Parser) symbol(s symbol) { p.m.push(s, &p.out) }

// Flush ends the answer; cut is set if a limit ended it, not the model. An
// incomplete call then ends with its text so far.
func (p *Parser) Flush(cut bool) []Event {
	if !p.ended {
		p.ended = true
		if cut {
			var tail []symbol
			p.lex.flush(func(s symbol) { tail = append(tail, s) })
			p.m.tail(tail, &p.out)
		} else {
			p.lex.flush(p.symbol)
		}
		p.m.end(cut, &p.out)
	}
	return p.out.take()
}

// Inside reports whether the latest text is part of a call, or may become one.
func (p *Parser) Inside() bool { return p.m.inside() || len(p.lex.part) > 0 }

// Calls counts the calls that were complete.
func (p *Parser) Calls() int { return p.out.calls }

// Broken counts what began as a call and was returned as text.
func (p *Parser) Broken() int { return p.out.broken }

// errTools: definitions of tools cannot be read.
var errTools = errors.New("invalid tools")

// Tools are the functions that a request declares, by name. Parsers keep in them what they
// looked up: those of the same tools are not used at the same time.
type Tools map[string]tool

// tool is a function.
type tool struct {
	// parameters is the schema of its arguments as it was sent, and shape what it declares.
	parameters json.RawMessage
	shape      *shape
	// required are the arguments that the schema itself requires.
	required map[string]bool
}

// ReadTools reads definitions as OpenAI's chat completions have them. It takes any schema:
// the parts that cannot be read declare nothing.
func ReadTools(raw json.RawMessage) (Tools, error) {
	var list []struct {
		Function struct {
			Name       string          `json:"name"`
			Parameters json.RawMessage `json:"parameters"`
		} `json:"function"`
	}
	if json.Unmarshal(raw, &list) != nil {
		return nil, fmt.Errorf("%w: want a list of functions, each with a name", errTools)
	}
	out := Tools{}
	var read schemas
	in := &shapeIndex{found: map[string]*shape{}}
	for i, t := range list {
		f := t.Function
		if f.Name == "" {
			return nil, fmt.Errorf("%w: tool %d is not a function with a name", errTools, i)
		}
		if _, twice := out[f.Name]; twice {
			return nil, fmt.Errorf("%w: two tools are named %q", errTools, f.Name)
		}
		out[f.Name] = tool{parameters: f.Parameters}.read(&read, in)
	}
	in.most = in.bytes + int(ShapesBytes(read.n))
	return out, nil
}

// read reads the schema of the arguments.
func (t tool) read(by *schemas, in *shapeIndex) tool {
	if root := by.read(t.parameters); root != nil {
		t.shape, t.required = in.shape([]*schema{root}), map[string]bool{}
		for _, v := range root.list("required") {
			if name, ok := v.(string); ok {
				t.required[name] = true
			}
		}
	}
	return t
}

// prefix is what some models write before the name of a function.
const prefix = "functions."

// resolve is the declared name that a model means; empty where it means none.
func (t Tools) resolve(written string) string {
	for _, name := range []string{written, strings.TrimPrefix(written, prefix)} {
		if _, declared := t[name]; declared {
			return name
		}
	}
	return ""
}
