package jinja

import (
	"math/big"
	"strings"
)

func (r *run) binary(op string, a, b any) (any, error) {
	if isNumber(a) && isNumber(b) {
		return r.arithmetic(op, a, b)
	}
	if v, ok, err := r.markupOp(op, a, b); ok || err != nil {
		return v, err
	}
	a, b = plain(a), plain(b)
	switch x := a.(type) {
	case string:
		if op == "%" {
			out, err := r.percent(x, b, false)
			return out, err
		}
		if y, ok := b.(string); ok && op == "+" {
			if err := r.charge(len(x) + len(y)); err != nil {
				return nil, err
			}
			return x + y, nil
		}
	case *List:
		if y, ok := b.(*List); ok && op == "+" && x.Tuple == y.Tuple && x.view+y.view == "" {
			if err := r.charge(itemBytes * (len(x.Items) + len(y.Items))); err != nil {
				return nil, err
			}
			return &List{Items: append(append([]any{}, x.Items...), y.Items...), Tuple: x.Tuple}, nil
		}
	}
	if op == "*" {
		if v, ok, err := r.repeated(a, b); ok || err != nil {
			return v, err
		}
		if v, ok, err := r.repeated(b, a); ok || err != nil {
			return v, err
		}
	}
	return nil, failf("%s does not work on %s and %s", op, typeName(a), typeName(b))
}

// itemBytes is what one place in a list takes.
const itemBytes = 16

// textBytes is the overhead of a string in a list.
const textBytes = 40

// markupOp is a op b where markup is one of them; ok is false where it works
// as for any text.
func (r *run) markupOp(op string, a, b any) (v any, ok bool, err error) {
	x, left := a.(markup)
	y, right := b.(markup)
	if !left && !right {
		return nil, false, nil
	}
	switch {
	case op == "+":
		_, ok1 := plain(a).(string)
		_, ok2 := plain(b).(string)
		if !ok1 || !ok2 {
			return nil, false, nil
		}
		x, err := r.escaped(a)
		if err != nil {
			return nil, true, err
		}
		y, err := r.escaped(b)
		if err != nil {
			return nil, true, err
		}
		if err := r.charge(len(x) + len(y)); err != nil {
			return nil, true, err
		}
		return x + y, true, nil
	case op == "*":
		text, count := string(x), b
		if right {
			text, count = string(y), a
		}
		out, ok, err := r.repeated(text, count)
		if s, isText := out.(string); isText {
			return markup(s), ok, err
		}
		return out, ok, err
	case op == "%" && left:
		out, err := r.percent(string(x), b, true)
		return markup(out), true, err
	}
	return nil, false, nil
}

// repeated is a text or list n times; ok is false where they are not that.
func (r *values) repeated(v, times any) (out any, ok bool, err error) {
	n, _, isInt, isNum := number(times)
	if !isNum || !isInt {
		return nil, false, nil
	}
	n = max(n, 0)
	if _, isBig := times.(*big.Int); isBig {
		return nil, false, failf("the result of a repetition is too large")
	}
	switch v := v.(type) {
	case string:
		if err := r.chargeTimes(len(v), n); err != nil {
			return nil, false, err
		}
		return strings.Repeat(v, int(n)), true, nil
	case *List:
		if v.view != "" {
			return nil, false, nil
		}
		if err := r.chargeTimes(itemBytes*len(v.Items), n); err != nil {
			return nil, false, err
		}
		l := &List{Tuple: v.Tuple}
		if len(v.Items) > 0 {
			l.Items = make([]any, 0, len(v.Items)*int(n))
			for range n {
				l.Items = append(l.Items, v.Items...)
			}
		}
		return l, true, nil
	}
	return nil, false, nil
}

func tooDeep() error {
	return limitf(BoundDepth, "a value is nested more than %d levels deep", maxDepth)
}

// equal is Python's ==.
func (r *values) equal(a, b any, depth int) (bool, error) {
	if depth > maxDepth {
		return false, tooDeep()
	}
	if err := r.step(); err != nil {
		return false, err
	}
	if isNumber(a) && isNumber(b) {
		c, ordered := compareNumbers(a, b)
		return ordered && c == 0, nil
	}
	switch x := plain(a).(type) {
	case nil:
		return b == nil, nil
	case string:
		y, ok := plain(b).(string)
		return ok && x == y, r.scan(min(len(x), len(y)))
	case *List:
		y, ok := b.(*List)
		if !ok || x.Tuple != y.Tuple || x.view != y.view || len(x.Items) != len(y.Items) {
			return false, nil
		}
		if setOf(x) != nil {
			return r.sameSet(x.Items, y.Items, depth)
		}
		return r.sameItems(x.Items, y.Items, depth)
	case *numbers:
		y, ok := b.(*numbers)
		return ok && x.count == y.count && (x.count == 0 || x.from == y.from) && (x.count < 2 || x.by == y.by), nil
	case *Dict:
		y, ok := b.(*Dict)
		if !ok || x.Len() != y.Len() {
			return false, nil
		}
		return r.sameEntries(x, y, depth)
	case undefined:
		_, ok := b.(undefined)
		return ok, nil
	case *function, *namespace, *loopVar, *generator:
		return a == b, nil
	}
	return false, nil
}

