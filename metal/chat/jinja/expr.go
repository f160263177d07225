package jinja

import (
	"slices"
	"strings"
)

// The grammar of expressions, from the loosest binding to the tightest:
// conditional, or, and, not, comparison, + -, ~, * / // %, **, unary with its
// postfixes and filters.

func (p *expressions) expression() (expr, error) { return p.conditional(true) }

func (p *expressions) conditional(withIf bool) (expr, error) {
	if err := p.enter(); err != nil {
		return nil, err
	}
	defer p.leave()
	known := len(p.unknown)
	e, err := p.or()
	for err == nil && withIf && p.is(tokName, "if") {
		pos := p.here()
		p.next()
		c := &condExpr{position: pos, then: e}
		if c.test, err = p.or(); err != nil {
			return nil, err
		}
		if p.keyword("else") {
			c.otherwise, err = p.conditional(true)
		}
		e = c
		p.unknown = p.unknown[:known] // a condition decides whether they count
	}
	return e, err
}

// tuple parses an expression, or several with commas between.
func (p *expressions) tuple() (expr, error) { return p.tupleOf(p.expression) }

// tupleWithout parses a tuple whose parts may not be conditional.
func (p *expressions) tupleWithout() (expr, error) {
	return p.tupleOf(func() (expr, error) { return p.conditional(false) })
}

func (p *expressions) tupleOf(part func() (expr, error)) (expr, error) {
	pos := p.here()
	first, err := part()
	if err != nil || !p.is(tokOperator, ",") {
		return first, err
	}
	t := &listExpr{position: pos, items: []expr{first}, tuple: true}
	for p.op(",") {
		k := p.peek()
		if k.kind == tokClose || k.kind == tokTagClose || (k.kind == tokOperator && k.text == ")") {
			break
		}
		e, err := part()
		if err != nil {
			return nil, err
		}
		t.items = append(t.items, e)
	}
	return t, nil
}

func (p *expressions) or() (expr, error) { return p.leftBinary(p.and, tokName, "or") }

func (p *expressions) and() (expr, error) { return p.leftBinary(p.not, tokName, "and") }

// leftBinary parses operands joined by any of ops, from left to right.
func (p *expressions) leftBinary(operand func() (expr, error), kind tokenKind, ops ...string) (expr, error) {
	left, err := operand()
	for err == nil && p.peek().kind == kind && slices.Contains(ops, p.peek().text) {
		pos, op := p.here(), p.next().text
		b := &binaryExpr{position: pos, op: op, left: left}
		b.right, err = operand()
		left = b
	}
	return left, err
}

func (p *expressions) not() (expr, error) {
	if !p.is(tokName, "not") {
		return p.comparison()
	}
	if err := p.enter(); err != nil {
		return nil, err
	}
	defer p.leave()
	pos := p.here()
	p.next()
	of, err := p.not()
	return &unaryExpr{pos, "not", of}, err
}

func (p *expressions) comparison() (expr, error) {
	pos := p.here()
	first, err := p.sum()
	c := &compareExpr{position: pos, first: first}
	for err == nil {
		op := ""
		switch t := p.peek(); {
		case t.kind == tokOperator && slices.Contains([]string{"==", "!=", "<", "<=", ">", ">="}, t.text):
			op = p.next().text
		case p.keyword("in"):
			op = "in"
		case p.is(tokName, "not") && p.look(1).kind == tokName && p.look(1).text == "in":
			p.pos += 2
			op = "not in"
		}
		if op == "" {
			break
		}
		var e expr
		e, err = p.sum()
		c.ops, c.rest = append(c.ops, op), append(c.rest, e)
	}
	if len(c.ops) == 0 {
		return first, err
	}
	return c, err
}

func (p *expressions) sum() (expr, error) { return p.leftBinary(p.concat, tokOperator, "+", "-") }

func (p *expressions) concat() (expr, error) {
	pos := p.here()
	first, err := p.product()
	c := &concatExpr{position: pos, parts: []expr{first}}
	for err == nil && p.op("~") {
		var e expr
		e, err = p.product()
		c.parts = append(c.parts, e)
	}
	if len(c.parts) == 1 {
		return first, err
	}
	return c, err
}

func (p *expressions) product() (expr, error) {
	return p.leftBinary(p.power, tokOperator, "*", "/", "//", "%")
}

func (p *expressions) power() (expr, error) {
	return p.leftBinary(func() (expr, error) { return p.unary(true) }, tokOperator, "**")
}

