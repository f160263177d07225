package grammar

import (
	"encoding/binary"
	"fmt"
	"regexp/syntax"
	"slices"
)

// maxRegular bounds the states of an automaton over characters, and maxWays what
// leads between them.
const (
	maxRegular = 8_000
	maxWays    = 200_000
)

// regular is a deterministic automaton over characters, from state 0. What is not
// named leads nowhere.
type regular struct {
	states []regularState
}

// bytes that it takes, about.
func (r *regular) bytes() int64 {
	if r == nil {
		return 0
	}
	n := int64(len(r.states)) * stateBytes
	for i := range r.states {
		n += int64(len(r.states[i].ways)) * wayBytes
	}
	return n
}

type regularState struct {
	ways   []regularWay // in order, apart from one another
	accept bool
}

type regularWay struct {
	runeRange
	to int
}

// next is where a character leads, below 0 for nowhere.
func (r *regular) next(s int, c rune) int {
	for _, w := range r.states[s].ways {
		if w.lo <= c && c <= w.hi {
			return w.to
		}
	}
	return -1
}

func (r *regular) matches(m *meter, text string) bool {
	s := 0
	for _, c := range text {
		if !m.spend(1 + len(r.states[s].ways)) {
			return false
		}
		if s = r.next(s, c); s < 0 {
			return false
		}
	}
	return r.states[s].accept
}

// loose is an automaton over characters that may be in many places at once.
type loose struct {
	meter *meter
	nodes []looseNode
	err   error
	// seen has for each node the number of the last closure that reached it.
	seen     []int32
	closures int32
	// classes of characters that were made already, by the bounds of their ranges; key is
	// scratch.
	classes map[string]runeSet
	key     []byte
}

type looseNode struct {
	set       runeSet
	to        int   // the node after set
	empty     []int // reached at once,
	start     []int // at the start of the text,
	end       []int // at its end
	accepting bool
}

func (l *loose) node() int {
	if !l.meter.hold(looseBytes) || !l.meter.spend(1) {
		l.fail(l.meter.err)
		return 0
	}
	if len(l.nodes) >= maxRegular*4 {
		l.fail(tooLarge("states of a regular expression", maxRegular*4))
		return 0
	}
	l.nodes = append(l.nodes, looseNode{})
	return len(l.nodes) - 1
}

func (l *loose) fail(err error) {
	if l.err == nil {
		l.err = err
	}
}

func (l *loose) empty(from, to int) {
	if l.err == nil {
		l.nodes[from].empty = append(l.nodes[from].empty, to)
	}
}

// parseRegular makes the automaton of an expression; anchored ones match the
// whole text, the others any part of it.
func parseRegular(m *meter, source, keyword string, anchored bool) (*regular, error) {
	held := m.held
	parsed, err := parseExpression(m, source, keyword)
	if err != nil {
		return nil, err
	}
	l := &loose{meter: m}
	start := l.node()
	first := start
	if !anchored {
		before := l.node()
		l.empty(start, before)
		l.nodes[before].set, l.nodes[before].to = anyRune(), before
		first = l.node()
		l.empty(start, first)
		l.empty(l.hop(before), first)
	}
	end := l.add(parsed, first, keyword)
	if l.err != nil {
		return nil, l.err
	}
	l.nodes[end].accepting = true
	if !anchored {
		after := l.node()
		l.empty(end, after)
		l.nodes[after] = looseNode{set: anyRune(), to: after, accepting: true}
	}
	if l.err != nil {
		return nil, l.err
	}
	r, err := l.determine(start)
	m.held = held + r.bytes()
	return r, err
}

// hop returns a node parallel to one that only loops, from which others may be
// reached.
func (l *loose) hop(loop int) int {
	n := l.node()
	l.empty(loop, n)
	return n
}

