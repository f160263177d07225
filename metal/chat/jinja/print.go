package jinja

import (
	"fmt"
	"math"
	"math/big"
	"strconv"
	"strings"
)

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
func (r *values) text(v any) (string, error) {
	switch s := v.(type) {
	case string:
		return s, nil
	case markup:
		return string(s), nil
	}
	var b strings.Builder
	if err := r.print(&b, v, false, 0); err != nil {
		return "", err
	}
	return b.String(), nil
}

// reprOf is Python's repr().
func (r *values) reprOf(v any) (string, error) {
	var b strings.Builder
	err := r.print(&b, v, true, 0)
	return b.String(), err
}

// print writes str(v), or repr(v) for what stands in a container.
func (r *values) print(b *strings.Builder, v any, repr bool, depth int) error {
	if depth > maxDepth {
		return tooDeep()
	}
	if s, ok := plain(v).(string); ok && repr { // an escape is up to four times as long
		if err := r.charge(3 * len(s)); err != nil {
			return err
		}
	}
	from := b.Len()
	switch v := v.(type) {
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
	case *big.Int:
		text, err := r.digits(v)
		if err != nil {
			return err
		}
		b.WriteString(text)
	case float64:
		b.WriteString(floatText(v))
	case string:
		writeText(b, v, repr)
	case markup:
		if repr {
			b.WriteString("Markup(")
			defer b.WriteString(")")
		}
		writeText(b, string(v), repr)
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
		if err := r.printOther(b, v); err != nil {
			return err
		}
	}
	return r.charge(b.Len() - from)
}

func writeText(b *strings.Builder, s string, repr bool) {
	if repr {
		quote(b, s)
	} else {
		b.WriteString(s)
	}
}

// digits prints an integer beyond 64 bits; Python prints no more than 4,300
// digits.
func (r *values) digits(v *big.Int) (string, error) {
	if v.BitLen() > maxBits {
		return "", tooManyDigits()
	}
	return v.String(), r.work(v)
}

func (r *values) printOther(b *strings.Builder, v any) error {
	switch v := v.(type) {
	case *numbers:
		fmt.Fprintf(b, "range(%d, %d", v.from, v.until)
		if v.by != 1 {
			fmt.Fprintf(b, ", %d", v.by)
		}
		b.WriteByte(')')
	case *loopVar:
		n, err := v.length(r)
		if err != nil {
			return err
		}
		fmt.Fprintf(b, "<LoopContext %d/%d>", v.index+1, n)
	case *function:
		if !v.macro {
			return failf("%s cannot be printed: its text would contain a memory address", typeName(v))
		}
		if err := r.charge(len(v.name)); err != nil {
			return err
		}
		if v.name == "" {
			b.WriteString("<Macro anonymous>")
		} else {
			b.WriteString("<Macro '" + v.name + "'>")
		}
	default:
		return failf("%s cannot be printed: its text would contain a memory address", typeName(v))
	}
	return nil
}

func (r *values) printList(b *strings.Builder, l *List, depth int) error {
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

func (r *values) printDict(b *strings.Builder, d *Dict, depth int) error {
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

// ascii escapes what is not ASCII in a repr.
func ascii(s string) string {
	var b strings.Builder
	for _, c := range s {
		switch {
		case c < 0x80:
			b.WriteByte(byte(c))
		case c < 0x100:
			fmt.Fprintf(&b, `\x%02x`, c)
		case c < 0x10000:
			fmt.Fprintf(&b, `\u%04x`, c)
		default:
			fmt.Fprintf(&b, `\U%08x`, c)
		}
	}
	return b.String()
}
