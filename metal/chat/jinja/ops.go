package jinja

import (
	"cmp"
	"math"
	"strings"
	"unicode/utf8"
)

// number says what v is in arithmetic: an integer (a bool counts as one) or a
// float.
func number(v any) (i int64, f float64, isInt, ok bool) {
	switch v := v.(type) {
	case bool:
		return toInt(v), float64(toInt(v)), true, true
	case int64:
		return v, float64(v), true, true
	case float64:
		return 0, v, false, true
	}
	return 0, 0, false, false
}

func (r *run) binary(op string, a, b any) (any, error) {
	if op == "+" {
		if s, ok := escapedSum(a, b); ok {
			return s, r.charge(len(s))
		}
	}
	a, b = plain(a), plain(b)
	ai, af, aInt, aNum := number(a)
	bi, bf, bInt, bNum := number(b)
	switch {
	case aNum && bNum && aInt && bInt:
		return integerOp(op, ai, bi)
	case aNum && bNum:
		return floatOp(op, af, bf)
	}
	switch x := a.(type) {
	case string:
		switch y := b.(type) {
		case string:
			if op == "+" {
				return x + y, r.charge(len(x) + len(y))
			}
		case int64:
			if op == "*" {
				return r.repeat(x, y)
			}
		}
		if op == "%" {
			return r.percent(x, b)
		}
	case *List:
		if x.view != "" {
			break
		}
		if y, ok := b.(*List); ok && op == "+" && x.Tuple == y.Tuple && y.view == "" {
			items := append(append([]any{}, x.Items...), y.Items...)
			return &List{Items: items, Tuple: x.Tuple}, r.charge(16 * len(items))
		}
		if y, ok := b.(int64); ok && op == "*" {
			return r.repeatList(x, y)
		}
	case int64:
		if s, ok := b.(string); ok && op == "*" {
			return r.repeat(s, x)
		}
	}
	return nil, failf("%s does not work on %s and %s", op, typeName(a), typeName(b))
}

// escapedSum is a + b where one of the two texts is markup.
func escapedSum(a, b any) (markup, bool) {
	x, leftSafe := a.(markup)
	y, rightSafe := b.(markup)
	left, ok1 := plain(a).(string)
	right, ok2 := plain(b).(string)
	if (!leftSafe && !rightSafe) || !ok1 || !ok2 {
		return "", false
	}
	if !leftSafe {
		x = markup(escape(left))
	}
	if !rightSafe {
		y = markup(escape(right))
	}
	return x + y, true
}

func (r *run) repeat(s string, n int64) (any, error) {
	n = max(n, 0)
	if err := r.chargeTimes(len(s), n); err != nil {
		return nil, err
	}
	return strings.Repeat(s, int(n)), nil
}

func (r *run) repeatList(l *List, n int64) (any, error) {
	n = max(n, 0)
	if err := r.chargeTimes(16*len(l.Items), n); err != nil {
		return nil, err
	}
	out := &List{Tuple: l.Tuple}
	if len(l.Items) > 0 {
		for range n {
			out.Items = append(out.Items, l.Items...)
		}
	}
	return out, nil
}

func integerOp(op string, a, b int64) (any, error) {
	overflow := failf("%d %s %d exceeds 64 bits", a, op, b)
	switch op {
	case "+":
		if s := a + b; (s > a) == (b > 0) {
			return s, nil
		}
		return nil, overflow
	case "-":
		if d := a - b; (d < a) == (b > 0) {
			return d, nil
		}
		return nil, overflow
	case "*":
		if a == 0 || b == 0 {
			return int64(0), nil
		}
		p := a * b
		if p/b != a || (a == -1 && b == math.MinInt64) || (b == -1 && a == math.MinInt64) {
			return nil, overflow
		}
		return p, nil
	case "/":
		if b == 0 {
			return nil, failf("division by zero")
		}
		return float64(a) / float64(b), nil
	case "//", "%":
		if b == 0 {
			return nil, failf("division by zero")
		}
		if a == math.MinInt64 && b == -1 {
			return nil, overflow
		}
		q, m := a/b, a%b
		if m != 0 && (m < 0) != (b < 0) {
			q, m = q-1, m+b
		}
		if op == "%" {
			return m, nil
		}
		return q, nil
	case "**":
		if b < 0 {
			return floatOp(op, float64(a), float64(b))
		}
		return integerPower(a, b)
	}
	return nil, failf("unknown operator %s", op)
}