// add appends an expression to a node and returns its end.
func (l *loose) add(e *syntax.Regexp, from int, keyword string) int {
	if l.err != nil {
		return 0
	}
	end := l.node()
	switch e.Op {
	case syntax.OpEmptyMatch:
		l.empty(from, end)
	case syntax.OpNoMatch:
	case syntax.OpLiteral:
		for _, c := range e.Rune {
			from = l.across(from, newRuneSet(runeRange{c, c}))
		}
		l.empty(from, end)
	case syntax.OpCharClass:
		l.empty(l.across(from, l.class(e.Rune)), end)
	case syntax.OpAnyChar:
		l.empty(l.across(from, anyRune()), end)
	case syntax.OpBeginText:
		l.nodes[from].start = append(l.nodes[from].start, end)
	case syntax.OpEndText:
		l.nodes[from].end = append(l.nodes[from].end, end)
	case syntax.OpCapture:
		l.empty(l.add(e.Sub[0], l.hop(from), keyword), end)
	case syntax.OpConcat:
		for _, sub := range e.Sub {
			from = l.add(sub, from, keyword)
		}
		l.empty(from, end)
	case syntax.OpAlternate:
		for _, sub := range e.Sub {
			l.empty(l.add(sub, l.hop(from), keyword), end)
		}
	case syntax.OpStar, syntax.OpPlus, syntax.OpQuest, syntax.OpRepeat:
		l.repeated(e, from, end, keyword)
	default:
		l.fail(&Error{kind: errUnsupported, Keyword: keyword, Message: fmt.Sprintf("%s: %s cannot be enforced; rewrite the expression without it", keyword, e)})
	}
	return end
}

// class is the set of the ranges whose bounds these are, made once: one of letters has 700
// ranges, and an expression may repeat it a thousand times.
func (l *loose) class(bounds []rune) runeSet {
	l.meter.spend(len(bounds) / 2)
	l.key = l.key[:0]
	for _, c := range bounds {
		l.key = binary.AppendUvarint(l.key, uint64(c))
	}
	if s, known := l.classes[string(l.key)]; known {
		return s
	}
	l.meter.hold(entryBytes + 16*len(bounds))
	ranges := make([]runeRange, 0, len(bounds)/2)
	for i := 0; i < len(bounds); i += 2 {
		ranges = append(ranges, runeRange{bounds[i], bounds[i+1]})
	}
	s := newRuneSet(ranges...)
	if l.classes == nil {
		l.classes = map[string]runeSet{}
	}
	l.classes[string(l.key)] = s
	return s
}

func (l *loose) across(from int, s runeSet) int {
	at, to := l.hop(from), l.node()
	if l.err == nil {
		l.nodes[at].set, l.nodes[at].to = s, to
	}
	return to
}

func (l *loose) repeated(e *syntax.Regexp, from, end int, keyword string) {
	least, most := e.Min, e.Max
	switch e.Op {
	case syntax.OpStar:
		least, most = 0, -1
	case syntax.OpPlus:
		least, most = 1, -1
	case syntax.OpQuest:
		least, most = 0, 1
	}
	for range least {
		from = l.add(e.Sub[0], from, keyword)
	}
	if most < 0 {
		loop := l.hop(from)
		l.empty(l.add(e.Sub[0], loop, keyword), loop)
		l.empty(loop, end)
		return
	}
	for range most - least {
		l.empty(from, end)
		from = l.add(e.Sub[0], l.hop(from), keyword)
	}
	l.empty(from, end)
}

// closure is the nodes that are reached at once, in order.
func (l *loose) closure(from []int, atStart, atEnd bool) []int {
	if l.closures++; l.seen == nil {
		l.seen = make([]int32, len(l.nodes))
	}
	work, out := slices.Clone(from), []int{}
	for len(work) > 0 && l.meter.err == nil {
		n := work[len(work)-1]
		work = work[:len(work)-1]
		if l.seen[n] == l.closures {
			continue
		}
		l.seen[n] = l.closures
		out = append(out, n)
		before := len(work)
		work = append(work, l.nodes[n].empty...)
		if atStart {
			work = append(work, l.nodes[n].start...)
		}
		if atEnd {
			work = append(work, l.nodes[n].end...)
		}
		l.meter.spend(1 + len(work) - before)
	}
	slices.Sort(out)
	return out
}

