package jinja

import (
	"slices"
)

// macro makes a function of a body; it sees the scope that it is written in.
// The caller of a call block has no name.
func (r statements) macro(name string, s signature, body []node) (*function, error) {
	if err := r.charge(macroBytes); err != nil {
		return nil, err
	}
	home := r.scope
	if err := r.hold(home); err != nil {
		return nil, err
	}
	f := &function{name: name, macro: true, members: func(member string) (any, bool) { return s.member(name, member) }}
	f.call = func(r *run, a args) (any, error) {
		vars, err := statements{r}.parameters(name, s, a, home)
		if err != nil {
			return nil, err
		}
		return statements{r}.capture(home, vars, body)
	}
	return f, nil
}

// macroBytes is what a macro takes.
const macroBytes = 512

// member is what templates may read of a macro.
func (s signature) member(macro, name string) (any, bool) {
	switch name {
	case "name":
		if macro == "" {
			return nil, true
		}
		return macro, true
	case "arguments":
		l := &List{Tuple: true}
		for _, p := range s.params {
			l.Items = append(l.Items, p)
		}
		return l, true
	case "catch_kwargs":
		return s.usesKwargs, true
	case "catch_varargs":
		return s.usesVarargs, true
	case "caller":
		return s.usesCaller, true
	case "explicit_caller":
		return slices.Contains(s.params, "caller"), true
	}
	return nil, false
}

// parameters gives the arguments of a call their names in the macro.
func (r statements) parameters(name string, s signature, a args, home *scope) (map[string]any, error) {
	entries := max(len(a.pos), len(s.params)) + len(a.names)
	if s.usesKwargs {
		entries += len(a.names)
	}
	if err := r.charge(entryBytes * entries); err != nil {
		return nil, err
	}
	vars := map[string]any{}
	more := NewDict()
	for i, n := range a.names {
		more.Set(n, a.named[i])
	}
	taken := 0
	for i, p := range s.params {
		if i < len(a.pos) {
			vars[p] = a.pos[i]
		} else if v, found := more.find(p); found {
			vars[p] = v
			taken++
		}
	}
	if s.usesCaller && !slices.Contains(s.params, "caller") {
		vars["caller"] = undefined{name: "caller"}
		if v, found := more.find("caller"); found {
			taken++
			if v != nil {
				vars["caller"] = v
			}
		}
	}
	if s.usesVarargs {
		rest := a.pos[min(len(a.pos), len(s.params)):]
		vars["varargs"] = &List{Items: slices.Clone(rest), Tuple: true}
	} else if len(a.pos) > len(s.params) {
		return nil, failf("%s accepts %d arguments, not %d", name, len(s.params), len(a.pos))
	}
	if s.usesKwargs {
		vars["kwargs"] = s.others(more, len(a.pos))
	} else if more.Len() > taken {
		return nil, failf("%s has no argument named %s", name, s.surplus(more, len(a.pos)))
	}
	return vars, r.defaults(s, vars, home)
}

// others are the named arguments that no parameter took; positional ones took
// the first parameters.
func (s signature) others(named *Dict, positional int) *Dict {
	out := NewDict()
	named.Each(func(name string, v any) {
		if !slices.Contains(s.params[min(positional, len(s.params)):], name) && (name != "caller" || !s.usesCaller) {
			out.Set(name, v)
		}
	})
	return out
}

func (s signature) surplus(named *Dict, positional int) string {
	for _, k := range s.others(named, positional).keys {
		if name, ok := k.(string); ok {
			return cut(name)
		}
	}
	return "caller"
}

// defaults fills the parameters that were not given.
func (r statements) defaults(s signature, vars map[string]any, home *scope) error {
	outer := r.scope
	r.scope = &scope{vars: vars, parent: home}
	defer func() { r.scope = outer }()
	// A default sees later parameters too, but not yet their defaults.
	var missing []int
	for i, p := range s.params {
		if _, ok := vars[p]; !ok {
			vars[p] = undefined{"parameter ", p}
			missing = append(missing, i)
		}
	}
	for _, i := range missing {
		d := i - (len(s.params) - len(s.defaults))
		if d < 0 {
			continue
		}
		v, err := r.eval(s.defaults[d])
		if err != nil {
			return err
		}
		vars[s.params[i]] = v
	}
	return nil
}

func (r statements) callBlock(n *callNode) error {
	caller, err := r.macro("", n.signature, n.body)
	if err != nil {
		return err
	}
	of, err := r.eval(n.call.of)
	if err != nil {
		return err
	}
	a, err := r.args(n.call.arguments)
	if err != nil {
		return err
	}
	if slices.Contains(a.names, "caller") {
		return failf("a call block sets the argument caller itself")
	}
	if err := r.charge(4 * itemBytes * len(a.names)); err != nil {
		return err
	}
	a.names, a.named = append(slices.Clone(a.names), "caller"), append(slices.Clone(a.named), any(caller))
	v, err := r.call(of, a)
	if err != nil {
		return err
	}
	return r.writeText(v)
}

// special are the special names of a generation block, which is called without
// arguments.
func (n *scopeNode) special() map[string]any {
	vars := map[string]any{}
	if n.usesCaller {
		vars["caller"] = undefined{name: "caller"}
	}
	if n.usesKwargs {
		vars["kwargs"] = NewDict()
	}
	if n.usesVarargs {
		vars["varargs"] = &List{Tuple: true}
	}
	return vars
}
