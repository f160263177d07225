package jinja

import (
	"fmt"
	"slices"
)

const (
	// MaxSource bounds a template's source, in bytes.
	MaxSource = 1 << 20
	// maxTokens bounds the words and signs of a template.
	maxTokens = 200_000
	// maxNames bounds the parameters of a macro, and the arguments by name.
	maxNames = 1000
	// maxDepth bounds nesting, in source and at run time.
	maxDepth = 200
	// maxNested bounds expressions within expressions while they are
	// evaluated; one takes about 1 KB of stack.
	maxNested = 10_000
)

// Template is a parsed template. It does not change and may be rendered by
// many goroutines at once.
type Template struct {
	body    []node
	source  string
	filters map[string]filter
}

// Source returns the text that was parsed.
func (t *Template) Source() string { return t.source }

// Parse reads a template; its error is errSyntax or ErrLimit.
func Parse(source string) (*Template, error) {
	if len(source) > MaxSource {
		return nil, limitf(BoundSource, "the source has %d bytes, more than %d", len(source), MaxSource)
	}
	tokens, err := lex(source)
	if err != nil {
		return nil, err
	}
	t := &Template{source: source, filters: filters()}
	p := &parser{expressions: expressions{cursor: cursor{tokens: tokens}, known: t.filters}}
	if t.body, err = p.body(); err != nil {
		return nil, err
	}
	if len(p.unknown) > 0 {
		return nil, p.unknown[0]
	}
	return t, nil
}

// cursor reads tokens one after the other, and bounds the depth of nesting.
type cursor struct {
	tokens []token
	pos    int
	depth  int
}

// parser parses statements.
type parser struct {
	expressions
	loops int // around this place, in this function
	fors  int // around this place
}

// expressions parses expressions.
type expressions struct {
	cursor
	// soft: this code only runs under a condition, so that an unknown name
	// fails when it runs, not when it is parsed.
	soft     bool
	unknown  []error           // filters and tests
	known    map[string]filter // filters
	mentions mentions
}

// mentions are the special names that a function's body uses.
type mentions struct{ caller, kwargs, varargs bool }

func (m *mentions) note(name string) {
	switch name {
	case "caller":
		m.caller = true
	case "kwargs":
		m.kwargs = true
	case "varargs":
		m.varargs = true
	}
}

func (p *cursor) peek() token { return p.tokens[p.pos] }

func (p *cursor) look(n int) token { return p.tokens[min(p.pos+n, len(p.tokens)-1)] }

func (p *cursor) next() token {
	t := p.tokens[p.pos]
	if t.kind != tokEnd {
		p.pos++
	}
	return t
}

func (p *cursor) fail(format string, args ...any) error {
	return &Error{Kind: errSyntax, Line: p.peek().line, Message: fmt.Sprintf(format, args...)}
}

func (p *cursor) unexpected(want string) error {
	return p.fail("found %q, want %s", cut(p.peek().text), want)
}

func (p *cursor) is(kind tokenKind, text string) bool {
	t := p.peek()
	return t.kind == kind && t.text == text
}

func (p *cursor) take(kind tokenKind, text string) bool {
	if p.is(kind, text) {
		p.pos++
		return true
	}
	return false
}

func (p *cursor) op(text string) bool      { return p.take(tokOperator, text) }
func (p *cursor) keyword(text string) bool { return p.take(tokName, text) }

func (p *cursor) want(kind tokenKind, text string) error {
	if !p.take(kind, text) {
		return p.unexpected(fmt.Sprintf("%q", text))
	}
	return nil
}

func (p *cursor) name() (string, error) {
	if p.peek().kind != tokName {
		return "", p.unexpected("a name")
	}
	return p.next().text, nil
}

func (p *cursor) here() position { return position{p.peek().line} }

// enter bounds nesting; every enter is followed by a leave.
func (p *cursor) enter() error {
	p.depth++
	if p.depth > maxDepth {
		return atLine(limitf(BoundDepth, "nested more than %d levels deep", maxDepth), p.peek().line)
	}
	return nil
}

func (p *cursor) leave() { p.depth-- }

// few bounds the names of one list, each of which is compared with all others.
func (p *cursor) few(names []string) error {
	if len(names) > maxNames {
		return atLine(limitf(BoundSource, "there are more than %d names in a list", maxNames), p.peek().line)
	}
	return nil
}

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
			value, err := p.tuple()
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

