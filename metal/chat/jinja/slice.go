package jinja

import (
	"math"
	"math/big"
	"strings"
	"unicode/utf8"
)

// item is v[key] if v has it; if found is false Jinja looks for an attribute
// next.
func (r *values) item(v, key any) (out any, found bool, err error) {
	if d, ok := v.(*Dict); ok {
		return r.findIn(d, key)
	}
	i, _, isInt, ok := number(key)
	if !ok || !isInt {
		return nil, false, nil
	}
	switch c := v.(type) {
	case *List:
		if i < 0 {
			i += int64(len(c.Items))
		}
		if c.view != "" || i < 0 || i >= int64(len(c.Items)) {
			return nil, false, nil
		}
		return c.Items[i], true, nil
	case *numbers:
		if i < 0 {
			i += c.count
		}
		if i < 0 || i >= c.count {
			return nil, false, nil
		}
		return c.at(i), true, nil
	case string:
		if err := r.scan(len(c)); err != nil {
			return nil, false, err
		}
		out, found := character(c, i)
		return out, found, nil
	case markup:
		if err := r.scan(len(c)); err != nil {
			return nil, false, err
		}
		out, found := character(string(c), i)
		return markup(out), found, nil
	}
	return nil, false, nil
}

// character is s[i], counted in characters.
func character(s string, i int64) (string, bool) {
	if i < 0 {
		i += int64(utf8.RuneCountInString(s))
	}
	if i < 0 {
		return "", false
	}
	for at := range s {
		if i == 0 {
			_, n := utf8.DecodeRuneInString(s[at:])
			return s[at : at+n], true
		}
		i--
	}
	return "", false
}

// slice is v[from:to:stride]; a nil bound is the default one.
func (r *values) slice(v, from, to, stride any) (any, error) {
	n := int64(0)
	switch c := plain(v).(type) {
	case *List:
		if c.view != "" {
			return nil, failf("%s cannot be sliced", typeName(v))
		}
		n = int64(len(c.Items))
	case *numbers:
		n = c.count
	case string:
		n = int64(utf8.RuneCountInString(c))
		if err := r.scan(len(c)); err != nil {
			return nil, err
		}
	default:
		return nil, failf("%s cannot be sliced", typeName(v))
	}
	p, err := sliceOf(n, from, to, stride)
	if err != nil {
		return nil, err
	}
	switch c := v.(type) {
	case *List:
		if err := r.charge(itemBytes * int(p.count)); err != nil {
			return nil, err
		}
		out := &List{Tuple: c.Tuple, Items: make([]any, 0, p.count)}
		for i := range p.count {
			out.Items = append(out.Items, c.Items[p.at(i)])
		}
		return out, nil
	case *numbers:
		by := c.by * p.by
		if by == 0 { // a multiple of 2^64, of one number at most
			by = math.MaxInt64
		}
		return &numbers{from: c.at(p.from), until: c.at(p.until), by: by, count: p.count}, nil
	case markup:
		text, err := r.sliceText(string(c), p)
		return markup(text), err
	}
	text, err := r.sliceText(v.(string), p)
	return text, err
}

func (r *texts) sliceText(s string, p numbers) (string, error) {
	if p.by == 1 { // the places in bytes
		from, to, i := len(s), len(s), int64(0)
		for at := range s {
			if i == p.from {
				from = at
			}
			if i == p.from+p.count {
				to = at
				break
			}
			i++
		}
		if p.count == 0 {
			return "", nil
		}
		return s[from:to], nil
	}
	if err := r.charge(4 * len(s)); err != nil {
		return "", err
	}
	chars := []rune(s)
	var b strings.Builder
	for i := range p.count {
		b.WriteRune(chars[p.at(i)])
	}
	return b.String(), r.charge(b.Len())
}

// sliceOf lists the indices that a slice of n elements takes.
func sliceOf(n int64, from, to, stride any) (numbers, error) {
	by := int64(1)
	if stride != nil {
		i, _, isInt, ok := number(stride)
		if !ok || !isInt {
			return numbers{}, failf("invalid slice bound: %s", typeName(stride))
		}
		by = max(i, -math.MaxInt64)
	}
	if by == 0 {
		return numbers{}, failf("the step of a slice must not be 0")
	}
	low, high, first, last := int64(0), n, int64(0), n
	if by < 0 {
		low, high, first, last = -1, n-1, n-1, -1
	}
	clamp := func(v any, otherwise int64) (int64, error) {
		if v == nil {
			return otherwise, nil
		}
		i, _, isInt, ok := number(v)
		if !ok || !isInt {
			return 0, failf("invalid slice bound: %s", typeName(v))
		}
		if i < 0 {
			i = max(i, math.MinInt64+n) + n
		}
		return min(max(i, low), high), nil
	}
	var err error
	if first, err = clamp(from, first); err != nil {
		return numbers{}, err
	}
	if last, err = clamp(to, last); err != nil {
		return numbers{}, err
	}
	return numbers{from: first, until: last, by: by, count: steps(first, last, by)}, nil
}

// steps counts from, from+by, ... before until.
func steps(from, until, by int64) int64 {
	if (by > 0 && from >= until) || (by < 0 && from <= until) {
		return 0
	}
	// In wider integers: the distance may not fit.
	distance := new(big.Int).Sub(big.NewInt(until), big.NewInt(from))
	distance.Add(distance, big.NewInt(int64(map[bool]int{true: -1, false: 1}[by > 0])))
	distance.Quo(distance, big.NewInt(by))
	if !distance.IsInt64() || distance.Int64() == math.MaxInt64 {
		return math.MaxInt64
	}
	return distance.Int64() + 1
}
