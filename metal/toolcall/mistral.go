package toolcall

import "strings"

const (
	mistralCalls = "[TOOL_CALLS]"
	mistralArgs  = "[ARGS]"
	mistralID    = "[CALL_ID]"
)

const (
	tagCalls symbol = firstTag + iota
	tagArgs
	tagID
)

type mistralState uint8

const (
	mistralOpens mistralState = iota
	mistralName
	mistralCallID
	mistralArguments
	mistralList // between objects of a list
	mistralObject
)

// mistral reads what follows [TOOL_CALLS]: a list of objects, or a name and its arguments,
// with [ARGS] between them or nothing, and [CALL_ID] with an id before that.
type mistral struct {
	tools Tools
	lex   *lexer
	state mistralState
	list  bool
	some  bool // a call came
	in    *object
	head  []byte
	args  *arguments
}

func (m *mistral) rest() []symbol { return nil }

func (m *mistral) meant() bool { return m.begun() }

func (m *mistral) begun() bool {
	switch m.state {
	case mistralObject:
		begun, _ := m.in.reported()
		return begun
	case mistralArguments:
		return m.args.begun
	}
	return false
}

func (m *mistral) push(s symbol, out *sink) verdict {
	switch m.state {
	case mistralOpens, mistralList:
		return m.between(s)
	case mistralName, mistralCallID:
		return m.inHead(s, out)
	case mistralObject:
		return m.inObject(s, out)
	}
	if s == tagCalls && len(m.args.text) == 0 && !m.args.begun {
		m.none(out)
		return over
	}
	for _, b := range []byte(m.lex.letters(s)) {
		switch v := m.args.push(b, out); v {
		case more:
		case done:
			out.whole()
			return done
		default:
			return bad
		}
	}
	return more
}

// between takes a symbol before a call.
func (m *mistral) between(s symbol) verdict {
	switch {
	case s < firstTag && isBlank(byte(s)), m.some && s == ',':
		return more
	case s == '{':
		m.state, m.in = mistralObject, newObject(m.tools)
		return m.in.push('{', nil)
	case s == '[' && m.state == mistralOpens:
		m.state, m.list = mistralList, true
		return more
	case s == ']' && m.some:
		return done
	case m.some:
		return over
	case m.list || s >= firstTag:
		return bad
	}
	m.state, m.head = mistralName, []byte{byte(s)}
	return more
}

func (m *mistral) inObject(s symbol, out *sink) verdict {
	_, whole := m.in.reported()
	for _, b := range []byte(m.lex.letters(s)) {
		v := m.in.push(b, out)
		switch {
		case v == done:
			m.some = true
			if m.state = mistralList; !m.list {
				return done
			}
			return more
		case v != more && whole:
			m.some, m.state = true, mistralList
			out.whole()
			return m.between(s)
		case v != more:
			return bad
		}
	}
	return more
}

// inHead takes a symbol of a name, or of an id after it.
func (m *mistral) inHead(s symbol, out *sink) verdict {
	switch {
	case s == tagID && m.state == mistralName:
		m.state = mistralCallID
		return more
	case s == tagArgs || s == '{':
		if m.callee() == "" {
			return bad
		}
		m.state, m.args = mistralArguments, newArguments(m.tools, m.callee())
		if s == '{' {
			return m.args.push('{', out)
		}
		return more
	case s == tagCalls && m.callee() != "":
		m.none(out)
		return over
	case s >= firstTag:
		return bad
	}
	if m.state == mistralName {
		m.head = append(m.head, byte(s))
	}
	if len(m.head) > maxName {
		return bad
	}
	return more
}

func (m *mistral) callee() string { return m.tools.resolve(strings.TrimSpace(string(m.head))) }

// none reports a call without arguments.
func (m *mistral) none(out *sink) {
	newArguments(m.tools, m.callee()).none(out)
	out.whole()
	m.state = mistralOpens
}

func (m *mistral) end(cut bool, out *sink) bool {
	switch m.state {
	case mistralObject:
		_, whole := m.in.reported()
		if whole {
			out.whole()
		}
		return whole
	case mistralName, mistralCallID, mistralArguments:
		if cut || m.callee() == "" || m.state == mistralArguments && (m.args.begun || len(m.args.text) > 0) {
			return false
		}
		m.none(out)
		return true
	}
	return m.some
}
