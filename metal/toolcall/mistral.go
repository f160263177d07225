package toolcall

import "strings"

const (
	mistralCalls = "[TOOL_CALLS]"
	mistralArgs  = "[ARGS]"
	mistralID    = "[CALL_ID]"
)

// maxName of a function.
const maxName = 256

// mistral is what stands behind [TOOL_CALLS]: a list of objects, or a name and
// its arguments, with [ARGS] between them or nothing, and an id before that.
type mistral struct {
	tools Tools
	list  bool
	in    *object
	comma bool // an object may begin
	head  []byte
	// name and arguments of the other form.
	args  *scanner
	begun bool
}

func newMistral(tools Tools) body { return &mistral{tools: tools} }

func (m *mistral) push(b byte, out *sink) verdict {
	switch {
	case m.args != nil:
		return m.arguments(b, out)
	case m.list:
		return m.inList(b, out)
	case len(m.head) == 0 && isBlank(b):
		return more
	case len(m.head) == 0 && b == '[':
		m.list, m.comma = true, true
		return more
	case b == '{' && len(m.head) > 0:
		return m.begin(b, out)
	}
	if m.head = append(m.head, b); len(m.head) > maxName {
		return bad
	}
	return more
}

func (m *mistral) inList(b byte, out *sink) verdict {
	if m.in != nil {
		v := m.in.push(b, out)
		if v == done {
			m.in = nil
			out.whole()
			return more
		}
		return v
	}
	switch {
	case isBlank(b):
	case b == '{' && m.comma:
		m.comma, m.in = false, newObject(m.tools, "arguments")
		return m.in.push(b, out)
	case b == ',' && !m.comma:
		m.comma = true
	case b == ']' && !m.comma:
		return done
	default:
		return bad
	}
	return more
}

// begin reads the head of a call by name, whose arguments begin now.
func (m *mistral) begin(b byte, out *sink) verdict {
	name := strings.TrimSpace(string(m.head))
	name = strings.TrimSuffix(name, mistralArgs)
	name, _, _ = strings.Cut(name, mistralID)
	name = strings.TrimSpace(name)
	if _, declared := m.tools[name]; !declared {
		return bad
	}
	m.args, m.begun = new(scanner), true
	out.tell(Begin, name)
	return m.arguments(b, out)
}

func (m *mistral) arguments(b byte, out *sink) verdict {
	v := m.args.push(b)
	if v == bad {
		return bad
	}
	out.one(Arguments, b)
	if v == done {
		m.begun = false
		out.whole()
	}
	return v
}

func (m *mistral) told() (begun, whole bool) {
	if m.in != nil {
		return m.in.begun, m.in.whole
	}
	return m.begun, false
}

func (m *mistral) held() int      { return 0 }
func (m *mistral) closes() string { return "" }
