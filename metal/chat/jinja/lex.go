package jinja

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

type tokenKind uint8

const (
	tokData tokenKind = iota
	tokOpen           // {{
	tokClose
	tokTagOpen // {%
	tokTagClose
	tokName
	tokString
	tokNumber
	tokOperator
	tokEnd
)

type token struct {
	kind  tokenKind
	text  string // data, name, operator; the value of a string
	value any    // of a number
	line  int
}

// lexer cuts a template into tokens.
type lexer struct {
	src    string
	pos    int
	line   int
	tokens []token
	// fresh: the text before pos ended with a newline that a tag removed, or
	// pos is the start.
	fresh bool
}

// newlines makes every line break \n and drops the last one, as jinja2 does.
func newlines(src string) string {
	src = strings.ReplaceAll(src, "\r\n", "\n")
	src = strings.ReplaceAll(src, "\r", "\n")
	return strings.TrimSuffix(src, "\n")
}

func lex(src string) ([]token, error) {
	l := &lexer{src: newlines(src), line: 1, fresh: true}
	for l.pos < len(l.src) {
		if err := l.text(); err != nil {
			return nil, err
		}
		if err := l.bounded(); err != nil {
			return nil, err
		}
	}
	l.add(token{kind: tokEnd, text: "end of template"})
	return l.tokens, nil
}

// bounded keeps what a source becomes in proportion to it.
func (l *lexer) bounded() error {
	if len(l.tokens) > maxTokens {
		return atLine(limitf(BoundSource, "the source has more than %d tokens", maxTokens), l.line)
	}
	return nil
}

func (l *lexer) fail(format string, args ...any) error {
	return &Error{Kind: errSyntax, Line: l.line, Message: fmt.Sprintf(format, args...)}
}

func (l *lexer) add(t token) {
	t.line = l.line
	l.tokens = append(l.tokens, t)
}

// skip moves on by n bytes and counts lines.
func (l *lexer) skip(n int) {
	l.line += strings.Count(l.src[l.pos:l.pos+n], "\n")
	l.pos += n
}

func (l *lexer) has(s string) bool { return strings.HasPrefix(l.src[l.pos:], s) }

// text takes data up to the next tag, and the tag.
func (l *lexer) text() error {
	rest := l.src[l.pos:]
	at := nextTag(rest)
	if at < 0 {
		l.add(token{kind: tokData, text: rest})
		l.pos = len(l.src)
		return nil
	}
	open := rest[at : at+2]
	sign := byte(0)
	if len(rest) > at+2 && (rest[at+2] == '-' || rest[at+2] == '+') {
		sign = rest[at+2]
	}
	data := l.before(rest[:at], sign, open == "{{")
	if data != "" {
		l.add(token{kind: tokData, text: data})
	}
	l.skip(at + 2)
	if sign != 0 {
		l.skip(1)
	}
	l.fresh = false
	switch open {
	case "{#":
		return l.comment()
	case "{%":
		if n := rawTag(l.src[l.pos:], "raw"); n > 0 && l.src[l.pos+n-3] != '+' {
			l.skip(n)
			return l.raw()
		}
		l.add(token{kind: tokTagOpen, text: "{%"})
		return l.tag(tokTagClose, "%}")
	}
	l.add(token{kind: tokOpen, text: "{{"})
	return l.tag(tokClose, "}}")
}

func nextTag(s string) int {
	for i := 0; i+1 < len(s); i++ {
		if s[i] == '{' && (s[i+1] == '{' || s[i+1] == '%' || s[i+1] == '#') {
			return i
		}
	}
	return -1
}

// before strips the text in front of a tag: all white space for a minus, and
// what stands alone on the tag's line for a block or a comment.
func (l *lexer) before(text string, sign byte, variable bool) string {
	if sign == '-' {
		return strings.TrimRightFunc(text, isSpace)
	}
	if sign == '+' || variable {
		return text
	}
	start := strings.LastIndexByte(text, '\n') + 1
	if (start > 0 || l.fresh) && strings.TrimLeftFunc(text[start:], isSpace) == "" {
		return text[:start]
	}
	return text
}

