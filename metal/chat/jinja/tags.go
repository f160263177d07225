package jinja

import "slices"

// The tags that assign, define and capture.

func (p *parser) setTag(pos position) (node, error) {
	to, err := p.targets(true)
	if err != nil {
		return nil, err
	}
	if p.op("=") {
		value, err := p.tuple()
		return &setNode{pos, to, value}, err
	}
	var filters expr
	if p.is(tokOperator, "|") {
		if err := p.hard(func() error { filters, err = p.filterChain(&captureExpr{pos}, false); return err }); err != nil {
			return nil, err
		}
	}
	body, err := p.block("endset")
	return &setBlockNode{pos, to, body, filters}, err
}

func (p *parser) macroTag(pos position) (node, error) {
	n := &macroNode{position: pos}
	var err error
	if n.name, err = p.name(); err == nil {
		err = p.assignable(n.name)
	}
	if err != nil {
		return nil, err
	}
	n.signature, n.body, err = p.callable("endmacro")
	return n, err
}

func (p *parser) callTag(pos position) (node, error) {
	n := &callNode{position: pos}
	var err error
	sig := signature{}
	if p.is(tokOperator, "(") {
		if sig, err = p.parameters(); err != nil {
			return nil, err
		}
	}
	value, err := p.expression()
	if err != nil {
		return nil, err
	}
	call, ok := value.(*callExpr)
	if !ok {
		return nil, p.fail("a call block requires a call")
	}
	n.call, n.signature = call, sig
	n.body, err = p.functionBody(&n.signature, "endcall")
	return n, err
}

func (p *parser) callable(end string) (signature, []node, error) {
	sig, err := p.parameters()
	if err != nil {
		return sig, nil, err
	}
	body, err := p.functionBody(&sig, end)
	return sig, body, err
}

// functionBody parses a body that is a function of its own: loops around it
// do not count, and the special names it mentions are noted.
func (p *parser) functionBody(sig *signature, end string) ([]node, error) {
	loops, outer := p.loops, p.mentions
	p.loops, p.mentions = 0, mentions{}
	body, err := p.block(end)
	inner := p.mentions
	has := func(name string) bool { return slices.Contains(sig.params, name) }
	sig.usesCaller = inner.caller
	sig.usesKwargs = inner.kwargs && !has("kwargs")
	sig.usesVarargs = inner.varargs && !has("varargs")
	if at := slices.Index(sig.params, "caller"); err == nil && sig.usesCaller && at >= 0 && at < len(sig.params)-len(sig.defaults) {
		err = p.fail("the parameter caller requires a default")
	}
	p.loops = loops
	p.mentions = mentions{outer.caller || inner.caller, outer.kwargs || inner.kwargs, outer.varargs || inner.varargs}
	return body, err
}

func (p *parser) parameters() (signature, error) {
	var s signature
	if err := p.want(tokOperator, "("); err != nil {
		return s, err
	}
	for !p.op(")") {
		if len(s.params) > 0 {
			if err := p.want(tokOperator, ","); err != nil {
				return s, err
			}
			if p.op(")") {
				break
			}
		}
		name, err := p.name()
		if err == nil {
			err = p.assignable(name)
		}
		if err != nil {
			return s, err
		}
		if slices.Contains(s.params, name) {
			return s, p.fail("duplicate parameter %q", cut(name))
		}
		s.params = append(s.params, name)
		if err := p.few(s.params); err != nil {
			return s, err
		}
		if p.op("=") {
			var value expr
			err := p.hard(func() error { value, err = p.expression(); return err })
			if err != nil {
				return s, err
			}
			s.defaults = append(s.defaults, value)
		} else if len(s.defaults) > 0 {
			return s, p.fail("the parameter %q requires a default because an earlier parameter has one", cut(name))
		}
	}
	return s, nil
}

func (p *parser) filterTag(pos position) (node, error) {
	var filters expr
	err := p.hard(func() (err error) { filters, err = p.filterChain(&captureExpr{pos}, true); return err })
	if err != nil {
		return nil, err
	}
	body, err := p.block("endfilter")
	return &filterNode{pos, filters, body}, err
}

func (p *parser) withTag(pos position) (node, error) {
	n := &withNode{position: pos}
	for p.peek().kind != tokTagClose {
		if len(n.targets) > 0 {
			if err := p.want(tokOperator, ","); err != nil {
				return nil, err
			}
		}
		to, err := p.targets(false)
		if err != nil {
			return nil, err
		}
		if err := p.want(tokOperator, "="); err != nil {
			return nil, err
		}
		value, err := p.expression()
		if err != nil {
			return nil, err
		}
		n.targets, n.values = append(n.targets, to), append(n.values, value)
	}
	body, err := p.block("endwith")
	n.body = body
	return n, err
}

func (p *parser) printTag(pos position) (node, error) {
	n := &printNode{position: pos}
	for p.peek().kind != tokTagClose {
		if len(n.values) > 0 {
			if err := p.want(tokOperator, ","); err != nil {
				return nil, err
			}
		}
		value, err := p.expression()
		if err != nil {
			return nil, err
		}
		n.values = append(n.values, value)
	}
	return n, nil
}
