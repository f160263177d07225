package toolcall

import (
	"slices"
	"unicode/utf8"
)

// body reads what follows a tag that begins calls.
type body interface {
	// push takes a symbol and reports each call that is complete. It returns over only
	// after such a call.
	push(s symbol, out *sink) verdict
	// rest are symbols that push took since the last complete call although they belong to
	// what follows it.
	rest() []symbol
	// end is called where nothing follows; cut is set where a limit ended the answer. It
	// returns false where the symbols since the last complete call are no call.
	end(cut bool, out *sink) bool
	// begun reports whether a call was begun and not ended, and meant whether the symbols since
	// the last complete call, without a tag, would be taken for a call by a person.
	begun() bool
	meant() bool
}

// marked is text in which tags begin calls. Blanks around calls are dropped, and so are
// the format's control tokens that belong to no call.
type marked struct {
	lex   *lexer
	tags  []symbol
	enter func(tag symbol) body
	// queue is read next: what turned out to be no call comes again, as text.
	queue queue
	// second of the queue are read again, and again is how many more may be.
	second, again int
	// blanks wait for the text after them; after is set where a call precedes them.
	blanks []byte
	after  bool
	// in is the body under way, and raw are its symbols since the last complete call, its tag
	// among them where tagged is set. Where known is set, these were counted as no call before.
	in     body
	raw    []symbol
	tagged bool
	calls  int
	known  bool
}

// againFactor bounds how often a symbol is read again on average: a body that fails late
// may contain the tags of many others.
const againFactor = 8

func newMarked(l *lexer, tags []symbol, enter func(tag symbol) body) *marked {
	return &marked{lex: l, tags: tags, enter: enter}
}

func (m *marked) inside() bool { return m.in != nil || len(m.blanks) > 0 }

func (m *marked) push(s symbol, out *sink) {
	m.again += againFactor
	m.queue.append(s)
	m.read(out)
}

func (m *marked) tail(all []symbol, out *sink) {
	if m.in != nil {
		m.raw = append(m.raw, all...)
		return
	}
	for _, s := range all {
		m.push(s, out)
	}
}

func (m *marked) read(out *sink) {
	for m.queue.len() > 0 {
		s := m.queue.pop()
		m.second = max(0, m.second-1)
		if m.in != nil {
			m.inBody(s, out)
		} else {
			m.text(s, out)
		}
	}
}

// text takes a symbol outside of calls.
func (m *marked) text(s symbol, out *sink) {
	switch {
	case slices.Contains(m.tags, s) && m.again > 0:
		m.in, m.raw, m.tagged, m.calls, m.known = m.enter(s), []symbol{s}, true, out.calls, m.second > 0
	case s < firstTag && isBlank(byte(s)):
		m.blanks = append(m.blanks, byte(s))
	default:
		m.show(m.lex.text(s), out)
	}
}

// show reports text with the blanks before it.
func (m *marked) show(text string, out *sink) {
	if text == "" {
		return
	}
	if !m.after {
		text = string(m.blanks) + text
	}
	m.called(false)
	out.text(Text, text)
}

// called notes whether a call came last; the blanks before it are dropped.
func (m *marked) called(yes bool) { m.after, m.blanks = yes, nil }

// inBody takes a symbol of a body.
func (m *marked) inBody(s symbol, out *sink) {
	m.raw = append(m.raw, s)
	v := m.in.push(s, out)
	if out.calls > m.calls {
		m.calls, m.known, m.tagged = out.calls, false, false
		m.raw = slices.Clone(m.in.rest())
		if v == over || v == bad {
			m.raw = append(m.raw, s)
		}
		m.called(true)
	}
	switch v {
	case done:
		m.in, m.raw = nil, nil
	case over:
		m.queue.prepend(m.raw)
		m.in, m.raw = nil, nil
	case bad:
		m.leave(len(m.raw)-1, out)
	}
}

// leave ends a body that is no call: what was read of it comes again, as text. Only part
// of it was written of the call, up to a character that it does not divide.
func (m *marked) leave(part int, out *sink) {
	for part > 0 && part < len(m.raw) && m.raw[part] < firstTag && !utf8.RuneStart(byte(m.raw[part])) {
		part--
	}
	begun := m.in.begun()
	known := m.known || !m.tagged && !m.in.meant()
	rest, written := m.raw, ""
	m.in, m.raw = nil, nil
	if out.held && begun {
		written = m.lex.plain(rest[:part])
	}
	if out.refuse(begun, known, written) {
		m.called(true)
		m.queue.prepend(rest[part:])
		return
	}
	if m.tagged { // the tag begins nothing this time
		rest = slices.Concat(symbols(m.lex.text(rest[0])), rest[1:])
	}
	m.again -= len(rest)
	m.second = max(m.second, len(rest))
	m.queue.prepend(rest)
}

func symbols(text string) (out []symbol) {
	for i := range len(text) {
		out = append(out, symbol(text[i]))
	}
	return out
}

// end is called where nothing follows.
func (m *marked) end(cut bool, out *sink) {
	for m.in != nil {
		written, begun := m.lex.plain(m.raw), m.in.begun()
		switch {
		case m.in.end(cut, out):
			m.queue.append(m.in.rest()...)
			m.in = nil
			m.called(true)
		case cut && begun:
			out.cut(written)
			m.in = nil
			m.called(true)
		case cut:
			m.in = nil
			m.show(written, out)
		default:
			m.leave(len(m.raw), out)
		}
		m.read(out)
	}
	if !m.after {
		out.text(Text, string(m.blanks))
	}
	m.blanks = nil
}
