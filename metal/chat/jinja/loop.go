package jinja

import "strings"

func (r statements) assign(t target, v any) error {
	if t.parts == nil && t.attr == "" {
		return r.bind(t.name, v)
	}
	if t.parts == nil {
		return r.assignMember(t, v)
	}
	items, err := r.items(v)
	if err != nil {
		return err
	}
	if len(items) != len(t.parts) {
		return failf("cannot unpack %d values into %d names", len(items), len(t.parts))
	}
	for i, part := range t.parts {
		if err := r.assign(part, items[i]); err != nil {
			return err
		}
	}
	return nil
}

func (r statements) assignMember(t target, v any) error {
	found, _, err := r.lookup(t.name)
	if err != nil {
		return err
	}
	ns, ok := found.(*namespace)
	if !ok {
		return failf("%s is %s; only attributes of a namespace can be set", t.name, typeName(found))
	}
	if strings.HasPrefix(t.attr, "_") {
		return failf("a namespace attribute cannot begin with _")
	}
	if err := r.charge(entryBytes + sizeOf(v)); err != nil {
		return err
	}
	ns.vars.Set(t.attr, v)
	return nil
}

// loopVar is the variable loop. It reads ahead only as far as it is asked to,
// since what a loop runs over may depend on what its body does.
type loopVar struct {
	next    iterator
	count   int64 // how many items there are; -1 before that is known
	index   int64 // of the current one
	depth   int64
	before  any
	current any
	ahead   []any // items read, but not yet looped over
	recurse func(items any) (string, error)
	changed *List
	scopes  int // that a condition or a recursive loop keeps
}

// forward goes to the next item.
func (l *loopVar) forward() (bool, error) {
	before := l.current
	if len(l.ahead) > 0 {
		l.current, l.ahead = l.ahead[0], l.ahead[1:]
	} else {
		item, ok, err := l.next()
		if err != nil || !ok {
			return false, err
		}
		l.current = item
	}
	l.before = before
	l.index++
	return true, nil
}

// peek returns the item after the current one.
func (l *loopVar) peek() (any, bool, error) {
	if len(l.ahead) == 0 {
		item, ok, err := l.next()
		if err != nil || !ok {
			return nil, false, err
		}
		l.ahead = append(l.ahead, item)
	}
	return l.ahead[0], true, nil
}

// length reads all items where that is needed to count them.
func (l *loopVar) length(r *values) (int64, error) {
	if l.count < 0 {
		items, err := r.rest(l.next)
		if err != nil {
			return 0, err
		}
		l.ahead = append(l.ahead, items...)
		l.count = l.index + 1 + int64(len(l.ahead))
	}
	return l.count, nil
}

func (r statements) loop(n *forNode) (flow, error) {
	v, err := r.eval(n.items)
	if err != nil {
		return flowOn, err
	}
	return r.loopOver(n, v, 0)
}

// loopOver runs a loop. The flow that it returns is that of the else branch,
// which belongs to the surrounding loop.
func (r statements) loopOver(n *forNode, v any, depth int64) (flow, error) {
	l, err := r.newLoop(n, v, depth)
	if err != nil {
		return flowOn, err
	}
	outer := r.scope
	defer func() { r.scope = outer }()
	finished := false // a round, up to its end
	for {
		if err := r.step(); err != nil {
			return flowOn, err
		}
		r.scope = outer
		ok, err := l.forward()
		if err != nil {
			return flowOn, err
		}
		if !ok {
			break
		}
		r.scope = &scope{parent: outer}
		r.scope.set("loop", l)
		if err := r.assign(n.target, l.current); err != nil {
			return flowOn, err
		}
		f, err := r.exec(n.body)
		if err != nil {
			return flowOn, err
		}
		if f == flowBreak {
			break
		}
		finished = finished || f == flowOn
	}
	if finished {
		return flowOn, nil
	}
	// As in the reference, also where break or continue cut every round.
	r.scope = &scope{parent: outer}
	return r.exec(n.otherwise)
}

func (r statements) newLoop(n *forNode, v any, depth int64) (*loopVar, error) {
	next, err := r.iterate(v)
	if err != nil {
		return nil, err
	}
	outer := r.scope
	l := &loopVar{next: next, count: -1, index: -1, depth: depth}
	if n.filter != nil || n.recursive {
		l.scopes = outer.depth()
	}
	if n.filter != nil {
		l.next = r.picked(n, next)
	} else if _, lazy := v.(*generator); !lazy {
		if l.count, err = r.length(v); err != nil {
			return nil, err
		}
	}
	if n.recursive {
		l.recurse = func(v any) (string, error) {
			return r.captured(outer, nil, func() error {
				_, err := r.loopOver(n, v, depth+1)
				return err
			})
		}
	}
	return l, nil
}

// picked keeps the items that a loop's condition takes, when they are asked
// for.
func (r statements) picked(n *forNode, next iterator) iterator {
	home := r.scope
	return func() (any, bool, error) {
		outer := r.scope
		defer func() { r.scope = outer }()
		for {
			item, ok, err := next()
			if err != nil || !ok {
				return nil, false, err
			}
			if err := r.step(); err != nil {
				return nil, false, err
			}
			r.scope = &scope{parent: home}
			if err := r.assign(n.target, item); err != nil {
				return nil, false, err
			}
			yes, err := r.eval(n.filter)
			if err != nil {
				return nil, false, err
			}
			if truth(yes) {
				return item, true, nil
			}
		}
	}
}

// loopFigure is an attribute of loop.
func (r *run) loopFigure(l *loopVar, name string) (out any, found bool, err error) {
	switch name {
	case "index":
		return l.index + 1, true, nil
	case "index0":
		return l.index, true, nil
	case "first":
		return l.index == 0, true, nil
	case "depth":
		return l.depth + 1, true, nil
	case "depth0":
		return l.depth, true, nil
	case "previtem":
		if l.index == 0 {
			return undefined{what: "there is no previous item"}, true, nil
		}
		return l.before, true, nil
	case "revindex", "revindex0", "length":
		n, err := l.length(&r.values)
		return map[string]int64{"revindex": n - l.index, "revindex0": n - l.index - 1, "length": n}[name], true, err
	case "last", "nextitem":
		next, ok, err := l.peek()
		if name == "last" {
			return !ok, true, err
		}
		if !ok {
			next = undefined{what: "there is no next item"}
		}
		return next, true, err
	case "cycle":
		return &function{name: "loop.cycle", call: l.cycle}, true, nil
	case "changed":
		return &function{name: "loop.changed", call: l.isChanged}, true, nil
	}
	return nil, false, nil
}

func (l *loopVar) cycle(_ *run, a args) (any, error) {
	if len(a.pos) == 0 || len(a.names) > 0 {
		return nil, failf("loop.cycle requires the values to cycle through")
	}
	return a.pos[l.index%int64(len(a.pos))], nil
}

func (l *loopVar) isChanged(r *run, a args) (any, error) {
	if len(a.names) > 0 {
		return nil, failf("loop.changed does not accept named arguments")
	}
	now := &List{Items: a.pos, Tuple: true}
	if l.changed != nil {
		same, err := r.equal(l.changed, now, 0)
		if err != nil || same {
			return false, err
		}
	}
	l.changed = now
	return true, nil
}
