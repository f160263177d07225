package jinja

import (
	"math"
	"math/big"
	"strings"
	"unicode/utf8"
)

// percentFormat is one s % v.
type percentFormat struct {
	r      *run
	values []any // left to be used
	// mapping is v where it may be asked by name; nil for none.
	mapping *Dict
	safe    bool
}

// percent is Python's s % v; safe: s is markup, so that values are escaped.
func (r *run) percent(s string, v any, safe bool) (string, error) {
	if err := r.scan(len(s)); err != nil { // flags and keys of any length
		return "", err
	}
	f := &percentFormat{r: r, values: []any{v}, safe: safe}
	if l, ok := v.(*List); ok && l.Tuple {
		f.values = l.Items
	}
	f.mapping, _ = v.(*Dict)
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '%' {
			b.WriteByte(s[i])
			continue
		}
		n, text, err := f.one(s[i+1:])
		if err != nil {
			return "", err
		}
		b.WriteString(text)
		i += n
	}
	if len(f.values) > 0 && !subscribable(v) {
		return "", failf("there are more values than format specifiers")
	}
	return b.String(), r.charge(b.Len())
}

// subscribable says whether v counts as a mapping, which need not be used.
func subscribable(v any) bool {
	switch v := v.(type) {
	case *List:
		return !v.Tuple && v.view == ""
	case *Dict, *numbers, undefined:
		return true
	}
	return false
}

// one writes the conversion after a percent sign and returns its length.
func (f *percentFormat) one(s string) (n int, text string, err error) {
	rest := s
	named := false
	var v any
	if strings.HasPrefix(rest, "(") {
		end := closing(rest)
		if end < 0 || f.mapping == nil {
			return 0, "", failf("named format specifiers require a mapping")
		}
		found := false
		if v, found = f.mapping.find(rest[1:end]); !found {
			return 0, "", failf("the mapping has no key %q", cut(rest[1:end]))
		}
		named, f.values, rest = true, nil, rest[end+1:]
	}
	flags := rest[:len(rest)-len(strings.TrimLeft(rest, "-+ #0"))]
	rest = rest[len(flags):]
	width, rest, err := f.number(rest, 0)
	if err != nil {
		return 0, "", err
	}
	precision := int64(-1)
	if strings.HasPrefix(rest, ".") {
		if precision, rest, err = f.number(rest[1:], 0); err != nil {
			return 0, "", err
		}
		precision = max(precision, 0)
	}
	if rest != "" && strings.IndexByte("hlL", rest[0]) >= 0 {
		rest = rest[1:]
	}
	if rest == "" {
		return 0, "", failf("incomplete format specifier after %%")
	}
	verb := rest[0]
	n = len(s) - len(rest) + 1
	if verb == '%' {
		return n, "%", nil
	}
	if !named {
		if v, err = f.take(); err != nil {
			return 0, "", err
		}
	}
	if width < 0 {
		if err := f.r.charge(len(flags)); err != nil {
			return 0, "", err
		}
		flags, width = flags+"-", -width
	}
	if err := f.r.charge(4 * int(width+max(precision, 0))); err != nil {
		return 0, "", err
	}
	text, err = f.value(v, verb, flags, width, precision)
	return n, text, err
}

// closing finds the bracket that closes the one s begins with.
func closing(s string) int {
	open := 0
	for i := range len(s) {
		switch s[i] {
		case '(':
			open++
		case ')':
			if open--; open == 0 {
				return i
			}
		}
	}
	return -1
}

func (f *percentFormat) take() (any, error) {
	if len(f.values) == 0 {
		return nil, failf("there are more format specifiers than values")
	}
	v := f.values[0]
	f.values = f.values[1:]
	return v, nil
}

