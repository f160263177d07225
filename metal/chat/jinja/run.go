package jinja

import (
	"context"
	"math"
	"strings"
	"time"
)

// Limits bound one render. A zero field means the default.
type Limits struct {
	Steps int // evaluated expressions, statements and compared elements
	Bytes int // bytes of all texts made on the way, output included
}

const (
	defaultSteps = 20_000_000
	defaultBytes = 256 << 20
)

// Input is what a template is rendered with.
type Input struct {
	// Variables are the names that the template sees.
	Variables *Dict
	// Now is the time of strftime_now.
	Now    time.Time
	Limits Limits
}

// run is one render.
type run struct {
	ctx   context.Context
	now   time.Time
	steps int // left
	bytes int // left
	ticks int // steps taken, for looking at ctx now and then
	depth int
	out   *strings.Builder
	scope *scope
	// filters by name, made once a render.
	filters map[string]filter
}

// scope holds names; a block's scope hides those around it.
type scope struct {
	vars   map[string]any
	parent *scope
}

func (s *scope) find(name string) (any, bool) {
	for ; s != nil; s = s.parent {
		if v, ok := s.vars[name]; ok {
			return v, true
		}
	}
	return nil, false
}

func (s *scope) set(name string, v any) {
	if s.vars == nil {
		s.vars = map[string]any{}
	}
	s.vars[name] = v
}

// Render writes the template with these variables. Its error is an *Error, or
// the context's.
func (t *Template) Render(ctx context.Context, in Input) (string, error) {
	r := &run{ctx: ctx, now: in.Now, steps: in.Limits.Steps, bytes: in.Limits.Bytes, out: new(strings.Builder), filters: filters()}
	if r.steps <= 0 {
		r.steps = defaultSteps
	}
	if r.bytes <= 0 {
		r.bytes = defaultBytes
	}
	globals := &scope{vars: globals()}
	r.scope = &scope{parent: globals}
	if in.Variables != nil {
		for i, key := range in.Variables.keys {
			if name, ok := key.(string); ok {
				globals.set(name, in.Variables.vals[i])
			}
		}
	}
	if _, err := r.exec(t.body); err != nil {
		return "", err
	}
	return r.out.String(), nil
}

// step counts one unit of work.
func (r *run) step() error {
	r.steps--
	if r.steps < 0 {
		return limitf("it takes too many steps")
	}
	if r.ticks++; r.ticks&0xfff == 0 {
		return r.ctx.Err()
	}
	return nil
}

// scan counts bytes that were only read, 64 to a step.
func (r *run) scan(n int) error {
	r.steps -= n / 64
	return r.step()
}

// charge counts bytes made.
func (r *run) charge(n int) error {
	r.bytes -= n
	if r.bytes < 0 {
		return limitf("it makes too much text")
	}
	return r.step()
}

// chargeTimes charges size*n without overflow.
func (r *run) chargeTimes(size int, n int64) error {
	if size > 0 && n > math.MaxInt32 || int64(size)*n > int64(r.bytes) {
		return limitf("it makes too much text")
	}
	return r.charge(size * int(n))
}

// enter bounds the depth of calls; every enter is followed by a leave.
func (r *run) enter() error {
	r.depth++
	if r.depth > maxDepth {
		return limitf("calls are nested more than %d deep", maxDepth)
	}
	return nil
}

func (r *run) leave() { r.depth-- }

// write adds to the output.
func (r *run) write(s string) error {
	r.out.WriteString(s)
	return r.charge(len(s))
}

// capture returns what body writes, in a scope of its own below parent.
func (r *run) capture(parent *scope, vars map[string]any, body []node) (string, error) {
	if err := r.enter(); err != nil {
		return "", err
	}
	defer r.leave()
	out, outer := r.out, r.scope
	r.out, r.scope = new(strings.Builder), &scope{vars: vars, parent: parent}
	_, err := r.exec(body)
	text := r.out.String()
	r.out, r.scope = out, outer
	return text, err
}

// flow says how a body ended.
type flow uint8

const (
	flowOn flow = iota
	flowBreak
	flowContinue
)

func (r *run) exec(body []node) (flow, error) {
	for _, n := range body {
		f, err := r.execNode(n)
		if err != nil {
			return f, atLine(err, n.at())
		}
		if f != flowOn {
			return f, nil
		}
	}
	return flowOn, nil
}

func (r *run) execNode(n node) (flow, error) {
	if err := r.step(); err != nil {
		return flowOn, err
	}
	switch n := n.(type) {
	case *dataNode:
		return flowOn, r.write(n.text)
	case *outputNode:
		return flowOn, r.output(n.value)
	case *ifNode:
		return r.branch(n)
	case *forNode:
		return flowOn, r.loop(n)
	case *setNode:
		v, err := r.eval(n.value)
		if err != nil {
			return flowOn, err
		}
		return flowOn, r.assign(n.target, v)
	case *setBlockNode:
		return flowOn, r.setBlock(n)
	case *macroNode:
		r.scope.set(n.name, r.macro(n.name, n.signature, n.body))
	case *callNode:
		return flowOn, r.callBlock(n)
	case *filterNode:
		text, err := r.capture(r.scope, nil, n.body)
		if err != nil {
			return flowOn, err
		}
		v, err := r.filtered(n.filters, text)
		if err != nil {
			return flowOn, err
		}
		return flowOn, r.writeValue(v)
	case *withNode:
		return flowOn, r.with(n)
	case *scopeNode:
		text, err := r.capture(r.scope, nil, n.body)
		if err != nil {
			return flowOn, err
		}
		return flowOn, r.write(text)
	case *breakNode:
		return flowBreak, nil
	case *continueNode:
		return flowContinue, nil
	}
	return flowOn, nil
}

