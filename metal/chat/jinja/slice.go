package jinja

import (
	"math"
	"strings"
	"unicode/utf8"
)

// item is v[key] where v holds it; found is false where Jinja goes on to look
// for an attribute.
func (r *run) item(v, key any) (out any, found bool, err error) {
	switch c := plain(v).(type) {
	case *Dict:
		out, found = c.get(key)
		return out, found, nil
	case *List:
		i, _, isInt, ok := number(key)
		if !ok || !isInt || c.view != "" {
			return nil, false, nil
		}
		if i < 0 {
			i += int64(len(c.Items))
		}
		if i < 0 || i >= int64(len(c.Items)) {
			return nil, false, nil
		}
		return c.Items[i], true, nil
	case string:
		i, _, isInt, ok := number(key)
		if !ok || !isInt {
			return nil, false, nil
		}
		if err := r.scan(len(c)); err != nil {
			return nil, false, err
		}
		out, found = character(c, i)
		return out, found, nil
	}
	return nil, false, nil
}

// character is s[i], counted in characters.
func character(s string, i int64) (any, bool) {
	if i < 0 {
		i += int64(utf8.RuneCountInString(s))
	}
	if i < 0 {
		return nil, false
	}
	for _, c := range s {
		if i == 0 {
			return string(c), true
		}
		i--
	}
	return nil, false
}

// slice is v[from:to:stride]; a nil bound is the default one.
func (r *run) slice(v, from, to, stride any) (any, error) {
	var items []any
	var chars []rune
	n := 0
	switch c := plain(v).(type) {
	case *List:
		if c.view != "" {
			return nil, failf("%s cannot be sliced", typeName(v))
		}
		items, n = c.Items, len(c.Items)
	case string:
		if err := r.charge(4 * len(c)); err != nil {
			return nil, err
		}
		chars = []rune(c)
		n = len(chars)
	default:
		return nil, failf("%s cannot be sliced", typeName(v))
	}
	places, err := places(int64(n), from, to, stride)
	if err != nil {
		return nil, err
	}
	if err := r.charge(16 * len(places)); err != nil {
		return nil, err
	}
	if l, ok := v.(*List); ok {
		out := &List{Tuple: l.Tuple, Items: make([]any, 0, len(places))}
		for _, i := range places {
			out.Items = append(out.Items, items[i])
		}
		return out, nil
	}
	var b strings.Builder
	for _, i := range places {
		b.WriteRune(chars[i])
	}
	return b.String(), nil
}

// places lists the indices that a slice of n elements takes.
func places(n int64, from, to, stride any) ([]int64, error) {
	bound := func(v any, absent int64) (int64, error) {
		if v == nil {
			return absent, nil
		}
		i, _, isInt, ok := number(v)
		if !ok || !isInt {
			return 0, failf("a slice bound is %s", typeName(v))
		}
		return i, nil
	}
	by, err := bound(stride, 1)
	if err != nil {
		return nil, err
	}
	if by == 0 {
		return nil, failf("a slice has stride 0")
	}
	low, high, first, last := int64(0), n, int64(0), n
	if by < 0 {
		low, high, first, last = -1, n-1, n-1, -1
	}
	clamp := func(v any, absent int64) (int64, error) {
		i, err := bound(v, absent)
		if v != nil && i < 0 {
			i = max(i, math.MinInt64+n) + n
		}
		return min(max(i, low), high), err
	}
	if first, err = clamp(from, first); err != nil {
		return nil, err
	}
	if last, err = clamp(to, last); err != nil {
		return nil, err
	}
	var out []int64
	for i := first; (by > 0 && i < last) || (by < 0 && i > last); {
		out = append(out, i)
		if by > n || by < -n {
			break
		}
		i += by
	}
	return out, nil
}
