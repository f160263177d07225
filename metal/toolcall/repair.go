package toolcall

import (
	"encoding/json"
	"fmt"
	"strings"
)

// verdict is a reader's answer to a symbol.
type verdict int

const (
	// more is needed after this symbol.
	more verdict = iota
	// done: it ends with this symbol.
	done
	// over: it ended before this symbol, which belongs to what follows.
	over
	// bad: this symbol cannot stand here.
	bad
)

// maxDepth of JSON in a call.
const maxDepth = 256

type jsonState uint8

const (
	wantValue  jsonState = iota
	wantFirst            // a value, or the end of a list
	wantNext             // a value after a comma, or the end of a list
	wantMember           // a member's name, or the end of an object
	wantName             // a member's name after a comma, or the end of an object
	wantColon
	afterValue
	inString
	inEscape
	inHex
	inWord
	inNumber
	ended
)

// level is an object or a list that is open.
type level struct {
	list  bool
	shape *shape
	key   []byte // of the member under way, as JSON
	n     int    // items before the one under way
}

// repairer reads one JSON value byte by byte and writes it as valid JSON. It repairs
// what has one meaning only: raw control characters in a string, a comma before a
// closing bracket, Python's names of constants, \', and 5.0 where the schema declares
// an integer.
type repairer struct {
	state jsonState
	shape *shape
	open  []level
	// name is set while a string is a member's name.
	name bool
	left int    // digits of an escape
	text []byte // a number or a constant under way
	// comma waits for what follows it, with the blanks after it.
	comma []byte
	out   []byte
}

// words are the constants and their JSON.
var words = map[string]string{"true": "true", "false": "false", "null": "null", "True": "true", "False": "false", "None": "null"}

func isBlank(b byte) bool { return b == ' ' || b == '\n' || b == '\t' || b == '\r' }

func isDigit(b byte) bool { return '0' <= b && b <= '9' }

// take returns what was written since it was called last.
func (r *repairer) take() string {
	s := string(r.out)
	r.out = r.out[:0]
	return s
}

// push takes a byte of the value.
func (r *repairer) push(b byte) verdict {
	switch {
	case r.inString():
		return r.inText(b)
	case r.state == inWord:
		return r.word(b)
	case r.state == inNumber:
		if isDigit(b) || strings.IndexByte("+-.eE", b) >= 0 {
			r.text = append(r.text, b)
			return more
		}
		if !r.number() {
			return bad
		}
		if r.state == ended {
			return over
		}
	}
	if isBlank(b) {
		if r.comma != nil {
			r.comma = append(r.comma, b)
		} else {
			r.out = append(r.out, b)
		}
		return more
	}
	return r.structure(b)
}

// inString reports whether the next byte is one of a string.
func (r *repairer) inString() bool {
	return r.state == inString || r.state == inEscape || r.state == inHex
}

// structure takes a byte outside of strings, constants and numbers.
func (r *repairer) structure(b byte) verdict {
	switch r.state {
	case wantColon:
		if b != ':' {
			return bad
		}
		r.state = wantValue
		r.out = append(r.out, b)
		return more
	case wantMember, wantName:
		switch {
		case b == '"':
			r.begin(inString)
			r.name, r.top().key = true, []byte{b}
			r.out = append(r.out, b)
			return more
		case b == '}':
			return r.pop(b)
		}
		return bad
	case afterValue:
		return r.after(b)
	case wantFirst, wantNext:
		if b == ']' {
			return r.pop(b)
		}
	case ended:
		return bad
	}
	return r.value(b)
}

// begin enters a value or a name; a comma before it is written now.
func (r *repairer) begin(s jsonState) {
	r.out = append(r.out, r.comma...)
	r.comma, r.state, r.name = nil, s, false
}

func (r *repairer) top() *level { return &r.open[len(r.open)-1] }

func (r *repairer) value(b byte) verdict {
	switch {
	case b == '{' || b == '[':
		if len(r.open) == maxDepth {
			return bad
		}
		here := r.here()
		r.begin(map[byte]jsonState{'{': wantMember, '[': wantFirst}[b])
		r.open = append(r.open, level{list: b == '[', shape: here})
		r.out = append(r.out, b)
	case b == '"':
		r.begin(inString)
		r.out = append(r.out, b)
	case b == '-' || isDigit(b):
		r.begin(inNumber)
		r.text = append(r.text[:0], b)
	case strings.IndexByte("tfnTFN", b) >= 0:
		r.begin(inWord)
		r.text = append(r.text[:0], b)
	default:
		return bad
	}
	return more
}

