package grammar

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"slices"
	"sync/atomic"
)

// ErrAmbiguous is that of a grammar that can be read in too many ways at once to be followed
// further.
var ErrAmbiguous = errors.New("the constraint is too ambiguous to follow; make it less ambiguous")

// cell is one return address, with the members that the returning rule had taken; equal
// stacks are one cell.
type cell struct {
	ret    int32
	depth  int32
	taken  uint64
	parent *cell
	id     uint64
}

// item is a node, the members that its rule has taken, and the continuation
// after the rule; a nil stack is the end of the grammar.
type item struct {
	node  int32
	taken uint64
	stack *cell
}

// state is where an answer has got to: all ways to read it. It is made once and
// then only its caches change.
type state struct {
	items     []item
	accepting bool
	next      []*state // by class; nil is not known yet
	mask      []uint64
	// uniform is the one state that every safe character leads to, nil if there
	// is none; run: uniform has been computed.
	uniform *state
	run     bool
	// round of the table in which its caches were made.
	round uint64
	// own are the bytes that it holds by itself, once a matcher has it, see Table.own.
	own int64
}

const (
	// maxItems of one state.
	maxItems = 4096
	// tableBytes bounds the states and masks of one grammar; when it is reached
	// all are dropped and computed again as needed. The grammars in use have statesBytes
	// together, but each at least leastBytes.
	tableBytes  = 8 << 20
	statesBytes = 12 << 20
	leastBytes  = 128 << 10
	// mostBytes ends a constraint whose step creates more states than this. A table of a cache
	// may have more than its part of statesBytes only in a heavy place.
	mostBytes = 12 << 20
	// ownBytes bounds what one state of an answer holds by itself: some thirty ways to read it, each
	// in the deepest nesting.
	ownBytes = 256 << 10
	// keptItems are how many items the scratch of a table has room for between two steps.
	keptItems = 256
)

// errRoom ends an operation that needs more states than the table may have.
var errRoom = errors.New("the table has no room")

type cellKey struct {
	ret           int32
	taken, parent uint64
}

// Table holds the states of one grammar and their masks over one vocabulary. Any
// number of matchers may use it, from any goroutine.
type Table struct {
	g     *Grammar
	vocab *Vocabulary

	lane  *lane
	bytes atomic.Int64
	// peers are the tables of its tenant, this one included, if a cache has it, and used is
	// set while this one is in use.
	peers atomic.Pointer[holdings]
	used  atomic.Bool
	// heavy has the place of an operation that needs many states; nil is no bound.
	heavy *lane
	// starts are the first states of an answer, and of one that follows reasoning.
	starts [2]*state
	// begun are the bytes that starts hold by themselves.
	begun int64

	// held is full while an operation works on the table. A mutex would make one that cannot
	// wait wait for another's mask.
	held chan struct{}
	// All below are guarded by held.
	states map[string]*state
	cells  map[cellKey]*cell
	made   uint64 // cells ever
	dead   *state
	key    []byte
	work   []item
	seen   map[item]bool
	// strays are states of earlier rounds that matchers still hold and that have
	// caches again; rounds counts how often all was forgotten.
	strays []*state
	rounds uint64
	// inHeavy is set while an operation has the heavy place.
	inHeavy bool
	// meter of the operation, and failed what ended it early: its meter, or a state of too
	// many items or bytes.
	meter  *meter
	failed error
	path   []*state // of a walk, by depth
}

// NewTable returns a table that only has the first states.
func NewTable(g *Grammar, v *Vocabulary) *Table { return newTable(g, v, nil) }

func newTable(g *Grammar, v *Vocabulary, l *lane) *Table {
	t := &Table{g: g, vocab: v, lane: l, dead: &state{}, held: make(chan struct{}, 1)}
	t.forget()
	t.meter = newAccount(v).meter(context.Background(), nil)
	t.starts = [2]*state{t.begin(g.start), t.begin(g.afterReasoning)}
	t.begun = t.starts[0].own + t.starts[1].own
	return t
}

// Bytes that grammar, states and masks take now, about.
func (t *Table) Bytes() int64 { return t.fixed() + t.bytes.Load() }

// fixed are the bytes that it never forgets.
func (t *Table) fixed() int64 { return t.g.Bytes() + t.begun }

