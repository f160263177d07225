package responses

import (
	"bytes"
	"encoding/json"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"metalfleet.dev/metalfleet/api/openai"
)

// inputMember is the parameter of the function that stands for a custom tool.
const inputMember = "input"

// FunctionArguments returns the arguments of the function that stands for the tool
// which the item calls. What is no JSON object, in a call that broke off, is empty.
func (i Item) FunctionArguments() (json.RawMessage, error) {
	if i.Input != nil {
		return openai.Marshal(map[string]string{inputMember: *i.Input})
	}
	if i.Arguments == nil {
		return json.RawMessage("{}"), nil
	}
	return openai.ObjectOf(*i.Arguments), nil
}

// rawInput reads the input of a custom tool out of the arguments of the function
// that stands for it, while they arrive.
type rawInput struct {
	all []byte // arguments so far
	at  int    // the first byte that was not read
	// found is how many of the tokens before the input were read.
	found int
	// begun is set after the quote that opens the input, ended after the one that
	// closes it.
	begun, ended bool
}

// push takes more of the arguments and returns what they add to the input.
func (r *rawInput) push(text string) string {
	r.all = append(r.all, text...)
	if !r.begun && !r.begin() {
		return ""
	}
	var out strings.Builder
	for r.at < len(r.all) && !r.ended {
		switch c := r.all[r.at]; c {
		case '"':
			r.ended = true
			r.at++
		case '\\':
			n := r.escape(&out)
			if n == 0 {
				return out.String() // the rest of it follows
			}
			r.at += n
		default:
			out.WriteByte(c)
			r.at++
		}
	}
	return out.String()
}

// opening are the tokens before the input, between which there may be white space.
var opening = []string{"{", `"` + inputMember + `"`, ":", `"`}

// begin looks for the input at the beginning of the object, after the tokens that it found
// before.
func (r *rawInput) begin() bool {
	for r.found < len(opening) {
		for r.at < len(r.all) && strings.IndexByte(" \t\r\n", r.all[r.at]) >= 0 {
			r.at++
		}
		token := opening[r.found]
		if !bytes.HasPrefix(r.all[r.at:], []byte(token)) {
			return false
		}
		r.at += len(token)
		r.found++
	}
	r.begun = true
	return true
}

// simpleEscapes are what the characters after a backslash stand for.
var simpleEscapes = map[byte]byte{'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t'}

// escape writes what an escape stands for and returns its length; 0 while it is
// incomplete.
func (r *rawInput) escape(out *strings.Builder) int {
	rest := r.all[r.at:]
	if len(rest) < 2 {
		return 0
	}
	if rest[1] != 'u' {
		c, known := simpleEscapes[rest[1]]
		if !known {
			c = rest[1]
		}
		out.WriteByte(c)
		return 2
	}
	first, ok := unit(rest)
	switch {
	case !ok:
		return 0
	case !utf16.IsSurrogate(first):
		out.WriteRune(first)
		return 6
	case len(rest) > 6 && rest[6] != '\\' || len(rest) > 7 && rest[7] != 'u':
		out.WriteRune(utf8.RuneError)
		return 6
	}
	second, ok := unit(rest[6:])
	if !ok {
		return 0
	}
	if both := utf16.DecodeRune(first, second); both != utf8.RuneError {
		out.WriteRune(both)
		return 12
	}
	out.WriteRune(utf8.RuneError)
	return 6
}

// unit reads \uXXXX; ok is false while it is incomplete.
func unit(b []byte) (r rune, ok bool) {
	if len(b) < 6 {
		return 0, false
	}
	for _, c := range b[2:6] {
		r <<= 4
		switch {
		case c >= '0' && c <= '9':
			r += rune(c - '0')
		case c >= 'a' && c <= 'f':
			r += rune(c-'a') + 10
		case c >= 'A' && c <= 'F':
			r += rune(c-'A') + 10
		default:
			return utf8.RuneError, true
		}
	}
	return r, true
}

// rest returns what is left of the input at the end of the arguments. Where they
// have another form, that is their only text, or else all of them.
func (r *rawInput) rest() string {
	if r.begun {
		return ""
	}
	var members map[string]any
	if json.Unmarshal(r.all, &members) != nil {
		return string(r.all)
	}
	if text, ok := members[inputMember].(string); ok {
		return text
	}
	if len(members) == 1 {
		for _, value := range members {
			if text, ok := value.(string); ok {
				return text
			}
		}
	}
	return string(r.all)
}