func (p *expressions) unary(withFilters bool) (expr, error) {
	if err := p.enter(); err != nil {
		return nil, err
	}
	defer p.leave()
	pos := p.here()
	var e expr
	var err error
	if p.is(tokOperator, "-") || p.is(tokOperator, "+") {
		u := &unaryExpr{position: pos, op: p.next().text}
		u.of, err = p.unary(false)
		e = u
	} else {
		e, err = p.primary()
	}
	if err == nil {
		e, err = p.postfix(e)
	}
	if err == nil && withFilters {
		e, err = p.filters(e)
	}
	return e, err
}

func (p *expressions) primary() (expr, error) {
	pos := p.here()
	t := p.peek()
	switch {
	case t.kind == tokName:
		p.next()
		switch t.text {
		case "true", "True":
			return &constExpr{pos, true}, nil
		case "false", "False":
			return &constExpr{pos, false}, nil
		case "none", "None":
			return &constExpr{pos, nil}, nil
		}
		p.mentions.note(t.text)
		return &nameExpr{pos, t.text}, nil
	case t.kind == tokString:
		var b strings.Builder
		for p.peek().kind == tokString {
			b.WriteString(p.next().text)
		}
		return &constExpr{pos, b.String()}, nil
	case t.kind == tokNumber:
		p.next()
		return &constExpr{pos, t.value}, nil
	case p.op("("):
		if p.op(")") {
			return &listExpr{position: pos, tuple: true}, nil
		}
		e, err := p.tuple()
		if err != nil {
			return nil, err
		}
		return e, p.want(tokOperator, ")")
	case p.op("["):
		return p.list(pos)
	case p.op("{"):
		return p.dict(pos)
	}
	return nil, p.unexpected("an expression")
}

func (p *expressions) list(pos position) (expr, error) {
	l := &listExpr{position: pos}
	for !p.op("]") {
		if len(l.items) > 0 {
			if err := p.want(tokOperator, ","); err != nil {
				return nil, err
			}
			if p.op("]") {
				break
			}
		}
		e, err := p.expression()
		if err != nil {
			return nil, err
		}
		l.items = append(l.items, e)
	}
	return l, nil
}

func (p *expressions) dict(pos position) (expr, error) {
	d := &dictExpr{position: pos}
	for !p.op("}") {
		if len(d.keys) > 0 {
			if err := p.want(tokOperator, ","); err != nil {
				return nil, err
			}
			if p.op("}") {
				break
			}
		}
		k, err := p.expression()
		if err != nil {
			return nil, err
		}
		if err := p.want(tokOperator, ":"); err != nil {
			return nil, err
		}
		v, err := p.expression()
		if err != nil {
			return nil, err
		}
		d.keys, d.values = append(d.keys, k), append(d.values, v)
	}
	return d, nil
}