// determine makes it deterministic.
func (l *loose) determine(start int) (*regular, error) {
	r := &regular{}
	known := map[string]int{}
	var sets [][]int
	ways := 0
	enter := func(from []int, atStart bool) int {
		set := l.closure(from, atStart, false)
		key := []byte{byte(len(sets))}[:0]
		for _, n := range set {
			key = binary.AppendUvarint(key, uint64(n))
		}
		if s, ok := known[string(key)]; ok && !atStart {
			return s
		}
		accept := slices.ContainsFunc(l.closure(set, atStart, true), func(n int) bool { return l.nodes[n].accepting })
		l.meter.hold(stateBytes + entryBytes + len(key) + 16*len(set))
		if !atStart {
			known[string(key)] = len(sets)
		}
		sets = append(sets, set)
		r.states = append(r.states, regularState{accept: accept})
		return len(sets) - 1
	}
	enter([]int{start}, true)
	for s := 0; s < len(sets); s++ {
		if l.meter.err != nil {
			return nil, l.meter.err
		}
		if len(sets) > maxRegular || ways > maxWays {
			return nil, tooLarge("states of a regular expression", maxRegular)
		}
		for _, p := range l.parts(sets[s]) {
			w := regularWay{p.runeRange, enter(p.to, false)}
			l.meter.hold(wayBytes)
			r.states[s].add(w)
			ways++
		}
		l.meter.hold(-16 * len(sets[s]))
		sets[s] = nil
	}
	return r, nil
}

// add joins a way to the one before it where both lead to the same state.
func (s *regularState) add(w regularWay) {
	if n := len(s.ways); n > 0 && s.ways[n-1].to == w.to && s.ways[n-1].hi+1 == w.lo {
		s.ways[n-1].hi = w.hi
		return
	}
	s.ways = append(s.ways, w)
}

type part struct {
	runeRange
	to []int
}

// parts cut the characters where nodes tell them apart.
func (l *loose) parts(nodes []int) []part {
	var cuts []rune
	for _, n := range nodes {
		for _, r := range l.nodes[n].set {
			cuts = append(cuts, r.lo, r.hi+1)
		}
	}
	if !l.meter.spend(len(nodes) + 4*len(cuts)) {
		return nil
	}
	slices.Sort(cuts)
	cuts = slices.Compact(cuts)
	var out []part
	for i := range max(0, len(cuts)-1) {
		p := part{runeRange: runeRange{cuts[i], cuts[i+1] - 1}}
		for _, n := range nodes {
			if !l.meter.spend(1) {
				return nil
			}
			if l.nodes[n].set.has(p.lo) {
				p.to = append(p.to, l.nodes[n].to)
			}
		}
		if len(p.to) > 0 {
			out = append(out, p)
		}
	}
	return out
}

// both is what two automata match.
func both(m *meter, a, b *regular) (*regular, error) {
	r := &regular{}
	defer func(held int64) { m.held = held + r.bytes() }(m.held)
	known := map[[2]int]int{}
	var pairs [][2]int
	enter := func(p [2]int) int {
		s, ok := known[p]
		if !ok {
			s = len(pairs)
			known[p] = s
			m.hold(stateBytes + entryBytes)
			pairs = append(pairs, p)
			r.states = append(r.states, regularState{accept: a.states[p[0]].accept && b.states[p[1]].accept})
		}
		return s
	}
	enter([2]int{0, 0})
	ways := 0
	for s := 0; s < len(pairs); s++ {
		if len(pairs) > maxRegular || ways > maxWays {
			return nil, tooLarge("states of all regular expressions together", maxRegular)
		}
		x, y := a.states[pairs[s][0]].ways, b.states[pairs[s][1]].ways
		if !m.hold(wayBytes*(len(x)+len(y))) || !m.spend(4*(1+len(x)+len(y))) {
			return nil, m.err
		}
		for i, j := 0, 0; i < len(x) && j < len(y); {
			if lo, hi := max(x[i].lo, y[j].lo), min(x[i].hi, y[j].hi); lo <= hi {
				w := regularWay{runeRange{lo, hi}, enter([2]int{x[i].to, y[j].to})}
				r.states[s].add(w)
				ways++
			}
			if x[i].hi < y[j].hi {
				i++
			} else {
				j++
			}
		}
	}
	return r, nil
}

