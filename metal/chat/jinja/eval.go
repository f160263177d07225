package jinja

import "strings"

func (r *run) eval(e expr) (any, error) {
	if err := r.step(); err != nil {
		return nil, err
	}
	v, err := r.evalExpr(e)
	if err != nil {
		return nil, atLine(err, e.at())
	}
	return v, nil
}

func (r *run) evalExpr(e expr) (any, error) {
	switch e := e.(type) {
	case *constExpr:
		return e.value, nil
	case *captureExpr:
		v, _ := r.scope.find(captured)
		return v, nil
	case *nameExpr:
		if v, ok := r.scope.find(e.name); ok {
			return v, nil
		}
		return undefined{what: e.name}, nil
	case *listExpr:
		items, err := r.evalAll(e.items)
		return &List{Items: items, Tuple: e.tuple}, err
	case *dictExpr:
		return r.evalDict(e)
	case *unaryExpr:
		return r.evalUnary(e)
	case *binaryExpr:
		return r.evalBinary(e)
	case *concatExpr:
		return r.evalConcat(e)
	case *compareExpr:
		return r.evalCompare(e)
	case *condExpr:
		return r.evalCond(e)
	case *attrExpr:
		of, err := r.eval(e.of)
		if err != nil {
			return nil, err
		}
		return r.attribute(of, e.name)
	case *itemExpr:
		return r.evalItem(e)
	case *sliceExpr:
		return r.evalSlice(e)
	case *callExpr:
		of, err := r.eval(e.of)
		if err != nil {
			return nil, err
		}
		a, err := r.args(e.arguments)
		if err != nil {
			return nil, err
		}
		return r.call(of, a)
	case *filterExpr:
		return r.evalFilter(e)
	case *testExpr:
		return r.evalTest(e)
	}
	return nil, failf("unknown expression %T", e)
}

func (r *run) evalAll(exprs []expr) ([]any, error) {
	items := make([]any, 0, len(exprs))
	for _, e := range exprs {
		v, err := r.eval(e)
		if err != nil {
			return nil, err
		}
		items = append(items, v)
	}
	return items, r.charge(16 * len(items))
}

func (r *run) evalDict(e *dictExpr) (any, error) {
	d := NewDict()
	for i := range e.keys {
		k, err := r.eval(e.keys[i])
		if err != nil {
			return nil, err
		}
		v, err := r.eval(e.values[i])
		if err != nil {
			return nil, err
		}
		if !d.put(k, v) {
			return nil, failf("%s cannot be a key", typeName(k))
		}
	}
	return d, r.charge(64 * d.Len())
}

func (r *run) evalUnary(e *unaryExpr) (any, error) {
	v, err := r.eval(e.of)
	if err != nil {
		return nil, err
	}
	switch e.op {
	case "not":
		return !truth(v), nil
	case "-":
		return negate(v)
	}
	i, f, isInt, ok := number(v)
	if !ok {
		return nil, failf("+ does not work on %s", typeName(v))
	}
	if isInt {
		return i, nil
	}
	return f, nil
}

func (r *run) evalBinary(e *binaryExpr) (any, error) {
	left, err := r.eval(e.left)
	if err != nil {
		return nil, err
	}
	if (e.op == "and" && !truth(left)) || (e.op == "or" && truth(left)) {
		return left, nil
	}
	right, err := r.eval(e.right)
	if err != nil {
		return nil, err
	}
	if e.op == "and" || e.op == "or" {
		return right, nil
	}
	return r.binary(e.op, left, right)
}

func (r *run) evalConcat(e *concatExpr) (any, error) {
	var b strings.Builder
	for _, part := range e.parts {
		v, err := r.eval(part)
		if err != nil {
			return nil, err
		}
		s, err := r.text(v)
		if err != nil {
			return nil, err
		}
		if err := r.charge(len(s)); err != nil {
			return nil, err
		}
		b.WriteString(s)
	}
	return b.String(), nil
}

func (r *run) evalCompare(e *compareExpr) (any, error) {
	left, err := r.eval(e.first)
	if err != nil {
		return nil, err
	}
	for i, op := range e.ops {
		right, err := r.eval(e.rest[i])
		if err != nil {
			return nil, err
		}
		if yes, err := r.compare(op, left, right); err != nil || !yes {
			return false, err
		}
		left = right
	}
	return true, nil
}

func (r *run) evalCond(e *condExpr) (any, error) {
	test, err := r.eval(e.test)
	if err != nil {
		return nil, err
	}
	if truth(test) {
		return r.eval(e.then)
	}
	if e.otherwise == nil {
		return undefined{what: "the value of an if without else"}, nil
	}
	return r.eval(e.otherwise)
}

func (r *run) evalItem(e *itemExpr) (any, error) {
	of, err := r.eval(e.of)
	if err != nil {
		return nil, err
	}
	key, err := r.eval(e.key)
	if err != nil {
		return nil, err
	}
	if u, ok := of.(undefined); ok {
		return nil, failf("%s is undefined and has no members", u.what)
	}
	v, found, err := r.item(of, key)
	if err != nil || found {
		return v, err
	}
	if name, ok := plain(key).(string); ok {
		if v, found := attributes(of, name); found {
			return v, nil
		}
	}
	what, err := r.text(key)
	return undefined{what: "member " + cut(what)}, err
}

