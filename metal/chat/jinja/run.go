package jinja

import (
	"context"
	"math"
	"strings"
	"time"
)

// Limits bound one render. A zero field means the default.
type Limits struct {
	// Steps are evaluated expressions, statements and compared elements.
	Steps int
	// Bytes are those of all values made on the way, output included: what a
	// render allocates, and so more than it ever holds.
	Bytes int
	// Output is the length of the result.
	Output int
	// Wait is called once, before a render makes more than Free bytes, and has them made
	// when it returns. Its error ends the render. Nil means that no render waits.
	Wait func(context.Context) error
	Free int
}

const (
	defaultSteps  = 20_000_000
	defaultBytes  = 32 << 20
	defaultOutput = 32 << 20
)

// withDefaults fills what is zero.
func (l Limits) withDefaults() Limits {
	for _, f := range []struct {
		field *int
		value int
	}{{&l.Steps, defaultSteps}, {&l.Bytes, defaultBytes}, {&l.Output, defaultOutput}} {
		if *f.field <= 0 {
			*f.field = f.value
		}
	}
	return l
}

// Input is what a template is rendered with.
type Input struct {
	// Variables are the names that the template sees.
	Variables *Dict
	// Now is the time of strftime_now.
	Now    time.Time
	Limits Limits
}

// run is one render. Its methods evaluate expressions; statements executes nodes.
type run struct {
	values
	template *Template
	now      time.Time
	depth    int // of calls
	nested   int // expressions being evaluated, and bodies being executed
	deepest  int // that nested was
	most     int // bytes of output
	out      *strings.Builder
	captures int // bodies being captured, whose text is no output yet
	scope    *scope
}

// meter counts the work of a render against its limits. Methods of the types that
// embed it charge for what they read and make.
type meter struct {
	ctx   context.Context
	steps int // left
	bytes int // left
	ticks int // steps since the last look at ctx
	// wait is called before fewer bytes than free are left, nil once it was.
	wait func(context.Context) error
	free int
}

// texts are the operations on strings.
type texts struct{ meter }

// values are the operations on values: comparison, arithmetic, hashing, iteration
// and printing. They see no template and no scope.
type values struct{ texts }

// statements executes the nodes of a template.
type statements struct{ *run }

// Render writes the template with these variables. Its error is an *Error, or
// the context's.
func (t *Template) Render(ctx context.Context, in Input) (string, error) {
	if err := ctx.Err(); err != nil {
		return "", err
	}
	l := in.Limits.withDefaults()
	r := &run{template: t, now: in.Now, deepest: shallow, most: l.Output, out: new(strings.Builder)}
	r.meter = meter{ctx: ctx, steps: l.Steps, bytes: l.Bytes, wait: l.Wait, free: l.Bytes - l.Free}
	globals := &scope{vars: globals()}
	r.scope = &scope{parent: globals}
	if in.Variables != nil {
		for i, key := range in.Variables.keys {
			if name, ok := key.(string); ok {
				globals.set(name, in.Variables.vals[i])
			}
		}
	}
	if _, err := (statements{r}).exec(t.body); err != nil {
		return "", err
	}
	return r.out.String(), nil
}

// lookEvery is how many steps are taken between two looks at ctx.
const lookEvery = 4096

// spend counts steps, each of them a unit of work, before they are taken.
func (r *meter) spend(steps int) error {
	if r.steps -= steps; r.steps < 0 {
		return limitf(BoundSteps, "it takes too many steps")
	}
	if r.ticks += steps; r.ticks >= lookEvery {
		r.ticks = 0
		return r.ctx.Err()
	}
	return nil
}

func (r *meter) step() error { return r.spend(1) }

// scan counts bytes that are only read, 64 to a step.
func (r *meter) scan(n int) error { return r.spend(n/64 + 1) }

// charge counts bytes made.
func (r *meter) charge(n int) error {
	if r.bytes -= n; r.bytes < 0 {
		return tooMuch()
	}
	if r.wait != nil && r.bytes < r.free {
		wait := r.wait
		r.wait = nil
		if err := wait(r.ctx); err != nil {
			return err
		}
	}
	return r.scan(n)
}

// keep charges for a value that is kept in another.
func (r *meter) keep(v any) error {
	if n := sizeOf(v); n > 0 {
		return r.charge(n)
	}
	return nil
}

// nestBytes is about the stack of one level of what nests.
const nestBytes = 1 << 10

// shallow is how deep ordinary templates nest.
const shallow = 64

// nest adds levels. The stack stays as deep as it was once.
func (r *run) nest(levels int) error {
	if r.nested += levels; r.nested <= r.deepest {
		return nil
	}
	r.deepest = r.nested
	if r.nested > maxNested {
		return limitf(BoundDepth, "expressions and blocks are nested more than %d levels deep", maxNested)
	}
	return r.charge(nestBytes * levels)
}

func tooMuch() error { return limitf(BoundBytes, "its values use too much memory") }

// chargeTimes charges size*n without overflow.
func (r *meter) chargeTimes(size int, n int64) error {
	if size > 0 && n > math.MaxInt32 || int64(size)*n > int64(r.bytes) {
		return tooMuch()
	}
	return r.charge(size * int(n))
}

// enter bounds the depth of calls; every enter is followed by a leave.
func (r *run) enter() error {
	r.depth++
	if r.depth > maxDepth {
		return limitf(BoundDepth, "calls are nested more than %d levels deep", maxDepth)
	}
	return nil
}

