package toolcall

import (
	"regexp"
	"strings"
)

const (
	harmonyStart     = "<|start|>"
	harmonyChannel   = "<|channel|>"
	harmonyMessage   = "<|message|>"
	harmonyConstrain = "<|constrain|>"
	harmonyEnd       = "<|end|>"
	harmonyCall      = "<|call|>"
	harmonyReturn    = "<|return|>"
)

const (
	tagStart symbol = firstTag + iota
	tagChannel
	tagMessage
	tagConstrain
	tagEnd
	tagCallMade
	tagReturn
)

// mostHeader bounds what is kept of a header, in bytes: what comes after is no part of it.
const mostHeader = 4 << 10

// harmony is messages with headers: the channel final, or none, is text, a message to a
// function is a call, and everything else is thoughts.
type harmony struct {
	tools Tools
	lex   *lexer
	// header is that of the message, with the tags in it, until body is set.
	header strings.Builder
	body   bool
	plain  bool // the header has no tag
	kind   Kind
	// raw is the body of a message to a function, so far.
	raw []byte
	// name is the function that is called; code is its only parameter, where the message may
	// be that parameter's text.
	name, code string
	args       *arguments
	whole      bool
	// unsure: the body may be arguments or the text of a parameter.
	unsure bool
}

func newHarmony(l *lexer, tools Tools) *harmony {
	return &harmony{lex: l, tools: tools, plain: true}
}

func (h *harmony) inside() bool { return !h.body || h.kind != Text }

func (h *harmony) push(s symbol, out *sink) {
	switch {
	case s >= firstTag && h.inString() && !h.lex.token(s): // letters that are text
		for _, b := range []byte(h.lex.letters(s)) {
			h.inBody(b, out)
		}
	case s == tagMessage && !h.body:
		h.open(h.header.String())
		h.body = true
	case (s == tagChannel || s == tagConstrain) && !h.body:
		h.header.WriteString(h.lex.letters(s))
		h.plain = false
	case s == tagMessage || s == tagConstrain:
	case s >= firstTag:
		h.finish(out)
		h.header.Reset()
		h.body, h.plain = false, false
		if s == tagChannel {
			h.header.WriteString(h.lex.letters(s))
		}
	case !h.body && h.header.Len() < mostHeader:
		h.header.WriteByte(byte(s))
	case !h.body && h.plain: // it is no header
		out.text(Text, h.header.String())
		h.header.Reset()
		h.body, h.plain = true, false
		h.inBody(byte(s), out)
	case !h.body:
	default:
		h.inBody(byte(s), out)
	}
}

// inString reports whether a string of a call's arguments is open.
func (h *harmony) inString() bool {
	return h.body && h.kind == Arguments && h.args != nil && h.args.object && h.args.json.inString()
}

func (h *harmony) tail(all []symbol, out *sink) {
	if h.body && h.kind == Arguments {
		return
	}
	for _, s := range all {
		h.push(s, out)
	}
}

var (
	recipient  = regexp.MustCompile(`to=([^\s<]+)`)
	channel    = regexp.MustCompile(`<\|channel\|>\s*(\w+)`)
	constraint = regexp.MustCompile(`(?:<\|constrain\|>\s*|\s)(\w+)\s*$`)
)

// open reads the header of a message.
func (h *harmony) open(header string) {
	h.kind, h.raw, h.args, h.name, h.code = Text, nil, nil, "", ""
	h.whole, h.unsure = false, false
	if c := channel.FindStringSubmatch(header); c != nil && c[1] != "final" {
		h.kind = Thought
	}
	to := recipient.FindStringSubmatch(header)
	if to == nil || to[1] == "user" || to[1] == "assistant" {
		return
	}
	h.kind, h.name = Arguments, h.tools.resolve(to[1])
	if h.name == "" {
		return
	}
	h.args = newArguments(h.tools, h.name)
	s := h.args.shape
	if name := s.only(); name != "" && s.member(name).text() {
		h.code = name
	}
	form := constraint.FindStringSubmatch(header)
	h.unsure = h.code != "" && form != nil && form[1] != "json" && form[1] != "commentary"
}

// inBody takes a byte of a message.
func (h *harmony) inBody(b byte, out *sink) {
	if h.kind != Arguments {
		out.text(h.kind, string([]byte{b}))
		return
	}
	blank := len(h.raw) == 0 && isBlank(b)
	if h.raw = append(h.raw, b); h.whole {
		h.afterCall(b, out)
		return
	}
	if blank {
		h.raw = nil
	}
	if blank || h.args == nil || h.unsure {
		return
	}
	if len(h.raw) == 1 && b != '{' && h.code != "" {
		h.unsure = true
		return
	}
	switch h.args.push(b, out) {
	case done:
		h.whole = true
	case bad, over:
		h.refuse(out, len(h.raw)-1)
	}
}

// afterCall takes a byte after the arguments: brackets too many are dropped.
func (h *harmony) afterCall(b byte, out *sink) {
	if isBlank(b) || b == '}' {
		return
	}
	out.whole()
	h.kind, h.args = Text, nil
	out.text(Text, string([]byte{b}))
}

// refuse has a message that is no call be text. Only part of it was written of the call.
func (h *harmony) refuse(out *sink, part int) {
	begun := h.args != nil && h.args.begun
	if out.refuse(begun, false, string(h.raw[:part])) {
		h.raw = h.raw[part:]
	}
	out.text(Text, string(h.raw))
	h.kind, h.args, h.raw = Text, nil, nil
}

// finish ends a message.
func (h *harmony) finish(out *sink) {
	if !h.body || h.kind != Arguments {
		return
	}
	h.kind = Text
	switch {
	case h.args == nil:
		h.refuse(out, 0)
	case h.whole:
		out.whole()
	case h.unsure: // it may be an empty text
		h.call(out)
	case len(h.raw) == 0:
		h.args.none(out)
		out.whole()
	default:
		h.refuse(out, len(h.raw))
	}
}

// call reports a message that may be arguments or the text of the only parameter.
func (h *harmony) call(out *sink) {
	text, ok := unwrapped(string(h.raw), h.args.shape)
	if !ok {
		text = inTag(h.code, string(h.raw))
	}
	h.args.begin(out)
	out.arguments(text)
	out.whole()
}

// inTag is an object with one member, a string.
func inTag(name, value string) string {
	var out strings.Builder
	for i, text := range []string{name, value} {
		out.WriteString([]string{`{"`, `": "`}[i])
		for j := range len(text) {
			out.WriteString(escaped(text[j]))
		}
	}
	out.WriteString(`"}`)
	return out.String()
}

func (h *harmony) end(cut bool, out *sink) {
	switch {
	case !h.body && h.plain:
		out.text(Text, h.header.String())
	case cut && h.body && h.kind == Arguments && !h.whole:
		h.cut(out)
	default:
		h.finish(out)
	}
}

// cut ends a message that a limit cut.
func (h *harmony) cut(out *sink) {
	switch {
	case h.args == nil:
		h.refuse(out, 0)
		return
	case !h.args.begun:
		h.args.begin(out)
	}
	out.cut(h.name + string(h.raw))
}
