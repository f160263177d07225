package jinja

import (
	"math"
	"math/big"
	"strconv"
	"strings"
)

// number reads an integer or a float. A number after a dot is an index, and
// never a float.
func (l *lexer) number() error {
	rest := l.src[l.pos:]
	n, float := 0, false
	if l.pos == 0 || l.src[l.pos-1] != '.' {
		n, float = floatLiteral(rest)
	}
	if !float {
		n = integerLiteral(rest)
	}
	text := strings.ReplaceAll(rest[:n], "_", "")
	l.pos += n
	if float {
		v, err := strconv.ParseFloat(text, 64)
		if err != nil && !math.IsInf(v, 0) {
			return l.fail("%s is not a number", cut(text))
		}
		l.add(token{kind: tokNumber, text: text, value: v})
		return nil
	}
	if len(text) > maxBits { // in any base
		return atLine(tooManyDigits(), l.line)
	}
	v, ok := new(big.Int).SetString(text, 0)
	if !ok {
		return l.fail("%s is not a number", cut(text))
	}
	if v.BitLen() > maxBits {
		return atLine(tooManyDigits(), l.line)
	}
	l.add(token{kind: tokNumber, text: text, value: small(v)})
	return nil
}

// floatLiteral measures a float: digits with a fraction, an exponent or both.
func floatLiteral(s string) (n int, ok bool) {
	n = digits(s, 0)
	if n < len(s) && s[n] == '.' && digits(s, n+1) > n+1 {
		n, ok = digits(s, n+1), true
	}
	if e := exponent(s, n); e > n {
		n, ok = e, true
	}
	return n, ok
}

// integerLiteral measures an integer; zeros are no start of a longer one.
func integerLiteral(s string) int {
	if len(s) > 2 && s[0] == '0' {
		in := map[byte]func(byte) bool{
			'b': func(c byte) bool { return c == '0' || c == '1' },
			'o': func(c byte) bool { return '0' <= c && c <= '7' },
			'x': isHex,
		}[s[1]|0x20]
		if in != nil {
			if n := digitRun(s, 2, in); n > 2 {
				return n
			}
		}
	}
	if s[0] == '0' {
		return 1 + digitRun(s[1:], 0, func(c byte) bool { return c == '0' })
	}
	return digits(s, 0)
}

// digitRun returns the end of the digits from i on, of which each may have an
// underscore before it.
func digitRun(s string, i int, in func(byte) bool) int {
	for {
		j := i
		if j < len(s) && s[j] == '_' {
			j++
		}
		if j >= len(s) || !in(s[j]) {
			return i
		}
		i = j + 1
	}
}

func isHex(b byte) bool {
	return '0' <= b && b <= '9' || 'a' <= b|0x20 && b|0x20 <= 'f'
}

// digits returns the end of the decimal digits from i on.
func digits(s string, i int) int {
	for i < len(s) && ('0' <= s[i] && s[i] <= '9' || s[i] == '_' && i+1 < len(s) && '0' <= s[i+1] && s[i+1] <= '9') {
		i++
	}
	return i
}

// exponent returns the end of an exponent at i, or i.
func exponent(s string, i int) int {
	if i >= len(s) || s[i]|0x20 != 'e' {
		return i
	}
	from := i + 1
	if from < len(s) && (s[from] == '+' || s[from] == '-') {
		from++
	}
	if end := digits(s, from); end > from {
		return end
	}
	return i
}
