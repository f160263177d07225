package jinja

import (
	"html"
	"math/big"
	"strings"
	"unicode/utf8"
)

// Filters on text.

// stringOf wants a text: some filters use methods that other values lack.
func stringOf(who string, v any) (string, error) {
	s, ok := plain(v).(string)
	if !ok {
		return "", failf("%s requires a str, not %s", who, typeName(v))
	}
	return s, nil
}

// wholeNumber is an optional argument that counts.
func wholeNumber(who, what string, v any, otherwise int64) (int64, error) {
	if isAbsent(v) {
		return otherwise, nil
	}
	i, _, isInt, ok := number(v)
	if !ok || !isInt {
		return 0, failf("the %s of %s is %s", what, who, typeName(v))
	}
	if _, isBig := v.(*big.Int); isBig {
		return 0, failf("the %s of %s exceeds 64 bits", what, who)
	}
	return i, nil
}

// filterTitle capitalises after white space and -([{< only.
func filterTitle(r *run, v any, a args) (any, error) {
	if _, err := a.bind("title", 0); err != nil {
		return nil, err
	}
	s, err := r.text(v)
	if err != nil {
		return nil, err
	}
	if err := r.scan(len(s)); err != nil {
		return nil, err
	}
	if err := r.letters(s); err != nil {
		return nil, err
	}
	separates := func(c rune) bool { return isSpace(c) || strings.ContainsRune("-([{<", c) }
	var b strings.Builder
	for s != "" {
		n := strings.IndexFunc(s, separates)
		if n == 0 {
			n = len(s) - len(strings.TrimLeftFunc(s, separates))
		} else if n < 0 {
			n = len(s)
		}
		_, first := utf8.DecodeRuneInString(s)
		b.WriteString(uppered(s[:first]))
		b.WriteString(lowered(s[first:n]))
		s = s[n:]
	}
	return b.String(), r.charge(b.Len())
}

func filterFormat(r *run, v any, a args) (any, error) {
	s, err := r.text(v)
	if err != nil {
		return nil, err
	}
	var values any = &List{Items: a.pos, Tuple: true}
	if len(a.names) > 0 {
		if len(a.pos) > 0 {
			return nil, failf("format accepts positional or named arguments, not both")
		}
		if err := r.charge(entryBytes * len(a.names)); err != nil {
			return nil, err
		}
		d := NewDict()
		for i, name := range a.names {
			d.Set(name, a.named[i])
		}
		values = d
	}
	_, safe := v.(markup)
	out, err := r.percent(s, values, safe)
	return like(v, out), err
}

func filterIndent(r *run, v any, a args) (any, error) {
	p, err := a.bind("indent", 0, "width", "first", "blank")
	if err != nil {
		return nil, err
	}
	s, err := stringOf("indent", v)
	if err != nil {
		return nil, err
	}
	pad, isText := p[0].(string)
	if !isText {
		width, err := wholeNumber("indent", "width", p[0], 4)
		if err != nil {
			return nil, err
		}
		if err := r.chargeTimes(1, max(width, 0)); err != nil {
			return nil, err
		}
		pad = strings.Repeat(" ", int(max(width, 0)))
	}
	if _, safe := v.(markup); safe {
		pad = html.EscapeString(pad)
	}
	if err := r.charge(2 * len(s)); err != nil {
		return nil, err
	}
	parts, err := r.lines(s+"\n", false)
	if err != nil {
		return nil, err
	}
	if err := r.chargeTimes(len(pad)+1, int64(len(parts))); err != nil {
		return nil, err
	}
	for i := range parts {
		if i > 0 && (parts[i] != "" || given(p[2])) {
			parts[i] = pad + parts[i]
		}
	}
	out := strings.Join(parts, "\n")
	if given(p[1]) {
		out = pad + out
	}
	return like(v, out), r.charge(len(out))
}

func filterReplace(r *run, v any, a args) (any, error) {
	p, err := a.bind("replace", 2, "old", "new", "count")
	if err != nil {
		return nil, err
	}
	var texts [3]string
	for i, t := range []any{v, p[0], p[1]} {
		if texts[i], err = r.text(t); err != nil {
			return nil, err
		}
	}
	if orNil(p[2]) == nil {
		return r.replace(texts[0], texts[1], texts[2], absent{})
	}
	return r.replace(texts[0], texts[1], texts[2], p[2])
}

func filterTrim(r *run, v any, a args) (any, error) {
	s, err := r.text(v)
	if err != nil {
		return nil, err
	}
	if err := r.charge(len(s)); err != nil {
		return nil, err
	}
	p, err := a.bind("trim", 0, "chars")
	if err != nil {
		return nil, err
	}
	out, err := strip(r, s, "strip", args{pos: []any{orNil(p[0])}})
	if err != nil {
		return nil, err
	}
	return like(v, out.(string)), nil
}
