package jinja

import (
	"strings"
	"unicode/utf8"
)

// Methods of strings that search and fill.

func affix(_ *run, s, name string, a args) (any, error) {
	p, err := a.bind(name, 1, "affix")
	if err != nil {
		return nil, err
	}
	options := []any{p[0]}
	if l, ok := p[0].(*List); ok && l.Tuple {
		options = l.Items
	}
	for _, o := range options {
		text, ok := o.(string)
		if !ok {
			return nil, failf("%s takes a str, not %s", name, typeName(o))
		}
		if name == "startswith" && strings.HasPrefix(s, text) || name == "endswith" && strings.HasSuffix(s, text) {
			return true, nil
		}
	}
	return false, nil
}

func removeAffix(_ *run, s, name string, a args) (any, error) {
	p, err := a.strings(name, "affix")
	if err != nil {
		return nil, err
	}
	if name == "removeprefix" {
		return strings.TrimPrefix(s, p[0]), nil
	}
	return strings.TrimSuffix(s, p[0]), nil
}

func replaceMethod(r *run, s, name string, a args) (any, error) {
	p, err := a.bind(name, 2, "old", "new", "count")
	if err != nil {
		return nil, err
	}
	old, ok1 := p[0].(string)
	with, ok2 := p[1].(string)
	if !ok1 || !ok2 {
		return nil, failf("replace takes two strs, not %s and %s", typeName(p[0]), typeName(p[1]))
	}
	return r.replace(s, old, with, p[2])
}

func (r *run) replace(s, old, with string, count any) (any, error) {
	n := int64(-1)
	if !isAbsent(count) && count != nil {
		i, _, isInt, ok := number(count)
		if !ok || !isInt {
			return nil, failf("the count of replace is %s", typeName(count))
		}
		n = i
	}
	found := int64(strings.Count(s, old))
	if n >= 0 {
		found = min(found, n)
	}
	if err := r.chargeTimes(len(with), found); err != nil {
		return nil, err
	}
	return strings.Replace(s, old, with, int(found)), r.charge(len(s))
}

func find(r *run, s, name string, a args) (any, error) {
	p, err := a.bind(name, 1, "sub", "start", "end")
	if err != nil {
		return nil, err
	}
	sub, ok := p[0].(string)
	if !ok {
		return nil, failf("%s takes a str, not %s", name, typeName(p[0]))
	}
	var from, to any
	if !isAbsent(p[1]) {
		from = p[1]
	}
	if !isAbsent(p[2]) {
		to = p[2]
	}
	within := s
	offset := 0
	if from != nil || to != nil {
		part, err := r.slice(s, from, to, nil)
		if err != nil {
			return nil, err
		}
		within = part.(string)
		place, err := places(int64(utf8.RuneCountInString(s)), from, nil, nil)
		if err != nil {
			return nil, err
		}
		if len(place) > 0 {
			offset = int(place[0])
		}
	}
	if name == "count" {
		return int64(strings.Count(within, sub)), nil
	}
	at := strings.Index(within, sub)
	if name[0] == 'r' {
		at = strings.LastIndex(within, sub)
	}
	if at < 0 {
		if strings.HasSuffix(name, "index") {
			return nil, failf("the substring is not found")
		}
		return int64(-1), nil
	}
	return int64(offset + utf8.RuneCountInString(within[:at])), nil
}

func partition(_ *run, s, name string, a args) (any, error) {
	p, err := a.strings(name, "sep")
	if err != nil {
		return nil, err
	}
	if p[0] == "" {
		return nil, failf("%s takes a separator that is not empty", name)
	}
	at := strings.Index(s, p[0])
	if name == "rpartition" {
		at = strings.LastIndex(s, p[0])
	}
	out := []any{s, "", ""}
	switch {
	case at >= 0:
		out = []any{s[:at], p[0], s[at+len(p[0]):]}
	case name == "rpartition":
		out = []any{"", "", s}
	}
	return &List{Items: out, Tuple: true}, nil
}

func pad(r *run, s, name string, a args) (any, error) {
	p, err := a.bind(name, 1, "width", "fillchar")
	if err != nil {
		return nil, err
	}
	width, _, isInt, ok := number(p[0])
	if !ok || !isInt {
		return nil, failf("the width of %s is %s", name, typeName(p[0]))
	}
	fill := " "
	if text, ok := p[1].(string); ok && utf8.RuneCountInString(text) == 1 && name != "zfill" {
		fill = text
	} else if !isAbsent(p[1]) {
		return nil, failf("%s takes one character to fill with", name)
	}
	missing := width - int64(utf8.RuneCountInString(s))
	if missing <= 0 {
		return s, nil
	}
	if err := r.chargeTimes(len(fill), missing); err != nil {
		return nil, err
	}
	n := int(missing)
	switch name {
	case "ljust":
		return s + strings.Repeat(fill, n), nil
	case "rjust":
		return strings.Repeat(fill, n) + s, nil
	case "zfill":
		sign := ""
		if s != "" && (s[0] == '+' || s[0] == '-') {
			sign, s = s[:1], s[1:]
		}
		return sign + strings.Repeat("0", n) + s, nil
	}
	left := n/2 + n&int(width)&1
	return strings.Repeat(fill, left) + s + strings.Repeat(fill, n-left), nil
}
