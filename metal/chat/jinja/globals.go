package jinja

import (
	"strings"

	"metalfleet.dev/metalfleet/metal/excerpt"
)

// globals are the functions that every template sees.
func globals() map[string]any {
	out := map[string]any{}
	for name, call := range map[string]func(*run, args) (any, error){
		"range": rangeOf, "namespace": newNamespace, "raise_exception": raise, "strftime_now": strftimeNow, "cycler": cycler, "joiner": joiner,
		"lipsum": func(*run, args) (any, error) {
			return nil, failf("lipsum is not supported: rendering a conversation must be deterministic")
		},
	} {
		out[name] = &function{name: name, call: call}
	}
	out["dict"] = &function{name: "dict", call: newDict, members: func(name string) (any, bool) {
		if name != "fromkeys" {
			return nil, false
		}
		return &function{name: "dict.fromkeys", call: fromKeys}, true
	}}
	return out
}

// Functions returns what reports whether every template sees a function of a name.
func Functions() func(name string) bool {
	all := globals()
	return func(name string) bool { return all[name] != nil }
}

func rangeOf(r *run, a args) (any, error) {
	bounds := []int64{0, 0, 1}
	if len(a.pos) == 0 || len(a.pos) > 3 || len(a.names) > 0 {
		return nil, failf("range requires one to three integers")
	}
	for i, v := range a.pos {
		n, _, isInt, ok := number(v)
		if !ok || !isInt {
			return nil, failf("range requires integers, not %s", typeName(v))
		}
		bounds[i] = n
	}
	if len(a.pos) == 1 {
		bounds[0], bounds[1] = 0, bounds[0]
	}
	if bounds[2] == 0 {
		return nil, failf("the step of range must not be 0")
	}
	n := &numbers{from: bounds[0], until: bounds[1], by: bounds[2], count: steps(bounds[0], bounds[1], bounds[2])}
	if n.count > maxRange {
		return nil, limitf(BoundRange, "range produces more than %d numbers", maxRange)
	}
	return n, nil
}

// maxRange is the bound of jinja2's sandbox.
const maxRange = 100_000

// dictOf merges a mapping or pairs, and named arguments.
func (r *run) dictOf(who string, a args) (*Dict, error) {
	if len(a.pos) > 1 {
		return nil, failf("%s accepts one positional argument, and named ones", who)
	}
	d := NewDict()
	for _, v := range a.pos {
		if from, ok := v.(*Dict); ok {
			for i, k := range from.keys {
				if err := r.putIn(d, k, from.vals[i]); err != nil {
					return nil, err
				}
			}
			continue
		}
		if u, ok := v.(undefined); ok {
			return nil, failf("%s is undefined and has no keys", u)
		}
		items, err := r.items(v)
		if err != nil {
			return nil, err
		}
		for _, item := range items {
			pair, err := r.items(item)
			if err != nil {
				return nil, err
			}
			if len(pair) != 2 {
				return nil, failf("%s requires pairs, not %d values", who, len(pair))
			}
			if err := r.putIn(d, pair[0], pair[1]); err != nil {
				return nil, err
			}
		}
	}
	for i, name := range a.names {
		if err := r.putIn(d, name, a.named[i]); err != nil {
			return nil, err
		}
	}
	return d, r.keep(d)
}

func newDict(r *run, a args) (any, error) {
	d, err := r.dictOf("dict", a)
	return d, err
}

// fromKeys is dict.fromkeys.
func fromKeys(r *run, a args) (any, error) {
	p, err := a.only("dict.fromkeys", 1, "iterable", "value")
	if err != nil {
		return nil, err
	}
	keys, err := r.items(p[0])
	if err != nil {
		return nil, err
	}
	d := NewDict()
	for _, k := range keys {
		if err := r.putIn(d, k, orNil(p[1])); err != nil {
			return nil, err
		}
	}
	return d, nil
}

func newNamespace(r *run, a args) (any, error) {
	d, err := r.dictOf("namespace", a)
	if err != nil {
		return nil, err
	}
	for _, k := range d.keys {
		if name, ok := plain(k).(string); ok && strings.HasPrefix(name, "_") {
			return nil, failf("a namespace attribute cannot begin with _")
		}
	}
	return &namespace{d}, nil
}

func raise(r *run, a args) (any, error) {
	p, err := a.bind("raise_exception", 1, "message")
	if err != nil {
		return nil, err
	}
	message, err := r.text(p[0])
	if err != nil {
		return nil, err
	}
	return nil, &Error{Kind: ErrRaised, Message: excerpt.Message(message)}
}

// cycler iterates over its arguments again and again.
func cycler(r *run, a args) (any, error) {
	if len(a.pos) == 0 || len(a.names) > 0 {
		return nil, failf("cycler requires the values to cycle through")
	}
	if err := r.charge(4 * functionBytes); err != nil {
		return nil, err
	}
	at := int64(0)
	nothing := func(call func() any) func(*run, args) (any, error) {
		return func(_ *run, a args) (any, error) {
			_, err := a.bind("a cycler", 0)
			return call(), err
		}
	}
	next := &function{name: "cycler.next", call: nothing(func() any {
		v := a.pos[at]
		at = (at + 1) % int64(len(a.pos))
		return v
	})}
	reset := &function{name: "cycler.reset", call: nothing(func() any { at = 0; return nil })}
	// It cannot be called, but has members as functions have.
	return &function{name: "cycler", call: func(*run, args) (any, error) { return nil, failf("a cycler is not callable") }, members: func(name string) (any, bool) {
		switch name {
		case "next", "__next__":
			return next, name == "next"
		case "reset":
			return reset, true
		case "current":
			return a.pos[at], true
		case "pos":
			return at, true
		case "items":
			return &List{Items: a.pos, Tuple: true}, true
		}
		return nil, false
	}}, nil
}

// joiner is empty at its first call, and a separator then.
func joiner(r *run, a args) (any, error) {
	p, err := a.bind("joiner", 0, "sep")
	if err != nil {
		return nil, err
	}
	if err := r.charge(2 * functionBytes); err != nil {
		return nil, err
	}
	var sep any = ", "
	if !isAbsent(p[0]) {
		sep = p[0]
	}
	used := false
	return &function{name: "joiner", call: func(_ *run, a args) (any, error) {
		if _, err := a.bind("a joiner", 0); err != nil || !used {
			used = true
			return "", err
		}
		return sep, nil
	}, members: func(name string) (any, bool) {
		switch name {
		case "sep":
			return sep, true
		case "used":
			return used, true
		}
		return nil, false
	}}, nil
}
