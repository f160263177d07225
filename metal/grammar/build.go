package grammar

import (
	"fmt"
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
	nodes []node
	rules []int32
	err   error
	// sets are the rules of character classes that were made already.
	sets map[string]int32
	// work done for schemas, and nodes that were made elsewhere and count here.
	work, spent int
	object      expr // any JSON object; nil until it is made
}

func (b *builder) fail(err error) {
	if b.err == nil {
		b.err = err
	}
}

func (b *builder) node() int32 {
	if b.spent+len(b.nodes) >= maxNodes {
		b.fail(tooLarge("states", maxNodes))
		return 0
	}
	b.nodes = append(b.nodes, node{})
	return int32(len(b.nodes) - 1)
}

func (b *builder) join(from int32, e edge) {
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

// emit adds an expression behind a node and returns where it ends, a node that
// nothing else leads away from.
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
