package jinja

import (
	"math"
	"math/big"
	"strconv"
)

// Dict is a dictionary in order of insertion.
type Dict struct {
	keys  []any
	vals  []any
	index map[any]int
}

// NewDict makes an empty dictionary.
func NewDict() *Dict { return &Dict{index: map[any]int{}} }

// Set stores a value under a string key.
func (d *Dict) Set(key string, v any) { d.put(key, key, v) }

// Get finds the value of a string key.
func (d *Dict) Get(key string) (any, bool) { return d.find(key) }

// Len is the number of entries.
func (d *Dict) Len() int { return len(d.keys) }

// Each visits the entries with string keys in order.
func (d *Dict) Each(visit func(key string, v any)) {
	for i, key := range d.keys {
		if name, ok := key.(string); ok {
			visit(name, d.vals[i])
		}
	}
}

// put stores under a key and what it hashes to.
func (d *Dict) put(hash, key, v any) {
	if i, found := d.index[hash]; found {
		d.vals[i] = v
		return
	}
	d.index[hash] = len(d.keys)
	d.keys, d.vals = append(d.keys, key), append(d.vals, v)
}

func (d *Dict) find(hash any) (any, bool) {
	i, found := d.index[hash]
	if !found {
		return nil, false
	}
	return d.vals[i], true
}

// entryBytes is the approximate overhead of an entry without key and value.
const entryBytes = 96

// putIn stores under any key that can be hashed, and fails on others.
func (r *values) putIn(d *Dict, key, v any) error {
	h, ok, err := r.hash(key, 0)
	if err != nil {
		return err
	}
	if !ok {
		return failf("%s cannot be a key", typeName(key))
	}
	if err := r.charge(entryBytes + sizeOf(key) + sizeOf(v)); err != nil {
		return err
	}
	if d.Len() == 0 { // the map has places for several
		if err := r.charge(2 * entryBytes); err != nil {
			return err
		}
	}
	d.put(h, key, v)
	return nil
}

// findIn looks a key up; one that cannot be hashed is never found.
func (r *values) findIn(d *Dict, key any) (any, bool, error) {
	h, ok, err := r.hash(key, 0)
	if err != nil || !ok {
		return nil, false, err
	}
	v, found := d.find(h)
	return v, found, nil
}

// tupleKey is what a tuple hashes to.
type tupleKey string

// bigKey is what an integer beyond 64 bits hashes to.
type bigKey string

// hash maps equal keys to the same value: 1, 1.0 and True are one key. A tuple
// is bounded, since a template can share a small one many times in another.
func (r *values) hash(key any, depth int) (h any, ok bool, err error) {
	switch k := plain(key).(type) {
	case nil, int64, *numbers, *function, *namespace, *loopVar, *generator:
		return k, true, nil
	case undefined:
		return undefined{}, true, nil
	case string:
		return k, true, r.scan(len(k))
	case bool:
		return toInt(k), true, nil
	case *big.Int:
		if err := r.charge(k.BitLen() / 3); err != nil {
			return nil, false, err
		}
		return bigKey(k.String()), true, r.work(k)
	case float64:
		if i, exact := integral(k); exact {
			return r.hash(i, depth)
		}
		if math.IsNaN(k) {
			return bigKey("nan"), true, nil
		}
		return k, true, nil
	case *List:
		if k.view == "dict_values" {
			return k, true, nil
		}
		if !k.Tuple {
			return nil, false, nil
		}
		return r.hashTuple(k, depth)
	}
	return nil, false, nil
}

func (r *values) hashTuple(t *List, depth int) (any, bool, error) {
	if depth > maxDepth {
		return nil, false, tooDeep()
	}
	var text []byte
	for _, item := range t.Items {
		h, ok, err := r.hash(item, depth+1)
		if err != nil || !ok {
			return nil, false, err
		}
		part := ""
		switch h := h.(type) {
		case nil:
			part = "n"
		case string:
			part = "s" + h
		case int64:
			part = "i" + strconv.FormatInt(h, 10)
		case bigKey:
			part = "b" + string(h)
		case tupleKey:
			part = "t" + string(h)
		case float64:
			part = "f" + strconv.FormatFloat(h, 'g', -1, 64)
		case undefined:
			part = "u"
		default: // known by where it is
			return nil, false, failf("a tuple with %s cannot be a key", typeName(item))
		}
		if err := r.charge(len(part) + 8); err != nil {
			return nil, false, err
		}
		text = append(strconv.AppendInt(text, int64(len(part)), 10), ':')
		text = append(text, part...)
	}
	return tupleKey(text), true, nil
}

// items are the entries as tuples.
func (d *Dict) items() *List {
	l := &List{Items: make([]any, 0, d.Len())}
	for i, k := range d.keys {
		l.Items = append(l.Items, &List{Items: []any{k, d.vals[i]}, Tuple: true})
	}
	return l
}

// pairBytes is about what one entry takes as a tuple.
const pairBytes = 120
