package grammar

import (
	"errors"
	"fmt"
	"regexp/syntax"
	"strconv"
	"strings"
	"unicode"
)

// maxExpression bounds the source of a regular expression, and maxTranslated what it is
// translated to: the complement of a class of letters in another class has 10 KB.
const (
	maxExpression = 16 << 10
	maxTranslated = 256 << 10
	// maxClasses bounds the classes of Unicode in an expression. To parse one, which has
	// hundreds of ranges, takes classWork.
	maxClasses = 1000
	classWork  = 2000
)

func compileRegex(b *builder, source string) (expr, error) {
	r, err := parseRegular(b.meter, source, "regex", true)
	if err != nil {
		return nil, err
	}
	return b.emitRegular(r, plainText), nil
}

// parseExpression reads what ECMAScript and Python have in common. Where the two
// differ (which digits \d takes, which blanks \s, what . leaves out), it matches
// what both match.
func parseExpression(m *meter, source, keyword string) (*syntax.Regexp, error) {
	if len(source) > maxExpression {
		return nil, &Error{kind: errLimit, Keyword: keyword, Message: fmt.Sprintf("%s: the expression has more than %d bytes; shorten it", keyword, maxExpression)}
	}
	t := translation{in: source}
	text, err := t.whole()
	if !m.hold(treeBytes*len(source)+8*len(text)+classBytes*min(t.classes, maxClasses)) || !m.spend(len(source)+classWork*min(t.classes, maxClasses)) {
		return nil, m.err
	}
	if t.classes > maxClasses {
		return nil, &Error{kind: errLimit, Keyword: keyword, Message: fmt.Sprintf("%s: the expression has more than %d classes of Unicode; use classes of ASCII, or repeat one with {}", keyword, maxClasses)}
	}
	if err != nil {
		return nil, &Error{kind: errUnsupported, Keyword: keyword, Message: fmt.Sprintf("%s: %v; rewrite the expression without it", keyword, err)}
	}
	parsed, err := syntax.Parse(text, syntax.PerlX|syntax.UnicodeGroups|syntax.OneLine|syntax.DotNL)
	var e *syntax.Error
	switch {
	case err == nil:
		return parsed, nil
	case errors.As(err, &e) && (e.Code == syntax.ErrLarge || e.Code == syntax.ErrInvalidRepeatSize || e.Code == syntax.ErrNestingDepth):
		return nil, &Error{kind: errLimit, Keyword: keyword, Message: fmt.Sprintf("%s: %s: %q; repeat an element at most 1000 times", keyword, e.Code, e.Expr)}
	case errors.As(err, &e):
		return nil, &Error{kind: ErrInvalid, Keyword: keyword, Message: fmt.Sprintf("%s: %s: %q", keyword, e.Code, e.Expr)}
	}
	return nil, &Error{kind: ErrInvalid, Keyword: keyword, Message: fmt.Sprintf("%s: %v", keyword, err)}
}

// translation writes an expression as package regexp/syntax reads it.
type translation struct {
	in  string
	at  int
	out strings.Builder
	// classes of Unicode that it has.
	classes int
}

func (t *translation) rest() string { return t.in[t.at:] }

func (t *translation) take(n int) string {
	s := t.in[t.at : t.at+n]
	t.at += n
	return s
}

func (t *translation) whole() (string, error) {
	for t.at < len(t.in) {
		switch c := t.in[t.at]; {
		case c == '\\':
			if err := t.escape(false, false); err != nil {
				return "", err
			}
		case c == '[':
			if err := t.class(); err != nil {
				return "", err
			}
		case c == '.':
			t.at++
			t.out.WriteString(`[^\n\r\x{2028}\x{2029}]`)
		case strings.HasPrefix(t.rest(), "(?"):
			if !strings.HasPrefix(t.rest(), "(?:") && !strings.HasPrefix(t.rest(), "(?P<") && !namedGroup(t.rest()) {
				return "", fmt.Errorf("the group %q is not supported", t.rest()[:min(len(t.rest()), 4)])
			}
			t.out.WriteString(t.take(2))
		case strings.HasPrefix(t.rest(), "{,"):
			return "", errors.New("the meaning of {, differs between regular-expression engines")
		default:
			t.out.WriteByte(c)
			t.at++
		}
	}
	return t.out.String(), nil
}

