package jinja

import (
	"fmt"
	"html"
	"math"
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

func filterCenter(r *run, v any, a args) (any, error) {
	p, err := a.bind("center", 0, "width")
	if err != nil {
		return nil, err
	}
	s, err := r.text(v)
	if err != nil {
		return nil, err
	}
	width, err := wholeNumber("center", "width", p[0], 80)
	if err != nil {
		return nil, err
	}
	out, err := r.pad(s, " ", "center", width)
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
		pad = escape(pad)
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

func filterTruncate(r *run, v any, a args) (any, error) {
	p, err := a.bind("truncate", 0, "length", "killwords", "end", "leeway")
	if err != nil {
		return nil, err
	}
	length, err := wholeNumber("truncate", "length", p[0], 255)
	if err != nil {
		return nil, err
	}
	leeway := int64(5)
	if orNil(p[3]) != nil {
		if leeway, err = wholeNumber("truncate", "leeway", p[3], 5); err != nil {
			return nil, err
		}
	}
	end := "..."
	if !isAbsent(p[2]) {
		if end, err = stringOf("truncate", p[2]); err != nil {
			return nil, err
		}
	}
	if err := r.scan(len(end)); err != nil {
		return nil, err
	}
	room := length - int64(utf8.RuneCountInString(end))
	if room < 0 || leeway < 0 {
		return nil, failf("truncate: the end marker does not fit into %d characters", length)
	}
	n, err := r.length(v)
	if err != nil {
		return nil, err
	}
	if n <= min(length, math.MaxInt64-leeway)+leeway {
		return v, nil
	}
	s, err := stringOf("truncate", v)
	if err != nil {
		return nil, err
	}
	head, err := r.sliceText(s, numbers{until: room, by: 1, count: min(room, n)})
	if err != nil {
		return nil, err
	}
	if at := strings.LastIndexByte(head, ' '); at >= 0 && !given(p[1]) {
		head = head[:at]
	}
	if _, safe := v.(markup); safe {
		end = escape(end)
	}
	return like(v, head+end), r.charge(len(head) + len(end))
}

func filterWordCount(r *run, v any, a args) (any, error) {
	if _, err := a.bind("wordcount", 0); err != nil {
		return nil, err
	}
	s, err := r.text(v)
	if err != nil {
		return nil, err
	}
	if err := r.charge(len(s)); err != nil {
		return nil, err
	}
	n, inWord := int64(0), false
	for _, c := range s {
		word := c == '_' || isAlnum(c)
		if word && !inWord {
			n++
		}
		inWord = word
	}
	return n, nil
}

// filterStripTags takes out comments and tags as markupsafe does, then resolves
// character references.
func filterStripTags(r *run, v any, a args) (any, error) {
	if _, err := a.bind("striptags", 0); err != nil {
		return nil, err
	}
	s, err := r.text(v)
	if err != nil {
		return nil, err
	}
	if err := r.charge(3 * len(s)); err != nil {
		return nil, err
	}
	s = without(without(s, "<!--", "-->"), "<", ">")
	return html.UnescapeString(strings.Join(strings.FieldsFunc(s, isSpace), " ")), nil
}

// without takes out what stands between open and end, with them; what is not
// ended stays.
func without(s, open, end string) string {
	var b strings.Builder
	for {
		from := strings.Index(s, open)
		if from < 0 {
			break
		}
		to := strings.Index(s[from:], end)
		if to < 0 {
			break
		}
		b.WriteString(s[:from])
		s = s[from+to+len(end):]
	}
	b.WriteString(s)
	return b.String()
}

func filterURLEncode(r *run, v any, a args) (any, error) {
	if _, err := a.bind("urlencode", 0); err != nil {
		return nil, err
	}
	switch v := plain(v).(type) {
	case string:
		return r.urlQuote(v, "/", "%20")
	case *Dict:
		return r.urlQuery(v.items())
	case *List, *numbers, *generator, undefined:
		return r.urlQuery(v)
	}
	s, err := r.text(v)
	if err != nil {
		return nil, err
	}
	return r.urlQuote(s, "/", "%20")
}

// urlQuery joins pairs as a query string.
func (r *run) urlQuery(v any) (any, error) {
	pairs, err := r.items(v)
	if err != nil {
		return nil, err
	}
	parts := make([]string, 0, len(pairs))
	for _, pair := range pairs {
		two, err := r.items(pair)
		if err != nil {
			return nil, err
		}
		if len(two) != 2 {
			return nil, failf("urlencode requires pairs, not %d values", len(two))
		}
		var texts [2]string
		for i, v := range two {
			s, err := r.text(v)
			if err != nil {
				return nil, err
			}
			if texts[i], err = r.urlQuote(s, "", "+"); err != nil {
				return nil, err
			}
		}
		parts = append(parts, texts[0]+"="+texts[1])
	}
	return r.join(parts, "&")
}

func (r *run) urlQuote(s, safe, space string) (string, error) {
	if err := r.charge(3 * len(s)); err != nil {
		return "", err
	}
	var b strings.Builder
	for i := range len(s) {
		switch c := s[i]; {
		case c < 0x80 && (c|0x20 >= 'a' && c|0x20 <= 'z' || c >= '0' && c <= '9' || strings.IndexByte("_.-~"+safe, c) >= 0):
			b.WriteByte(c)
		case c == ' ':
			b.WriteString(space)
		default:
			const digits = "0123456789ABCDEF"
			b.Write([]byte{'%', digits[c>>4], digits[c&15]})
		}
	}
	return b.String(), nil
}

func filterXMLAttr(r *run, v any, a args) (any, error) {
	p, err := a.bind("xmlattr", 0, "autospace")
	if err != nil {
		return nil, err
	}
	d, ok := v.(*Dict)
	if !ok {
		return nil, failf("xmlattr requires a mapping, not %s", typeName(v))
	}
	var parts []string
	for i, key := range d.keys {
		if err := r.step(); err != nil {
			return nil, err
		}
		if _, missing := d.vals[i].(undefined); missing || d.vals[i] == nil {
			continue
		}
		name, ok := plain(key).(string)
		if !ok || strings.ContainsAny(name, " \t\n\r\f\v/>=") {
			return nil, failf("xmlattr: a key is not a valid attribute name")
		}
		escapedName, err := r.escaped(key)
		if err != nil {
			return nil, err
		}
		value, err := r.escaped(d.vals[i])
		if err != nil {
			return nil, err
		}
		parts = append(parts, string(escapedName)+`="`+string(value)+`"`)
	}
	out, err := r.join(parts, " ")
	if err == nil && out != "" && (isAbsent(p[0]) || truth(p[0])) {
		out = " " + out
	}
	return out, err
}

func filterFileSize(r *run, v any, a args) (any, error) {
	p, err := a.bind("filesizeformat", 0, "binary")
	if err != nil {
		return nil, err
	}
	var bytes float64
	switch v := plain(v).(type) {
	case string:
		if err := r.scan(8 * len(v)); err != nil {
			return nil, err
		}
		f, ok := parseFloat(v)
		if !ok {
			return nil, failf("filesizeformat requires a number")
		}
		bytes = f
	default:
		_, f, _, ok := number(v)
		if _, isBig := v.(*big.Int); !ok || (isBig && math.IsInf(f, 0)) {
			return nil, failf("filesizeformat requires a number, not %s", typeName(v))
		}
		bytes = f
	}
	base, suffix := 1000.0, "B"
	if given(p[0]) {
		base, suffix = 1024, "iB"
	}
	switch {
	case math.IsNaN(bytes) || math.IsInf(bytes, -1):
		return nil, failf("filesizeformat requires a number")
	case bytes == 1:
		return "1 Byte", nil
	case bytes < base:
		i, _ := integral(math.Trunc(bytes))
		return fmt.Sprintf("%v Bytes", i), nil
	}
	prefixes := "kMGTPEZY"
	if given(p[0]) {
		prefixes = "KMGTPEZY"
	}
	unit := base
	for i := range len(prefixes) {
		unit *= base
		if bytes < unit || i == len(prefixes)-1 {
			return fmt.Sprintf("%.1f %c%s", base*bytes/unit, prefixes[i], suffix), nil
		}
	}
	return nil, nil
}
