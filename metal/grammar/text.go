package grammar

import (
	"cmp"
	"slices"
)

// text is any text in which marks lead to calls: the automaton of Aho and Corasick, which
// knows after each byte the longest beginning of a mark that the text ends with. No mark
// stands within another.
type text struct {
	b *builder
	// states hold, for each, the bytes of a mark that it has come to; the first is none.
	states []textState
	// start is the state of no byte: the first or, where some marks are marks at the start
	// alone, that of the beginnings of those.
	start int
}

type textState struct {
	// branches are the bytes that lead on within marks, in order.
	branches []branch
	// fail is the state of the longest beginning of a mark within what came.
	fail int
	// row has the states that bytes lead to, those of the marks and all others.
	row []textWay
	// node of the state, and what leads on from a mark that is complete.
	node int32
	done func(node int32)
}

type branch struct {
	b  byte
	to int
}

// textWay is where the bytes from lo on lead, up to the next way's.
type textWay struct {
	lo byte
	to int32
}

func newText(b *builder) *text { return &text{b: b, states: []textState{{}}} }

// mark has a rule follow a mark, and the text go on after it.
func (t *text) mark(mark string, of ref) { t.on(mark, t.call(of)) }

func (t *text) call(of ref) func(node int32) {
	return func(node int32) { t.b.join(node, edge{kind: edgeCall, rule: int32(of), to: t.states[0].node}) }
}

// on has lead join the node after a mark.
func (t *text) on(mark string, lead func(node int32)) int { return t.enter(0, mark, lead) }

// first has a rule follow a mark that begins the text.
func (t *text) first(mark string, of ref) {
	if t.start == 0 {
		t.start = len(t.states)
		t.states = append(t.states, textState{})
	}
	t.enter(t.start, mark, t.call(of))
}

// enter adds the states of a mark after one of no byte.
func (t *text) enter(at int, mark string, lead func(node int32)) int {
	for i := range len(mark) {
		branches := t.states[at].branches
		if !t.b.meter.spend(1 + len(branches)/textBytes) {
			t.b.fail(t.b.meter.err)
			return at
		}
		n, known := slices.BinarySearchFunc(branches, mark[i], func(have branch, b byte) int { return cmp.Compare(have.b, b) })
		if known {
			at = branches[n].to
			continue
		}
		if most, _ := t.b.budget(); len(t.states) >= most { // each becomes a node
			t.b.fail(tooLarge("states", maxNodes))
			return at
		}
		if !t.b.meter.hold(textStateBytes) {
			t.b.fail(t.b.meter.err)
			return at
		}
		to := len(t.states)
		t.states[at].branches = slices.Insert(branches, n, branch{mark[i], to})
		t.states = append(t.states, textState{})
		at = to
	}
	t.states[at].done = lead
	return at
}

// rule makes the rule of the text, which may end anywhere but within a call.
func (t *text) rule() ref {
	r := t.b.rule()
	t.make(t.b.rules[r], true)
	return ref(r)
}

// make makes the nodes, from a first one, which are all final or not.
func (t *text) make(first int32, final bool) {
	for i := range t.states {
		if t.states[i].node = first; i != t.start {
			t.states[i].node = t.b.node()
		}
	}
	t.lead()
	for i := range t.states {
		s := &t.states[i]
		if t.b.err != nil {
			return
		}
		if s.done != nil {
			s.done(s.node)
			continue
		}
		t.b.nodes[s.node].final = final
		for i, w := range s.row {
			hi := byte(255)
			if i+1 < len(s.row) {
				hi = s.row[i+1].lo - 1
			}
			t.b.join(s.node, edge{kind: edgeBytes, lo: w.lo, hi: hi, to: t.states[w.to].node})
		}
	}
}

// lead finds where each byte leads in each state. It works breadth first, so that the row of
// the state that one fails to, which stands for fewer bytes, is complete.
func (t *text) lead() {
	order := []int{0}
	if t.start != 0 {
		order = append(order, t.start)
	}
	for n := 0; n < len(order) && t.b.err == nil; n++ {
		at := order[n]
		s := &t.states[at]
		base := []textWay{{}}
		if at > 0 {
			base = t.states[s.fail].row
		}
		if !t.b.meter.spend(len(base) + len(s.branches)) {
			t.b.fail(t.b.meter.err)
			return
		}
		if !t.b.meter.hold(8 * (len(base) + 2*len(s.branches))) {
			t.b.fail(t.b.meter.err)
			return
		}
		s.row = joined(base, s.branches)
		for _, branch := range s.branches {
			if at > 0 {
				t.states[branch.to].fail = after(base, branch.b)
			}
			order = append(order, branch.to)
		}
	}
}

// after is where a byte leads.
func after(row []textWay, b byte) int {
	n, _ := slices.BinarySearchFunc(row, int(b)+1, func(w textWay, b int) int { return cmp.Compare(int(w.lo), b) })
	return int(row[n-1].to)
}

// joined is a row in which some bytes lead elsewhere.
func joined(row []textWay, branches []branch) []textWay {
	out := make([]textWay, 0, len(row)+2*len(branches))
	put := func(lo, to int) {
		if n := len(out); n == 0 || int(out[n-1].to) != to {
			out = append(out, textWay{byte(lo), int32(to)})
		}
	}
	for i, w := range row {
		lo, end := int(w.lo), 256
		if i+1 < len(row) {
			end = int(row[i+1].lo)
		}
		for len(branches) > 0 && int(branches[0].b) < end {
			b := branches[0]
			if branches = branches[1:]; lo < int(b.b) {
				put(lo, int(w.to))
			}
			put(int(b.b), b.to)
			lo = int(b.b) + 1
		}
		if lo < end {
			put(lo, int(w.to))
		}
	}
	return out
}

// failed is the node of the text whose end looked like the mark of a state and is none.
func (t *text) failed(at int) int32 { return t.states[t.states[at].fail].node }
