package grammar

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
		for i, j := 0, 0; i < len(x) && j < len(y) && m.err == nil; {
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
