package jinja

import (
	"encoding/json"
	"fmt"
	"math"
	"math/big"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// ParseJSON reads one JSON value; objects keep their order.
func ParseJSON(raw []byte) (any, error) {
	var r jsonReader
	if err := json.Unmarshal(raw, &r); err != nil {
		return nil, fmt.Errorf("read JSON: %w", err)
	}
	v, err := r.value(0)
	if err != nil {
		return nil, fmt.Errorf("read JSON: %w", err)
	}
	return v, nil
}

// jsonReader reads valid JSON where it stands: json.Decoder would copy it to a buffer that
// doubles.
type jsonReader struct {
	text []byte
	at   int
}

// UnmarshalJSON takes a text that json.Unmarshal found to be valid.
func (r *jsonReader) UnmarshalJSON(text []byte) error {
	r.text = text
	return nil
}

// next is the next sign after blanks.
func (r *jsonReader) next() byte {
	for strings.IndexByte(" \t\r\n", r.text[r.at]) >= 0 {
		r.at++
	}
	return r.text[r.at]
}

// skip passes a sign if it comes next.
func (r *jsonReader) skip(sign byte) bool {
	if r.next() != sign {
		return false
	}
	r.at++
	return true
}

func (r *jsonReader) value(depth int) (any, error) {
	if depth > maxDepth {
		return nil, fmt.Errorf("nested more than %d levels deep", maxDepth)
	}
	switch r.next() {
	case '{':
		return r.object(depth)
	case '[':
		return r.array(depth)
	case '"':
		return r.string(), nil
	}
	from := r.at
	for r.at < len(r.text) && strings.IndexByte(" \t\r\n,]}", r.text[r.at]) < 0 {
		r.at++
	}
	switch word := string(r.text[from:r.at]); word {
	case "null":
		return nil, nil
	case "true", "false":
		return word == "true", nil
	default:
		return readNumber(word)
	}
}

func (r *jsonReader) string() string {
	from, escapes := r.at+1, 0
	for r.at++; r.text[r.at] != '"'; r.at++ {
		if r.text[r.at] == '\\' {
			escapes++
			r.at++
		}
	}
	r.at++
	text := r.text[from : r.at-1]
	if escapes == 0 && utf8.Valid(text) {
		return string(text)
	}
	var b strings.Builder
	b.Grow(len(text) - escapes)
	for len(text) > 0 {
		c, n := utf8.DecodeRune(text)
		if c == '\\' {
			c, n = unescaped(text)
		}
		b.WriteRune(c)
		text = text[n:]
	}
	return b.String()
}

// unescaped is the character of an escape, and how long that is. Half of a character, as UTF-16
// has it, is none.
func unescaped(text []byte) (c rune, n int) {
	if text[1] != 'u' {
		const signs, meant = `"\/bfnrt`, "\"\\/\b\f\n\r\t"
		return rune(meant[strings.IndexByte(signs, text[1])]), 2
	}
	unit := func(at int) rune {
		u, err := strconv.ParseUint(string(text[at+2:at+6]), 16, 16)
		if err != nil {
			return utf8.RuneError
		}
		return rune(u)
	}
	if c = unit(0); !utf16.IsSurrogate(c) {
		return c, 6
	}
	if len(text) >= 12 && text[6] == '\\' && text[7] == 'u' {
		if both := utf16.DecodeRune(c, unit(6)); both != utf8.RuneError {
			return both, 12
		}
	}
	return utf8.RuneError, 6
}

func (r *jsonReader) array(depth int) (any, error) {
	l := NewList()
	for r.at++; !r.skip(']'); r.skip(',') {
		v, err := r.value(depth + 1)
		if err != nil {
			return nil, err
		}
		l.Items = append(l.Items, v)
	}
	return l, nil
}

func (r *jsonReader) object(depth int) (any, error) {
	o := NewDict()
	for r.at++; !r.skip('}'); r.skip(',') {
		r.next()
		key := r.string()
		r.skip(':')
		v, err := r.value(depth + 1)
		if err != nil {
			return nil, err
		}
		o.put(key, key, v)
	}
	return o, nil
}

func readNumber(s string) (any, error) {
	if !strings.ContainsAny(s, ".eE") {
		if len(s) > maxDigits {
			return nil, fmt.Errorf("an integer has more than %d digits", maxDigits)
		}
		n, ok := new(big.Int).SetString(s, 10)
		if !ok {
			return nil, fmt.Errorf("%q is not an integer", cut(s))
		}
		return small(n), nil
	}
	f, err := strconv.ParseFloat(s, 64)
	if err != nil && !math.IsInf(f, 0) {
		return nil, err
	}
	return f, nil
}

// maxDigits is how long an integer may be in JSON, as in Python.
const maxDigits = 4300

// jsonWriter writes as Python's json.dumps does.
type jsonWriter struct {
	r             *run
	b             strings.Builder
	ascii, sorted bool
	indent        string
	lines         bool // one element a line
	comma, colon  string
}

func (w *jsonWriter) value(v any, depth int) error {
	if depth > maxDepth {
		return tooDeep()
	}
	from := w.b.Len()
	switch v := plain(v).(type) {
	case nil:
		w.b.WriteString("null")
	case bool:
		w.b.WriteString(strconv.FormatBool(v))
	case float64:
		w.b.WriteString(jsonFloat(v))
	case int64:
		w.b.WriteString(strconv.FormatInt(v, 10))
	case *big.Int:
		text, err := w.r.digits(v)
		if err != nil {
			return err
		}
		w.b.WriteString(text)
	case string:
		return w.string(v)
	case *List:
		if v.view != "" {
			return failf("tojson cannot encode %s", typeName(v))
		}
		return w.list(v, depth)
	case *Dict:
		return w.dict(v, depth)
	default:
		return failf("tojson cannot encode %s", typeName(v))
	}
	return w.r.charge(w.b.Len() - from)
}

func jsonFloat(f float64) string {
	switch {
	case math.IsNaN(f):
		return "NaN"
	case math.IsInf(f, 1):
		return "Infinity"
	case math.IsInf(f, -1):
		return "-Infinity"
	}
	return floatText(f)
}

// separate goes to the next element of a container.
func (w *jsonWriter) separate(i, depth int) error {
	if i > 0 {
		w.b.WriteString(w.comma)
	}
	return w.newline(depth)
}

func (w *jsonWriter) newline(depth int) error {
	if !w.lines {
		return w.r.charge(len(w.comma))
	}
	if err := w.r.charge(1 + len(w.comma) + depth*len(w.indent)); err != nil {
		return err
	}
	w.b.WriteByte('\n')
	for range depth {
		w.b.WriteString(w.indent)
	}
	return nil
}

func (w *jsonWriter) list(l *List, depth int) error {
	if len(l.Items) == 0 {
		w.b.WriteString("[]")
		return w.r.charge(2)
	}
	w.b.WriteByte('[')
	for i, item := range l.Items {
		if err := w.separate(i, depth+1); err != nil {
			return err
		}
		if err := w.value(item, depth+1); err != nil {
			return err
		}
	}
	err := w.newline(depth)
	w.b.WriteByte(']')
	return err
}

func (w *jsonWriter) dict(d *Dict, depth int) error {
	if d.Len() == 0 {
		w.b.WriteString("{}")
		return w.r.charge(2)
	}
	order, names, err := w.names(d)
	if err != nil {
		return err
	}
	w.b.WriteByte('{')
	for n, i := range order {
		if err := w.separate(n, depth+1); err != nil {
			return err
		}
		if err := w.string(names[i]); err != nil {
			return err
		}
		if err := w.r.charge(len(w.colon)); err != nil {
			return err
		}
		w.b.WriteString(w.colon)
		if err := w.value(d.vals[i], depth+1); err != nil {
			return err
		}
	}
	err = w.newline(depth)
	w.b.WriteByte('}')
	return err
}

// names are the keys as JSON has them, and the order to write them in.
func (w *jsonWriter) names(d *Dict) (order []int, names []string, err error) {
	if err := w.r.charge(24 * d.Len()); err != nil {
		return nil, nil, err
	}
	order, names = make([]int, d.Len()), make([]string, d.Len())
	for i, key := range d.keys {
		order[i] = i
		switch k := plain(key).(type) {
		case string:
			names[i] = k
		case bool:
			names[i] = strconv.FormatBool(k)
		case nil:
			names[i] = "null"
		case float64:
			names[i] = jsonFloat(k)
		case int64, *big.Int:
			if names[i], err = w.r.text(k); err != nil {
				return nil, nil, err
			}
		default:
			return nil, nil, failf("tojson cannot encode a key of type %s", typeName(key))
		}
	}
	if !w.sorted {
		return order, names, nil
	}
	// Sorted as values, not as they are written.
	if err := w.r.charge(keyedBytes * d.Len()); err != nil {
		return nil, nil, err
	}
	keys := make([]keyed, d.Len())
	for i, key := range d.keys {
		keys[i] = keyed{i, key}
	}
	if keys, err = w.r.sorted(keys, false); err != nil {
		return nil, nil, err
	}
	for i, k := range keys {
		order[i], _ = k.item.(int)
	}
	return order, names, nil
}

// stringSlice is how much of a string is written between two charges: escapes may make it
// six times as long.
const stringSlice = 4 << 10

func (w *jsonWriter) string(s string) error {
	if err := w.r.charge(len(s) + 2); err != nil {
		return err
	}
	w.b.WriteByte('"')
	from, more := w.b.Len(), 0 // more: bytes of escapes that are charged
	for i, c := range s {
		if n := w.b.Len() - from - i - more; n > stringSlice {
			if err := w.r.charge(n); err != nil {
				return err
			}
			more += n
		}
		switch {
		case c == '"' || c == '\\':
			w.b.WriteByte('\\')
			w.b.WriteRune(c)
		case c < 0x20:
			if at := strings.IndexRune("\b\f\n\r\t", c); at >= 0 {
				w.b.WriteByte('\\')
				w.b.WriteByte("bfnrt"[at])
			} else {
				fmt.Fprintf(&w.b, `\u%04x`, c)
			}
		case w.ascii && c > 0xffff:
			c -= 0x10000
			fmt.Fprintf(&w.b, `\u%04x\u%04x`, 0xd800+c>>10, 0xdc00+c&0x3ff)
		case w.ascii && c > 0x7e:
			fmt.Fprintf(&w.b, `\u%04x`, c)
		default:
			w.b.WriteRune(c)
		}
	}
	escapes := w.b.Len() - from - len(s) - more
	w.b.WriteByte('"')
	return w.r.charge(max(0, escapes))
}

// tojson is transformers' filter: json.dumps with non-ASCII text kept.
func tojson(r *run, v any, a args) (any, error) {
	p, err := a.bind("tojson", 0, "ensure_ascii", "indent", "separators", "sort_keys")
	if err != nil {
		return nil, err
	}
	w := &jsonWriter{r: r, comma: ", ", colon: ": ", ascii: given(p[0]), sorted: given(p[3])}
	switch indent := orNil(p[1]).(type) {
	case nil:
	case string:
		w.lines, w.comma, w.indent = true, ",", indent
	default:
		width, err := wholeNumber("tojson", "indent", indent, 0)
		if err != nil {
			return nil, err
		}
		if err := r.chargeTimes(1, max(width, 0)); err != nil {
			return nil, err
		}
		w.lines, w.comma, w.indent = true, ",", strings.Repeat(" ", int(max(width, 0)))
	}
	if separators := orNil(p[2]); separators != nil {
		items, err := r.items(separators)
		if err != nil {
			return nil, err
		}
		if len(items) != 2 {
			return nil, failf("tojson requires two separators, not %d", len(items))
		}
		comma, ok1 := plain(items[0]).(string)
		colon, ok2 := plain(items[1]).(string)
		if !ok1 || !ok2 {
			return nil, failf("the separators of tojson must be two strings")
		}
		w.comma, w.colon = comma, colon
	}
	if err := w.value(v, 0); err != nil {
		return nil, err
	}
	return w.b.String(), nil
}
