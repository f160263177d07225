package grammar

// text is any text in which marks lead to calls: the automaton of Aho and Corasick, which
// knows after each byte the longest beginning of a mark that the text ends with. No mark
// stands within another.
type text struct {
	b *builder
	// states hold, for each, the bytes of a mark that it has come to; the first is none.
	states []textState
	// heads are the beginnings of marks that are marks at the start alone, the first of no
	// byte; none where there are no such marks.
	heads []headState
}

// headState is the beginning of a text that may turn out to be a mark.
type headState struct {
	next map[byte]int
	at   int // the state of a text that begins so
	node int32
	of   ref
	done bool
}

type textState struct {
	next map[byte]int
	// fail is the state of the longest beginning of a mark within what came.
	fail int
	// node of the state, and what leads on from a mark that is complete.
	node int32
	done func(node int32)
}

func newText(b *builder) *text { return &text{b: b, states: []textState{{next: map[byte]int{}}}} }

// mark has a rule follow a mark, and the text go on after it.
func (t *text) mark(mark string, of ref) {
	t.on(mark, func(node int32) { t.b.join(node, edge{kind: edgeCall, rule: int32(of), to: t.states[0].node}) })
}

// on has lead join the node after a mark.
func (t *text) on(mark string, lead func(node int32)) int {
	at := 0
	for i := range len(mark) {
		to, ok := t.states[at].next[mark[i]]
		if !ok {
			to = len(t.states)
			t.states[at].next[mark[i]] = to
			t.states = append(t.states, textState{next: map[byte]int{}})
		}
		at = to
	}
	t.states[at].done = lead
	return at
}

// first has a rule follow a mark that begins the text.
func (t *text) first(mark string, of ref) {
	if t.heads == nil {
		t.heads = []headState{{next: map[byte]int{}}}
	}
	at := 0
	for i := range len(mark) {
		to, ok := t.heads[at].next[mark[i]]
		if !ok {
			to = len(t.heads)
			t.heads[at].next[mark[i]] = to
			t.heads = append(t.heads, headState{next: map[byte]int{}})
		}
		at = to
	}
	t.heads[at].of, t.heads[at].done = of, true
}

// rule makes the rule of the text, which may end anywhere but within a call.
func (t *text) rule() ref {
	r := t.b.rule()
	if t.heads == nil {
		t.make(t.b.rules[r], true)
		return ref(r)
	}
	t.make(t.b.node(), true)
	t.heads[0].node = t.b.rules[r]
	for i := range t.heads { // a state comes after the one that leads to it
		h := &t.heads[i]
		if i > 0 {
			h.node = t.b.node()
		}
		for b, to := range h.next {
			t.heads[to].at = t.step(h.at, b)
		}
	}
	for _, h := range t.heads {
		t.head(h)
	}
	return ref(r)
}

// head joins the state of a beginning to those that bytes lead to.
func (t *text) head(h headState) {
	if t.b.err != nil {
		return
	}
	if h.done {
		t.b.join(h.node, edge{kind: edgeCall, rule: int32(h.of), to: t.states[0].node})
		return
	}
	t.b.nodes[h.node].final = true
	for b := range 256 {
		to := t.states[t.step(h.at, byte(b))].node
		if next, ok := h.next[byte(b)]; ok {
			to = t.heads[next].node
		}
		t.b.join(h.node, edge{kind: edgeBytes, lo: byte(b), hi: byte(b), to: to})
	}
}

// make makes the nodes, from a first one, which are all final or not.
func (t *text) make(first int32, final bool) {
	for i := range t.states {
		if t.states[i].node = first; i > 0 {
			t.states[i].node = t.b.node()
		}
	}
	order := []int{0}
	for at := 0; at < len(order); at++ { // breadth first, so that a state's fail is known
		for b, to := range t.states[order[at]].next {
			if order[at] > 0 {
				t.states[to].fail = t.step(t.states[order[at]].fail, b)
			}
			order = append(order, to)
		}
	}
	for i, s := range t.states {
		if t.b.err != nil {
			return
		}
		if s.done != nil {
			s.done(s.node)
			continue
		}
		t.b.nodes[s.node].final = final
		t.join(i)
	}
}

// failed is the node of the text whose end looked like the mark of a state and is none.
func (t *text) failed(at int) int32 { return t.states[t.states[at].fail].node }

// step is the state after a byte.
func (t *text) step(at int, b byte) int {
	for {
		if to, ok := t.states[at].next[b]; ok {
			return to
		}
		if at == 0 {
			return 0
		}
		at = t.states[at].fail
	}
}

// join joins a state to those that bytes lead to.
func (t *text) join(at int) {
	for lo := 0; lo < 256; {
		to, hi := t.step(at, byte(lo)), lo
		for hi < 255 && t.step(at, byte(hi+1)) == to {
			hi++
		}
		t.b.join(t.states[at].node, edge{kind: edgeBytes, lo: byte(lo), hi: byte(hi), to: t.states[to].node})
		lo = hi + 1
	}
}