func namedGroup(s string) bool {
	return strings.HasPrefix(s, "(?<") && !strings.HasPrefix(s, "(?<=") && !strings.HasPrefix(s, "(?<!")
}

// class reads [...].
func (t *translation) class() error {
	t.out.WriteString(t.take(1))
	negated := strings.HasPrefix(t.rest(), "^")
	if negated {
		t.out.WriteString(t.take(1))
	}
	if strings.HasPrefix(t.rest(), "]") {
		return errors.New("the meaning of a class that begins with ] differs between regular-expression engines")
	}
	for t.at < len(t.in) {
		if t.out.Len() > maxTranslated {
			return fmt.Errorf("its classes are longer than %d bytes when written out", maxTranslated)
		}
		switch c := t.in[t.at]; c {
		case ']':
			t.out.WriteString(t.take(1))
			return nil
		case '[':
			if strings.HasPrefix(t.rest(), "[:") {
				return errors.New("a class of the form [: :] is not supported")
			}
			t.at++
			t.out.WriteString(`\[`)
		case '\\':
			if err := t.escape(true, negated); err != nil {
				return err
			}
		default:
			t.out.WriteByte(c)
			t.at++
		}
	}
	return errors.New("the class [ is not closed")
}

const (
	smallSpace = `\t\n\f\r \x{b}`
	bigSpace   = smallSpace + `\x{1c}-\x{1f}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}\x{feff}`
	smallWord  = `0-9A-Za-z_`
	bigWord    = `\pL\pN\pM_`
	smallDigit = `0-9`
	bigDigit   = `\pN`
)

// escape reads what begins with a backslash. In a class that is negated, more is
// left out rather than less.
func (t *translation) escape(inClass, negated bool) error {
	if t.at+1 >= len(t.in) {
		return errors.New("the expression ends with a backslash")
	}
	c := t.in[t.at+1]
	switch c {
	case 'd', 'D', 's', 'S', 'w', 'W':
		t.at += 2
		return t.shorthand(c, inClass, negated)
	case 'u':
		if len(t.rest()) < 6 {
			return errors.New(`\u must be followed by four hexadecimal digits`)
		}
		n, err := strconv.ParseUint(t.in[t.at+2:t.at+6], 16, 16)
		if err != nil || n >= 0xd800 && n <= 0xdfff {
			return errors.New(`\u must be followed by the four hexadecimal digits of one character`)
		}
		t.at += 6
		fmt.Fprintf(&t.out, `\x{%x}`, n)
		return nil
	case 'n', 'r', 't', 'f', 'v', 'x', 'p', 'P':
		if c|0x20 == 'p' {
			t.classes++
		}
		t.out.WriteString(t.take(2))
		return nil
	case '0':
		t.at += 2
		t.out.WriteString(`\x{0}`)
		return nil
	}
	if c >= 0x80 || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '_' {
		return fmt.Errorf(`\%c is not supported`, c)
	}
	t.out.WriteString(`\x{` + strconv.FormatUint(uint64(c), 16) + `}`)
	t.at += 2
	return nil
}

func (t *translation) shorthand(c byte, inClass, negated bool) error {
	small := map[byte]string{'d': smallDigit, 's': smallSpace, 'w': smallWord}
	big := map[byte]string{'d': bigDigit, 's': bigSpace, 'w': bigWord}
	positive, complement := small, big
	if negated {
		positive, complement = big, small
	}
	lower := byte(unicode.ToLower(rune(c)))
	if lower != 's' && (c != lower || negated) {
		t.classes++
	}
	switch {
	case c == lower && inClass:
		t.out.WriteString(positive[c])
	case c == lower:
		t.out.WriteString("[" + positive[c] + "]")
	case !inClass:
		t.out.WriteString("[^" + complement[lower] + "]")
	default:
		parsed, err := syntax.Parse("[^"+complement[lower]+"]", syntax.PerlX|syntax.UnicodeGroups)
		if err != nil {
			return err
		}
		for i := 0; i < len(parsed.Rune); i += 2 {
			fmt.Fprintf(&t.out, `\x{%x}-\x{%x}`, parsed.Rune[i], parsed.Rune[i+1])
		}
	}
	return nil
}
