package jinja

import (
	"strings"
)

// Filters over sequences. Those that are lazy in the reference do their work
// when their result is looped over.

// attributePath follows "a.b.0" through attributes and items; a number is an index.
func attributePath(r *run, v, attribute any) (any, error) {
	return attributePathOr(r, v, attribute, nil)
}

// attributePathOr puts a default, unless it is nil, wherever a member is missing.
func attributePathOr(r *run, v, attribute, otherwise any) (any, error) {
	parts := []any{attribute}
	switch name := plain(attribute).(type) {
	case nil:
		return v, nil
	case string:
		if err := r.scan(64 * len(name)); err != nil { // an index may be of many digits
			return nil, err
		}
		if err := r.chargeTimes(textBytes, int64(strings.Count(name, "."))); err != nil {
			return nil, err
		}
		parts = parts[:0]
		for part := range strings.SplitSeq(name, ".") {
			if all(part, isDigit) {
				i, ok := parseInt(part, 10)
				if !ok {
					return nil, failf("invalid index %q", cut(part))
				}
				parts = append(parts, i)
			} else {
				parts = append(parts, part)
			}
		}
	}
	for _, part := range parts {
		if err := r.step(); err != nil {
			return nil, err
		}
		if u, ok := v.(undefined); ok {
			return nil, failf("%s is undefined and has no members", u)
		}
		// Filters look at items first.
		out, found, err := r.member(v, part)
		if err != nil {
			return nil, err
		}
		if !found {
			what, err := r.text(part)
			if err != nil {
				return nil, err
			}
			out = undefined{"member ", what}
		}
		if _, missing := out.(undefined); missing && otherwise != nil {
			out = otherwise
		}
		v = out
	}
	return v, nil
}

// lazily makes a generator whose iterator is made when it is first asked. What
// is false is empty.
func lazily(r *run, v any, start func(from iterator) (iterator, error)) *generator {
	var next iterator
	return r.generate(func() (any, bool, error) {
		if next == nil {
			if !truth(v) {
				return nil, false, nil
			}
			from, err := r.iterate(v)
			if err != nil {
				return nil, false, err
			}
			if next, err = start(from); err != nil {
				return nil, false, err
			}
		}
		if err := r.step(); err != nil {
			return nil, false, err
		}
		return next()
	})
}

func filterMap(r *run, v any, a args) (any, error) {
	return lazily(r, v, func(from iterator) (iterator, error) {
		each, err := mapper(r, a)
		if err != nil {
			return nil, err
		}
		return func() (any, bool, error) {
			item, ok, err := from()
			if err != nil || !ok {
				return nil, false, err
			}
			out, err := each(item)
			return out, true, err
		}, nil
	}), nil
}

// mapper is what map does to each item: take an attribute, or apply a filter.
func mapper(r *run, a args) (func(any) (any, error), error) {
	if len(a.pos) == 0 {
		p, err := a.bind("map", 1, "attribute", "default")
		if err != nil {
			return nil, err
		}
		return func(item any) (any, error) { return attributePathOr(r, item, p[0], orNil(p[1])) }, nil
	}
	name, ok := plain(a.pos[0]).(string)
	if !ok {
		return nil, failf("map requires the name of a filter, not %s", typeName(a.pos[0]))
	}
	rest := args{pos: a.pos[1:], names: a.names, named: a.named}
	return func(item any) (any, error) { return r.filter(name, item, rest) }, nil
}

func filterSelect(r *run, v any, a args) (any, error)     { return choose(r, v, a, false, true) }
func filterReject(r *run, v any, a args) (any, error)     { return choose(r, v, a, false, false) }
func filterSelectAttr(r *run, v any, a args) (any, error) { return choose(r, v, a, true, true) }
func filterRejectAttr(r *run, v any, a args) (any, error) { return choose(r, v, a, true, false) }

// choose keeps the items (or, by attribute, those whose attribute) that a test
// answers with want; without a test it is truth.
func choose(r *run, v any, a args, byAttribute, want bool) (any, error) {
	return lazily(r, v, func(from iterator) (iterator, error) {
		yes, err := chooser(r, a, byAttribute)
		if err != nil {
			return nil, err
		}
		return func() (any, bool, error) {
			for {
				item, ok, err := from()
				if err != nil || !ok {
					return nil, false, err
				}
				if err := r.step(); err != nil {
					return nil, false, err
				}
				is, err := yes(item)
				if err != nil || is == want {
					return item, true, err
				}
			}
		}, nil
	}), nil
}

