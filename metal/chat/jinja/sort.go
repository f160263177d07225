package jinja

import (
	"strings"
)

// Filters that sort and pick by a key.

// foldedKey is what sorting compares: text without case unless that counts.
func (r *texts) foldedKey(v any, caseCounts bool) (any, error) {
	if s, ok := plain(v).(string); ok && !caseCounts {
		if err := r.charge(len(s)); err != nil {
			return nil, err
		}
		if err := r.letters(s); err != nil {
			return nil, err
		}
		return lowered(s), nil
	}
	return v, nil
}

// key is the attribute of an item, or the item.
func (r *run) key(item, attribute any, caseCounts bool) (any, error) {
	v, err := attributePath(r, item, attribute)
	if err != nil {
		return nil, err
	}
	return r.foldedKey(v, caseCounts)
}

// keyed is an item with what it is compared by.
type keyed struct{ item, key any }

// sorted orders items by keys, stably, and stops at the first pair that has no
// order.
func (r *values) sorted(items []keyed, reverse bool) ([]keyed, error) {
	if len(items) < 2 {
		return items, nil
	}
	mid := len(items) / 2
	left, err := r.sorted(items[:mid:mid], reverse)
	if err != nil {
		return nil, err
	}
	right, err := r.sorted(items[mid:], reverse)
	if err != nil {
		return nil, err
	}
	if err := r.charge(32 * len(items)); err != nil {
		return nil, err
	}
	out := make([]keyed, 0, len(items))
	for len(left) > 0 && len(right) > 0 {
		// Only "less than" is asked, as Python does.
		a, b := right[0].key, left[0].key
		if reverse {
			a, b = b, a
		}
		c, ordered, err := r.order(a, b, 0)
		if err != nil {
			return nil, err
		}
		if ordered && c < 0 {
			out, right = append(out, right[0]), right[1:]
		} else {
			out, left = append(out, left[0]), left[1:]
		}
	}
	return append(append(out, left...), right...), nil
}

func plainItems(of []keyed) []any {
	out := make([]any, len(of))
	for i, k := range of {
		out[i] = k.item
	}
	return out
}

// keyedBytes is what an item takes with its key, and once more without it.
const keyedBytes = 80

// keysOf lists the items of v with their keys.
func (r *run) keysOf(v any, key func(item any) (any, error)) ([]keyed, error) {
	next, err := r.iterate(v)
	if err != nil {
		return nil, err
	}
	var out []keyed
	for {
		item, ok, err := next()
		if err != nil || !ok {
			return out, err
		}
		k, err := key(item)
		if err != nil {
			return nil, err
		}
		if err := r.charge(keyedBytes + sizeOf(k)); err != nil {
			return nil, err
		}
		out = append(out, keyed{item, k})
	}
}

func filterSort(r *run, v any, a args) (any, error) {
	p, err := a.bind("sort", 0, "reverse", "case_sensitive", "attribute")
	if err != nil {
		return nil, err
	}
	reverse, err := wholeNumber("sort", "direction", p[0], 0)
	if err != nil {
		return nil, err
	}
	attributes := []any{orNil(p[2])}
	if s, ok := p[2].(string); ok {
		if err := r.chargeTimes(textBytes, int64(strings.Count(s, ","))); err != nil {
			return nil, err
		}
		attributes = attributes[:0]
		for part := range strings.SplitSeq(s, ",") {
			attributes = append(attributes, part)
		}
	}
	keys, err := r.keysOf(v, func(item any) (any, error) {
		if err := r.charge(itemBytes * len(attributes)); err != nil {
			return nil, err
		}
		l := &List{Items: make([]any, 0, len(attributes))}
		for _, attribute := range attributes {
			k, err := r.key(item, attribute, given(p[1]))
			if err != nil {
				return nil, err
			}
			if err := r.keep(k); err != nil {
				return nil, err
			}
			l.Items = append(l.Items, k)
		}
		return l, nil
	})
	if err != nil {
		return nil, err
	}
	out, err := r.sorted(keys, reverse != 0)
	return NewList(plainItems(out)...), err
}

func filterDictsort(r *run, v any, a args) (any, error) {
	p, err := a.bind("dictsort", 0, "case_sensitive", "by", "reverse")
	if err != nil {
		return nil, err
	}
	by := 0
	switch p[1] {
	case absent{}, "key":
	case "value":
		by = 1
	default:
		return nil, failf("dictsort can sort by key or value only")
	}
	reverse, err := wholeNumber("dictsort", "direction", p[2], 0)
	if err != nil {
		return nil, err
	}
	d, ok := v.(*Dict)
	if !ok {
		return nil, failf("dictsort requires a mapping, not %s", typeName(v))
	}
	if err := r.charge(pairBytes * d.Len()); err != nil {
		return nil, err
	}
	keys, err := r.keysOf(d.items(), func(item any) (any, error) {
		return r.foldedKey(item.(*List).Items[by], given(p[0]))
	})
	if err != nil {
		return nil, err
	}
	out, err := r.sorted(keys, reverse != 0)
	return NewList(plainItems(out)...), err
}

func filterMax(r *run, v any, a args) (any, error) { return r.extreme("max", v, a) }
func filterMin(r *run, v any, a args) (any, error) { return r.extreme("min", v, a) }

func (r *run) extreme(who string, v any, a args) (any, error) {
	p, err := a.bind(who, 0, "case_sensitive", "attribute")
	if err != nil {
		return nil, err
	}
	next, err := r.iterate(v)
	if err != nil {
		return nil, err
	}
	var best keyed
	for first := true; ; first = false {
		item, ok, err := next()
		if err != nil {
			return nil, err
		}
		if !ok && first {
			return undefined{who, " of nothing"}, nil
		}
		if !ok {
			return best.item, nil
		}
		key, err := r.key(item, orNil(p[1]), given(p[0]))
		if err != nil {
			return nil, err
		}
		if !first {
			a, b := key, best.key
			if who == "max" {
				a, b = b, a
			}
			c, ordered, err := r.order(a, b, 0)
			if err != nil {
				return nil, err
			}
			if !ordered || c >= 0 {
				continue
			}
		}
		best = keyed{item, key}
	}
}

func filterUnique(r *run, v any, a args) (any, error) {
	p, err := a.bind("unique", 0, "case_sensitive", "attribute")
	if err != nil {
		return nil, err
	}
	var next iterator
	seen := NewDict()
	return r.generate(func() (any, bool, error) {
		if next == nil {
			var err error
			if next, err = r.iterate(v); err != nil {
				return nil, false, err
			}
		}
		for {
			item, ok, err := next()
			if err != nil || !ok {
				return nil, false, err
			}
			if err := r.step(); err != nil {
				return nil, false, err
			}
			key, err := r.key(item, orNil(p[1]), given(p[0]))
			if err != nil {
				return nil, false, err
			}
			before := seen.Len()
			if err := r.putIn(seen, key, nil); err != nil {
				return nil, false, err
			}
			if seen.Len() > before {
				return item, true, nil
			}
		}
	}), nil
}
