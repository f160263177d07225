package jinja

import (
	"math/big"
	"unicode/utf8"
)

// generate makes a generator of an iterator. Generators nest like expressions
// do, but no source has to nest for it: a loop can wrap one again and again.
func (r *run) generate(next iterator) *generator {
	return &generator{func() (any, bool, error) {
		if err := r.nest(generatorDepth); err != nil {
			return nil, false, err
		}
		v, ok, err := next()
		r.nested -= generatorDepth
		return v, ok, err
	}}
}

// generatorDepth is how many nested expressions one generator counts as.
const generatorDepth = 4

// iterate goes over what a loop over v would see.
func (r *values) iterate(v any) (iterator, error) {
	switch c := plain(v).(type) {
	case *List:
		return listed(c.Items), nil
	case *Dict:
		return listed(c.keys), nil
	case *numbers:
		i := int64(0)
		return func() (any, bool, error) {
			if i == c.count {
				return nil, false, nil
			}
			i++
			return c.at(i - 1), true, nil
		}, nil
	case *generator:
		return c.next, nil
	case string:
		return func() (any, bool, error) {
			if c == "" {
				return nil, false, nil
			}
			_, n := utf8.DecodeRuneInString(c)
			ch := c[:n]
			c = c[n:]
			return ch, true, nil
		}, nil
	case undefined:
		return listed(nil), nil
	case *loopVar:
		return nil, failf("loop is not iterable")
	}
	return nil, failf("%s is not iterable", typeName(v))
}

// items lists what a loop over v would see. The list may be v's own.
func (r *values) items(v any) ([]any, error) {
	switch c := v.(type) {
	case *List:
		return c.Items, nil
	case *Dict:
		return c.keys, nil
	}
	next, err := r.iterate(v)
	if err != nil {
		return nil, err
	}
	return r.rest(next)
}

// rest lists what an iterator still has.
func (r *values) rest(next iterator) ([]any, error) {
	var out []any
	for {
		item, ok, err := next()
		if err != nil || !ok {
			return out, err
		}
		if err := r.charge(itemBytes + sizeOf(item)); err != nil {
			return nil, err
		}
		out = append(out, item)
	}
}

// sizeOf is about what a value takes where it is kept as any, without what was counted when
// it was made: texts, items, entries, generators, and what functions hold.
func sizeOf(v any) int {
	switch v := v.(type) {
	case string, markup:
		return textBytes - itemBytes
	case int64, float64:
		return 8
	case undefined, *numbers:
		return 32
	case *big.Int:
		return 32 + v.BitLen()/8
	case *List:
		return listBytes
	case *Dict, *namespace:
		return dictBytes
	case *function:
		return functionBytes
	case *loopVar:
		return loopBytes + scopeBytes*v.scopes
	}
	return 0
}

// What values take without what they hold: a list, a dictionary, a method of a value, the
// variable loop, a lazy filter.
const (
	listBytes      = 64
	dictBytes      = 144
	functionBytes  = 160
	loopBytes      = 320
	generatorBytes = 480
)

// backwards goes over v from its end; it is reversed(), which takes no
// generator.
func (r *values) backwards(v any) (iterator, error) {
	switch plain(v).(type) {
	case *List, *Dict, *numbers, string, undefined:
	default:
		return nil, failf("%s cannot be reversed", typeName(v))
	}
	items, err := r.items(v)
	if err != nil {
		return nil, err
	}
	i := len(items)
	return func() (any, bool, error) {
		if i == 0 {
			return nil, false, nil
		}
		i--
		return items[i], true, nil
	}, nil
}

// length is Python's len().
func (r *values) length(v any) (int64, error) {
	switch c := plain(v).(type) {
	case *List:
		return int64(len(c.Items)), nil
	case *Dict:
		return int64(c.Len()), nil
	case *numbers:
		return c.count, nil
	case string:
		return int64(utf8.RuneCountInString(c)), r.scan(len(c))
	case undefined:
		return 0, nil
	case *loopVar:
		return c.length(r)
	}
	return 0, failf("%s has no length", typeName(v))
}
