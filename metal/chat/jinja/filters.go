package jinja

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

type filter func(r *run, v any, a args) (any, error)

// filters lists the filters by name.
func filters() map[string]filter {
	return map[string]filter{
		"abs": filterAbs, "capitalize": onText(capitalized), "count": filterLength, "d": filterDefault, "default": filterDefault,
		"dictsort": filterDictsort, "e": onText(escape), "escape": onText(escape), "first": filterFirst, "float": filterFloat,
		"format": filterFormat, "indent": filterIndent, "int": filterInt, "items": filterItems, "join": filterJoin, "last": filterLast,
		"length": filterLength, "list": filterList, "lower": onText(strings.ToLower), "map": filterMap, "max": filterMax, "min": filterMin,
		"reject": filterReject, "rejectattr": filterRejectAttr, "replace": filterReplace, "reverse": filterReverse, "round": filterRound,
		"safe": onText(identity), "select": filterSelect, "selectattr": filterSelectAttr, "sort": filterSort, "string": onText(identity),
		"sum": filterSum, "title": onText(filterTitle), "tojson": tojson, "trim": filterTrim, "unique": filterUnique, "upper": onText(pythonUpper),
		"wordcount": filterWordcount,
	}
}

func identity(s string) string { return s }

// onText makes a filter of a function on str(v).
func onText(f func(string) string) filter {
	return func(r *run, v any, a args) (any, error) {
		if len(a.pos)+len(a.names) > 0 {
			return nil, failf("the filter takes no argument")
		}
		s, err := r.text(v)
		if err != nil {
			return nil, err
		}
		out := f(s)
		return out, r.charge(len(out))
	}
}

