package jinja

import (
	"slices"
	"strconv"
	"strings"
)

// Filters over sequences, with attributes and tests.

// path follows "a.b.0" through attributes and items; a number is an index.
func (r *run) path(v, attribute any) (any, error) { return r.pathOr(v, attribute, absent{}) }

// pathOr puts a default, unless it is absent, wherever a member is missing.
func (r *run) pathOr(v, attribute, otherwise any) (any, error) {
	name, ok := attribute.(string)
	if !ok {
		if out, found, err := r.item(v, attribute); err != nil || found {
			return out, err
		}
		if !isAbsent(otherwise) {
			return otherwise, nil
		}
		return undefined{what: "an item"}, nil
	}
	for part := range strings.SplitSeq(name, ".") {
		if err := r.step(); err != nil {
			return nil, err
		}
		var key any = part
		if i, err := strconv.ParseInt(part, 10, 64); err == nil && part[0] != '-' && part[0] != '+' {
			key = i
		}
		if u, ok := v.(undefined); ok {
			return nil, failf("%s is undefined and has no member %q", u.what, cut(part))
		}
		// Filters look at items first.
		out, found, err := r.item(v, key)
		if err != nil {
			return nil, err
		}
		if !found {
			if out, found = attributes(v, part); !found {
				out = undefined{what: "member " + cut(part)}
			}
		}
		if _, missing := out.(undefined); missing && !isAbsent(otherwise) && otherwise != nil {
			out = otherwise
		}
		v = out
	}
	return v, nil
}

// lazyItems is items, for filters that take whatever is false as empty.
func (r *run) lazyItems(v any) ([]any, error) {
	if !truth(v) {
		return nil, nil
	}
	return r.items(v)
}

func filterMap(r *run, v any, a args) (any, error) {
	items, err := r.lazyItems(v)
	if err != nil {
		return nil, err
	}
	out := new(generator)
	each, err := r.mapper(a)
	if err != nil {
		return nil, err
	}
	for _, item := range items {
		m, err := each(item)
		if err != nil {
			return nil, err
		}
		out.items = append(out.items, m)
	}
	return out, r.charge(16 * len(items))
}

// mapper is what map does to each item: take an attribute, or apply a filter.
func (r *run) mapper(a args) (func(any) (any, error), error) {
	if len(a.pos) == 0 {
		p, err := a.bind("map", 0, "attribute", "default")
		if err != nil {
			return nil, err
		}
		if isAbsent(p[0]) {
			return nil, failf("map needs a filter or an attribute")
		}
		return func(item any) (any, error) { return r.pathOr(item, p[0], p[1]) }, nil
	}
	name, ok := a.pos[0].(string)
	if !ok {
		return nil, failf("map takes the name of a filter, not %s", typeName(a.pos[0]))
	}
	rest := args{pos: a.pos[1:], names: a.names, named: a.named}
	return func(item any) (any, error) { return r.filter(name, item, rest) }, nil
}

func filterSelect(r *run, v any, a args) (any, error)     { return r.choose(v, a, false, true) }
func filterReject(r *run, v any, a args) (any, error)     { return r.choose(v, a, false, false) }
func filterSelectAttr(r *run, v any, a args) (any, error) { return r.choose(v, a, true, true) }
func filterRejectAttr(r *run, v any, a args) (any, error) { return r.choose(v, a, true, false) }

// choose keeps the items (or, by attribute, those whose attribute) that a test
// answers with want; without a test it is truth.
func (r *run) choose(v any, a args, byAttribute, want bool) (any, error) {
	items, err := r.lazyItems(v)
	if err != nil {
		return nil, err
	}
	pos := a.pos
	var attribute any
	if byAttribute {
		if len(pos) == 0 {
			return nil, failf("the filter needs an attribute")
		}
		attribute, pos = pos[0], pos[1:]
	}
	name := ""
	if len(pos) > 0 {
		var ok bool
		if name, ok = pos[0].(string); !ok {
			return nil, failf("the filter takes the name of a test, not %s", typeName(pos[0]))
		}
		pos = pos[1:]
	}
	out := new(generator)
	for _, item := range items {
		subject := item
		if byAttribute {
			if subject, err = r.path(item, attribute); err != nil {
				return nil, err
			}
		}
		yes := truth(subject)
		if name != "" {
			if yes, err = r.test(name, subject, args{pos: pos, names: a.names, named: a.named}); err != nil {
				return nil, err
			}
		}
		if yes == want {
			out.items = append(out.items, item)
		}
	}
	return out, r.charge(16 * len(items))
}

