package jinja

import (
	"math"
	"math/big"
	"strconv"
	"strings"
	"unicode/utf8"
)

// spec is one format specification of Python:
// [[fill]align][sign][z][#][0][width][grouping][.precision][type].
type spec struct {
	fill      string
	align     byte // < > = ^, or 0
	sign      byte // - + or space
	positive  bool // z: no negative zero
	alternate bool
	width     int64
	group     byte // , _ or 0
	precision int64
	verb      byte // or 0
}

// maxWidth bounds what one format asks for, in characters.
const maxWidth = 1 << 20

// parseSpec reads a specification; its text is not empty.
func parseSpec(s string) (spec, error) {
	out := spec{sign: '-', precision: -1}
	if _, n := utf8.DecodeRuneInString(s); n < len(s) && strings.IndexByte("<>=^", s[n]) >= 0 {
		out.fill, out.align, s = s[:n], s[n], s[n+1:]
	} else if strings.IndexByte("<>=^", s[0]) >= 0 {
		out.align, s = s[0], s[1:]
	}
	take := func(chars string) byte {
		if s == "" || strings.IndexByte(chars, s[0]) < 0 {
			return 0
		}
		c := s[0]
		s = s[1:]
		return c
	}
	if c := take("+- "); c != 0 {
		out.sign = c
	}
	out.positive = take("z") != 0
	out.alternate = take("#") != 0
	if strings.HasPrefix(s, "0") && out.fill == "" {
		out.fill = "0"
		if out.align == 0 {
			out.align = '='
		}
	}
	if out.fill == "" {
		out.fill = " "
	}
	var err error
	if out.width, s, err = count(s); err != nil {
		return out, err
	}
	out.width = max(out.width, 0)
	out.group = take(",_")
	if take(".") != 0 {
		if out.precision, s, err = count(s); err != nil {
			return out, err
		}
		if out.precision < 0 {
			return out, failf("a format specification has no precision after its dot")
		}
	}
	out.verb = take("bcdeEfFgGnosxX%")
	if s != "" {
		return out, failf("the format specification ends with %q", cut(s))
	}
	return out, nil
}

// count takes the digits at the start of s; -1 where there are none.
func count(s string) (int64, string, error) {
	n := 0
	for n < len(s) && s[n] >= '0' && s[n] <= '9' {
		n++
	}
	if n == 0 {
		return -1, s, nil
	}
	i, err := strconv.ParseInt(s[:n], 10, 64)
	if err != nil || i > maxWidth {
		return 0, "", limitf(BoundBytes, "a format specification asks for more than %d characters", maxWidth)
	}
	return i, s[n:], nil
}

// formatted is Python's format(v, spec).
func (r *values) formatted(v any, s string) (string, error) {
	if s == "" {
		return r.text(v)
	}
	if !isNumber(v) {
		if _, ok := plain(v).(string); !ok {
			return "", failf("%s does not support a format specification", typeName(v))
		}
	}
	f, err := parseSpec(s)
	if err != nil {
		return "", err
	}
	if err := r.charge(4 * int(f.width+max(f.precision, 0))); err != nil {
		return "", err
	}
	var sign, prefix, body string
	switch text, isText := plain(v).(string); {
	case isText:
		if strings.IndexByte("s\x00", f.verb) < 0 || f.sign != '-' || f.alternate || f.group != 0 || f.positive || f.align == '=' && f.fill != "0" {
			return "", failf("this format specification requires a number, not a str")
		}
		body = text
		if f.precision >= 0 {
			body = text[:place(text, f.precision)]
		}
		if f.align == 0 || f.align == '=' {
			f.align = '<'
		}
	case f.isFloat(v):
		sign, body, err = f.float(v)
	default:
		sign, prefix, body, err = f.integer(r, v)
	}
	if err != nil {
		return "", err
	}
	if f.align == 0 {
		f.align = '>'
	}
	return f.pad(sign, prefix, body), r.charge(len(body))
}

// pad fills up to the width, and puts separators between digits.
func (f spec) pad(sign, prefix, body string) string {
	head := sign + prefix
	size := func() int64 { return int64(utf8.RuneCountInString(head) + utf8.RuneCountInString(body)) }
	if f.group != 0 {
		// Zeros that fill up are grouped, too.
		low := int64(0)
		if f.fill == "0" && f.align == '=' {
			low = f.width - int64(len(head))
		}
		body = f.grouped(body, low)
	}
	missing := f.width - size()
	if missing <= 0 {
		return head + body
	}
	n := int(missing)
	switch f.align {
	case '<':
		return head + body + strings.Repeat(f.fill, n)
	case '=':
		return head + strings.Repeat(f.fill, n) + body
	case '^':
		return strings.Repeat(f.fill, n/2) + head + body + strings.Repeat(f.fill, n-n/2)
	}
	return strings.Repeat(f.fill, n) + head + body
}

