package grammar

// refuseLeftRecursion refuses a rule that calls itself before any byte: its
// states would never end.
func (g *Grammar) refuseLeftRecursion(m *meter) error {
	empty := g.emptyRules(m)
	const (
		fresh = iota
		open
		done
	)
	state := make([]uint8, len(g.rules))
	type visit struct {
		rule   int32
		called []int32
	}
	for r := range g.rules {
		if state[r] != fresh {
			continue
		}
		state[r] = open
		stack := []visit{{int32(r), g.firstCalls(m, int32(r), empty)}}
		for len(stack) > 0 {
			if m.err != nil {
				return m.err
			}
			top := &stack[len(stack)-1]
			if len(top.called) == 0 {
				state[top.rule] = done
				stack = stack[:len(stack)-1]
				continue
			}
			next := top.called[0]
			top.called = top.called[1:]
			switch state[next] {
			case open:
				return &Error{kind: errUnsupported, Keyword: "recursion", Message: "a rule of the constraint begins with itself (left recursion, or a cycle of $ref), which is not supported; put something before the recursion"}
			case fresh:
				state[next] = open
				stack = append(stack, visit{next, g.firstCalls(m, next, empty)})
			}
		}
	}
	return nil
}

// emptyRules are those that may match nothing. Each rule is looked at again only where it
// waits for one that turned out to be empty, from where it waits on.
func (g *Grammar) emptyRules(m *meter) []bool {
	empty := make([]bool, len(g.rules))
	type at struct{ rule, node int32 }
	seen := map[at]bool{}
	waits := make([][]at, len(g.rules)) // for a rule: who calls it, and where they go on
	var work []at
	reach := func(to at) {
		if !seen[to] {
			seen[to] = true
			work = append(work, to)
		}
	}
	for r, first := range g.rules {
		reach(at{int32(r), first})
	}
	for len(work) > 0 {
		here := work[len(work)-1]
		work = work[:len(work)-1]
		if !m.spend(1 + len(g.out(&g.nodes[here.node]))) {
			break
		}
		if g.nodes[here.node].final && !empty[here.rule] {
			empty[here.rule] = true
			for _, w := range waits[here.rule] {
				reach(w)
			}
			m.spend(len(waits[here.rule]))
			waits[here.rule] = nil
		}
		for _, e := range g.out(&g.nodes[here.node]) {
			switch to := (at{here.rule, e.to}); {
			case e.kind == edgeBytes:
			case e.kind == edgeCall && !empty[e.rule]:
				waits[e.rule] = append(waits[e.rule], to)
			default:
				reach(to)
			}
		}
	}
	return empty
}

// firstCalls are the rules that a rule calls before any byte.
func (g *Grammar) firstCalls(m *meter, rule int32, empty []bool) []int32 {
	var calls []int32
	called := map[int32]bool{}
	seen := map[int32]bool{g.rules[rule]: true}
	work := []int32{g.rules[rule]}
	for len(work) > 0 {
		n := work[len(work)-1]
		work = work[:len(work)-1]
		if !m.spend(1 + len(g.out(&g.nodes[n]))) {
			break
		}
		for _, e := range g.out(&g.nodes[n]) {
			if e.kind == edgeCall && !called[e.rule] {
				called[e.rule] = true
				calls = append(calls, e.rule)
			}
			if e.kind != edgeBytes && (e.kind != edgeCall || empty[e.rule]) && !seen[e.to] {
				seen[e.to] = true
				work = append(work, e.to)
			}
		}
	}
	return calls
}