func escape(s string) string {
	return strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", `"`, "&#34;", "'", "&#39;").Replace(s)
}

// filterTitle capitalises after white space and -([{< only.
func filterTitle(s string) string {
	start := true
	var b strings.Builder
	for _, c := range s {
		if start {
			b.WriteString(pythonUpper(string(c)))
		} else {
			b.WriteString(strings.ToLower(string(c)))
		}
		start = isSpace(c) || strings.ContainsRune("-([{<", c)
	}
	return b.String()
}

func filterAbs(_ *run, v any, a args) (any, error) {
	if _, err := a.bind("abs", 0); err != nil {
		return nil, err
	}
	i, f, isInt, ok := number(v)
	switch {
	case !ok:
		return nil, failf("abs takes a number, not %s", typeName(v))
	case !isInt:
		return math.Abs(f), nil
	case i < 0:
		return negate(i)
	}
	return i, nil
}

func filterLength(r *run, v any, a args) (any, error) {
	if _, err := a.bind("length", 0); err != nil {
		return nil, err
	}
	n, err := r.length(v)
	return n, err
}

func filterDefault(_ *run, v any, a args) (any, error) {
	p, err := a.bind("default", 0, "default_value", "boolean")
	if err != nil {
		return nil, err
	}
	_, missing := v.(undefined)
	if !missing && (!given(p[1]) || truth(v)) {
		return v, nil
	}
	if isAbsent(p[0]) {
		return "", nil
	}
	return p[0], nil
}

func filterFirst(r *run, v any, a args) (any, error) {
	if _, err := a.bind("first", 0); err != nil {
		return nil, err
	}
	return r.end(v, false)
}

func filterLast(r *run, v any, a args) (any, error) {
	if _, err := a.bind("last", 0); err != nil {
		return nil, err
	}
	return r.end(v, true)
}

func (r *run) end(v any, last bool) (any, error) {
	items, err := r.items(v)
	if err != nil {
		return nil, err
	}
	if len(items) == 0 {
		return undefined{what: "the end of an empty sequence"}, nil
	}
	if last {
		return items[len(items)-1], nil
	}
	return items[0], nil
}

func filterFloat(_ *run, v any, a args) (any, error) {
	p, err := a.bind("float", 0, "default")
	if err != nil {
		return nil, err
	}
	if _, f, _, ok := number(v); ok {
		return f, nil
	}
	if s, ok := v.(string); ok {
		if f, err := strconv.ParseFloat(strings.TrimFunc(s, isSpace), 64); err == nil {
			return f, nil
		}
	}
	if isAbsent(p[0]) {
		return 0.0, nil
	}
	return p[0], nil
}

func filterInt(_ *run, v any, a args) (any, error) {
	p, err := a.bind("int", 0, "default", "base")
	if err != nil {
		return nil, err
	}
	base := int64(10)
	if i, _, isInt, ok := number(p[1]); ok && isInt {
		base = i
	}
	if base != 0 && (base < 2 || base > 36) {
		return nil, failf("int takes a base from 2 to 36")
	}
	if i, f, isInt, ok := number(v); ok {
		if isInt {
			return i, nil
		}
		if math.Abs(f) < 1<<62 {
			return int64(f), nil
		}
	}
	if s, ok := v.(string); ok {
		s = strings.TrimFunc(s, isSpace)
		if i, err := strconv.ParseInt(digitsOf(s, base), int(base), 64); err == nil {
			return i, nil
		}
		if f, err := strconv.ParseFloat(s, 64); err == nil && math.Abs(f) < 1<<62 {
			return int64(f), nil
		}
	}
	if isAbsent(p[0]) {
		return int64(0), nil
	}
	return p[0], nil
}

// digitsOf takes off a prefix that names the base.
func digitsOf(s string, base int64) string {
	if prefix, ok := map[int64]string{2: "0b", 8: "0o", 16: "0x"}[base]; ok {
		if len(s) > 2 && strings.EqualFold(s[:2], prefix) {
			return s[2:]
		}
	}
	return s
}

func filterFormat(r *run, v any, a args) (any, error) {
	s, err := r.text(v)
	if err != nil {
		return nil, err
	}
	if len(a.names) > 0 {
		return nil, failf("format takes no named arguments")
	}
	return r.percent(s, &List{Items: a.pos, Tuple: true})
}

func filterIndent(r *run, v any, a args) (any, error) {
	p, err := a.bind("indent", 0, "width", "first", "blank")
	if err != nil {
		return nil, err
	}
	s, err := r.text(v)
	if err != nil {
		return nil, err
	}
	pad := "    "
	switch w := p[0].(type) {
	case absent:
	case string:
		pad = w
	case int64:
		if w > 1000 {
			return nil, limitf("an indent of %d", w)
		}
		pad = strings.Repeat(" ", int(max(w, 0)))
	default:
		return nil, failf("the width of indent is %s", typeName(w))
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
	return out, r.charge(len(out))
}

func filterItems(_ *run, v any, a args) (any, error) {
	if _, err := a.bind("items", 0); err != nil {
		return nil, err
	}
	switch d := v.(type) {
	case undefined:
		return new(generator), nil
	case *Dict:
		return &generator{items: d.items().Items}, nil
	}
	return nil, failf("items takes a mapping, not %s", typeName(v))
}

func filterJoin(r *run, v any, a args) (any, error) {
	p, err := a.bind("join", 0, "d", "attribute")
	if err != nil {
		return nil, err
	}
	items, err := r.items(v)
	if err != nil {
		return nil, err
	}
	sep := ""
	if !isAbsent(p[0]) {
		if sep, err = r.text(p[0]); err != nil {
			return nil, err
		}
	}
	parts := make([]string, len(items))
	for i, item := range items {
		if !isAbsent(p[1]) && p[1] != nil {
			if item, err = r.path(item, p[1]); err != nil {
				return nil, err
			}
		}
		if parts[i], err = r.text(item); err != nil {
			return nil, err
		}
	}
	return r.join(parts, sep)
}

func filterList(r *run, v any, a args) (any, error) {
	if _, err := a.bind("list", 0); err != nil {
		return nil, err
	}
	items, err := r.items(v)
	if err != nil {
		return nil, err
	}
	return NewList(slices.Clone(items)...), r.charge(16 * len(items))
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
	return r.replace(texts[0], texts[1], texts[2], p[2])
}

func filterReverse(r *run, v any, a args) (any, error) {
	if _, err := a.bind("reverse", 0); err != nil {
		return nil, err
	}
	items, err := r.items(v)
	if err != nil {
		return nil, err
	}
	out := slices.Clone(items)
	slices.Reverse(out)
	if s, ok := v.(string); ok {
		var b strings.Builder
		for _, c := range out {
			b.WriteString(c.(string))
		}
		return b.String(), r.charge(len(s))
	}
	return &generator{items: out}, r.charge(16 * len(out))
}

func filterRound(_ *run, v any, a args) (any, error) {
	p, err := a.bind("round", 0, "precision", "method")
	if err != nil {
		return nil, err
	}
	_, f, _, ok := number(v)
	if !ok {
		return nil, failf("round takes a number, not %s", typeName(v))
	}
	precision := int64(0)
	if i, _, isInt, ok := number(p[0]); ok && isInt {
		precision = min(max(i, -300), 300)
	}
	scale := math.Pow(10, float64(precision))
	switch p[1] {
	case "ceil":
		return math.Ceil(f*scale) / scale, nil
	case "floor":
		return math.Floor(f*scale) / scale, nil
	}
	if precision < 0 {
		return math.RoundToEven(f*scale) / scale, nil
	}
	// Python rounds the decimal text, halves to even.
	out, err := strconv.ParseFloat(strconv.FormatFloat(f, 'f', int(precision), 64), 64)
	if err != nil {
		return nil, failf("round: %v", err)
	}
	return out, nil
}

func filterTrim(r *run, v any, a args) (any, error) {
	s, err := r.text(v)
	if err != nil {
		return nil, err
	}
	if err := r.charge(len(s)); err != nil {
		return nil, err
	}
	return strip(r, s, "strip", a)
}

func filterWordcount(r *run, v any, a args) (any, error) {
	if _, err := a.bind("wordcount", 0); err != nil {
		return nil, err
	}
	s, err := r.text(v)
	if err != nil {
		return nil, err
	}
	words := strings.FieldsFunc(s, func(c rune) bool { return c != '_' && !letterOrNumber(c) })
	return int64(len(words)), r.charge(len(s))
}

func letterOrNumber(c rune) bool { return unicode.IsLetter(c) || unicode.IsNumber(c) }