func (r *values) sameItems(a, b []any, depth int) (bool, error) {
	for i := range a {
		if same, err := r.equal(a[i], b[i], depth+1); err != nil || !same {
			return false, err
		}
	}
	return true, nil
}

// sameSet says whether a holds what b holds: views of a dictionary are sets.
func (r *values) sameSet(a, b []any, depth int) (bool, error) {
	for _, x := range a {
		found := false
		for _, y := range b {
			same, err := r.equal(x, y, depth+1)
			if err != nil {
				return false, err
			}
			if found = same; found {
				break
			}
		}
		if !found {
			return false, nil
		}
	}
	return true, nil
}

func (r *values) sameEntries(a, b *Dict, depth int) (bool, error) {
	for i, key := range a.keys {
		v, found, err := r.findIn(b, key)
		if err != nil || !found {
			return false, err
		}
		if same, err := r.equal(a.vals[i], v, depth+1); err != nil || !same {
			return false, err
		}
	}
	return true, nil
}

// order is Python's comparison: negative if a is less than b. If one is NaN,
// ordered is false. Lists of different lengths are not equal at once, so it may recurse deeper
// than equal does.
func (r *values) order(a, b any, depth int) (c int, ordered bool, err error) {
	if depth > maxDepth {
		return 0, false, tooDeep()
	}
	if err := r.step(); err != nil {
		return 0, false, err
	}
	if isNumber(a) && isNumber(b) {
		c, ordered := compareNumbers(a, b)
		return c, ordered, nil
	}
	switch x := plain(a).(type) {
	case string:
		if y, ok := plain(b).(string); ok {
			return strings.Compare(x, y), true, r.scan(min(len(x), len(y)))
		}
	case *List:
		y, ok := b.(*List)
		if !ok || x.Tuple != y.Tuple || x.view+y.view != "" {
			break
		}
		// The first items that are not equal decide.
		for i := range min(len(x.Items), len(y.Items)) {
			same, err := r.equal(x.Items[i], y.Items[i], depth+1)
			if err != nil {
				return 0, false, err
			}
			if !same {
				return r.order(x.Items[i], y.Items[i], depth+1)
			}
		}
		return len(x.Items) - len(y.Items), true, nil
	}
	return 0, false, failf("%s and %s cannot be ordered", typeName(a), typeName(b))
}

func (r *values) compare(op string, a, b any) (bool, error) {
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
	if x, y := setOf(a), setOf(b); x != nil && y != nil {
		return r.compareSets(op, x.Items, y.Items)
	}
	c, ordered, err := r.order(a, b, 0)
	switch op {
	case "<":
		return ordered && c < 0, err
	case "<=":
		return ordered && c <= 0, err
	case ">":
		return ordered && c > 0, err
	}
	return ordered && c >= 0, err
}

// setOf is v where it is a view that counts as a set.
func setOf(v any) *List {
	if l, ok := v.(*List); ok && (l.view == "dict_keys" || l.view == "dict_items") {
		return l
	}
	return nil
}

// compareSets orders sets by what they hold.
func (r *values) compareSets(op string, a, b []any) (bool, error) {
	if op[0] == '>' {
		a, b = b, a
	}
	if len(a) > len(b) || len(op) == 1 && len(a) == len(b) {
		return false, nil
	}
	return r.sameSet(a, b, 0)
}

func (r *values) contains(in, v any) (bool, error) {
	switch c := plain(in).(type) {
	case string:
		s, ok := plain(v).(string)
		if !ok {
			return false, failf("a str cannot contain %s", typeName(v))
		}
		return strings.Contains(c, s), r.scan(len(c))
	case *Dict:
		h, ok, err := r.hash(v, 0)
		if err != nil {
			return false, err
		}
		if !ok {
			return false, failf("a dict cannot have the key %s", typeName(v))
		}
		_, found := c.find(h)
		return found, nil
	case *numbers:
		return c.holds(v), nil
	case *List:
		if c.view != "dict_keys" {
			break
		}
		if _, ok, err := r.hash(v, 0); err != nil || !ok {
			return false, failf("a dict cannot have the key %s", typeName(v))
		}
	}
	next, err := r.iterate(in)
	if err != nil {
		return false, failf("%s is not a container", typeName(in))
	}
	for {
		item, ok, err := next()
		if err != nil || !ok {
			return false, err
		}
		if same, err := r.equal(item, v, 0); err != nil || same {
			return same, err
		}
	}
}

func (n *numbers) holds(v any) bool {
	if f, ok := v.(float64); ok {
		if v, ok = integral(f); !ok {
			return false
		}
	}
	i, _, isInt, ok := number(v)
	if _, big := v.(*big.Int); big || !ok || !isInt || n.count == 0 {
		return false
	}
	at := (i - n.from) / n.by
	return at >= 0 && at < n.count && n.at(at) == i
}