// grow counts bytes of states and masks.
func (t *Table) grow(n int64) {
	t.bytes.Add(n)
	if h := t.peers.Load(); h != nil {
		h.add(n)
		if t.used.Load() {
			h.use(n)
		}
	}
}

// room is what the states and masks may take between two operations.
func (t *Table) room() int64 {
	h := t.peers.Load()
	if h == nil {
		return tableBytes
	}
	return max(leastBytes, min(tableBytes, h.left(t.bytes.Load())/2))
}

// full is the error of an operation whose states take too much; nil if they do not.
func (t *Table) full() error {
	switch n := t.bytes.Load(); {
	case n > mostBytes:
		return ErrAmbiguous
	case t.heavy != nil && !t.inHeavy && n > t.room():
		return errRoom
	}
	return nil
}

// forget drops all states; those that matchers hold find their way again.
func (t *Table) forget() {
	for _, s := range t.states {
		s.next, s.mask, s.uniform, s.run = nil, nil, nil, false
	}
	for _, s := range t.strays {
		s.next, s.mask, s.uniform, s.run = nil, nil, nil, false
	}
	t.strays, t.work, t.path = nil, nil, nil
	t.rounds++
	t.states, t.cells, t.seen = map[string]*state{}, map[cellKey]*cell{}, map[item]bool{}
	t.grow(-t.bytes.Load())
}

// begin is the first state of a rule.
func (t *Table) begin(rule int32) *state {
	t.reset()
	t.reach(item{node: t.g.rules[rule]})
	return t.own(t.settle())
}

// reset forgets the items of the state before.
func (t *Table) reset() {
	if t.work = t.work[:0]; len(t.seen) > 0 {
		clear(t.seen)
	}
}

func (t *Table) push(ret int32, taken uint64, parent *cell) *cell {
	k := cellKey{ret: ret, taken: taken}
	depth := int32(1)
	if parent != nil {
		k.parent, depth = parent.id, parent.depth+1
	}
	if c := t.cells[k]; c != nil {
		return c
	}
	t.made++
	c := &cell{ret: ret, depth: depth, taken: taken, parent: parent, id: t.made}
	t.cells[k] = c
	t.grow(96)
	return c
}

// settle follows all edges that take no byte, from what was reached, and returns the resulting
// state; the dead state if there is none.
func (t *Table) settle() *state {
	var kept []item
	accepting := false
	for len(t.work) > 0 {
		it := t.work[len(t.work)-1]
		t.work = t.work[:len(t.work)-1]
		n := &t.g.nodes[it.node]
		edges := t.g.out(n)
		if !t.meter.spend(2 + len(edges)) {
			return t.fail(t.meter.err)
		}
		bytes := false
		for _, e := range edges {
			if t.failed != nil {
				return t.dead
			}
			switch e.kind {
			case edgeBytes:
				bytes = true
			case edgeCall:
				t.call(e, it)
			default:
				if taken, ok := t.g.across(e, it.taken); ok {
					t.reach(item{e.to, taken, it.stack})
				}
			}
		}
		if bytes {
			kept = append(kept, it)
		}
		if n.final && it.stack == nil {
			accepting = true
		} else if n.final {
			t.reach(item{it.stack.ret, it.stack.taken, it.stack.parent})
		}
	}
	if t.failed != nil {
		return t.dead
	}
	return t.intern(kept, accepting)
}

// reach looks at an item once, and only where its end can be reached within the
// depth that is allowed: what is begun can then always be ended.
func (t *Table) reach(it item) {
	depth := int32(0)
	if it.stack != nil {
		depth = it.stack.depth
	}
	if t.seen[it] || depth+t.g.nodes[it.node].need > maxDepth {
		return
	}
	if len(t.seen) >= maxItems { // before there is room for more
		t.fail(ErrAmbiguous)
		return
	}
	t.seen[it] = true
	t.work = append(t.work, it)
}

// call enters a rule; a call that nothing follows leaves no return address.
func (t *Table) call(e edge, from item) {
	to := &t.g.nodes[e.to]
	first := t.g.rules[e.rule]
	if to.final && to.first == to.end {
		t.reach(item{node: first, stack: from.stack})
		return
	}
	depth := int32(1)
	if from.stack != nil {
		depth = from.stack.depth + 1
	}
	if max(depth-1+to.need, depth+t.g.nodes[first].need) > maxDepth { // before there is a cell for it
		return
	}
	t.reach(item{node: first, stack: t.push(e.to, from.taken, from.stack)})
}