// opened takes the end of an opening tag; a colon may stand before it.
func (p *expressions) opened() error {
	p.op(":")
	return p.want(tokTagClose, "%}")
}

// hard parses what is not soft any more: a body with a scope of its own.
func (p *expressions) hard(parse func() error) error {
	soft := p.soft
	p.soft = false
	err := parse()
	p.soft = soft
	return err
}

// block parses the rest of an opening tag, a body, and its end tag up to the
// closing mark, which statement's caller takes.
func (p *parser) block(end string) (body []node, err error) {
	if err := p.opened(); err != nil {
		return nil, err
	}
	if err := p.hard(func() error { body, err = p.body(end); return err }); err != nil {
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
	case "print":
		return p.printTag(pos)
	case "generation":
		// A call block in the reference: its body is a function.
		n := &scopeNode{position: pos}
		n.body, err = p.functionBody(&n.signature, "endgeneration")
		return n, err
	case "break", "continue":
		if p.loops == 0 {
			return nil, p.fail("%q outside a loop", name)
		}
		if name == "break" {
			return &breakNode{pos}, nil
		}
		return &continueNode{pos}, nil
	}
	return nil, &Error{Kind: errSyntax, Line: pos.line, Message: noTag(name)}
}

// noTag says why there is no tag of this name.
func noTag(name string) string {
	switch name {
	case "include", "import", "from", "extends", "block":
		return fmt.Sprintf("the tag %q is not supported: a chat template must be a single file", name)
	case "autoescape":
		return fmt.Sprintf("the tag %q is not supported: prompts are not HTML", name)
	}
	return fmt.Sprintf("the tag %q is not supported", cut(name))
}

func (p *parser) ifTag(pos position) (node, error) {
	soft := p.soft
	p.soft = true
	defer func() { p.soft = soft }()
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
	if err := p.opened(); err != nil {
		return err
	}
	body, err := p.body(ends...)
	n.bodies = append(n.bodies, body)
	return err
}

func (p *parser) forTag(pos position) (node, error) {
	n := &forNode{position: pos}
	p.fors++
	defer func() { p.fors-- }()
	var err error
	if n.target, err = p.targets(false); err != nil {
		return nil, err
	}
	if err := p.want(tokName, "in"); err != nil {
		return nil, err
	}
	if n.items, err = p.tupleWithout(); err != nil {
		return nil, err
	}
	if p.keyword("if") {
		if err := p.hard(func() error { n.filter, err = p.expression(); return err }); err != nil {
			return nil, err
		}
	}
	n.recursive = p.keyword("recursive")
	if err := p.hard(func() error { return p.forBodies(n) }); err != nil {
		return nil, err
	}
	return n, p.want(tokName, "endfor")
}

func (p *parser) forBodies(n *forNode) (err error) {
	if err := p.opened(); err != nil {
		return err
	}
	p.loops++
	n.body, err = p.body("endfor", "else")
	p.loops--
	if err != nil || !p.keyword("else") {
		return err
	}
	if err := p.opened(); err != nil {
		return err
	}
	// A recursive loop is a function: its else belongs to no loop around.
	loops := p.loops
	if n.recursive {
		p.loops = 0
	}
	n.otherwise, err = p.body("endfor")
	p.loops = loops
	return err
}

// targets parses what is assigned to: names, or with attributes also
// namespace.attribute, in parentheses or not, with commas between.
func (p *parser) targets(attributes bool) (target, error) {
	var parts []target
	for {
		var one target
		var err error
		if p.op("(") {
			if one, err = p.targets(attributes); err == nil {
				err = p.want(tokOperator, ")")
			}
		} else if one.name, err = p.name(); err == nil && attributes && p.op(".") {
			one.attr, err = p.name()
		} else if err == nil {
			err = p.assignable(one.name)
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
		if p.is(tokOperator, ")") || p.peek().kind == tokTagClose {
			return target{parts: parts}, nil
		}
	}
}

// assignable refuses names that stand for something else.
func (p *parser) assignable(name string) error {
	if slices.Contains([]string{"true", "false", "none", "True", "False", "None"}, name) {
		return p.fail("%q cannot be assigned", name)
	}
	if name == "loop" && p.fors > 0 {
		return p.fail("loop cannot be assigned inside a loop")
	}
	return nil
}