func (r *run) output(e expr) error {
	v, err := r.eval(e)
	if err != nil {
		return err
	}
	return r.writeValue(v)
}

func (r *run) writeValue(v any) error {
	text, err := r.text(v)
	if err != nil {
		return err
	}
	return r.write(text)
}

func (r *run) branch(n *ifNode) (flow, error) {
	for i, test := range n.tests {
		v, err := r.eval(test)
		if err != nil {
			return flowOn, err
		}
		if truth(v) {
			return r.exec(n.bodies[i])
		}
	}
	if len(n.bodies) > len(n.tests) {
		return r.exec(n.bodies[len(n.tests)])
	}
	return flowOn, nil
}

func (r *run) setBlock(n *setBlockNode) error {
	text, err := r.capture(r.scope, nil, n.body)
	if err != nil {
		return err
	}
	var v any = text
	if n.filters != nil {
		if v, err = r.filtered(n.filters, text); err != nil {
			return err
		}
	}
	return r.assign(n.target, v)
}

// filtered evaluates a chain of filters over a block's text.
func (r *run) filtered(filters expr, text string) (any, error) {
	outer := r.scope
	r.scope = &scope{vars: map[string]any{captured: text}, parent: outer}
	v, err := r.eval(filters)
	r.scope = outer
	return v, err
}

// captured is a name that no template can write.
const captured = " captured"

func (r *run) with(n *withNode) error {
	inner := &scope{parent: r.scope}
	for i, t := range n.targets {
		v, err := r.eval(n.values[i])
		if err != nil {
			return err
		}
		inner.set(t.name, v)
	}
	outer := r.scope
	r.scope = inner
	_, err := r.exec(n.body)
	r.scope = outer
	return err
}

func (r *run) assign(t target, v any) error {
	if t.parts == nil && t.attr == "" {
		r.scope.set(t.name, v)
		return nil
	}
	if t.parts == nil {
		found, _ := r.scope.find(t.name)
		ns, ok := found.(*namespace)
		if !ok {
			return failf("%s is %s; only a namespace's attributes can be set", t.name, typeName(found))
		}
		if strings.HasPrefix(t.attr, "_") {
			return failf("a namespace holds no name that begins with _")
		}
		ns.vars.Set(t.attr, v)
		return nil
	}
	items, err := r.items(v)
	if err != nil {
		return err
	}
	if len(items) != len(t.parts) {
		return failf("%d values for %d names", len(items), len(t.parts))
	}
	for i, part := range t.parts {
		if err := r.assign(part, items[i]); err != nil {
			return err
		}
	}
	return nil
}

// loopVar is the variable loop.
type loopVar struct {
	items   []any
	index   int
	depth   int
	recurse func(items any) (string, error)
	changed *List
}

func (r *run) loop(n *forNode) error {
	v, err := r.eval(n.items)
	if err != nil {
		return err
	}
	return r.loopOver(n, v, 0)
}

func (r *run) loopOver(n *forNode, v any, depth int) error {
	items, err := r.items(v)
	if err != nil {
		return err
	}
	outer := r.scope
	defer func() { r.scope = outer }()
	if n.filter != nil {
		if items, err = r.pick(n, items); err != nil {
			return err
		}
	}
	l := &loopVar{items: items, depth: depth}
	if n.recursive {
		l.recurse = func(v any) (string, error) {
			if err := r.enter(); err != nil {
				return "", err
			}
			defer r.leave()
			out, scope := r.out, r.scope
			r.out, r.scope = new(strings.Builder), outer
			err := r.loopOver(n, v, depth+1)
			text := r.out.String()
			r.out, r.scope = out, scope
			return text, err
		}
	}
	for i, item := range items {
		if err := r.step(); err != nil {
			return err
		}
		l.index = i
		r.scope = &scope{vars: map[string]any{"loop": l}, parent: outer}
		if err := r.assign(n.target, item); err != nil {
			return err
		}
		f, err := r.exec(n.body)
		if err != nil {
			return err
		}
		if f == flowBreak {
			return nil
		}
	}
	if len(items) == 0 {
		r.scope = outer
		_, err = r.exec(n.otherwise)
	}
	return err
}

// pick keeps the items that a loop's condition takes.
func (r *run) pick(n *forNode, items []any) ([]any, error) {
	outer := r.scope
	defer func() { r.scope = outer }()
	var kept []any
	for _, item := range items {
		if err := r.step(); err != nil {
			return nil, err
		}
		r.scope = &scope{parent: outer}
		if err := r.assign(n.target, item); err != nil {
			return nil, err
		}
		v, err := r.eval(n.filter)
		if err != nil {
			return nil, err
		}
		if truth(v) {
			kept = append(kept, item)
		}
	}
	return kept, r.charge(16 * len(kept))
}
