package toolcall

import (
	"regexp"
	"slices"
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

// harmony is messages with headers: what is in the channel final, or in none, is
// text, what is for a function is a call, and all else are thoughts.
type harmony struct {
	tools   Tools
	markers []string
	part    []byte // of a marker
	// body says that the header has ended; raw is what was read of the message.
	body bool
	raw  []byte
	kind Kind
	// call under way.
	name         string
	args         *scanner
	begun, whole bool
}

func newHarmony(tools Tools) *harmony {
	return &harmony{tools: tools, markers: []string{harmonyStart, harmonyChannel, harmonyMessage, harmonyEnd, harmonyCall, harmonyReturn}}
}

func (h *harmony) inside() bool { return !h.body || h.kind != Text || len(h.part) > 0 }

func (h *harmony) push(b byte, out *sink) {
	h.part = append(h.part, b)
	if slices.Contains(h.markers, string(h.part)) {
		marker := string(h.part)
		h.part = nil
		h.marker(marker, out)
		return
	}
	at := 0
	for at < len(h.part) && !slices.ContainsFunc(h.markers, func(m string) bool { return strings.HasPrefix(m, string(h.part[at:])) }) {
		h.byte(h.part[at], out)
		at++
	}
	h.part = h.part[at:]
}

func (h *harmony) marker(m string, out *sink) {
	switch {
	case m == harmonyMessage && !h.body:
		h.header(string(h.raw))
		h.raw = append(h.raw, m...)
		h.body = true
	case m == harmonyChannel && !h.body:
		h.raw = append(h.raw, m...)
	default:
		h.finish(out)
		if h.raw, h.body = nil, false; m == harmonyChannel {
			h.raw = []byte(m)
		}
	}
}

var (
	recipient = regexp.MustCompile(`to=(\S+?)(?:<\||\s|$)`)
	channel   = regexp.MustCompile(`<\|channel\|>\s*(\w+)`)
)

// header says what the message is.
func (h *harmony) header(text string) {
	h.kind, h.name, h.args, h.begun, h.whole = Text, "", nil, false, false
	if c := channel.FindStringSubmatch(text); c != nil && c[1] != "final" {
		h.kind = Thought
	}
	to := recipient.FindStringSubmatch(text)
	if to == nil {
		return
	}
	name, _ := strings.CutPrefix(to[1], "functions.")
	if _, declared := h.tools[name]; declared {
		h.kind, h.name, h.args = Arguments, name, new(scanner)
	}
}

// byte takes one that is of no marker.
func (h *harmony) byte(b byte, out *sink) {
	if h.raw = append(h.raw, b); !h.body {
		return
	}
	if h.kind != Arguments {
		out.one(h.kind, b)
		return
	}
	switch {
	case h.whole && isBlank(b), !h.begun && isBlank(b):
		return
	case h.whole || !h.begun && b != '{':
		h.broken(out)
		return
	case !h.begun:
		h.begun = true
		out.tell(Begin, h.name)
	}
	switch h.args.push(b) {
	case bad:
		h.broken(out)
	case done:
		h.whole = true
		out.one(Arguments, b)
	default:
		out.one(Arguments, b)
	}
}

// broken goes on with text where a call does not: the last bytes read are of it,
// and all of the message where the call was not told.
func (h *harmony) broken(out *sink) {
	last := len(h.raw) - 1
	switch {
	case h.whole:
		out.whole()
		out.tell(Text, string(h.raw[last:]))
	case h.begun:
		out.tell(End, string(h.raw[:last]))
		out.tell(Text, string(h.raw[last:]))
	default:
		out.tell(Text, string(h.raw))
	}
	h.kind = Text
}

// finish ends a message.
func (h *harmony) finish(out *sink) {
	if !h.body || h.kind != Arguments {
		return
	}
	switch {
	case h.whole:
		out.whole()
	case h.begun:
		out.tell(End, string(h.raw))
	default: // a call without arguments
		out.tell(Begin, h.name)
		out.tell(Arguments, "{}")
		out.whole()
	}
	h.kind = Text
}

func (h *harmony) end(out *sink) {
	for _, b := range h.part {
		h.byte(b, out)
	}
	h.part = nil
	h.finish(out)
}
