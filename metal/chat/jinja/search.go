package jinja

import (
	"strings"
	"unicode/utf8"
)

// Methods of strings that search and fill.

func affix(r *run, s, name string, a args) (any, error) {
	p, err := a.only(name, 1, "affix", "start", "end")
	if err != nil {
		return nil, err
	}
	s, _, fits, err := r.within(s, p[1], p[2])
	if err != nil {
		return nil, err
	}
	options := []any{p[0]}
	if l, ok := p[0].(*List); ok && l.Tuple {
		options = l.Items
	}
	for _, o := range options {
		text, ok := plain(o).(string)
		if !ok {
			return nil, failf("%s requires a str, not %s", name, typeName(o))
		}
		if err := r.scan(len(text)); err != nil {
			return nil, err
		}
		if fits && (name == "startswith" && strings.HasPrefix(s, text) || name == "endswith" && strings.HasSuffix(s, text)) {
			return true, nil
		}
	}
	return false, nil
}

// within is s[start:end], and the number of characters before it. After the end
// of s nothing is found, not even an empty text: fits is false.
func (r *texts) within(s string, start, end any) (part string, before int64, fits bool, err error) {
	from, to := orNil(start), orNil(end)
	if from == nil && to == nil {
		return s, 0, true, nil
	}
	n := int64(utf8.RuneCountInString(s))
	p, err := sliceOf(n, from, to, nil)
	if err != nil {
		return "", 0, false, err
	}
	part, err = r.sliceText(s, p)
	asked, _, _, _ := number(from)
	return part, p.from, asked <= n && p.from <= p.until, err
}

func removeAffix(r *run, s, name string, a args) (any, error) {
	p, err := a.strings(name, "affix")
	if err != nil {
		return nil, err
	}
	if err := r.scan(len(p[0])); err != nil {
		return nil, err
	}
	if name == "removeprefix" {
		return strings.TrimPrefix(s, p[0]), nil
	}
	return strings.TrimSuffix(s, p[0]), nil
}

func replaceMethod(r *run, s, name string, a args) (any, error) {
	p, err := a.only(name, 2, "old", "new", "count")
	if err != nil {
		return nil, err
	}
	old, ok1 := p[0].(string)
	with, ok2 := p[1].(string)
	if !ok1 || !ok2 {
		return nil, failf("replace requires two strs, not %s and %s", typeName(p[0]), typeName(p[1]))
	}
	return r.replace(s, old, with, p[2])
}

func (r *texts) replace(s, old, with string, count any) (any, error) {
	n := int64(-1)
	if !isAbsent(count) {
		var err error
		if n, err = wholeNumber("replace", "count", count, -1); err != nil {
			return nil, err
		}
	}
	if err := r.scan(len(s) + len(old)); err != nil {
		return nil, err
	}
	found := int64(strings.Count(s, old))
	if n >= 0 {
		found = min(found, n)
	}
	if err := r.chargeTimes(len(with), found); err != nil {
		return nil, err
	}
	if err := r.charge(len(s)); err != nil {
		return nil, err
	}
	return strings.Replace(s, old, with, int(found)), nil
}

func find(r *run, s, name string, a args) (any, error) {
	p, err := a.only(name, 1, "sub", "start", "end")
	if err != nil {
		return nil, err
	}
	sub, ok := p[0].(string)
	if !ok {
		return nil, failf("%s requires a str, not %s", name, typeName(p[0]))
	}
	if err := r.scan(len(sub)); err != nil {
		return nil, err
	}
	part, before, fits, err := r.within(s, p[1], p[2])
	if err != nil {
		return nil, err
	}
	if name == "count" {
		return int64(strings.Count(part, sub)) * toInt(fits), nil
	}
	at := strings.Index(part, sub)
	if name[0] == 'r' {
		at = strings.LastIndex(part, sub)
	}
	if at < 0 || !fits {
		if strings.HasSuffix(name, "index") {
			return nil, failf("the substring is not found")
		}
		return int64(-1), nil
	}
	return before + int64(utf8.RuneCountInString(part[:at])), nil
}

func partition(r *run, s, name string, a args) (any, error) {
	p, err := a.strings(name, "sep")
	if err != nil {
		return nil, err
	}
	if p[0] == "" {
		return nil, failf("%s requires a separator that is not empty", name)
	}
	if err := r.scan(len(p[0])); err != nil {
		return nil, err
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
	return &List{Items: out, Tuple: true}, r.charge(3 * textBytes)
}

func padMethod(r *run, s, name string, a args) (any, error) {
	params := []string{"width", "fillchar"}
	if name == "zfill" {
		params = params[:1]
	}
	p, err := a.only(name, 1, params...)
	if err != nil {
		return nil, err
	}
	width, err := wholeNumber(name, "width", p[0], 0)
	if err != nil {
		return nil, err
	}
	fill := " "
	if len(p) > 1 && !isAbsent(p[1]) {
		text, ok := p[1].(string)
		if !ok || utf8.RuneCountInString(text) != 1 {
			return nil, failf("%s requires a single fill character", name)
		}
		fill = text
	}
	out, err := r.pad(s, fill, name, width)
	return out, err
}

// pad fills a text up to a width, as the method of this name.
func (r *texts) pad(s, fill, name string, width int64) (string, error) {
	if err := r.scan(len(s)); err != nil {
		return "", err
	}
	missing := width - int64(utf8.RuneCountInString(s))
	if missing <= 0 || width <= 0 {
		return s, nil
	}
	if err := r.chargeTimes(len(fill), missing); err != nil {
		return "", err
	}
	n := int(missing)
	switch name {
	case "ljust":
		return s + strings.Repeat(fill, n), r.charge(len(s))
	case "rjust":
		return strings.Repeat(fill, n) + s, r.charge(len(s))
	case "zfill":
		sign := ""
		if s != "" && (s[0] == '+' || s[0] == '-') {
			sign, s = s[:1], s[1:]
		}
		return sign + strings.Repeat("0", n) + s, r.charge(len(s))
	}
	left := n/2 + n&int(width)&1
	return strings.Repeat(fill, left) + s + strings.Repeat(fill, n-left), r.charge(len(s))
}

func expandTabs(r *run, s, name string, a args) (any, error) {
	p, err := a.bind(name, 0, "tabsize")
	if err != nil {
		return nil, err
	}
	size, err := wholeNumber(name, "size", p[0], 8)
	if err != nil {
		return nil, err
	}
	if err := r.chargeTimes(strings.Count(s, "\t"), max(size, 0)); err != nil {
		return nil, err
	}
	if err := r.charge(len(s)); err != nil {
		return nil, err
	}
	var b strings.Builder
	column := int64(0)
	for _, c := range s {
		switch {
		case c == '\t' && size > 0:
			n := size - column%size
			b.WriteString(strings.Repeat(" ", int(n)))
			column += n
			continue
		case c == '\t':
			continue
		case c == '\n' || c == '\r':
			column = -1
		}
		column++
		b.WriteRune(c)
	}
	return b.String(), nil
}
