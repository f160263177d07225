package jinja

import (
	"slices"
	"strings"
)

func (r *run) eval(e expr) (any, error) {
	if err := r.step(); err != nil {
		return nil, err
	}
	// A long chain nests to the left in the tree, not in the source.
	if err := r.nest(1); err != nil {
		return nil, err
	}
	v, err := r.evalExpr(e)
	r.nested--
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
		v, _, err := r.lookup(capturedName)
		return v, err
	case *nameExpr:
		if v, ok, err := r.lookup(e.name); ok || err != nil {
			return v, err
		}
		return undefined{name: e.name}, nil
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
	if err := r.charge(itemBytes * len(exprs)); err != nil {
		return nil, err
	}
	items := make([]any, 0, len(exprs))
	for _, e := range exprs {
		v, err := r.eval(e)
		if err != nil {
			return nil, err
		}
		if err := r.keep(v); err != nil {
			return nil, err
		}
		items = append(items, v)
	}
	return items, nil
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
		if err := r.putIn(d, k, v); err != nil {
			return nil, err
		}
	}
	return d, nil
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
	if i := integer(v); i != nil {
		return small(i), nil
	}
	if _, ok := v.(float64); !ok {
		return nil, failf("+ does not work on %s", typeName(v))
	}
	return v, nil
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
		return undefined{what: "the value of an if expression without else"}, nil
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
		return nil, failf("%s is undefined and has no members", u)
	}
	v, found, err := r.member(of, key)
	if err != nil || found {
		return v, err
	}
	what, err := r.text(key)
	return undefined{"member ", what}, err
}

// member is v[key]: an item, or else an attribute. What the sandbox hides is
// found, and undefined.
func (r *run) member(v, key any) (out any, found bool, err error) {
	if out, found, err = r.item(v, key); err != nil || found {
		return out, found, err
	}
	if name, ok := plain(key).(string); ok {
		return r.attributes(v, name)
	}
	return nil, false, nil
}

// attribute is v.name: an attribute, or else an item.
func (r *run) attribute(v any, name string) (any, error) {
	if u, ok := v.(undefined); ok && !hidden(v, name) {
		return nil, failf("%s is undefined and has no attribute %q", u, cut(name))
	}
	out, found, err := r.attributes(v, name)
	if err != nil || found {
		return out, err
	}
	if out, found, err = r.item(v, name); err != nil || found {
		return out, err
	}
	return undefined{"attribute ", name}, nil
}

// attributes finds what v has by itself: methods, the names in a namespace,
// the figures of a loop. What would change v or lead out of the sandbox is
// there, but undefined.
func (r *run) attributes(v any, name string) (any, bool, error) {
	switch v := v.(type) {
	case *namespace:
		if out, found := v.vars.find(name); found {
			return out, true, nil
		}
	case *loopVar:
		if out, found, err := r.loopFigure(v, name); found || err != nil {
			return out, found, err
		}
	case *function:
		if v.members != nil {
			if out, found := v.members(name); found {
				l, _ := out.(*List)
				if l == nil {
					return out, true, nil
				}
				return out, true, r.charge(textBytes * len(l.Items))
			}
		}
	}
	if hidden(v, name) {
		return undefined{"unsafe access to ", name}, true, nil
	}
	if m, ok := method(v, name); ok {
		return m, true, nil
	}
	return nil, false, nil
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
		if err := r.charge(2 * itemBytes * len(items)); err != nil {
			return out, err
		}
		out.pos = append(out.pos, items...)
	}
	if len(a.named) > 0 {
		if out.named, err = r.evalAll(a.named); err != nil {
			return out, err
		}
		if err := r.charge(itemBytes * len(a.names)); err != nil {
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
			return out, failf("** requires a dict, not %s", typeName(v))
		}
		if err := r.charge(4 * itemBytes * d.Len()); err != nil {
			return out, err
		}
		for i, k := range d.keys {
			name, ok := plain(k).(string)
			if !ok {
				return out, failf("** requires string keys, not %s", typeName(k))
			}
			if slices.Contains(a.names, name) {
				return out, failf("the argument %q is given twice", cut(name))
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
			return nil, failf("loop() is called in a loop that is not recursive")
		}
		p, err := a.bind("loop", 1, "iterable")
		if err != nil {
			return nil, err
		}
		return f.recurse(p[0])
	}
	return nil, failf("%s is not callable", typeName(of))
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
	f, ok := r.template.filters[name]
	if !ok {
		return nil, failf("%s", noFilter(name))
	}
	out, err := f(r, v, a)
	if _, lazy := out.(*generator); lazy && err == nil {
		err = r.charge(generatorBytes)
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
	return runTest(r, e.name, v, a)
}