// here is the shape of the value that begins.
func (r *repairer) here() *shape {
	if len(r.open) == 0 {
		return r.shape
	}
	top := r.top()
	if top.list {
		return top.shape.item(top.n)
	}
	var name string
	if json.Unmarshal(top.key, &name) != nil {
		return nil
	}
	return top.shape.member(name)
}

// after takes what follows a value inside an object or a list.
func (r *repairer) after(b byte) verdict {
	top := r.top()
	switch {
	case b == ',' && top.list:
		r.state = wantNext
		top.n++
	case b == ',':
		r.state = wantName
	case b == '}' && !top.list, b == ']' && top.list:
		return r.pop(b)
	default:
		return bad
	}
	r.comma = []byte{b}
	return more
}

// pop ends an object or a list; a comma that waits is dropped.
func (r *repairer) pop(b byte) verdict {
	if r.comma != nil {
		r.out = append(r.out, r.comma[1:]...)
		r.comma = nil
	}
	r.open = r.open[:len(r.open)-1]
	r.out = append(r.out, b)
	return r.close()
}

// close ends a value inside of others, or the whole.
func (r *repairer) close() verdict {
	if len(r.open) == 0 {
		r.state = ended
		return done
	}
	r.state = afterValue
	return more
}

// inText takes a byte of a string.
func (r *repairer) inText(b byte) verdict {
	written := string([]byte{b})
	switch {
	case r.state == inHex:
		if !isDigit(b) && (b|0x20 < 'a' || b|0x20 > 'f') {
			return bad
		}
		if r.left--; r.left == 0 {
			r.state = inString
		}
	case r.state == inEscape:
		r.state = inString
		switch b {
		case 'u':
			r.state, r.left, written = inHex, 4, `\u`
		case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
			written = `\` + written
		case '\'':
		default:
			return bad
		}
	case b == '\\':
		r.state = inEscape
		return more
	case b < 0x20:
		written = escaped(b)
	case b == '"':
		r.out = append(r.out, b)
		if r.name {
			r.top().key = append(r.top().key, b)
			r.state = wantColon
			return more
		}
		return r.close()
	}
	r.out = append(r.out, written...)
	if r.name {
		r.top().key = append(r.top().key, written...)
	}
	return more
}

// word takes a byte of a constant.
func (r *repairer) word(b byte) verdict {
	r.text = append(r.text, b)
	if to, whole := words[string(r.text)]; whole {
		r.out = append(r.out, to...)
		return r.close()
	}
	for w := range words {
		if strings.HasPrefix(w, string(r.text)) {
			return more
		}
	}
	return bad
}

// number ends a number.
func (r *repairer) number() bool {
	text := string(r.text)
	if !json.Valid(r.text) {
		return false
	}
	if whole, fraction, point := strings.Cut(text, "."); point && strings.Trim(fraction, "0") == "" && r.here().whole() {
		text = whole
	}
	r.out = append(r.out, text...)
	r.close()
	return true
}

// end is called where nothing follows: a number may end so.
func (r *repairer) end() bool {
	return r.state == ended || r.state == inNumber && len(r.open) == 0 && r.number()
}

// repaired is a whole text as JSON of a shape; ok is false where it is none.
func repaired(text string, s *shape) (out string, ok bool) {
	r := repairer{shape: s}
	for i := range len(text) {
		switch v := r.push(text[i]); {
		case v == bad:
			return "", false
		case v != more:
			rest := i + 1
			if v == over {
				rest = i
			}
			return strings.TrimSpace(r.take()), strings.TrimSpace(text[rest:]) == ""
		}
	}
	ok = r.end()
	return strings.TrimSpace(r.take()), ok
}

// escaped is a byte of a JSON string.
func escaped(b byte) string {
	switch {
	case b == '"' || b == '\\':
		return `\` + string(b)
	case b == '\n':
		return `\n`
	case b == '\t':
		return `\t`
	case b == '\r':
		return `\r`
	case b < 0x20:
		return fmt.Sprintf(`\u%04x`, b)
	}
	return string([]byte{b})
}

func isObject(text string) bool {
	var members map[string]json.RawMessage
	return json.Unmarshal([]byte(text), &members) == nil && members != nil
}
