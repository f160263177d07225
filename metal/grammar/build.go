package grammar

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
)

// expr is a piece of a grammar before it has nodes.
type expr interface{}

type (
	literal string
	// runes are characters, as UTF-8.
	runes runeSet
	seq   []expr
	alt   []expr
	// repeat has no upper bound where max is below 0.
	repeat struct {
		of       expr
		min, max int
	}
	ref int32
)

// builder makes nodes. Its first error stays; what follows does nothing.
type builder struct {
	meter *meter
	nodes []node
	rules []int32
	err   error
	// sets are the rules of character classes that were made already.
	sets map[string]int32
	// work done for schemas, and nodes that were given up and count.
	work, spent int
	edges       int
	// mostNodes and mostWork are the bounds for what is compiled now; 0 stands for maxNodes and
	// maxWork.
	mostNodes, mostWork int
	// held are the bytes of what is made here, which the meter counts too.
	held  int64
	wants []want
	// patterns are the rules of regular expressions that were made already.
	patterns map[string]ref
}

func newBuilder(m *meter) *builder { return &builder{meter: m, sets: map[string]int32{}} }

// budget are the bounds of nodes and work.
func (b *builder) budget() (nodes, work int) {
	return cmp.Or(b.mostNodes, maxNodes), cmp.Or(b.mostWork, maxWork)
}

// exceeds counts the work of a step and reports whether the budget is exceeded.
func (b *builder) exceeds(work int) bool {
	_, most := b.budget()
	b.work++
	return !b.meter.spend(16+8*work) || b.work > most
}

// attempt makes an expression with half of what is left; where that fails, it gives up the
// nodes and returns false. They count nevertheless, so that many attempts that fail take no
// longer than one grammar.
func (b *builder) attempt(make func() (expr, error)) (expr, bool) {
	nodes, work := b.budget()
	mostNodes, mostWork := b.mostNodes, b.mostWork
	at, rules, wants, edges := len(b.nodes), len(b.rules), len(b.wants), b.edges
	held, here := b.meter.held, b.held
	b.mostNodes, b.mostWork = nodes-(nodes-b.spent-at)/2, work-(work-b.work)/2
	var e expr
	var err error
	enough := b.meter.within(func() { e, err = make() })
	b.mostNodes, b.mostWork = mostNodes, mostWork
	if enough && err == nil && b.err == nil {
		b.meter.held = held + b.held - here // what it was read from is garbage
		return e, true
	}
	b.meter.held, b.held = held, here
	b.spent += len(b.nodes) - at
	clear(b.nodes[at:])
	if cap(b.nodes) > 2*at+keptItems { // what was given up is not kept as room
		b.meter.spend(at / textBytes)
		b.nodes = slices.Clone(b.nodes[:at])
	}
	b.nodes, b.rules, b.wants, b.edges, b.err = b.nodes[:at], b.rules[:rules], b.wants[:wants], edges, nil
	b.meter.spend((len(b.sets) + len(b.patterns)) / 4)
	maps.DeleteFunc(b.sets, func(_ string, r int32) bool { return int(r) >= rules })
	maps.DeleteFunc(b.patterns, func(_ string, r ref) bool { return int(r) >= rules })
	return nil, false
}

// pattern is the rule of a regular expression that matches a whole text.
func (b *builder) pattern(source string) (expr, error) {
	if r, ok := b.patterns[source]; ok || source == "" {
		if source == "" {
			return literal(""), nil
		}
		return r, nil
	}
	e, err := compileRegex(b, source)
	if err != nil {
		return nil, err
	}
	if b.patterns == nil {
		b.patterns = map[string]ref{}
	}
	b.hold(len(source) + entryBytes)
	b.patterns[source] = e.(ref)
	return e, nil
}

func (b *builder) fail(err error) {
	if b.err == nil {
		b.err = err
	}
}

// hold counts bytes of the grammar before they are made.
func (b *builder) hold(n int) bool {
	b.held += int64(n)
	return b.meter.hold(n)
}

// scratch returns a function that gives back what was counted since, but for the grammar.
func (b *builder) scratch() func() {
	held, here := b.meter.held, b.held
	return func() { b.meter.held = held + b.held - here }
}

func (b *builder) node() int32 {
	if !b.hold(nodeSize) || !b.meter.spend(1) {
		b.fail(b.meter.err)
		return 0
	}
	if most, _ := b.budget(); b.spent+len(b.nodes) >= most {
		b.fail(tooLarge("states", maxNodes))
		return 0
	}
	b.nodes = append(b.nodes, node{})
	return int32(len(b.nodes) - 1)
}

func (b *builder) join(from int32, e edge) {
	if !b.hold(edgeSize) || !b.meter.spend(1) {
		b.fail(b.meter.err)
	}
	if b.edges++; b.edges > maxEdges {
		b.fail(tooLarge("ways between states", maxEdges))
	}
	if b.err == nil {
		b.nodes[from].edges = append(b.nodes[from].edges, e)
	}
}

func (b *builder) empty(from, to int32) { b.join(from, edge{kind: edgeEmpty, to: to}) }

// rule makes a rule that is filled later.
func (b *builder) rule() int32 {
	b.rules = append(b.rules, b.node())
	return int32(len(b.rules) - 1)
}

func (b *builder) fill(rule int32, e expr) {
	end := b.emit(e, b.rules[rule])
	if b.err == nil {
		b.nodes[end].final = true
	}
}

// define makes a rule of an expression.
func (b *builder) define(e expr) ref {
	r := b.rule()
	b.fill(r, e)
	return ref(r)
}

// emit adds an expression after a node and returns its end, a node without
// outgoing edges.
func (b *builder) emit(e expr, from int32) int32 {
	if b.err != nil {
		return 0
	}
	switch e := e.(type) {
	case literal:
		for i := range len(e) {
			to := b.node()
			b.join(from, edge{kind: edgeBytes, lo: e[i], hi: e[i], to: to})
			from = to
		}
		end := b.node()
		b.empty(from, end)
		return end
	case runes:
		end := b.node()
		b.emitRunes(runeSet(e), from, end)
		return end
	case seq:
		for _, part := range e {
			from = b.emit(part, from)
		}
		end := b.node()
		b.empty(from, end)
		return end
	case alt:
		end := b.node()
		for _, part := range e {
			first := b.node()
			b.empty(from, first)
			b.empty(b.emit(part, first), end)
		}
		return end
	case repeat:
		return b.emitRepeat(e, from)
	case ref:
		end := b.node()
		b.join(from, edge{kind: edgeCall, rule: int32(e), to: end})
		return end
	}
	panic(fmt.Sprintf("expression of type %T", e))
}

func (b *builder) emitRepeat(e repeat, from int32) int32 {
	of := e.of
	if e.min > 1 || e.max > 1 {
		of = b.define(of) // each copy is then one edge
	}
	for range e.min {
		if from = b.emit(of, from); b.err != nil {
			return 0
		}
	}
	end := b.node()
	if e.max < 0 {
		loop := b.node()
		b.empty(from, loop)
		b.empty(b.emit(of, loop), loop)
		b.empty(loop, end)
		return end
	}
	for range e.max - e.min {
		b.empty(from, end)
		if from = b.emit(of, from); b.err != nil {
			return 0
		}
	}
	b.empty(from, end)
	return end
}
