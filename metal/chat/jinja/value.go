package jinja

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Values are nil (None), bool, int64, float64, string, BigInt, *List, *Dict,
// and, made by templates only, undefined, *namespace, *loopVar and *function.

// BigInt is an integer beyond 64 bits: it can be printed and compared, not
// reckoned with.
type BigInt string

// List is a list or, where Tuple is set, a tuple.
type List struct {
	Items []any
	Tuple bool
	// view is the name of a dictionary's view, which can be looped over and
	// counted, but has no place for an index.
	view string
}

// generator is what lazy filters return: it can be looped over, once.
type generator struct {
	items []any
	used  bool
}

// NewList makes a list.
func NewList(items ...any) *List { return &List{Items: items} }

// Dict is a dictionary in order of insertion.
type Dict struct {
	keys  []any
	vals  []any
	index map[any]int
}

// NewDict makes an empty dictionary.
func NewDict() *Dict { return &Dict{index: map[any]int{}} }

// Set stores a value under a string key.
func (d *Dict) Set(key string, v any) { d.put(key, v) }

// Get finds the value of a string key.
func (d *Dict) Get(key string) (any, bool) { return d.get(key) }

// Len is the number of entries.
func (d *Dict) Len() int { return len(d.keys) }

// put stores under any hashable key.
func (d *Dict) put(key, v any) bool {
	h, ok := hashable(key)
	if !ok {
		return false
	}
	if i, found := d.index[h]; found {
		d.vals[i] = v
		return true
	}
	d.index[h] = len(d.keys)
	d.keys, d.vals = append(d.keys, key), append(d.vals, v)
	return true
}

func (d *Dict) get(key any) (any, bool) {
	h, ok := hashable(key)
	if !ok {
		return nil, false
	}
	i, found := d.index[h]
	if !found {
		return nil, false
	}
	return d.vals[i], true
}

// hashable maps equal keys to the same value: 1, 1.0 and True are one key.
func hashable(key any) (any, bool) {
	switch k := key.(type) {
	case nil, string, int64, BigInt:
		return k, true
	case markup:
		return string(k), true
	case bool:
		return toInt(k), true
	case float64:
		if k == math.Trunc(k) && math.Abs(k) < 1<<62 {
			return int64(k), true
		}
		return k, true
	case *List:
		if !k.Tuple {
			return nil, false
		}
		var b strings.Builder
		for _, item := range k.Items {
			h, ok := hashable(item)
			if !ok {
				return nil, false
			}
			fmt.Fprintf(&b, "%T:%d:%v,", h, len(fmt.Sprint(h)), h)
		}
		return tupleKey(b.String()), true
	}
	return nil, false
}

type tupleKey string

// markup is text that the filters safe and escape made. It is text in every
// way but one: what is added to it with + is escaped, as in the reference.
type markup string

// plain forgets that a text is markup.
func plain(v any) any {
	if m, ok := v.(markup); ok {
		return string(m)
	}
	return v
}

// undefined is what a missing name or member is; what names it.
type undefined struct{ what string }

// namespace holds what {% set ns.x = ... %} changes.
type namespace struct{ vars *Dict }

// function is anything that can be called.
type function struct {
	name string
	call func(r *run, a args) (any, error)
}

// args are the evaluated arguments of a call.
type args struct {
	pos   []any
	names []string
	named []any
}

// absent marks an argument that was not given.
type absent struct{}

// bind gives the arguments the names of parameters, of which the first need
// ones are required. Missing ones are absent.
func (a args) bind(who string, need int, params ...string) ([]any, error) {
	if len(a.pos) > len(params) {
		return nil, failf("%s takes at most %d arguments, not %d", who, len(params), len(a.pos))
	}
	out := make([]any, len(params))
	for i := range out {
		out[i] = absent{}
	}
	for i, v := range a.pos {
		out[i] = plain(v)
	}
named:
	for i, name := range a.names {
		for j, p := range params {
			if p == name {
				out[j] = plain(a.named[i])
				continue named
			}
		}
		return nil, failf("%s takes no argument %q", who, cut(name))
	}
	for i := range need {
		if out[i] == (absent{}) {
			return nil, failf("%s needs the argument %q", who, params[i])
		}
	}
	return out, nil
}

// isAbsent says whether a bound argument was not given.
func isAbsent(v any) bool { return v == any(absent{}) }

