package toolcall

import (
	"regexp"
	"strings"
)

// Markers of Kimi K2 (its chat template; vLLM 0.33, parser/kimi_k2.py).
const (
	kimiCalls    = "<|tool_calls_section_begin|>"
	kimiCallsEnd = "<|tool_calls_section_end|>"
	kimiCall     = "<|tool_call_begin|>"
	kimiSep      = "<|tool_call_argument_begin|>"
	kimiCallEnd  = "<|tool_call_end|>"
)

// Markers of DeepSeek V3 and V3.1 (their chat templates; vLLM 0.33, deepseekv3_tool_parser.py and
// deepseekv31_tool_parser.py).
const (
	deepCalls    = "<｜tool▁calls▁begin｜>"
	deepCallsEnd = "<｜tool▁calls▁end｜>"
	deepCall     = "<｜tool▁call▁begin｜>"
	deepSep      = "<｜tool▁sep｜>"
	deepCallEnd  = "<｜tool▁call▁end｜>"
)

// The tags of both, in the order of Markers.
const (
	tagSection symbol = firstTag + iota
	tagSectionEnd
	tagHead
	tagSep
	tagHeadEnd
)

type headedState uint8

const (
	headedOpens headedState = iota // in the section, before a call
	headedName                     // up to the separator
	headedLine                     // DeepSeek V3: the name, in a line after the separator
	headedFence                    // DeepSeek V3: up to the object
	headedArguments
	headedAfter
)

// headed reads calls that are a name, a separator and an object, in a section or alone:
//
//	functions.f:0 SEP {…}                    Kimi K2
//	function SEP f, a line end, ```json {…}```   DeepSeek V3
//	f SEP {…}                                DeepSeek V3.1
type headed struct {
	lex     *lexer
	tools   Tools
	section bool
	state   headedState
	head    []byte
	name    string
	args    *arguments
}

func newHeaded(l *lexer, tools Tools, tag symbol) body {
	h := &headed{lex: l, tools: tools, section: tag == tagSection}
	if !h.section {
		h.state = headedName
	}
	return h
}

func (h *headed) rest() []symbol { return nil }

func (h *headed) begun() bool { return h.state == headedArguments && h.args.begun }

func (h *headed) meant() bool { return h.begun() }

// index is the number of a call in a turn, which Kimi K2 writes after the name.
var index = regexp.MustCompile(`:\d+$`)

// callee is the declared name in what was read, empty for none.
func (h *headed) callee() string {
	written := strings.TrimSpace(string(h.head))
	if name := h.tools.resolve(written); name != "" {
		return name
	}
	return h.tools.resolve(index.ReplaceAllString(written, ""))
}

func (h *headed) push(s symbol, out *sink) verdict {
	switch h.state {
	case headedName, headedLine:
		return h.inName(s, out)
	case headedArguments, headedFence:
		return h.inArguments(s, out)
	}
	switch {
	case s < firstTag && isBlank(byte(s)):
		return more
	case s == tagHead:
		h.state, h.head = headedName, nil
		return more
	case h.state == headedOpens:
		return bad
	}
	return h.after(s)
}

// after takes a symbol after a call: what ends it, or a bracket or a fence too many.
func (h *headed) after(s symbol) verdict {
	switch {
	case s == tagSectionEnd, s == tagHeadEnd && !h.section:
		return done
	case s == tagHeadEnd, s == '`', s == '}':
		return more
	}
	return over
}

// inName takes a symbol of a name, or what ends it.
func (h *headed) inName(s symbol, out *sink) verdict {
	switch {
	case s == tagSep && h.state == headedName && h.callee() == "" && strings.TrimSpace(string(h.head)) == "function":
		h.state, h.head = headedLine, nil
		return more
	case s == tagSep && h.state == headedName:
		return h.named(headedArguments)
	case s == '\n' && h.state == headedLine:
		return h.named(headedFence)
	case s == tagHeadEnd && h.callee() != "":
		h.name = h.callee()
		h.none(out)
		return h.after(s)
	case s >= firstTag || len(h.head) == maxName:
		return bad
	}
	h.head = append(h.head, byte(s))
	return more
}

// named begins the arguments of the function that was named.
func (h *headed) named(next headedState) verdict {
	if h.name = h.callee(); h.name == "" {
		return bad
	}
	h.state, h.args = next, newArguments(h.tools, h.name)
	return more
}

// none reports a call without arguments.
func (h *headed) none(out *sink) {
	newArguments(h.tools, h.name).none(out)
	out.whole()
	h.state = headedAfter
}

// inArguments takes a symbol of the arguments, or of the fence before them.
func (h *headed) inArguments(s symbol, out *sink) verdict {
	if h.state == headedFence && s < firstTag && (isBlank(byte(s)) || strings.IndexByte("`json", byte(s)) >= 0) {
		return more
	}
	if s == tagHeadEnd && len(h.args.text) == 0 && !h.args.begun {
		h.none(out)
		return h.after(s)
	}
	h.state = headedArguments
	for _, b := range []byte(h.lex.letters(s)) {
		switch h.args.push(b, out) {
		case more:
		case done:
			out.whole()
			h.state = headedAfter
		default:
			return bad
		}
	}
	return more
}

func (h *headed) end(cut bool, out *sink) bool {
	if h.state == headedAfter {
		return true
	}
	if cut || h.callee() == "" || h.state == headedOpens || h.state == headedArguments && (h.args.begun || len(h.args.text) > 0) {
		return false
	}
	h.name = h.callee()
	h.none(out)
	return true
}