func (p *expressions) postfix(e expr) (expr, error) {
	for {
		pos := p.here()
		var err error
		switch {
		case p.op("."):
			switch t := p.next(); t.kind {
			case tokName:
				e = &attrExpr{pos, e, t.text}
			case tokNumber:
				e = &itemExpr{pos, e, &constExpr{pos, t.value}}
			default:
				p.pos--
				err = p.unexpected("a name after the dot")
			}
		case p.op("["):
			e, err = p.subscript(pos, e)
		case p.is(tokOperator, "("):
			c := &callExpr{position: pos, of: e}
			c.arguments, err = p.arguments()
			e = c
		default:
			return e, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

// subscript parses what stands in brackets: one key or slice, or several,
// which make a tuple.
func (p *expressions) subscript(pos position, of expr) (expr, error) {
	var keys []expr
	for !p.op("]") {
		if len(keys) > 0 {
			if err := p.want(tokOperator, ","); err != nil {
				return nil, err
			}
		}
		slice := &sliceExpr{position: pos, of: of}
		key, err := p.subscribed(slice)
		if err != nil {
			return nil, err
		}
		if key == nil && p.op("]") && len(keys) == 0 {
			return slice, nil
		}
		if key == nil {
			return nil, p.fail("a slice cannot be combined with other subscripts")
		}
		keys = append(keys, key)
	}
	if len(keys) == 1 {
		return &itemExpr{pos, of, keys[0]}, nil
	}
	return &itemExpr{pos, of, &listExpr{position: pos, items: keys, tuple: true}}, nil
}

// subscribed parses a key, or fills the slice and returns nil.
func (p *expressions) subscribed(s *sliceExpr) (key expr, err error) {
	if !p.is(tokOperator, ":") {
		if key, err = p.expression(); err != nil || !p.is(tokOperator, ":") {
			return key, err
		}
	}
	s.from = key
	for _, bound := range []*expr{&s.to, &s.stride} {
		if !p.op(":") {
			break
		}
		if p.is(tokOperator, "]") || p.is(tokOperator, ",") || p.is(tokOperator, ":") {
			continue
		}
		if *bound, err = p.expression(); err != nil {
			return nil, err
		}
	}
	return nil, nil
}

// filters parses what may follow a whole operand: filters, tests and calls.
func (p *expressions) filters(e expr) (expr, error) {
	for {
		var err error
		switch {
		case p.is(tokOperator, "|"):
			e, err = p.filterChain(e, false)
		case p.is(tokName, "is"):
			e, err = p.test(e)
		case p.is(tokOperator, "("):
			c := &callExpr{position: p.here(), of: e}
			c.arguments, err = p.arguments()
			e = c
		default:
			return e, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

// filterChain parses filters; inline means that the first one has no bar.
func (p *expressions) filterChain(e expr, inline bool) (expr, error) {
	for inline || p.op("|") {
		inline = false
		f := &filterExpr{position: p.here(), of: e}
		var err error
		if f.name, err = p.dotted(); err != nil {
			return nil, err
		}
		if _, known := p.known[f.name]; !known {
			p.noteUnknown(f.line, noFilter(f.name))
		}
		if p.is(tokOperator, "(") {
			if f.arguments, err = p.arguments(); err != nil {
				return nil, err
			}
		}
		e = f
	}
	return e, nil
}

// dotted parses the name of a filter or a test, which may hold dots; none that
// is known does.
func (p *expressions) dotted() (string, error) {
	name, err := p.name()
	for err == nil && p.op(".") {
		var part string
		part, err = p.name()
		name += "." + part
		if len(name) > 1000 { // each part copies those before it
			return "", p.fail("unknown filter %q", cut(name))
		}
	}
	return name, err
}

func (p *expressions) test(e expr) (expr, error) {
	pos := p.here()
	p.next()
	negated := p.keyword("not")
	t := &testExpr{position: pos, of: e}
	var err error
	if t.name, err = p.dotted(); err != nil {
		return nil, err
	}
	if !isTest(t.name) {
		p.noteUnknown(t.line, noTest(t.name))
	}
	next := p.peek()
	switch {
	case p.is(tokOperator, "("):
		t.arguments, err = p.arguments()
	case next.kind == tokName && slices.Contains([]string{"else", "or", "and"}, next.text):
	case next.kind == tokName && next.text == "is":
		return nil, p.fail("tests cannot be chained with is")
	case next.kind == tokName, next.kind == tokString, next.kind == tokNumber, p.is(tokOperator, "["), p.is(tokOperator, "{"):
		var arg expr
		if arg, err = p.primary(); err == nil {
			arg, err = p.postfix(arg)
		}
		t.positional = []expr{arg}
	}
	if err != nil {
		return nil, err
	}
	if negated {
		return &unaryExpr{pos, "not", t}, nil
	}
	return t, nil
}

func (p *expressions) arguments() (arguments, error) {
	var a arguments
	if err := p.want(tokOperator, "("); err != nil {
		return a, err
	}
	for first := true; !p.op(")"); first = false {
		if !first {
			if err := p.want(tokOperator, ","); err != nil {
				return a, err
			}
			if p.op(")") {
				break
			}
		}
		if err := p.argument(&a); err != nil {
			return a, err
		}
	}
	return a, nil
}

func (p *expressions) argument(a *arguments) (err error) {
	switch next := p.look(1); {
	case a.spreadKw != nil:
		return p.fail("an argument follows **")
	case p.op("**"):
		a.spreadKw, err = p.expression()
	case a.spread == nil && p.op("*"):
		a.spread, err = p.expression()
	case p.peek().kind == tokName && next.kind == tokOperator && next.text == "=":
		name := p.next().text
		if slices.Contains(a.names, name) {
			return p.fail("the argument %q is given twice", cut(name))
		}
		p.next()
		var v expr
		v, err = p.expression()
		a.names, a.named = append(a.names, name), append(a.named, v)
		if err == nil {
			err = p.few(a.names)
		}
	case len(a.named) > 0 || a.spread != nil:
		return p.fail("a positional argument follows a named one")
	default:
		var v expr
		v, err = p.expression()
		a.positional = append(a.positional, v)
	}
	return err
}

// noteUnknown remembers the first name that nothing is known by. It makes the template
// wrong, unless a condition decides whether the name is ever used.
func (p *expressions) noteUnknown(line int, message string) {
	if !p.soft && len(p.unknown) == 0 {
		p.unknown = append(p.unknown, &Error{Kind: errSyntax, Line: line, Message: message})
	}
}