// attribute is v.name: an attribute, or else an item.
func (r *run) attribute(v any, name string) (any, error) {
	if u, ok := v.(undefined); ok {
		return nil, failf("%s is undefined and has no attribute %q", u.what, name)
	}
	if out, found := attributes(v, name); found {
		return out, nil
	}
	out, found, err := r.item(v, name)
	if err != nil || found {
		return out, err
	}
	return undefined{what: "attribute " + name}, nil
}

// attributes finds what v has by itself: methods, the names in a namespace,
// the figures of a loop.
func attributes(v any, name string) (any, bool) {
	switch v := v.(type) {
	case *namespace:
		return v.vars.get(name)
	case *loopVar:
		return v.attribute(name)
	}
	if m, ok := method(v, name); ok {
		return m, true
	}
	return nil, false
}

func (r *run) evalSlice(e *sliceExpr) (any, error) {
	of, err := r.eval(e.of)
	if err != nil {
		return nil, err
	}
	var bounds [3]any
	for i, b := range []expr{e.from, e.to, e.stride} {
		if b == nil {
			continue
		}
		if bounds[i], err = r.eval(b); err != nil {
			return nil, err
		}
	}
	return r.slice(of, bounds[0], bounds[1], bounds[2])
}

func (r *run) args(a arguments) (args, error) {
	var out args
	var err error
	if len(a.positional) > 0 {
		if out.pos, err = r.evalAll(a.positional); err != nil {
			return out, err
		}
	}
	if a.spread != nil {
		v, err := r.eval(a.spread)
		if err != nil {
			return out, err
		}
		items, err := r.items(v)
		if err != nil {
			return out, err
		}
		out.pos = append(out.pos, items...)
	}
	if len(a.named) > 0 {
		if out.named, err = r.evalAll(a.named); err != nil {
			return out, err
		}
		out.names = append(out.names, a.names...)
	}
	if a.spreadKw != nil {
		v, err := r.eval(a.spreadKw)
		if err != nil {
			return out, err
		}
		d, ok := v.(*Dict)
		if !ok {
			return out, failf("** takes a dict, not %s", typeName(v))
		}
		for i, k := range d.keys {
			name, ok := k.(string)
			if !ok {
				return out, failf("** takes names, not %s", typeName(k))
			}
			out.names, out.named = append(out.names, name), append(out.named, d.vals[i])
		}
	}
	return out, nil
}

func (r *run) call(of any, a args) (any, error) {
	if err := r.enter(); err != nil {
		return nil, err
	}
	defer r.leave()
	switch f := of.(type) {
	case *function:
		return f.call(r, a)
	case *loopVar:
		if f.recurse == nil {
			return nil, failf("loop is called in a loop that is not recursive")
		}
		p, err := a.bind("loop", 1, "iterable")
		if err != nil {
			return nil, err
		}
		return f.recurse(p[0])
	}
	return nil, failf("%s cannot be called", typeName(of))
}

func (r *run) evalFilter(e *filterExpr) (any, error) {
	v, err := r.eval(e.of)
	if err != nil {
		return nil, err
	}
	a, err := r.args(e.arguments)
	if err != nil {
		return nil, err
	}
	return r.filter(e.name, v, a)
}

func (r *run) filter(name string, v any, a args) (any, error) {
	f, ok := r.filters[name]
	if !ok {
		return nil, failf("there is no filter %q", cut(name))
	}
	out, err := f(r, plain(v), a)
	if s, ok := out.(string); ok {
		_, safe := v.(markup)
		switch name {
		case "safe":
			return markup(s), err
		case "escape", "e":
			if safe {
				return v, err
			}
			return markup(s), err
		case "trim", "upper", "lower", "title", "capitalize", "string", "default", "d", "indent":
			if safe {
				return markup(s), err
			}
		}
	}
	return out, err
}

func (r *run) evalTest(e *testExpr) (any, error) {
	v, err := r.eval(e.of)
	if err != nil {
		return nil, err
	}
	a, err := r.args(e.arguments)
	if err != nil {
		return nil, err
	}
	return r.test(e.name, v, a)
}

func (l *loopVar) attribute(name string) (any, bool) {
	n, i := int64(len(l.items)), int64(l.index)
	switch name {
	case "index":
		return i + 1, true
	case "index0":
		return i, true
	case "revindex":
		return n - i, true
	case "revindex0":
		return n - i - 1, true
	case "first":
		return i == 0, true
	case "last":
		return i == n-1, true
	case "length":
		return n, true
	case "depth":
		return int64(l.depth) + 1, true
	case "depth0":
		return int64(l.depth), true
	case "previtem":
		if i == 0 {
			return undefined{what: "there is no previous item"}, true
		}
		return l.items[i-1], true
	case "nextitem":
		if i == n-1 {
			return undefined{what: "there is no next item"}, true
		}
		return l.items[i+1], true
	case "cycle":
		return &function{name: "loop.cycle", call: func(_ *run, a args) (any, error) {
			if len(a.pos) == 0 {
				return nil, failf("loop.cycle needs an argument")
			}
			return a.pos[l.index%len(a.pos)], nil
		}}, true
	case "changed":
		return &function{name: "loop.changed", call: func(r *run, a args) (any, error) {
			now := &List{Items: a.pos, Tuple: true}
			if l.changed != nil {
				same, err := r.equal(l.changed, now, 0)
				if err != nil || same {
					return false, err
				}
			}
			l.changed = now
			return true, nil
		}}, true
	}
	return nil, false
}
