package jinja

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"math/big"
	"strconv"
	"strings"
)

// ParseJSON reads one JSON value; objects keep their order.
func ParseJSON(raw []byte) (any, error) {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	v, err := readJSON(d, 0)
	if err != nil {
		return nil, fmt.Errorf("read JSON: %w", err)
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, fmt.Errorf("read JSON: more than one value")
	}
	return v, nil
}

func readJSON(d *json.Decoder, depth int) (any, error) {
	if depth > maxDepth {
		return nil, fmt.Errorf("nested more than %d levels deep", maxDepth)
	}
	t, err := d.Token()
	if err == io.EOF {
		return nil, io.ErrUnexpectedEOF
	}
	if err != nil {
		return nil, err
	}
	switch t := t.(type) {
	case json.Number:
		return readNumber(string(t))
	case json.Delim:
		if t == '[' {
			return readArray(d, depth)
		}
		return readObject(d, depth)
	}
	return t, nil // nil, bool or string
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

func readArray(d *json.Decoder, depth int) (any, error) {
	l := NewList()
	for d.More() {
		v, err := readJSON(d, depth+1)
		if err != nil {
			return nil, err
		}
		l.Items = append(l.Items, v)
	}
	_, err := d.Token()
	return l, err
}

func readObject(d *json.Decoder, depth int) (any, error) {
	o := NewDict()
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return nil, err
		}
		v, err := readJSON(d, depth+1)
		if err != nil {
			return nil, err
		}
		o.put(key, key, v)
	}
	_, err := d.Token()
	return o, err
}

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
