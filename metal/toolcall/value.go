package toolcall

import (
	"bytes"
	"strings"
)

// tagged is the value of a parameter between tags. A string is reported while it is
// written; anything else is read once it is complete.
type tagged struct {
	name   string
	shape  *shape
	string bool
	// kept is the text of a value that is no string.
	kept []byte
	// first is set until a byte came, and line where that was a line end, which is not part
	// of the value.
	first, line bool
	// held are bytes that may not belong to the value: a line end, a misspelt closing tag.
	held []byte
	// recent is the end of what came, and opened is set once that was opening, which is <NAME:
	// then </NAME> belongs to the value.
	recent, opening []byte
	opened          bool
}

func newTagged(name string, s *shape, out *sink) *tagged {
	t := &tagged{name: name, shape: s, first: true, opening: []byte("<" + name)}
	if t.string = s.text(); t.string {
		out.arguments(`"`)
	}
	return t
}

// text takes letters of the value.
func (t *tagged) text(letters string, out *sink) {
	for i := range len(letters) {
		b := letters[i]
		if t.first {
			if t.first = false; b == '\n' {
				t.line = true
				continue
			}
		}
		t.held = append(t.held, b)
		at := 0
		for at < len(t.held) && !mayEndValue(t.held[at:]) {
			at++
		}
		t.release(at, out)
	}
}

// release adds held bytes to the value.
func (t *tagged) release(n int, out *sink) {
	for _, b := range t.held[:n] {
		if t.string {
			out.arguments(escaped(b))
		} else {
			t.kept = append(t.kept, b)
		}
		t.line = false
		if !t.opened {
			if n := len(t.opening); len(t.recent) == 2*n {
				t.recent = append(t.recent[:0], t.recent[n:]...)
			}
			t.recent = append(t.recent, b)
			t.opened = bytes.HasSuffix(t.recent, t.opening)
		}
	}
	t.held = append(t.held[:0], t.held[n:]...)
}

const (
	// maxMisspelt is how long the name in a misspelt closing tag may be, and maxBlanks how many
	// blanks follow it.
	maxMisspelt = 48
	maxBlanks   = 8
)

// mayEndValue reports whether bytes are, or begin, what may stand at the end of a value
// without belonging to it: a line end, then perhaps a closing tag and blanks.
func mayEndValue(held []byte) bool {
	rest := held
	if rest[0] == '\n' {
		rest = rest[1:]
	}
	for _, b := range []byte("</") {
		if len(rest) == 0 {
			return true
		}
		if rest[0] != b {
			return false
		}
		rest = rest[1:]
	}
	n := 0
	for n < len(rest) && n < maxMisspelt && !strings.ContainsRune("<>\n", rune(rest[n])) {
		n++
	}
	if rest = rest[n:]; len(rest) > 0 && rest[0] == '>' {
		rest = rest[1:]
	}
	return len(rest) <= maxBlanks && strings.Trim(string(rest), " \t\r\n") == ""
}

// misspelt returns the name in a closing tag among held bytes, empty without one.
func (t *tagged) misspelt() string {
	_, name, ok := strings.Cut(string(t.held), "</")
	if !ok {
		return ""
	}
	name = strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(name), ">"))
	if strings.HasPrefix(strings.ToLower(name), "param") || name == t.name && !t.opened {
		return name
	}
	return ""
}

// mayClose reports whether a parameter's tag may stand here: at the beginning of a line.
func (t *tagged) mayClose() bool {
	return t.line || len(t.held) > 0 && t.held[len(t.held)-1] == '\n'
}

// close ends the value; implied is set where its own closing tag is missing or misspelt. A
// line end before the tag is not part of the value.
func (t *tagged) close(implied bool, out *sink) {
	switch n := len(t.held); {
	case implied && t.misspelt() != "":
	case n > 0 && t.held[n-1] == '\n':
		t.release(n-1, out)
	default:
		t.release(n, out)
	}
	if t.string {
		out.arguments(`"`)
		return
	}
	out.arguments(inJSON(string(t.kept), t.shape))
}

// inJSON is a value of one of the declared types. A text that is none of them is a string;
// where no type is declared, an object or a list is one.
func inJSON(value string, s *shape) string {
	trimmed := strings.TrimSpace(value)
	types := kindString | kindObject | kindArray
	if s != nil && s.kinds != 0 {
		types = s.kinds
	}
	if lower := strings.ToLower(trimmed); lower == "true" || lower == "false" {
		if types&kindBoolean != 0 {
			return lower
		}
	}
	text, ok := repaired(trimmed, s)
	if ok && trimmed == "None" && types&kindString != 0 {
		ok = false
	}
	if t := kindOf(text); ok && t != kindString && (types&t != 0 || t == kindInteger && types&kindNumber != 0) {
		return text
	}
	var out strings.Builder
	out.WriteByte('"')
	for i := range len(value) {
		out.WriteString(escaped(value[i]))
	}
	out.WriteByte('"')
	return out.String()
}

// kindOf is the type of a JSON text; none for an empty one.
func kindOf(text string) kinds {
	if text == "" {
		return 0
	}
	switch text[0] {
	case '{':
		return kindObject
	case '[':
		return kindArray
	case '"':
		return kindString
	case 't', 'f':
		return kindBoolean
	case 'n':
		return kindNull
	}
	return numberKind(text)
}