// grouped separates the digits in front of a point, with zeros put before
// them until there are low characters.
func (f spec) grouped(body string, low int64) string {
	end := 0
	for end < len(body) && isHex(body[end]) && (f.verb == 'x' || f.verb == 'X' || body[end] <= '9') {
		end++
	}
	whole, rest := body[:end], body[end:]
	if whole == "" {
		return body
	}
	every := 3
	if strings.IndexByte("boxX", f.verb) >= 0 && f.verb != 0 {
		every = 4
	}
	var parts []byte // from the right
	for i := 0; i < len(whole) || int64(len(parts)+len(rest)) < low; i++ {
		if i > 0 && i%every == 0 {
			parts = append(parts, f.group)
		}
		c := byte('0')
		if i < len(whole) {
			c = whole[len(whole)-1-i]
		}
		parts = append(parts, c)
	}
	for i, j := 0, len(parts)-1; i < j; i, j = i+1, j-1 {
		parts[i], parts[j] = parts[j], parts[i]
	}
	return string(parts) + rest
}

func (f spec) isFloat(v any) bool {
	_, ok := v.(float64)
	return ok || f.verb != 0 && strings.IndexByte("eEfFgG%", f.verb) >= 0
}

func (f spec) signOf(negative bool) string {
	switch {
	case negative:
		return "-"
	case f.sign == '-':
		return ""
	}
	return string(f.sign)
}

func (f spec) float(v any) (sign, body string, err error) {
	_, x, _, _ := number(v)
	if _, isBig := v.(*big.Int); isBig && math.IsInf(x, 0) {
		return "", "", failf("the integer is too large for a float")
	}
	if f.verb == 'n' {
		f.verb = 'g'
	}
	if f.verb != 0 && strings.IndexByte("eEfFgG%", f.verb) < 0 {
		return "", "", failf("the format %c does not support a float", f.verb)
	}
	negative := math.Signbit(x) && !math.IsNaN(x)
	x = math.Abs(x)
	if f.verb == '%' {
		body = floatDigits(x*100, 'f', f.precision, f.alternate) + "%"
	} else {
		body = floatDigits(x, f.verb, f.precision, f.alternate)
	}
	if f.positive && strings.Trim(body, "0.%") == "" {
		negative = false
	}
	return f.signOf(negative), body, nil
}

// floatDigits writes a float that is not negative as C's printf does; verb 0
// is Python's own way.
func floatDigits(x float64, verb byte, precision int64, alternate bool) string {
	upper := verb == 'E' || verb == 'F' || verb == 'G'
	switch {
	case math.IsInf(x, 0) && upper:
		return "INF"
	case math.IsNaN(x) && upper:
		return "NAN"
	case math.IsInf(x, 0):
		return "inf"
	case math.IsNaN(x):
		return "nan"
	case verb == 0 && precision < 0:
		return floatText(x)
	}
	plainly := precision < 0
	if plainly {
		precision = 6
	}
	var s string
	switch verb | 0x20 {
	case 'f':
		s = strconv.FormatFloat(x, 'f', int(precision), 64)
	case 'e':
		s = strconv.FormatFloat(x, 'e', int(precision), 64)
	default:
		s = general(x, max(precision, 1), alternate, verb == 0)
	}
	if alternate && precision == 0 && verb|0x20 != 'g' && verb != 0 {
		mantissa, exp, _ := strings.Cut(s, "e")
		s = mantissa + "."
		if exp != "" {
			s += "e" + exp
		}
	}
	if upper {
		s = strings.ToUpper(s)
	}
	return s
}

// general is %g: as many significant digits, in the shorter notation. Python's
// repr keeps a digit after the point, and changes notation one earlier.
func general(x float64, precision int64, keep, own bool) string {
	e := strconv.FormatFloat(x, 'e', int(precision-1), 64)
	mantissa, exponent, _ := strings.Cut(e, "e")
	exp, _ := strconv.ParseInt(exponent, 10, 64)
	late := precision
	if own {
		late--
	}
	trim := func(s string) string {
		if keep || !strings.Contains(s, ".") {
			return s
		}
		return strings.TrimSuffix(strings.TrimRight(s, "0"), ".")
	}
	if exp < -4 || exp >= max(late, 1) && !(own && exp == 0) {
		return trim(mantissa) + "e" + exponent
	}
	s := trim(strconv.FormatFloat(x, 'f', int(max(precision-1-exp, 0)), 64))
	if own && !strings.Contains(s, ".") {
		s += ".0"
	}
	return s
}

func (f spec) integer(r *values, v any) (sign, prefix, body string, err error) {
	i := integer(v)
	if f.precision >= 0 || f.positive {
		return "", "", "", failf("the format of an int does not allow a precision")
	}
	base := 10
	switch f.verb {
	case 'c':
		if !i.IsInt64() || i.Int64() < 0 || i.Int64() > utf8.MaxRune || f.sign != '-' || f.alternate || f.group != 0 {
			return "", "", "", failf("%%c requires a character code")
		}
		return "", "", string(rune(i.Int64())), nil
	case 'b':
		base, prefix = 2, "0b"
	case 'o':
		base, prefix = 8, "0o"
	case 'x':
		base, prefix = 16, "0x"
	case 'X':
		base, prefix = 16, "0X"
	case 0, 'd', 'n':
	default:
		return "", "", "", failf("the format %c does not support an int", f.verb)
	}
	if !f.alternate {
		prefix = ""
	}
	if f.group == ',' && base != 10 || f.group != 0 && f.verb == 'n' {
		return "", "", "", failf("the format %c does not support the separator %c", f.verb, f.group)
	}
	body = new(big.Int).Abs(i).Text(base)
	if f.verb == 'X' {
		body = strings.ToUpper(body)
	}
	return f.signOf(i.Sign() < 0), prefix, body, r.work(i)
}
