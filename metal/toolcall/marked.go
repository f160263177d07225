package toolcall

import (
	"slices"
	"strings"
)

// body reads what stands behind a marker.
type body interface {
	push(b byte, out *sink) verdict
	// told says whether a call was begun that is not ended, and whether all its
	// arguments came.
	told() (begun, whole bool)
	// held is how many of the last bytes would have become arguments.
	held() int
	// closes is a mark that may end it; empty for none.
	closes() string
}

// marked is text in which markers begin calls. Blanks around calls are dropped.
type marked struct {
	tools   Tools
	markers []string
	make    func(marker string) body
	// queue is what is read next: what turned out to be no call comes again, as
	// text.
	queue []byte
	// blanks and part wait for what they become: blanks before a marker, and the
	// beginning of one. behind says that a call stands right before them.
	blanks, part []byte
	behind       bool
	// in is the body under way, raw what was read of it with its marker, which has
	// mark bytes, and calls those that were whole before it.
	in    body
	raw   []byte
	mark  int
	calls int
	// ending is the mark that may end the body before it.
	ending string
}

func newMarked(tools Tools, markers []string, make func(marker string) body) *marked {
	return &marked{tools: tools, markers: markers, make: make}
}

func (m *marked) inside() bool { return m.in != nil || m.ending != "" || len(m.part)+len(m.blanks) > 0 }

func (m *marked) push(b byte, out *sink) {
	m.queue = append(m.queue, b)
	for len(m.queue) > 0 {
		b := m.queue[0]
		m.queue = m.queue[1:]
		switch {
		case m.in != nil:
			m.body(b, out)
		case m.ending != "":
			m.close(b)
		default:
			m.text(b, out)
		}
	}
}

// text takes a byte outside of calls.
func (m *marked) text(b byte, out *sink) {
	if len(m.part) == 0 && isBlank(b) {
		m.blanks = append(m.blanks, b)
		return
	}
	m.part = append(m.part, b)
	if i := slices.Index(m.markers, string(m.part)); i >= 0 {
		m.enter(m.markers[i], out)
		return
	}
	at := 0
	for at < len(m.part) && !m.begins(m.part[at:]) {
		at++
	}
	if at == 0 {
		return
	}
	m.show(string(m.part[:at]), out)
	m.part = m.part[at:]
}

// begins says that a marker may begin so.
func (m *marked) begins(part []byte) bool {
	return slices.ContainsFunc(m.markers, func(marker string) bool { return strings.HasPrefix(marker, string(part)) })
}

// show tells text, with the blanks before it.
func (m *marked) show(text string, out *sink) {
	if !m.behind {
		out.tell(Text, string(m.blanks))
	}
	m.blanks, m.behind = nil, false
	out.tell(Text, text)
}

// enter begins a body.
func (m *marked) enter(marker string, out *sink) {
	m.in, m.raw, m.mark, m.calls = m.make(marker), []byte(marker), len(marker), out.calls
	m.part = nil
}

// body takes a byte of a body.
func (m *marked) body(b byte, out *sink) {
	m.raw = append(m.raw, b)
	v := m.in.push(b, out)
	if v != bad && v != over && out.calls > m.calls {
		m.raw, m.mark, m.calls, m.behind, m.blanks = nil, 0, out.calls, true, nil
	}
	switch v {
	case done:
		m.ending, m.in, m.behind, m.blanks = m.in.closes(), nil, true, nil
	case over, bad:
		m.leave(out)
	}
}

// leave ends a body that does not go on: what is no call is read again as text,
// and so are the last bytes, which are not of it.
func (m *marked) leave(out *sink) {
	begun, whole := m.in.told()
	last := max(1, m.in.held())
	raw, rest := m.raw[:len(m.raw)-last], m.raw[len(m.raw)-last:]
	switch {
	case begun && whole:
		out.whole()
		m.ending = m.in.closes()
		m.behind, m.blanks = true, nil
	case begun:
		out.tell(End, string(raw))
		m.behind, m.blanks = true, nil
	default:
		rest = m.raw[m.mark:]
		if m.mark > 0 {
			m.show(string(m.raw[:m.mark]), out)
		}
	}
	m.in = nil
	m.queue = append(slices.Clone(rest), m.queue...)
}

// close takes a byte behind a body that may be closed by a mark.
func (m *marked) close(b byte) {
	switch {
	case len(m.part) == 0 && isBlank(b):
		return
	case !strings.HasPrefix(m.ending, string(append(m.part, b))):
		m.queue = append(append(slices.Clone(m.part), b), m.queue...)
		m.part, m.ending = nil, ""
		return
	}
	if m.part = append(m.part, b); len(m.part) == len(m.ending) {
		m.part, m.ending = nil, ""
	}
}

func (m *marked) end(out *sink) {
	if m.in != nil {
		begun, whole := m.in.told()
		switch {
		case begun && whole:
			out.whole()
			m.behind = true
		case begun:
			out.tell(End, string(m.raw))
			m.behind = true
		case len(m.raw) > 0:
			m.show(string(m.raw), out)
		}
		m.in, m.blanks = nil, nil
	}
	if len(m.part) > 0 {
		m.show(string(m.part), out)
	}
	if !m.behind {
		out.tell(Text, string(m.blanks))
	}
	m.part, m.blanks, m.ending = nil, nil, ""
}

const (
	openCall  = "<tool_call>"
	closeCall = "</tool_call>"
)

// tagged is an object behind <tool_call>.
type tagged struct {
	*object
	ended bool
}

func newTagged(tools Tools) body { return &tagged{object: newObject(tools, "arguments")} }

func (t *tagged) push(b byte, out *sink) verdict {
	v := t.object.push(b, out)
	if v == done {
		t.ended = true
		out.whole()
	}
	return v
}

func (t *tagged) told() (begun, whole bool) { return t.begun && !t.ended, t.whole }
func (t *tagged) held() int                 { return 0 }
func (t *tagged) closes() string            { return closeCall }

const pythonTag = "<|python_tag|>"

// llama is objects, apart by semicolons, at the start of an answer or behind
// <|python_tag|>.
type llama struct {
	tools Tools
	in    *object
	next  bool // an object may begin
}

func newLlama(tools Tools) *marked {
	m := newMarked(tools, []string{pythonTag}, func(string) body { return &llama{tools: tools, next: true} })
	m.in = m.make("")
	return m
}

func (l *llama) push(b byte, out *sink) verdict {
	if l.in != nil {
		v := l.in.push(b, out)
		if v != done {
			return v
		}
		l.in, l.next = nil, false
		out.whole()
		return more
	}
	switch {
	case isBlank(b):
		return more
	case b == ';' && !l.next:
		l.next = true
		return more
	case b == '{' && l.next:
		l.in = newObject(l.tools, "parameters", "arguments")
		return l.in.push(b, out)
	}
	return bad
}

func (l *llama) told() (begun, whole bool) {
	if l.in == nil {
		return false, false
	}
	return l.in.begun, l.in.whole
}

func (l *llama) held() int      { return 0 }
func (l *llama) closes() string { return "" }
