package jinja

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
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
		return nil, fmt.Errorf("nested more than %d deep", maxDepth)
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
		if n, err := strconv.ParseInt(s, 10, 64); err == nil {
			return n, nil
		}
		return BigInt(s), nil
	}
	f, err := strconv.ParseFloat(s, 64)
	if err != nil && !math.IsInf(f, 0) {
		return nil, err
	}
	return f, nil
}

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
		o.put(key, v)
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
		return limitf("a value is nested more than %d deep", maxDepth)
	}
	from := w.b.Len()
	switch v := plain(v).(type) {
	case nil:
		w.b.WriteString("null")
	case bool:
		w.b.WriteString(strconv.FormatBool(v))
	case float64:
		w.b.WriteString(jsonFloat(v))
	case int64, BigInt:
		fmt.Fprint(&w.b, v)
	case string:
		w.string(v)
	case *List:
		if v.view != "" {
			return failf("tojson cannot write %s", typeName(v))
		}
		return w.list(v, depth)
	case *Dict:
		return w.dict(v, depth)
	default:
		return failf("tojson cannot write %s", typeName(v))
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
	w.b.WriteByte('\n')
	for range depth {
		w.b.WriteString(w.indent)
	}
	return w.r.charge(1 + len(w.comma) + depth*len(w.indent))
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
	order := make([]int, d.Len())
	names := make([]string, d.Len())
	for i, key := range d.keys {
		order[i] = i
		switch k := key.(type) {
		case string:
			names[i] = k
		case bool:
			names[i] = strconv.FormatBool(k)
		case nil:
			names[i] = "null"
		case float64:
			names[i] = jsonFloat(k)
		case int64, BigInt:
			names[i] = fmt.Sprint(k)
		default:
			return failf("tojson cannot write a key that is %s", typeName(key))
		}
	}
	if w.sorted {
		slices.SortStableFunc(order, func(i, j int) int { return strings.Compare(names[i], names[j]) })
	}
	w.b.WriteByte('{')
	for n, i := range order {
		if err := w.separate(n, depth+1); err != nil {
			return err
		}
		w.string(names[i])
		w.b.WriteString(w.colon)
		if err := w.r.charge(len(names[i]) + len(w.colon)); err != nil {
			return err
		}
		if err := w.value(d.vals[i], depth+1); err != nil {
			return err
		}
	}
	err := w.newline(depth)
	w.b.WriteByte('}')
	return err
}

func (w *jsonWriter) string(s string) {
	w.b.WriteByte('"')
	for _, c := range s {
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
	w.b.WriteByte('"')
}

// tojson is transformers' filter: json.dumps with non-ASCII text kept.
func tojson(r *run, v any, a args) (any, error) {
	p, err := a.bind("tojson", 0, "ensure_ascii", "indent", "separators", "sort_keys")
	if err != nil {
		return nil, err
	}
	w := &jsonWriter{r: r, comma: ", ", colon: ": ", ascii: given(p[0]), sorted: given(p[3])}
	switch indent := p[1].(type) {
	case absent, nil:
	case int64:
		if indent > maxDepth {
			return nil, limitf("an indent of %d", indent)
		}
		w.lines, w.comma, w.indent = true, ",", strings.Repeat(" ", int(max(indent, 0)))
	case string:
		w.lines, w.comma, w.indent = true, ",", indent
	default:
		return nil, failf("the indent of tojson is %s", typeName(indent))
	}
	if l, ok := p[2].(*List); ok && len(l.Items) == 2 {
		comma, ok1 := l.Items[0].(string)
		colon, ok2 := l.Items[1].(string)
		if !ok1 || !ok2 {
			return nil, failf("the separators of tojson are not two strings")
		}
		w.comma, w.colon = comma, colon
	} else if !isAbsent(p[2]) && p[2] != nil {
		return nil, failf("the separators of tojson are %s", typeName(p[2]))
	}
	if err := w.value(v, 0); err != nil {
		return nil, err
	}
	return w.b.String(), nil
}

// given says whether an optional argument is there and true.
func given(v any) bool { return !isAbsent(v) && truth(v) }