// number reads a width or precision, which may be a value: *.
func (f *percentFormat) number(s string, otherwise int64) (int64, string, error) {
	if !strings.HasPrefix(s, "*") {
		n, rest, err := count(s)
		if n < 0 {
			n = otherwise
		}
		return n, rest, err
	}
	v, err := f.take()
	if err != nil {
		return 0, "", err
	}
	n, _, isInt, ok := number(v)
	if !ok || !isInt {
		return 0, "", failf("* requires an int, not %s", typeName(v))
	}
	if n > maxWidth || n < -maxWidth {
		return 0, "", limitf(BoundBytes, "a format specifier asks for more than %d characters", maxWidth)
	}
	return n, s[1:], nil
}

func (f *percentFormat) value(v any, verb byte, flags string, width, precision int64) (string, error) {
	has := func(flag string) bool { return strings.Contains(flags, flag) }
	out := spec{fill: " ", align: '>', sign: '-', width: width}
	switch {
	case has("+"):
		out.sign = '+'
	case has(" "):
		out.sign = ' '
	}
	var sign, prefix, body string
	var err error
	switch verb {
	case 's', 'r', 'a':
		body, err = f.text(v, verb, precision)
	case 'c':
		body, err = character1(v)
	case 'd', 'i', 'u', 'o', 'x', 'X':
		out.verb, out.alternate = verb, has("#")
		sign, prefix, body, err = f.integer(out, v)
		if n := precision - int64(len(body)); n > 0 {
			body = strings.Repeat("0", int(n)) + body
		}
	case 'e', 'E', 'f', 'F', 'g', 'G':
		if !isNumber(v) {
			return "", failf("%%%c requires a number, not %s", verb, typeName(v))
		}
		out.verb, out.precision, out.alternate = verb, precision, has("#")
		sign, body, err = out.float(v)
	default:
		return "", failf("unknown format specifier %%%c", verb)
	}
	if err != nil {
		return "", err
	}
	switch {
	case has("-"):
		out.align = '<'
	case has("0") && strings.IndexByte("sracINn", verb) < 0:
		out.fill, out.align = "0", '='
	}
	return out.pad(sign, prefix, body), f.r.charge(len(body))
}

func (f *percentFormat) text(v any, verb byte, precision int64) (string, error) {
	var body string
	var err error
	switch {
	case verb == 's':
		body, err = f.r.text(v)
	default:
		body, err = f.r.reprOf(v)
	}
	if err != nil {
		return "", err
	}
	if verb == 'a' {
		body = ascii(body)
	}
	if _, ok := v.(markup); f.safe && (!ok || verb != 's') {
		m, err := f.r.escaped(body)
		if err != nil {
			return "", err
		}
		body = string(m)
	}
	if precision >= 0 {
		body = body[:place(body, precision)]
	}
	return body, nil
}

// character1 is %c: one character, or the number of one.
func character1(v any) (string, error) {
	if s, ok := plain(v).(string); ok && utf8.RuneCountInString(s) == 1 {
		return s, nil
	}
	i := integer(v)
	if i == nil || !i.IsInt64() || i.Int64() < 0 || i.Int64() > utf8.MaxRune {
		return "", failf("%%c requires one character, not %s", typeName(v))
	}
	return string(rune(i.Int64())), nil
}

func (f *percentFormat) integer(out spec, v any) (sign, prefix, body string, err error) {
	if x, ok := v.(float64); ok && strings.IndexByte("diu", out.verb) >= 0 {
		i, exact := integral(math.Trunc(x))
		if !exact {
			return "", "", "", failf("%%d requires a finite number")
		}
		v = i
	}
	if integer(v) == nil {
		return "", "", "", failf("%%%c requires a number, not %s", out.verb, typeName(v))
	}
	if strings.IndexByte("diu", out.verb) >= 0 {
		out.verb, out.alternate = 'd', false
	}
	if b, ok := v.(*big.Int); ok {
		if err := f.r.work(b); err != nil {
			return "", "", "", err
		}
	}
	out.precision = -1
	return out.integer(&f.r.values, v)
}