// chooser answers for one item.
func chooser(r *run, a args, byAttribute bool) (func(item any) (bool, error), error) {
	pos := a.pos
	var attribute any
	if byAttribute {
		if len(pos) == 0 {
			return nil, failf("the filter requires an attribute")
		}
		attribute, pos = pos[0], pos[1:]
	}
	test := func(v any) (bool, error) { return truth(v), nil }
	if len(pos) > 0 {
		name, ok := plain(pos[0]).(string)
		if !ok {
			return nil, failf("the filter requires the name of a test, not %s", typeName(pos[0]))
		}
		rest := args{pos: pos[1:], names: a.names, named: a.named}
		test = func(v any) (bool, error) { return runTest(r, name, v, rest) }
	}
	return func(item any) (bool, error) {
		if byAttribute {
			var err error
			if item, err = attributePath(r, item, attribute); err != nil {
				return false, err
			}
		}
		return test(item)
	}, nil
}

func filterFirst(r *run, v any, a args) (any, error) {
	if _, err := a.bind("first", 0); err != nil {
		return nil, err
	}
	next, err := r.iterate(v)
	if err != nil {
		return nil, err
	}
	return firstOf(next)
}

func filterLast(r *run, v any, a args) (any, error) {
	if _, err := a.bind("last", 0); err != nil {
		return nil, err
	}
	next, err := r.backwards(v)
	if err != nil {
		return nil, err
	}
	return firstOf(next)
}

func firstOf(next iterator) (any, error) {
	v, ok, err := next()
	if err == nil && !ok {
		return undefined{what: "the end of an empty sequence"}, nil
	}
	return v, err
}

func filterReverse(r *run, v any, a args) (any, error) {
	if _, err := a.bind("reverse", 0); err != nil {
		return nil, err
	}
	if s, ok := plain(v).(string); ok {
		var b strings.Builder
		next, err := r.backwards(s)
		for err == nil {
			var c any
			var more bool
			if c, more, err = next(); !more {
				break
			}
			text, _ := c.(string)
			b.WriteString(text)
		}
		return like(v, b.String()), err
	}
	if g, lazy := v.(*generator); lazy {
		items, err := r.rest(g.next)
		if err != nil {
			return nil, err
		}
		for i, j := 0, len(items)-1; i < j; i, j = i+1, j-1 {
			items[i], items[j] = items[j], items[i]
		}
		return NewList(items...), nil
	}
	next, err := r.backwards(v)
	if err != nil {
		return nil, err
	}
	return r.generate(next), nil
}

func filterItems(r *run, v any, a args) (any, error) {
	if _, err := a.bind("items", 0); err != nil {
		return nil, err
	}
	switch d := v.(type) {
	case undefined:
		return r.generate(listed(nil)), nil
	case *Dict:
		if err := r.charge(pairBytes * d.Len()); err != nil {
			return nil, err
		}
		return r.generate(listed(d.items().Items)), nil
	}
	return r.generate(func() (any, bool, error) { return nil, false, failf("items requires a mapping, not %s", typeName(v)) }), nil
}

func filterJoin(r *run, v any, a args) (any, error) {
	p, err := a.bind("join", 0, "d", "attribute")
	if err != nil {
		return nil, err
	}
	next, err := r.iterate(v)
	if err != nil {
		return nil, err
	}
	sep := ""
	if !isAbsent(p[0]) {
		if sep, err = r.text(p[0]); err != nil {
			return nil, err
		}
	}
	var parts []string
	for {
		item, ok, err := next()
		if err != nil {
			return nil, err
		}
		if !ok {
			out, err := r.join(parts, sep)
			return out, err
		}
		if item, err = attributePath(r, item, orNil(p[1])); err != nil {
			return nil, err
		}
		text, err := r.text(item)
		if err != nil {
			return nil, err
		}
		if err := r.charge(textBytes); err != nil {
			return nil, err
		}
		parts = append(parts, text)
	}
}

func filterList(r *run, v any, a args) (any, error) {
	if _, err := a.bind("list", 0); err != nil {
		return nil, err
	}
	next, err := r.iterate(v)
	if err != nil {
		return nil, err
	}
	items, err := r.rest(next)
	return NewList(items...), err
}

func filterSum(r *run, v any, a args) (any, error) {
	p, err := a.bind("sum", 0, "attribute", "start")
	if err != nil {
		return nil, err
	}
	next, err := r.iterate(v)
	if err != nil {
		return nil, err
	}
	var total any = int64(0)
	if !isAbsent(p[1]) {
		total = p[1]
	}
	if _, text := total.(string); text {
		return nil, failf("sum cannot add strings; use join")
	}
	for {
		item, ok, err := next()
		if err != nil || !ok {
			return total, err
		}
		if err := r.step(); err != nil {
			return nil, err
		}
		if item, err = attributePath(r, item, orNil(p[0])); err != nil {
			return nil, err
		}
		if total, err = r.binary("+", total, item); err != nil {
			return nil, err
		}
	}
}