func (r *run) leave() { r.depth-- }

// write adds to the output, or to the text that is being captured.
func (r statements) write(s string) error {
	if r.captures == 0 && r.out.Len()+len(s) > r.most {
		return limitf(BoundOutput, "its output has more than %d bytes", r.most)
	}
	if err := r.charge(len(s)); err != nil {
		return err
	}
	r.out.WriteString(s)
	return nil
}

// capture returns what body writes, in a scope of its own below parent.
func (r statements) capture(parent *scope, vars map[string]any, body []node) (string, error) {
	return r.captured(parent, vars, func() error {
		_, err := r.exec(body)
		return err
	})
}

// scopeBytes is what a scope takes, with the loop that it may be of.
const scopeBytes = 512

// hold charges for the scopes that a value keeps. Others are gone when their block ends.
func (r *run) hold(s *scope) error {
	for ; s != nil && !s.held; s = s.parent {
		if err := r.charge(scopeBytes); err != nil {
			return err
		}
		s.held = true
	}
	return nil
}

// bind gives a value a name in the scope of this place.
func (r *run) bind(name string, v any) error {
	if !r.scope.set(name, v) {
		return nil
	}
	return r.charge(entryBytes)
}

// captured returns what write writes in a scope of its own below parent.
func (r statements) captured(parent *scope, vars map[string]any, write func() error) (string, error) {
	if err := r.enter(); err != nil {
		return "", err
	}
	defer r.leave()
	out, outer := r.out, r.scope
	r.out, r.scope = new(strings.Builder), &scope{vars: vars, parent: parent}
	r.captures++
	err := write()
	r.captures--
	text := r.out.String()
	r.out, r.scope = out, outer
	return text, err
}

// flow is how a body ended.
type flow uint8

const (
	flowOn flow = iota
	flowBreak
	flowContinue
)

func (r statements) exec(body []node) (flow, error) {
	if err := r.nest(1); err != nil {
		return flowOn, err
	}
	defer func() { r.nested-- }()
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

func (r statements) execNode(n node) (flow, error) {
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
		return r.loop(n)
	case *setNode:
		v, err := r.eval(n.value)
		if err != nil {
			return flowOn, err
		}
		return flowOn, r.assign(n.target, v)
	case *setBlockNode:
		return r.setBlock(n)
	case *macroNode:
		f, err := r.macro(n.name, n.signature, n.body)
		if err != nil {
			return flowOn, err
		}
		return flowOn, r.bind(n.name, f)
	case *callNode:
		return flowOn, r.callBlock(n)
	case *filterNode:
		return r.filterBlock(n)
	case *withNode:
		return r.with(n)
	case *scopeNode:
		text, err := r.capture(r.scope, n.special(), n.body)
		if err != nil {
			return flowOn, err
		}
		return flowOn, r.write(text)
	case *printNode:
		for _, value := range n.values {
			if err := r.output(value); err != nil {
				return flowOn, err
			}
		}
	case *breakNode:
		return flowBreak, nil
	case *continueNode:
		return flowContinue, nil
	}
	return flowOn, nil
}

func (r statements) output(e expr) error {
	v, err := r.eval(e)
	if err != nil {
		return err
	}
	return r.writeValue(v)
}

func (r statements) writeValue(v any) error {
	text, err := r.text(v)
	if err != nil {
		return err
	}
	return r.write(text)
}

func (r statements) branch(n *ifNode) (flow, error) {
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

// block returns the output of body in a nested scope. A break or continue
// leaves it, and its output is lost.
func (r statements) block(body []node) (text string, f flow, err error) {
	text, err = r.captured(r.scope, nil, func() error {
		f, err = r.exec(body)
		return err
	})
	return text, f, err
}

func (r statements) setBlock(n *setBlockNode) (flow, error) {
	text, f, err := r.block(n.body)
	if err != nil || f != flowOn {
		return f, err
	}
	var v any = text
	if n.filters != nil {
		if v, err = r.filtered(n.filters, text); err != nil {
			return flowOn, err
		}
	}
	return flowOn, r.assign(n.target, v)
}

func (r statements) filterBlock(n *filterNode) (flow, error) {
	text, f, err := r.block(n.body)
	if err != nil || f != flowOn {
		return f, err
	}
	v, err := r.filtered(n.filters, text)
	if err != nil {
		return flowOn, err
	}
	return flowOn, r.writeText(v)
}

// writeText writes what must be text already.
func (r statements) writeText(v any) error {
	s, ok := plain(v).(string)
	if !ok {
		return failf("a block returns %s, not a str", typeName(v))
	}
	return r.write(s)
}

// filtered evaluates a chain of filters over a block's text.
func (r statements) filtered(filters expr, text string) (any, error) {
	outer := r.scope
	r.scope = &scope{vars: map[string]any{capturedName: text}, parent: outer}
	v, err := r.eval(filters)
	r.scope = outer
	return v, err
}

// capturedName is a name that no template can write.
const capturedName = " captured"

func (r statements) with(n *withNode) (flow, error) {
	outer := r.scope
	inner := &scope{parent: outer}
	for i, t := range n.targets {
		v, err := r.eval(n.values[i])
		if err != nil {
			return flowOn, err
		}
		r.scope = inner
		err = r.assign(t, v)
		if r.scope = outer; err != nil {
			return flowOn, err
		}
	}
	r.scope = inner
	f, err := r.exec(n.body)
	r.scope = outer
	return f, err
}
