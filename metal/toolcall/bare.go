package toolcall

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Markers of Gemma 4, in the order of their tags (its chat template; vLLM 0.33,
// parser/gemma4.py; mlx-lm, tool_parsers/gemma4.py).
const (
	gemmaCall    = "<|tool_call>"
	gemmaCallEnd = "<tool_call|>"
	gemmaQuote   = `<|"|>`
)

// Markers of LFM2 (its chat template; vLLM 0.33, tool_parsers/lfm2_tool_parser.py).
const (
	lfmCalls    = "<|tool_call_start|>"
	lfmCallsEnd = "<|tool_call_end|>"
)

const (
	tagBare symbol = firstTag + iota
	tagBareEnd
	tagQuote
)

type bareState uint8

const (
	bareName bareState = iota
	bareArguments
	bareAfter
)

// bare reads calls whose names and keys have no quotes:
//
//	call:f{a:<|"|>text<|"|>,n:5}          Gemma 4
//	[f(a='text', n=5), g()]               LFM2, as Python
//
// It writes the arguments as JSON, which is then read as in other formats.
type bare struct {
	lex    *lexer
	tools  Tools
	python bool
	state  bareState
	head   []byte
	name   string
	args   *arguments
	// levels are the brackets that are open, key is read where name is set, and quote is
	// what ends the string under way, 0 outside of one.
	levels  []byte
	key     []byte
	named   bool
	quote   symbol
	escaped bool
	code    []byte // what follows a backslash, of an escape with the number of a character
}

func newBare(l *lexer, tools Tools, python bool) body {
	return &bare{lex: l, tools: tools, python: python}
}

func (b *bare) rest() []symbol { return nil }

func (b *bare) begun() bool { return b.state == bareArguments && b.args.begun }

func (b *bare) meant() bool { return b.begun() }

// callee is the declared name in what was read; empty for none.
func (b *bare) callee() string {
	written := strings.TrimSpace(string(b.head))
	if b.python {
		written = strings.TrimLeft(written, "[ \t\r\n")
	}
	return b.tools.resolve(strings.TrimPrefix(written, "call:"))
}

func (b *bare) push(s symbol, out *sink) verdict {
	switch b.state {
	case bareName:
		return b.inName(s, out)
	case bareArguments:
		return b.inArguments(s, out)
	}
	switch {
	case s == tagBareEnd:
		return done
	case s < firstTag && (isBlank(byte(s)) || s == ']' || s == '}'):
		return more
	case s == ',' || s == 'c' && !b.python: // another call
		b.state, b.head = bareName, nil
		if s == 'c' {
			b.head = []byte("c")
		}
		return more
	}
	return over
}

// inName takes a symbol of a name, or the bracket after it.
func (b *bare) inName(s symbol, out *sink) verdict {
	opens := map[bool]symbol{false: '{', true: '('}[b.python]
	switch {
	case s == opens:
		if b.name = b.callee(); b.name == "" {
			return bad
		}
		b.state, b.args = bareArguments, newArguments(b.tools, b.name)
		b.levels, b.named, b.quote, b.escaped, b.code, b.key = []byte{'{'}, true, 0, false, nil, nil
		return b.feed("{", out)
	case s == tagBareEnd && b.callee() != "":
		b.none(out)
		return done
	case s >= firstTag || len(b.head) == maxName:
		return bad
	}
	b.head = append(b.head, byte(s))
	return more
}

// none reports a call without arguments.
func (b *bare) none(out *sink) {
	newArguments(b.tools, b.callee()).none(out)
	out.whole()
	b.state = bareAfter
}

// feed has the arguments take JSON.
func (b *bare) feed(text string, out *sink) verdict {
	for i := range len(text) {
		switch b.args.push(text[i], out) {
		case more:
		case done:
			out.whole()
			b.state = bareAfter
		default:
			return bad
		}
	}
	return more
}

func (b *bare) inArguments(s symbol, out *sink) verdict {
	switch {
	case b.quote != 0:
		return b.inString(s, out)
	case s == tagQuote && !b.python, b.python && (s == '\'' || s == '"'):
		if b.named && len(b.key) > 0 {
			return bad
		}
		b.quote, b.named = s, false
		return b.feed(`"`, out)
	case s >= firstTag:
		return bad
	case b.named:
		return b.inKey(byte(s), out)
	}
	return b.structure(byte(s), out)
}

// inString takes a symbol of a string.
func (b *bare) inString(s symbol, out *sink) verdict {
	switch {
	case len(b.code) > 0:
		return b.inCode(s, out)
	case b.escaped && (s == 'x' || s == 'U' || isDigitOf(8, s)):
		b.escaped, b.code = false, []byte{byte(s)}
		return more
	case b.escaped:
		b.escaped = false
		return b.feed(pythonEscape(b.lex.letters(s)), out)
	case s == b.quote:
		b.quote = 0
		return b.feed(`"`, out)
	case s == '\\' && b.python:
		b.escaped = true
		return more
	}
	var text strings.Builder
	for _, c := range []byte(b.lex.letters(s)) {
		text.WriteString(escaped(c))
	}
	return b.feed(text.String(), out)
}

// isDigitOf reports whether a symbol is a digit of a base, 8 or 16.
func isDigitOf(base int, s symbol) bool {
	return '0' <= s && s <= '7' || base == 16 && (s == '8' || s == '9' || 'a' <= s|0x20 && s|0x20 <= 'f')
}

// number returns the digits of code, their base, and how many an escape has at most.
func (b *bare) number() (digits []byte, base, most int) {
	switch b.code[0] {
	case 'x':
		return b.code[1:], 16, 2
	case 'U':
		return b.code[1:], 16, 8
	}
	return b.code, 8, 3
}

// inCode takes a digit of an escape, or the symbol after it.
func (b *bare) inCode(s symbol, out *sink) verdict {
	digits, base, most := b.number()
	if len(digits) < most && s < firstTag && isDigitOf(base, s) {
		b.code = append(b.code, byte(s))
		return more
	}
	text := `\\` + string(b.code) // Python refuses such a string
	n, err := strconv.ParseUint(string(digits), base, 32)
	switch complete := base == 8 || len(digits) == most; {
	case err != nil || !complete || !utf8.ValidRune(rune(n)):
	case n < utf8.RuneSelf:
		text = escaped(byte(n))
	case n <= 0xffff:
		text = fmt.Sprintf(`\u%04x`, n)
	default:
		text = string(rune(n))
	}
	b.code = nil
	if v := b.feed(text, out); v != more {
		return v
	}
	return b.inString(s, out)
}

// pythonEscape is what a backslash and these letters mean, in a JSON string.
func pythonEscape(letters string) string {
	switch letters {
	case "\n": // the line continues
		return ""
	case "a":
		return `\u0007`
	case "v":
		return `\u000b`
	case "'":
		return letters
	case `"`, `\`, "n", "t", "r", "b", "f", "u":
		return `\` + letters
	}
	var text strings.Builder
	text.WriteString(`\\`) // Python keeps the backslash
	for _, c := range []byte(letters) {
		text.WriteString(escaped(c))
	}
	return text.String()
}

// inKey takes a byte of a key, or of what stands in place of one.
func (b *bare) inKey(c byte, out *sink) verdict {
	top := len(b.levels) == 1
	separator := byte(':')
	if b.python && top {
		separator = '='
	}
	switch {
	case c == separator && len(b.key) > 0:
		var key strings.Builder
		for _, k := range []byte(strings.TrimSpace(string(b.key))) {
			key.WriteString(escaped(k))
		}
		b.key, b.named = nil, false
		return b.feed(`"`+key.String()+`":`, out)
	case len(b.key) == 0 && (c == '}' && !(b.python && top) || c == ')' && b.python && top):
		b.named = false
		return b.structure(c, out)
	case len(b.key) == 0 && isBlank(c):
		return b.feed(string([]byte{c}), out)
	case b.python && !top || len(b.key) == maxName || strings.IndexByte("{}[](),:=\"'", c) >= 0:
		return bad
	}
	b.key = append(b.key, c)
	return more
}

// structure takes a byte outside of keys and strings.
func (b *bare) structure(c byte, out *sink) verdict {
	switch c {
	case '{', '[':
		if len(b.levels) == maxDepth {
			return bad
		}
		b.levels = append(b.levels, c)
		b.named = c == '{'
	case ',':
		b.named = b.levels[len(b.levels)-1] == '{'
	case '}', ']', ')':
		last := len(b.levels) == 1
		if (c == ')') != (b.python && last) {
			return bad
		}
		if b.levels = b.levels[:len(b.levels)-1]; c == ')' {
			c = '}'
		}
	case '=', '"': // no quote of this format
		return bad
	}
	return b.feed(string([]byte{c}), out)
}

func (b *bare) end(cut bool, out *sink) bool {
	switch {
	case b.state == bareAfter:
		return true
	case b.state == bareName && !cut && b.callee() != "":
		b.none(out)
		return true
	}
	return false
}
