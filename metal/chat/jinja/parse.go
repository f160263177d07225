package jinja

import (
	"fmt"
	"slices"
)

const (
	// MaxSource bounds a template's source, in bytes.
	MaxSource = 1 << 20
	// maxDepth bounds nesting, in source and at run time.
	maxDepth = 200
)

// Template is a parsed template. It does not change and may be rendered by
// many goroutines at once.
type Template struct {
	body   []node
	source string
}

// Source returns the text that was parsed.
func (t *Template) Source() string { return t.source }

// Parse reads a template; its error is ErrSyntax or ErrLimit.
func Parse(source string) (*Template, error) {
	if len(source) > MaxSource {
		return nil, limitf("the source has %d bytes, more than %d", len(source), MaxSource)
	}
	tokens, err := lex(source)
	if err != nil {
		return nil, err
	}
	p := &parser{tokens: tokens}
	body, err := p.body()
	if err != nil {
		return nil, err
	}
	return &Template{body: body, source: source}, nil
}

type parser struct {
	tokens []token
	pos    int
	depth  int
	loops  int
	// mentions collects names for signatures.
	mentions []string
}

func (p *parser) peek() token { return p.tokens[p.pos] }

func (p *parser) look(n int) token { return p.tokens[min(p.pos+n, len(p.tokens)-1)] }

func (p *parser) next() token {
	t := p.tokens[p.pos]
	if t.kind != tokEnd {
		p.pos++
	}
	return t
}

func (p *parser) fail(format string, args ...any) error {
	return &Error{Kind: ErrSyntax, Line: p.peek().line, Message: fmt.Sprintf(format, args...)}
}

func (p *parser) unexpected(want string) error {
	return p.fail("%q where %s is expected", cut(p.peek().text), want)
}

func (p *parser) is(kind tokenKind, text string) bool {
	t := p.peek()
	return t.kind == kind && t.text == text
}

func (p *parser) take(kind tokenKind, text string) bool {
	if p.is(kind, text) {
		p.pos++
		return true
	}
	return false
}

func (p *parser) op(text string) bool      { return p.take(tokOperator, text) }
func (p *parser) keyword(text string) bool { return p.take(tokName, text) }

func (p *parser) want(kind tokenKind, text string) error {
	if !p.take(kind, text) {
		return p.unexpected(fmt.Sprintf("%q", text))
	}
	return nil
}

func (p *parser) name() (string, error) {
	if p.peek().kind != tokName {
		return "", p.unexpected("a name")
	}
	return p.next().text, nil
}

func (p *parser) here() position { return position{p.peek().line} }

// enter bounds nesting; every enter is followed by a leave.
func (p *parser) enter() error {
	p.depth++
	if p.depth > maxDepth {
		return p.fail("nested more than %d deep", maxDepth)
	}
	return nil
}

func (p *parser) leave() { p.depth-- }

// body parses up to one of the given tags, whose name is left to be read, or
// up to the end of the template where none is given.
func (p *parser) body(ends ...string) ([]node, error) {
	if err := p.enter(); err != nil {
		return nil, err
	}
	defer p.leave()
	var nodes []node
	for {
		t := p.next()
		pos := position{t.line}
		switch t.kind {
		case tokEnd:
			if len(ends) > 0 {
				return nil, p.fail("the template ends where %q is expected", ends[len(ends)-1])
			}
			return nodes, nil
		case tokData:
			nodes = append(nodes, &dataNode{pos, t.text})
		case tokOpen:
			value, err := p.tuple("")
			if err != nil {
				return nil, err
			}
			if err := p.want(tokClose, "}}"); err != nil {
				return nil, err
			}
			nodes = append(nodes, &outputNode{pos, value})
		case tokTagOpen:
			if p.peek().kind == tokName && slices.Contains(ends, p.peek().text) {
				return nodes, nil
			}
			n, err := p.statement()
			if err != nil {
				return nil, err
			}
			if err := p.want(tokTagClose, "%}"); err != nil {
				return nil, err
			}
			nodes = append(nodes, n)
		default:
			return nil, p.fail("unexpected %q", cut(t.text))
		}
	}
}

// block parses the rest of an opening tag, a body, and its end tag up to the
// closing mark, which statement's caller takes.
func (p *parser) block(end string) ([]node, error) {
	if err := p.want(tokTagClose, "%}"); err != nil {
		return nil, err
	}
	body, err := p.body(end)
	if err != nil {
		return nil, err
	}
	return body, p.want(tokName, end)
}