// not matches every other text.
func (r *regular) not(m *meter) *regular {
	out := &regular{}
	all := len(r.states)
	for _, s := range r.states {
		if !m.hold(stateBytes+2*wayBytes*(1+len(s.ways))) || !m.spend(1+4*len(s.ways)) {
			break // the meter keeps the error
		}
		n := regularState{accept: !s.accept}
		next := rune(0)
		for _, w := range s.ways {
			for _, gap := range newRuneSet(runeRange{next, w.lo - 1}) {
				n.add(regularWay{gap, all})
			}
			n.add(w)
			next = w.hi + 1
		}
		for _, gap := range newRuneSet(runeRange{next, 0x10ffff}) {
			n.add(regularWay{gap, all})
		}
		out.states = append(out.states, n)
	}
	rest := regularState{accept: true}
	for _, gap := range anyRune() {
		rest.add(regularWay{gap, all})
	}
	out.states = append(out.states, rest)
	return out
}

// ofLength matches texts of least to most characters; a negative most means no
// maximum.
func ofLength(m *meter, least, most int) (*regular, error) {
	last := max(least, most)
	if last > maxRegular/2 {
		return nil, tooLarge("characters of a text with a length limit and a pattern", maxRegular/2)
	}
	if !m.hold(last*(stateBytes+2*wayBytes)) || !m.spend(8*last) {
		return nil, m.err
	}
	r, all := &regular{}, anyRune()
	for i := 0; i <= last; i++ {
		s := regularState{accept: i >= least}
		if i < last || most < 0 {
			for _, gap := range all {
				s.ways = append(s.ways, regularWay{gap, min(i+1, last)})
			}
		}
		r.states = append(r.states, s)
	}
	return r, nil
}

// oneOf matches these texts alone.
func oneOf(m *meter, texts []string) *regular {
	held := m.held
	l := &loose{meter: m}
	start := l.node()
	for _, t := range texts {
		from := start
		for _, c := range t {
			from = l.across(from, newRuneSet(runeRange{c, c}))
		}
		end := l.hop(from)
		l.nodes[end].accepting = true
	}
	if l.err != nil {
		return nil
	}
	r, err := l.determine(start)
	m.held = held + r.bytes()
	if err != nil {
		return nil
	}
	return r
}

// emitRegular makes a rule of an automaton.
func (b *builder) emitRegular(r *regular, how spelling) ref {
	rule := b.rule()
	nodes := []int32{b.rules[rule]}
	for range len(r.states) - 1 {
		nodes = append(nodes, b.node())
	}
	for i, s := range r.states {
		if b.err != nil {
			break
		}
		b.nodes[nodes[i]].final = s.accept
		if !b.meter.spend(1 + 8*len(s.ways)) {
			b.fail(b.meter.err)
			break
		}
		by := map[int][]runeRange{}
		var order []int
		for _, w := range s.ways {
			if by[w.to] == nil {
				order = append(order, w.to)
			}
			by[w.to] = append(by[w.to], w.runeRange)
		}
		for _, to := range order {
			b.emitSpelt(newRuneSet(by[to]...), how, nodes[i], nodes[to])
		}
	}
	return ref(rule)
}