func integerPower(a, b int64) (any, error) {
	if a == 0 || a == 1 {
		if b == 0 {
			return int64(1), nil
		}
		return a, nil
	}
	if a == -1 {
		return 1 - 2*(b%2), nil
	}
	if b > 63 {
		return nil, failf("%d ** %d exceeds 64 bits", a, b)
	}
	var out any = int64(1)
	var err error
	for range b {
		if out, err = integerOp("*", out.(int64), a); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func floatOp(op string, a, b float64) (any, error) {
	switch op {
	case "+":
		return a + b, nil
	case "-":
		return a - b, nil
	case "*":
		return a * b, nil
	case "**":
		return math.Pow(a, b), nil
	}
	if b == 0 {
		return nil, failf("division by zero")
	}
	switch op {
	case "/":
		return a / b, nil
	case "//":
		return math.Floor(a / b), nil
	case "%":
		m := math.Mod(a, b)
		if m != 0 && (m < 0) != (b < 0) {
			m += b
		}
		return m, nil
	}
	return nil, failf("unknown operator %s", op)
}

func negate(v any) (any, error) {
	i, f, isInt, ok := number(v)
	switch {
	case !ok:
		return nil, failf("- does not work on %s", typeName(v))
	case !isInt:
		return -f, nil
	case i == math.MinInt64:
		return nil, failf("-(%d) exceeds 64 bits", i)
	}
	return -i, nil
}

// equal is Python's ==.
func (r *run) equal(a, b any, depth int) (bool, error) {
	if depth > maxDepth {
		return false, limitf("a value is nested more than %d deep", maxDepth)
	}
	if err := r.step(); err != nil {
		return false, err
	}
	a, b = plain(a), plain(b)
	ai, af, aInt, aNum := number(a)
	bi, bf, bInt, bNum := number(b)
	if aNum && bNum {
		if aInt && bInt {
			return ai == bi, nil
		}
		return af == bf, nil
	}
	switch x := a.(type) {
	case string:
		y, ok := b.(string)
		return ok && x == y, r.scan(min(len(x), len(y)))
	case *List:
		y, ok := b.(*List)
		if !ok || x.Tuple != y.Tuple || x.view != y.view || len(x.Items) != len(y.Items) {
			return false, nil
		}
		for i := range x.Items {
			if same, err := r.equal(x.Items[i], y.Items[i], depth+1); err != nil || !same {
				return false, err
			}
		}
		return true, nil
	case *Dict:
		y, ok := b.(*Dict)
		if !ok || x.Len() != y.Len() {
			return false, nil
		}
		for i, key := range x.keys {
			v, found := y.get(key)
			if !found {
				return false, nil
			}
			if same, err := r.equal(x.vals[i], v, depth+1); err != nil || !same {
				return false, err
			}
		}
		return true, nil
	case undefined:
		_, ok := b.(undefined)
		return ok, nil
	case *function:
		return a == b, nil
	}
	switch b.(type) {
	case *List, *Dict, undefined, *function:
		return false, nil
	}
	return a == b, nil
}

// order is Python's comparison: below zero where a is less than b.
func (r *run) order(a, b any, depth int) (int, error) {
	if depth > maxDepth {
		return 0, limitf("a value is nested more than %d deep", maxDepth)
	}
	if err := r.step(); err != nil {
		return 0, err
	}
	a, b = plain(a), plain(b)
	ai, af, aInt, aNum := number(a)
	bi, bf, bInt, bNum := number(b)
	if aNum && bNum {
		if aInt && bInt {
			return cmp.Compare(ai, bi), nil
		}
		return cmp.Compare(af, bf), nil
	}
	switch x := a.(type) {
	case string:
		if y, ok := b.(string); ok {
			return strings.Compare(x, y), r.scan(min(len(x), len(y)))
		}
	case *List:
		y, ok := b.(*List)
		if !ok || x.Tuple != y.Tuple || x.view != "" || y.view != "" {
			break
		}
		for i := range min(len(x.Items), len(y.Items)) {
			if c, err := r.order(x.Items[i], y.Items[i], depth+1); err != nil || c != 0 {
				return c, err
			}
		}
		return cmp.Compare(len(x.Items), len(y.Items)), nil
	}
	return 0, failf("%s and %s have no order", typeName(a), typeName(b))
}

func (r *run) compare(op string, a, b any) (bool, error) {
	switch op {
	case "==":
		return r.equal(a, b, 0)
	case "!=":
		same, err := r.equal(a, b, 0)
		return !same, err
	case "in":
		return r.contains(b, a)
	case "not in":
		in, err := r.contains(b, a)
		return !in, err
	}
	c, err := r.order(a, b, 0)
	switch op {
	case "<":
		return c < 0, err
	case "<=":
		return c <= 0, err
	case ">":
		return c > 0, err
	}
	return c >= 0, err
}

func (r *run) contains(in, v any) (bool, error) {
	switch c := plain(in).(type) {
	case string:
		s, ok := plain(v).(string)
		if !ok {
			return false, failf("a str cannot contain %s", typeName(v))
		}
		return strings.Contains(c, s), r.scan(len(c))
	case *Dict:
		_, ok := hashable(v)
		if !ok {
			return false, failf("a dict has no key that is %s", typeName(v))
		}
		_, found := c.get(v)
		return found, nil
	case *List:
		for _, item := range c.Items {
			if same, err := r.equal(item, v, 0); err != nil || same {
				return same, err
			}
		}
		return false, nil
	case *generator:
		items, err := r.items(c)
		if err != nil {
			return false, err
		}
		return r.contains(NewList(items...), v)
	case undefined:
		return false, nil
	}
	return false, failf("%s contains nothing", typeName(in))
}

// items lists what a loop over v would see.
func (r *run) items(v any) ([]any, error) {
	switch c := plain(v).(type) {
	case *List:
		return c.Items, nil
	case *Dict:
		return c.keys, nil
	case *generator:
		if c.used {
			return nil, nil
		}
		c.used = true
		return c.items, nil
	case string:
		if err := r.chargeTimes(16, int64(len(c))); err != nil {
			return nil, err
		}
		out := make([]any, 0, len(c))
		for _, ch := range c {
			out = append(out, string(ch))
		}
		return out, nil
	case undefined:
		return nil, nil
	}
	return nil, failf("%s cannot be looped over", typeName(v))
}

// length is Python's len().
func (r *run) length(v any) (int64, error) {
	switch c := plain(v).(type) {
	case *List:
		return int64(len(c.Items)), nil
	case *Dict:
		return int64(c.Len()), nil
	case string:
		return int64(utf8.RuneCountInString(c)), r.scan(len(c))
	case undefined:
		return 0, nil
	case *loopVar:
		return int64(len(c.items)), nil
	}
	return 0, failf("%s has no length", typeName(v))
}