func (p *parser) statement() (node, error) {
	pos := p.here()
	name, err := p.name()
	if err != nil {
		return nil, err
	}
	switch name {
	case "if":
		return p.ifTag(pos)
	case "for":
		return p.forTag(pos)
	case "set":
		return p.setTag(pos)
	case "macro":
		return p.macroTag(pos)
	case "call":
		return p.callTag(pos)
	case "filter":
		return p.filterTag(pos)
	case "with":
		return p.withTag(pos)
	case "generation":
		body, err := p.block("endgeneration")
		return &scopeNode{pos, body}, err
	case "break", "continue":
		if p.loops == 0 {
			return nil, p.fail("%q outside a loop", name)
		}
		if name == "break" {
			return &breakNode{pos}, nil
		}
		return &continueNode{pos}, nil
	}
	return nil, &Error{Kind: ErrSyntax, Line: pos.line, Message: fmt.Sprintf("the tag %q is not supported", cut(name))}
}

func (p *parser) ifTag(pos position) (node, error) {
	n := &ifNode{position: pos}
	for {
		test, err := p.tupleWithout()
		if err != nil {
			return nil, err
		}
		n.tests = append(n.tests, test)
		if err := p.branch(n, "elif", "else", "endif"); err != nil {
			return nil, err
		}
		if p.keyword("elif") {
			continue
		}
		if p.keyword("else") {
			if err := p.branch(n, "endif"); err != nil {
				return nil, err
			}
		}
		return n, p.want(tokName, "endif")
	}
}

func (p *parser) branch(n *ifNode, ends ...string) error {
	if err := p.want(tokTagClose, "%}"); err != nil {
		return err
	}
	body, err := p.body(ends...)
	n.bodies = append(n.bodies, body)
	return err
}

func (p *parser) forTag(pos position) (node, error) {
	n := &forNode{position: pos}
	var err error
	if n.target, err = p.targets("in", false); err != nil {
		return nil, err
	}
	if err := p.want(tokName, "in"); err != nil {
		return nil, err
	}
	if n.items, err = p.forItems(); err != nil {
		return nil, err
	}
	if p.keyword("if") {
		if n.filter, err = p.expression(); err != nil {
			return nil, err
		}
	}
	n.recursive = p.keyword("recursive")
	if err := p.want(tokTagClose, "%}"); err != nil {
		return nil, err
	}
	p.loops++
	n.body, err = p.body("endfor", "else")
	p.loops--
	if err != nil {
		return nil, err
	}
	if p.keyword("else") {
		if err := p.want(tokTagClose, "%}"); err != nil {
			return nil, err
		}
		if n.otherwise, err = p.body("endfor"); err != nil {
			return nil, err
		}
	}
	return n, p.want(tokName, "endfor")
}

// targets parses what is assigned to: names, or with attributes also
// namespace.attribute, in parentheses or not, with commas between.
func (p *parser) targets(end string, attributes bool) (target, error) {
	var parts []target
	for {
		var one target
		var err error
		if p.op("(") {
			if one, err = p.targets(")", attributes); err == nil {
				err = p.want(tokOperator, ")")
			}
		} else if one.name, err = p.name(); err == nil && attributes && p.op(".") {
			one.attr, err = p.name()
		}
		if err != nil {
			return target{}, err
		}
		parts = append(parts, one)
		if !p.op(",") {
			if len(parts) == 1 {
				return one, nil
			}
			return target{parts: parts}, nil
		}
		if p.peek().text == end {
			return target{parts: parts}, nil
		}
	}
}

func (p *parser) setTag(pos position) (node, error) {
	to, err := p.targets("=", true)
	if err != nil {
		return nil, err
	}
	if p.op("=") {
		value, err := p.tuple("")
		return &setNode{pos, to, value}, err
	}
	var filters expr
	if p.is(tokOperator, "|") {
		if filters, err = p.filters(&captureExpr{pos}); err != nil {
			return nil, err
		}
	}
	body, err := p.block("endset")
	return &setBlockNode{pos, to, body, filters}, err
}

func (p *parser) macroTag(pos position) (node, error) {
	n := &macroNode{position: pos}
	var err error
	if n.name, err = p.name(); err != nil {
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
		return nil, p.fail("a call block needs a call")
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
	loops, mentions := p.loops, p.mentions
	p.loops, p.mentions = 0, nil
	body, err := p.block(end)
	sig.usesCaller = slices.Contains(p.mentions, "caller")
	sig.usesKwargs = slices.Contains(p.mentions, "kwargs")
	sig.usesVarargs = slices.Contains(p.mentions, "varargs")
	p.loops, p.mentions = loops, append(mentions, p.mentions...)
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
		if err != nil {
			return s, err
		}
		s.params = append(s.params, name)
		if p.op("=") {
			value, err := p.expression()
			if err != nil {
				return s, err
			}
			s.defaults = append(s.defaults, value)
		} else if len(s.defaults) > 0 {
			return s, p.fail("the parameter %q needs a default, like those before it", cut(name))
		}
	}
	return s, nil
}

func (p *parser) filterTag(pos position) (node, error) {
	filters, err := p.filterChain(&captureExpr{pos}, true)
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
		name, err := p.name()
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
		n.targets, n.values = append(n.targets, target{name: name}), append(n.values, value)
	}
	body, err := p.block("endwith")
	n.body = body
	return n, err
}