// after removes white space after a tag: all of it for a minus, one newline
// after a block or comment without a sign.
func (l *lexer) after(sign byte, variable bool) {
	l.fresh = false
	switch {
	case sign == '-':
		rest := l.src[l.pos:]
		n := len(rest) - len(strings.TrimLeftFunc(rest, isSpace))
		l.fresh = n > 0 && rest[n-1] == '\n'
		l.skip(n)
	case sign == 0 && !variable && l.has("\n"):
		l.skip(1)
		l.fresh = true
	}
}

func (l *lexer) comment() error {
	end := strings.Index(l.src[l.pos:], "#}")
	if l.pos == len(l.src) {
		return nil // the reference sees nothing that is not closed
	}
	if end < 0 {
		return l.fail("a comment is not closed")
	}
	sign := byte(0)
	if end > 0 && (l.src[l.pos+end-1] == '-' || l.src[l.pos+end-1] == '+') {
		sign = l.src[l.pos+end-1]
	}
	l.skip(end + 2)
	l.after(sign, false)
	return nil
}

// rawTag measures `raw %}` or `endraw %}` with spaces and signs, without what
// follows; 0 if s does not begin with it.
func rawTag(s, name string) int {
	n := len(s) - len(strings.TrimLeftFunc(s, isSpace))
	if !strings.HasPrefix(s[n:], name) {
		return 0
	}
	n += len(name)
	n += len(s[n:]) - len(strings.TrimLeftFunc(s[n:], isSpace))
	if n < len(s) && (s[n] == '-' || s[n] == '+') {
		n++
	}
	if !strings.HasPrefix(s[n:], "%}") {
		return 0
	}
	return n + 2
}

func (l *lexer) raw() error {
	if l.src[l.pos-3] == '-' {
		l.after('-', false)
	}
	rest := l.src[l.pos:]
	for at := 0; at < len(rest); at++ {
		if !strings.HasPrefix(rest[at:], "{%") {
			continue
		}
		from, sign := at+2, byte(0)
		if from < len(rest) && (rest[from] == '-' || rest[from] == '+') {
			sign = rest[from]
			from++
		}
		n := rawTag(rest[from:], "endraw")
		if n == 0 {
			continue
		}
		if data := l.before(rest[:at], sign, false); data != "" {
			l.add(token{kind: tokData, text: data})
		}
		l.skip(from + n)
		end := l.src[l.pos-3]
		if end != '-' && end != '+' {
			end = 0
		}
		l.after(end, false)
		return nil
	}
	if rest == "" {
		return nil // as with comments
	}
	return l.fail("a raw block is not closed")
}

// tag takes tokens up to the closing mark, which counts only outside brackets.
func (l *lexer) tag(kind tokenKind, mark string) error {
	var open []byte
	for l.pos < len(l.src) {
		if len(open) == 0 {
			if sign, ok := l.closing(mark); ok {
				l.add(token{kind: kind, text: mark})
				n := len(mark)
				if sign != 0 {
					n++
				}
				l.skip(n)
				l.after(sign, kind == tokClose)
				return nil
			}
		}
		r, size := utf8.DecodeRuneInString(l.src[l.pos:])
		switch {
		case isSpace(r):
			l.skip(size)
		case r == '\'' || r == '"':
			if err := l.string(byte(r)); err != nil {
				return err
			}
		case '0' <= r && r <= '9':
			if err := l.number(); err != nil {
				return err
			}
		case r == '_' || unicode.IsLetter(r):
			l.name()
		default:
			var err error
			if open, err = l.operator(open); err != nil {
				return err
			}
		}
		if err := l.bounded(); err != nil {
			return err
		}
	}
	return l.fail("a tag is not closed with %s", mark)
}

