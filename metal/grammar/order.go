package grammar

// anyOrder is the objects of a case whose listed members come in any order, each at most
// once.
func (s *schemas) anyOrder(c oneCase, sh shapeOf, free []freeName, in brackets) (expr, error) {
	b := s.b
	rule := b.rule()
	first := b.emit(in.open, b.rules[rule])
	member, after, end := b.node(), b.node(), b.node()
	b.empty(first, member)
	colon := seq{in.colon, s.space}
	comma := expr(literal(","))
	if s.sloppy {
		colon, comma = seq{s.space, in.colon, s.space}, seq{s.space, literal(",")}
	}
	next := b.emit(comma, after)
	b.empty(next, member)
	all := want{}
	for i, name := range sh.names {
		g, err := s.member(c, name, true, s.matchesName(c, name))
		if err != nil {
			return nil, err
		}
		of, err := s.rule(g)
		if err != nil {
			return nil, err
		}
		if sh.required[name] {
			all.members |= 1 << i
			all.nodes = append(all.nodes, b.rules[of])
		}
		written, err := s.named(name, in)
		if err != nil {
			return nil, err
		}
		taken := b.node()
		b.join(member, edge{kind: edgeTake, lo: byte(i), to: taken})
		b.empty(b.emit(seq{s.space, written, colon, of}, taken), after)
		if b.err != nil {
			return nil, b.err
		}
	}
	for _, f := range free {
		b.empty(b.emit(seq{s.space, f.name, colon, f.of}, member), after)
	}
	w := b.newWant()
	b.wants[w] = all
	b.wantAll(w, first, end)
	b.wantAll(w, after, end)
	if s.sloppy {
		b.wantAll(w, next, end)
	}
	last := b.emit(seq{s.space, in.close}, end)
	if b.err == nil {
		b.nodes[last].final = true
	}
	return ref(rule), b.err
}

// newWant makes a set of members that is filled later.
func (b *builder) newWant() int {
	b.wants = append(b.wants, want{})
	return len(b.wants) - 1
}

// wantAll joins a node to one that is reached once all wanted members were taken.
func (b *builder) wantAll(w int, from, to int32) {
	b.join(from, edge{kind: edgeAll, rule: int32(w), to: to})
}