// intern returns the one state of these items.
func (t *Table) intern(items []item, accepting bool) *state {
	if len(items) == 0 && !accepting {
		return t.dead
	}
	id := func(it item) uint64 {
		if it.stack == nil {
			return 0
		}
		return it.stack.id
	}
	slices.SortFunc(items, func(a, b item) int {
		if a.node != b.node {
			return int(a.node) - int(b.node)
		}
		return cmp.Or(cmp.Compare(id(a), id(b)), cmp.Compare(a.taken, b.taken))
	})
	t.key = t.key[:0]
	if accepting {
		t.key = append(t.key, 1)
	}
	for _, it := range items {
		t.key = binary.AppendUvarint(t.key, uint64(it.node))
		t.key = binary.AppendUvarint(t.key, id(it))
		t.key = binary.AppendUvarint(t.key, it.taken)
	}
	if s := t.states[string(t.key)]; s != nil {
		return s
	}
	if err := t.full(); err != nil {
		return t.fail(err)
	}
	s := &state{items: slices.Clone(items), accepting: accepting, round: t.rounds}
	t.states[string(t.key)] = s
	t.grow(int64(len(t.key)) + int64(len(items))*24 + 192)
	return s
}

// own counts the items of a state that a matcher gets, and their stacks, each cell once. The
// matcher holds them also after the table has forgotten the state; it gets none that holds more
// than ownBytes.
func (t *Table) own(s *state) *state {
	const itemBytes, cellBytes, few = 24, 32, 256
	if s == t.dead || s.own > 0 {
		return s
	}
	cells := 0
	for _, it := range s.items {
		if it.stack != nil {
			cells += int(it.stack.depth)
		}
	}
	if cells > few { // many of them may be the same
		all := map[*cell]bool{}
		for _, it := range s.items {
			for c := it.stack; c != nil && !all[c] && len(all) <= ownBytes/cellBytes; c = c.parent {
				all[c] = true
			}
		}
		cells = len(all)
	}
	own := int64(len(s.items))*itemBytes + int64(cells)*cellBytes
	if !t.spend(len(s.items) + cells) {
		return t.dead
	}
	if own > ownBytes {
		return t.fail(ErrAmbiguous)
	}
	s.own = own
	return s
}

// fail ends the operation: what it would look at from here is not known.
func (t *Table) fail(err error) *state {
	if t.failed == nil {
		t.failed = err
	}
	return t.dead
}

// step is the state after a byte of a class; the dead state if the byte is not
// allowed.
func (t *Table) step(s *state, class uint8) *state {
	if t.failed != nil {
		return t.dead
	}
	if s.next == nil {
		s.next = make([]*state, t.g.classes)
		t.grow(int64(t.g.classes) * 8)
	} else if to := s.next[class]; to != nil {
		return to
	}
	b := t.g.sample[class]
	t.reset()
	for _, it := range s.items {
		edges := t.g.out(&t.g.nodes[it.node])
		if !t.meter.spend(1 + len(edges)) {
			return t.fail(t.meter.err)
		}
		for _, e := range edges {
			if e.kind == edgeBytes && e.lo <= b && b <= e.hi {
				t.reach(item{e.to, it.taken, it.stack})
			}
		}
	}
	to := t.dead
	if len(t.work) > 0 {
		to = t.settle()
	}
	if t.failed == nil {
		s.next[class] = to
	}
	return to
}

// follow advances a state by several bytes.
func (t *Table) follow(s *state, text []byte) *state {
	for _, b := range text {
		if s = t.step(s, t.g.class[b]); s == t.dead {
			break
		}
	}
	return s
}

// tidy drops what an operation leaves in the table that takes too much.
func (t *Table) tidy() {
	if t.heavy != nil && t.bytes.Load() > t.room() {
		t.forget()
	}
	if cap(t.work) > keptItems {
		t.work, t.seen = nil, map[item]bool{}
	}
}

// makeRoom forgets the states where they take too much, before one is used.
func (t *Table) makeRoom(s *state) {
	if t.bytes.Load() > t.room() {
		t.forget()
	}
	if s.round != t.rounds {
		s.round = t.rounds
		t.strays = append(t.strays, s)
		t.grow(s.own)
	}
}
