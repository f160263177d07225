package grammar

import (
	"encoding/binary"
	"fmt"
	"iter"
	"regexp/syntax"
	"slices"
)

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
	if l.err != nil {
		return nil, l.err // there is no node
	}
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
		for in, to := range l.parts(sets[s]) {
			w := regularWay{in, enter(to, false)}
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

// parts cut the characters where nodes tell them apart, and give for each part the nodes that it
// leads to, in a list that the next part uses again. A set of a thousand classes of letters has
// millions of bounds: they are counted before there is a list of them.
func (l *loose) parts(nodes []int) iter.Seq2[runeRange, []int] {
	return func(yield func(runeRange, []int) bool) {
		bounds := 0
		for _, n := range nodes {
			bounds += 2 * len(l.nodes[n].set)
		}
		defer l.meter.hold(-4 * bounds)
		if !l.meter.hold(4*bounds) || !l.meter.spend(len(nodes)+4*bounds) {
			return
		}
		cuts := make([]rune, 0, bounds)
		for _, n := range nodes {
			for _, r := range l.nodes[n].set {
				cuts = append(cuts, r.lo, r.hi+1)
			}
		}
		slices.Sort(cuts)
		cuts = slices.Compact(cuts)
		var to []int
		for i := range max(0, len(cuts)-1) {
			to = to[:0]
			for _, n := range nodes {
				if !l.meter.spend(1) {
					return
				}
				if l.nodes[n].set.has(cuts[i]) {
					to = append(to, l.nodes[n].to)
				}
			}
			if len(to) > 0 && !yield(runeRange{cuts[i], cuts[i+1] - 1}, to) {
				return
			}
		}
	}
}
