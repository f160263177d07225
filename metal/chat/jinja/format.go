package jinja

import (
	"fmt"
	"strconv"
	"strings"
)

// format is Python's str.format for fields without a specification.
func (r *run) format(s string, a args) (any, error) {
	var b strings.Builder
	next := 0
	for i := 0; i < len(s); i++ {
		switch {
		case s[i] == '{' && strings.HasPrefix(s[i+1:], "{"), s[i] == '}' && strings.HasPrefix(s[i+1:], "}"):
			b.WriteByte(s[i])
			i++
		case s[i] == '}':
			return nil, failf("a single } in the text of format")
		case s[i] == '{':
			end := strings.IndexByte(s[i:], '}')
			if end < 0 {
				return nil, failf("a field of format is not closed")
			}
			v, err := a.field(s[i+1:i+end], &next)
			if err != nil {
				return nil, err
			}
			text, err := r.text(v)
			if err != nil {
				return nil, err
			}
			if err := r.charge(len(text)); err != nil {
				return nil, err
			}
			b.WriteString(text)
			i += end
		default:
			b.WriteByte(s[i])
		}
	}
	return b.String(), r.charge(len(s))
}

// field finds the argument of a format field: the next one, one by number, or
// one by name.
func (a args) field(name string, next *int) (any, error) {
	if name == "" {
		name = strconv.Itoa(*next)
		*next++
	}
	if i, err := strconv.Atoi(name); err == nil {
		if i < 0 || i >= len(a.pos) {
			return nil, failf("format has no argument %d", i)
		}
		return a.pos[i], nil
	}
	for i, n := range a.names {
		if n == name {
			return a.named[i], nil
		}
	}
	return nil, failf("format knows no field %q", cut(name))
}

// percent is s % v: %s, %r, %d, %i, %f, %x and %%, with flags, width and
// precision as Go and Python share them.
func (r *run) percent(s string, v any) (any, error) {
	values := []any{v}
	if l, ok := v.(*List); ok && l.Tuple {
		values = l.Items
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '%' {
			b.WriteByte(s[i])
			continue
		}
		end := i + 1
		for end < len(s) && strings.IndexByte("-+ #0123456789.", s[end]) >= 0 {
			end++
		}
		if end == len(s) {
			return nil, failf("a format ends after %%")
		}
		if s[end] == '%' {
			b.WriteByte('%')
			i = end
			continue
		}
		if len(values) == 0 {
			return nil, failf("there are more formats than values")
		}
		text, err := r.percentOne(s[i+1:end], s[end], values[0])
		if err != nil {
			return nil, err
		}
		values = values[1:]
		b.WriteString(text)
		i = end
	}
	if _, isDict := v.(*Dict); len(values) > 0 && !isDict {
		return nil, failf("there are more values than formats")
	}
	return b.String(), r.charge(len(s))
}

func (r *run) percentOne(flags string, verb byte, v any) (string, error) {
	for _, n := range strings.FieldsFunc(flags, func(c rune) bool { return c < '0' || c > '9' }) {
		if len(n) > 4 {
			return "", limitf("a format is wider than 9999")
		}
	}
	var arg any
	switch verb {
	case 's', 'r':
		var b strings.Builder
		if err := r.print(&b, v, verb == 'r', 0); err != nil {
			return "", err
		}
		arg, verb = b.String(), 's'
	case 'd', 'i', 'x', 'X', 'o':
		i, f, isInt, ok := number(v)
		if !ok {
			return "", failf("%%%c takes a number, not %s", verb, typeName(v))
		}
		if !isInt {
			i = int64(f)
		}
		if verb == 'i' {
			verb = 'd'
		}
		arg = i
	case 'f', 'F', 'e', 'g':
		_, f, _, ok := number(v)
		if !ok {
			return "", failf("%%%c takes a number, not %s", verb, typeName(v))
		}
		arg = f
	default:
		return "", failf("the format %%%c is not supported", verb)
	}
	text := fmt.Sprintf("%"+flags+string(verb), arg)
	return text, r.charge(len(text))
}