func (l *lexer) closing(mark string) (sign byte, ok bool) {
	if l.has(mark) {
		return 0, true
	}
	if l.has("-" + mark) {
		return '-', true
	}
	if mark == "%}" && l.has("+"+mark) {
		return '+', true
	}
	return 0, false
}

func (l *lexer) name() {
	rest := l.src[l.pos:]
	n := strings.IndexFunc(rest, func(r rune) bool {
		return r != '_' && !unicode.IsLetter(r) && !unicode.IsDigit(r) && !unicode.Is(unicode.M, r)
	})
	if n < 0 {
		n = len(rest)
	}
	l.add(token{kind: tokName, text: rest[:n]})
	l.pos += n
}

// operators lists the operators, longest first.
func operators() []string {
	return []string{"**", "//", "==", "!=", "<=", ">=", "+", "-", "*", "/", "%", "~", "<", ">", "=", ".", ",", ":", "|", ";", "(", ")", "[", "]", "{", "}"}
}

func (l *lexer) operator(open []byte) ([]byte, error) {
	for _, op := range operators() {
		if !l.has(op) {
			continue
		}
		switch op {
		case "(", "[", "{":
			if len(open) == maxDepth {
				return nil, atLine(limitf(BoundDepth, "brackets are nested more than %d levels deep", maxDepth), l.line)
			}
			open = append(open, map[string]byte{"(": ')', "[": ']', "{": '}'}[op])
		case ")", "]", "}":
			if len(open) == 0 || open[len(open)-1] != op[0] {
				return nil, l.fail("unexpected %q", op)
			}
			open = open[:len(open)-1]
		}
		l.add(token{kind: tokOperator, text: op})
		l.pos += len(op)
		return open, nil
	}
	r, _ := utf8.DecodeRuneInString(l.src[l.pos:])
	return nil, l.fail("unexpected character %q", r)
}

func (l *lexer) string(quote byte) error {
	rest := l.src[l.pos+1:]
	for i := 0; i < len(rest); i++ {
		switch rest[i] {
		case '\\':
			i++
		case quote:
			value, err := unescape(rest[:i])
			if err != nil {
				return l.fail("%v", err)
			}
			l.add(token{kind: tokString, text: value})
			l.skip(i + 2)
			return nil
		}
	}
	return l.fail("a string is not closed")
}

// unescape reads Python's escapes; an unknown one stays as it is.
func unescape(s string) (string, error) {
	if !strings.Contains(s, `\`) {
		return s, nil
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' || i+1 == len(s) {
			b.WriteByte(s[i])
			continue
		}
		i++
		if at := strings.IndexByte("\\'\"abfnrtv", s[i]); at >= 0 {
			b.WriteByte("\\'\"\a\b\f\n\r\t\v"[at])
			continue
		}
		switch c := s[i]; {
		case c == '\n':
		case c == 'N':
			return "", fmt.Errorf("characters by name, \\N, are not supported")
		case c == 'x', c == 'u', c == 'U':
			n := map[byte]int{'x': 2, 'u': 4, 'U': 8}[c]
			if i+n >= len(s) {
				return "", fmt.Errorf("the escape \\%c is incomplete", c)
			}
			v, err := strconv.ParseUint(s[i+1:i+1+n], 16, 32)
			if err != nil || v > unicode.MaxRune {
				return "", fmt.Errorf("\\%s is not a character", cut(s[i:i+1+n]))
			}
			b.WriteRune(rune(v)) // a lone surrogate becomes U+FFFD
			i += n
		case '0' <= c && c <= '7':
			n := 1
			for n < 3 && i+n < len(s) && '0' <= s[i+n] && s[i+n] <= '7' {
				n++
			}
			v, err := strconv.ParseUint(s[i:i+n], 8, 32)
			if err != nil {
				return "", err
			}
			b.WriteRune(rune(v))
			i += n - 1
		default:
			b.WriteByte('\\')
			b.WriteByte(c)
		}
	}
	return b.String(), nil
}
