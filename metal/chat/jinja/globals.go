package jinja

import (
	"fmt"
	"strings"
	"time"
)

// globals are the functions that every template sees.
func globals() map[string]any {
	out := map[string]any{}
	for name, call := range map[string]func(*run, args) (any, error){
		"range": rangeOf, "namespace": newNamespace, "dict": newDict, "raise_exception": raise,
		"strftime_now": strftimeNow, "cycler": cycler, "joiner": joiner,
	} {
		out[name] = &function{name: name, call: call}
	}
	return out
}

func rangeOf(r *run, a args) (any, error) {
	bounds := []int64{0, 0, 1}
	if len(a.pos) == 0 || len(a.pos) > 3 || len(a.names) > 0 {
		return nil, failf("range takes one to three integers")
	}
	for i, v := range a.pos {
		n, _, isInt, ok := number(v)
		if !ok || !isInt {
			return nil, failf("range takes integers, not %s", typeName(v))
		}
		bounds[i] = n
	}
	if len(a.pos) == 1 {
		bounds[0], bounds[1] = 0, bounds[0]
	}
	from, to, by := bounds[0], bounds[1], bounds[2]
	if by == 0 {
		return nil, failf("range takes no step of 0")
	}
	l := NewList()
	for i := from; (by > 0 && i < to) || (by < 0 && i > to); i += by {
		if len(l.Items) == maxRange {
			return nil, limitf("a range has more than %d numbers", maxRange)
		}
		l.Items = append(l.Items, i)
		if (by > 0 && i > i+by) || (by < 0 && i < i+by) {
			break
		}
	}
	return l, r.charge(16 * len(l.Items))
}

// maxRange is the bound of jinja2's sandbox.
const maxRange = 100_000

// dictOf merges mappings, lists of pairs and named arguments.
func (r *run) dictOf(who string, a args) (*Dict, error) {
	d := NewDict()
	for _, v := range a.pos {
		items, err := r.items(v)
		if err != nil {
			return nil, err
		}
		if from, ok := v.(*Dict); ok {
			items = from.items().Items
		}
		for _, item := range items {
			pair, ok := item.(*List)
			if !ok || len(pair.Items) != 2 || !d.put(pair.Items[0], pair.Items[1]) {
				return nil, failf("%s takes pairs, not %s", who, typeName(item))
			}
		}
	}
	for i, name := range a.names {
		d.Set(name, a.named[i])
	}
	return d, r.charge(64 * d.Len())
}

func newDict(r *run, a args) (any, error) {
	d, err := r.dictOf("dict", a)
	return d, err
}

func newNamespace(r *run, a args) (any, error) {
	d, err := r.dictOf("namespace", a)
	if err != nil {
		return nil, err
	}
	for _, k := range d.keys {
		if name, ok := k.(string); ok && strings.HasPrefix(name, "_") {
			return nil, failf("a namespace holds no name that begins with _")
		}
	}
	return &namespace{d}, nil
}

func raise(r *run, a args) (any, error) {
	p, err := a.bind("raise_exception", 1, "message")
	if err != nil {
		return nil, err
	}
	message, err := r.text(p[0])
	if err != nil {
		return nil, err
	}
	return nil, &Error{Kind: ErrRaised, Message: message}
}

func cycler(_ *run, a args) (any, error) {
	if len(a.pos) == 0 {
		return nil, failf("cycler needs an argument")
	}
	at := 0
	d := NewDict()
	d.Set("next", &function{name: "next", call: func(*run, args) (any, error) {
		v := a.pos[at]
		at = (at + 1) % len(a.pos)
		return v, nil
	}})
	d.Set("reset", &function{name: "reset", call: func(*run, args) (any, error) {
		at = 0
		return nil, nil
	}})
	return &namespace{d}, nil
}

func joiner(_ *run, a args) (any, error) {
	p, err := a.bind("joiner", 0, "sep")
	if err != nil {
		return nil, err
	}
	used := false
	return &function{name: "joiner", call: func(*run, args) (any, error) {
		if !used {
			used = true
			return "", nil
		}
		if isAbsent(p[0]) {
			return ", ", nil
		}
		return p[0], nil
	}}, nil
}

func strftimeNow(r *run, a args) (any, error) {
	p, err := a.strings("strftime_now", "format")
	if err != nil {
		return nil, err
	}
	s, err := strftime(r.now, p[0])
	if err != nil {
		return nil, err
	}
	return s, r.charge(len(s))
}

// strftime is C's strftime in the C locale.
func strftime(t time.Time, format string) (string, error) {
	var b strings.Builder
	for i := 0; i < len(format); i++ {
		if format[i] != '%' || i+1 == len(format) {
			b.WriteByte(format[i])
			continue
		}
		i++
		bare := format[i] == '-' && i+1 < len(format)
		if bare {
			i++
		}
		s, ok := strftimeField(t, format[i])
		if !ok {
			return "", failf("strftime_now knows no %%%c", format[i])
		}
		if bare {
			if s = strings.TrimLeft(s, "0 "); s == "" {
				s = "0"
			}
		}
		b.WriteString(s)
	}
	return b.String(), nil
}

func strftimeField(t time.Time, c byte) (string, bool) {
	layout, ok := map[byte]string{
		'Y': "2006", 'y': "06", 'm': "01", 'd': "02", 'H': "15", 'I': "03", 'M': "04", 'S': "05", 'p': "PM",
		'B': "January", 'b': "Jan", 'h': "Jan", 'A': "Monday", 'a': "Mon", 'e': "_2", 'j': "002", 'Z': "MST", 'z': "-0700",
		'F': "2006-01-02", 'T': "15:04:05", 'D': "01/02/06", 'R': "15:04", 'c': "Mon Jan _2 15:04:05 2006", 'x': "01/02/06", 'X': "15:04:05",
	}[c]
	if ok {
		return t.Format(layout), true
	}
	switch c {
	case '%':
		return "%", true
	case 'n':
		return "\n", true
	case 't':
		return "\t", true
	case 'f':
		return fmt.Sprintf("%06d", t.Nanosecond()/1000), true
	case 's':
		return fmt.Sprint(t.Unix()), true
	case 'u':
		return fmt.Sprint((int(t.Weekday())+6)%7 + 1), true
	case 'w':
		return fmt.Sprint(int(t.Weekday())), true
	}
	return "", false
}