// folded is what sorting compares: text without case unless that counts.
func (r *run) folded(v, attribute any, caseCounts bool) (any, error) {
	var err error
	if !isAbsent(attribute) && attribute != nil {
		if v, err = r.path(v, attribute); err != nil {
			return nil, err
		}
	}
	if s, ok := v.(string); ok && !caseCounts {
		return strings.ToLower(s), r.charge(len(s))
	}
	return v, nil
}

// sorted orders items by keys, stably.
func (r *run) sorted(items, keys []any, reverse bool) ([]any, error) {
	order := make([]int, len(items))
	for i := range order {
		order[i] = i
	}
	var failed error
	slices.SortStableFunc(order, func(i, j int) int {
		if failed != nil {
			return 0
		}
		c, err := r.order(keys[i], keys[j], 0)
		if err != nil {
			failed = err
		}
		if reverse {
			return -c
		}
		return c
	})
	out := make([]any, len(items))
	for i, from := range order {
		out[i] = items[from]
	}
	if failed != nil {
		return nil, failed
	}
	return out, r.charge(24 * len(items))
}

func filterSort(r *run, v any, a args) (any, error) {
	p, err := a.bind("sort", 0, "reverse", "case_sensitive", "attribute")
	if err != nil {
		return nil, err
	}
	items, err := r.items(v)
	if err != nil {
		return nil, err
	}
	keys := make([]any, len(items))
	for i, item := range items {
		if keys[i], err = r.folded(item, p[2], given(p[1])); err != nil {
			return nil, err
		}
	}
	out, err := r.sorted(items, keys, given(p[0]))
	return NewList(out...), err
}

func filterDictsort(r *run, v any, a args) (any, error) {
	p, err := a.bind("dictsort", 0, "case_sensitive", "by", "reverse")
	if err != nil {
		return nil, err
	}
	d, ok := v.(*Dict)
	if !ok {
		return nil, failf("dictsort takes a mapping, not %s", typeName(v))
	}
	from := d.keys
	switch by := p[1].(type) {
	case absent:
	case string:
		if by == "value" {
			from = d.vals
		} else if by != "key" {
			return nil, failf("dictsort sorts by key or value")
		}
	default:
		return nil, failf("dictsort sorts by key or value")
	}
	keys := make([]any, d.Len())
	for i := range keys {
		if keys[i], err = r.folded(from[i], absent{}, given(p[0])); err != nil {
			return nil, err
		}
	}
	out, err := r.sorted(d.items().Items, keys, given(p[2]))
	return NewList(out...), err
}

func filterMax(r *run, v any, a args) (any, error) { return r.extreme("max", v, a, 1) }
func filterMin(r *run, v any, a args) (any, error) { return r.extreme("min", v, a, -1) }

func (r *run) extreme(who string, v any, a args, sign int) (any, error) {
	p, err := a.bind(who, 0, "case_sensitive", "attribute")
	if err != nil {
		return nil, err
	}
	items, err := r.items(v)
	if err != nil {
		return nil, err
	}
	var best, bestKey any = undefined{what: who + " of nothing"}, nil
	for i, item := range items {
		key, err := r.folded(item, p[1], given(p[0]))
		if err != nil {
			return nil, err
		}
		if i > 0 {
			c, err := r.order(key, bestKey, 0)
			if err != nil {
				return nil, err
			}
			if c*sign <= 0 {
				continue
			}
		}
		best, bestKey = item, key
	}
	return best, nil
}

func filterUnique(r *run, v any, a args) (any, error) {
	p, err := a.bind("unique", 0, "case_sensitive", "attribute")
	if err != nil {
		return nil, err
	}
	items, err := r.items(v)
	if err != nil {
		return nil, err
	}
	seen, out := NewDict(), new(generator)
	for _, item := range items {
		key, err := r.folded(item, p[1], given(p[0]))
		if err != nil {
			return nil, err
		}
		if _, twice := seen.get(key); twice {
			continue
		}
		if !seen.put(key, nil) {
			return nil, failf("unique cannot compare %s", typeName(key))
		}
		out.items = append(out.items, item)
	}
	return out, r.charge(32 * len(items))
}

func filterSum(r *run, v any, a args) (any, error) {
	p, err := a.bind("sum", 0, "attribute", "start")
	if err != nil {
		return nil, err
	}
	items, err := r.items(v)
	if err != nil {
		return nil, err
	}
	var total any = int64(0)
	if !isAbsent(p[1]) {
		total = p[1]
	}
	for _, item := range items {
		if !isAbsent(p[0]) && p[0] != nil {
			if item, err = r.path(item, p[0]); err != nil {
				return nil, err
			}
		}
		if total, err = r.binary("+", total, item); err != nil {
			return nil, err
		}
	}
	return total, nil
}