func toInt(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

// truth is Python's bool().
func truth(v any) bool {
	switch v := v.(type) {
	case nil, undefined:
		return false
	case bool:
		return v
	case int64:
		return v != 0
	case float64:
		return v != 0
	case string:
		return v != ""
	case markup:
		return v != ""
	case *List:
		return len(v.Items) > 0
	case *Dict:
		return v.Len() > 0
	}
	return true
}

// typeName is Python's name of a type, for messages.
func typeName(v any) string {
	switch v := v.(type) {
	case nil:
		return "None"
	case undefined:
		return v.what + ", which is undefined"
	case bool:
		return "a bool"
	case int64, BigInt:
		return "an int"
	case float64:
		return "a float"
	case string, markup:
		return "a str"
	case *generator:
		return "a generator"
	case *List:
		if v.view != "" {
			return "a view of a dict"
		}
		if v.Tuple {
			return "a tuple"
		}
		return "a list"
	case *Dict:
		return "a dict"
	case *function:
		return "the function " + v.name
	case *namespace:
		return "a namespace"
	case *loopVar:
		return "loop"
	}
	return fmt.Sprintf("a %T", v)
}

// floatText is Python's repr of a float.
func floatText(f float64) string {
	switch {
	case math.IsNaN(f):
		return "nan"
	case math.IsInf(f, 1):
		return "inf"
	case math.IsInf(f, -1):
		return "-inf"
	}
	e := strconv.FormatFloat(f, 'e', -1, 64)
	exp, _ := strconv.Atoi(e[strings.IndexByte(e, 'e')+1:])
	if exp < -4 || exp >= 16 {
		mantissa := e[:strings.IndexByte(e, 'e')]
		sign := byte('+')
		if exp < 0 {
			sign, exp = '-', -exp
		}
		return fmt.Sprintf("%se%c%02d", mantissa, sign, exp)
	}
	s := strconv.FormatFloat(f, 'f', -1, 64)
	if !strings.Contains(s, ".") {
		s += ".0"
	}
	return s
}

// text is Python's str(). It is bounded, since a template can share a small
// list many times inside another.
func (r *run) text(v any) (string, error) {
	if s, ok := v.(string); ok {
		return s, nil
	}
	var b strings.Builder
	if err := r.print(&b, v, false, 0); err != nil {
		return "", err
	}
	return b.String(), nil
}

// print writes str(v), or repr(v) for what stands in a container.
func (r *run) print(b *strings.Builder, v any, repr bool, depth int) error {
	if depth > maxDepth {
		return limitf("a value is nested more than %d deep", maxDepth)
	}
	from := b.Len()
	switch v := plain(v).(type) {
	case nil:
		b.WriteString("None")
	case undefined:
		if repr {
			b.WriteString("Undefined")
		}
	case bool:
		b.WriteString(map[bool]string{true: "True", false: "False"}[v])
	case int64:
		b.WriteString(strconv.FormatInt(v, 10))
	case BigInt:
		b.WriteString(string(v))
	case float64:
		b.WriteString(floatText(v))
	case string:
		if repr {
			quote(b, v)
		} else {
			b.WriteString(v)
		}
	case *List:
		return r.printList(b, v, depth)
	case *Dict:
		return r.printDict(b, v, depth)
	case *namespace:
		b.WriteString("<Namespace ")
		if err := r.printDict(b, v.vars, depth); err != nil {
			return err
		}
		b.WriteString(">")
	default:
		b.WriteString("<" + typeName(v) + ">")
	}
	return r.charge(b.Len() - from)
}

func (r *run) printList(b *strings.Builder, l *List, depth int) error {
	open, end := "[", "]"
	if l.view != "" {
		open, end = l.view+"([", "])"
	}
	if l.Tuple {
		open, end = "(", ")"
		if len(l.Items) == 1 {
			end = ",)"
		}
	}
	b.WriteString(open)
	for i, item := range l.Items {
		if i > 0 {
			b.WriteString(", ")
		}
		if err := r.print(b, item, true, depth+1); err != nil {
			return err
		}
	}
	b.WriteString(end)
	return r.charge(4 + 2*len(l.Items))
}

func (r *run) printDict(b *strings.Builder, d *Dict, depth int) error {
	b.WriteString("{")
	for i, key := range d.keys {
		if i > 0 {
			b.WriteString(", ")
		}
		if err := r.print(b, key, true, depth+1); err != nil {
			return err
		}
		b.WriteString(": ")
		if err := r.print(b, d.vals[i], true, depth+1); err != nil {
			return err
		}
	}
	b.WriteString("}")
	return r.charge(4 + 4*d.Len())
}

// quote is Python's repr of a str.
func quote(b *strings.Builder, s string) {
	mark := byte('\'')
	if strings.Contains(s, "'") && !strings.Contains(s, `"`) {
		mark = '"'
	}
	b.WriteByte(mark)
	for _, c := range s {
		switch {
		case c == rune(mark) || c == '\\':
			b.WriteByte('\\')
			b.WriteRune(c)
		case c == '\n':
			b.WriteString(`\n`)
		case c == '\r':
			b.WriteString(`\r`)
		case c == '\t':
			b.WriteString(`\t`)
		case c < 0x20 || c == 0x7f:
			fmt.Fprintf(b, `\x%02x`, c)
		case strconv.IsPrint(c):
			b.WriteRune(c)
		case c < 0x100:
			fmt.Fprintf(b, `\x%02x`, c)
		case c < 0x10000:
			fmt.Fprintf(b, `\u%04x`, c)
		default:
			fmt.Fprintf(b, `\U%08x`, c)
		}
	}
	b.WriteByte(mark)
}

// Each visits the entries with string keys in order.
func (d *Dict) Each(visit func(key string, v any)) {
	for i, key := range d.keys {
		if name, ok := key.(string); ok {
			visit(name, d.vals[i])
		}
	}
}
