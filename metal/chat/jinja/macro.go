package jinja

// macro makes a function of a body; it sees the scope that it is written in.
func (r *run) macro(name string, s signature, body []node) *function {
	home := r.scope
	return &function{name: name, call: func(r *run, a args) (any, error) {
		vars, err := r.parameters(name, s, a, home)
		if err != nil {
			return nil, err
		}
		return r.capture(home, vars, body)
	}}
}

func (r *run) parameters(name string, s signature, a args, home *scope) (map[string]any, error) {
	vars := map[string]any{}
	rest := &List{Tuple: true}
	for i, v := range a.pos {
		if i < len(s.params) {
			vars[s.params[i]] = v
		} else {
			rest.Items = append(rest.Items, v)
		}
	}
	more := NewDict()
	for i, n := range a.names {
		if n == "caller" && s.usesCaller {
			vars[n] = a.named[i]
			continue
		}
		taken := false
		for _, p := range s.params {
			taken = taken || p == n
		}
		if !taken {
			more.Set(n, a.named[i])
		} else if _, twice := vars[n]; twice {
			return nil, failf("%s gets the argument %q twice", name, cut(n))
		} else {
			vars[n] = a.named[i]
		}
	}
	if s.usesVarargs {
		vars["varargs"] = rest
	} else if len(rest.Items) > 0 {
		return nil, failf("%s takes %d arguments, not %d", name, len(s.params), len(a.pos))
	}
	if s.usesKwargs {
		vars["kwargs"] = more
	} else if more.Len() > 0 {
		return nil, failf("%s takes no argument %q", name, more.keys[0])
	}
	return vars, r.defaults(s, vars, home)
}

// defaults fills the parameters that were not given.
func (r *run) defaults(s signature, vars map[string]any, home *scope) error {
	outer := r.scope
	r.scope = &scope{vars: vars, parent: home}
	defer func() { r.scope = outer }()
	for i, p := range s.params {
		if _, ok := vars[p]; ok {
			continue
		}
		vars[p] = undefined{what: "parameter " + p}
		if d := i - (len(s.params) - len(s.defaults)); d >= 0 {
			v, err := r.eval(s.defaults[d])
			if err != nil {
				return err
			}
			vars[p] = v
		}
	}
	return nil
}

func (r *run) callBlock(n *callNode) error {
	caller := r.macro("caller", n.signature, n.body)
	of, err := r.eval(n.call.of)
	if err != nil {
		return err
	}
	a, err := r.args(n.call.arguments)
	if err != nil {
		return err
	}
	a.names, a.named = append(a.names, "caller"), append(a.named, any(caller))
	v, err := r.call(of, a)
	if err != nil {
		return err
	}
	return r.writeValue(v)
}
