package grammar

import "slices"

// freeName is a class of names that are not listed, and what their members are.
type freeName struct {
	name expr
	of   ref
}

// freeNames are the classes of other names, by which patterns match them.
func (s *schemas) freeNames(c oneCase, sh shapeOf, in brackets) ([]freeName, error) {
	if !sh.open {
		return nil, nil
	}
	var out []freeName
	for subset := range 1 << len(sh.patterns) {
		inSubset := func(pattern string) (bool, error) {
			return subset&(1<<slices.Index(sh.patterns, pattern)) != 0, nil
		}
		g, err := s.member(c, "", false, inSubset)
		if err != nil {
			return nil, err
		}
		if slices.ContainsFunc(g, func(p place) bool { return p.of == false }) {
			continue
		}
		of, err := s.rule(g)
		if err != nil {
			return nil, err
		}
		name, err := s.namesOf(sh, inSubset, in)
		if err != nil {
			return nil, err
		}
		out = append(out, freeName{name, of})
	}
	return out, nil
}

// namesOf are all names but those listed, which these patterns alone match.
func (s *schemas) namesOf(sh shapeOf, matching func(string) (bool, error), in brackets) (expr, error) {
	if len(sh.names) == 0 && len(sh.patterns) == 0 {
		return s.otherNames(nil, in)
	}
	listed := oneOf(s.b.meter, sh.names)
	if listed == nil {
		return nil, tooLarge("characters of names in one object", maxRegular)
	}
	all := listed.not(s.b.meter)
	for _, p := range sh.patterns {
		r, err := s.pattern("patternProperties", p, nil)
		if err != nil {
			return nil, err
		}
		if in, _ := matching(p); !in {
			r = r.not(s.b.meter)
		}
		if all, err = both(s.b.meter, all, r); err != nil {
			return nil, err
		}
	}
	return s.otherNames(all, in)
}

// emitObject is the objects of a case: listed members in their order, then others.
func (s *schemas) emitObject(c oneCase, _ types) (expr, error) { return s.objectIn(c, inValues()) }

// objectIn is the same in other brackets.
func (s *schemas) objectIn(c oneCase, in brackets) (expr, error) {
	sh, err := s.membersOf(c)
	if err != nil {
		return nil, err
	}
	least, err := s.whole(c, "minProperties", 0, larger)
	if err != nil {
		return nil, err
	}
	most, err := s.whole(c, "maxProperties", -1, smaller)
	if err != nil {
		return nil, err
	}
	free, err := s.freeNames(c, sh, in)
	if err != nil {
		return nil, err
	}
	if s.forgiving && least <= len(sh.required) && most < 0 && len(sh.names) <= maxTaken {
		return s.anyOrder(c, sh, free, in)
	}
	if least <= len(sh.required) {
		least = 0
	}
	if least > 0 && most >= 0 && len(free) > 0 {
		return nil, s.unsupported("minProperties", c[0].at, "the combination with maxProperties is supported only if additionalProperties is false")
	}
	o := objectMaker{s: s, in: in, least: least, most: most, top: most}
	if most < 0 {
		o.top = max(1, least)
	}
	return o.make(c, sh, free)
}

// objectMaker makes the rule of an object. Its nodes know how many members came,
// up to top.
type objectMaker struct {
	s                *schemas
	in               brackets
	least, most, top int
}

func (o objectMaker) make(c oneCase, sh shapeOf, free []freeName) (expr, error) {
	b := o.s.b
	rule := b.rule()
	level := o.level()
	b.empty(b.emit(o.in.open, b.rules[rule]), level[0])
	for _, name := range sh.names {
		g, err := o.s.member(c, name, true, o.s.matchesName(c, name))
		if err != nil {
			return nil, err
		}
		of, err := o.s.rule(g)
		if err != nil {
			return nil, err
		}
		written, err := o.s.named(name, o.in)
		if err != nil {
			return nil, err
		}
		next := o.level()
		for k := range level {
			if b.err != nil {
				return nil, b.err
			}
			if !sh.required[name] {
				b.empty(level[k], next[k])
			}
			o.one(level, next, k, written, of)
		}
		level = next
	}
	end := b.node()
	for k := o.least; k < len(level); k++ {
		b.empty(level[k], end)
	}
	o.others(level, end, free)
	last := b.emit(seq{o.s.space, o.in.close}, end)
	if b.err == nil {
		b.nodes[last].final = true
	}
	return ref(rule), b.err
}

func (o objectMaker) level() []int32 {
	out := make([]int32, o.top+1)
	for i := range out {
		out[i] = o.s.b.node()
	}
	return out
}

// one is a member after k others.
func (o objectMaker) one(from, to []int32, k int, name expr, of ref) {
	if o.most >= 0 && k >= o.most || o.s.b.err != nil {
		return
	}
	e := seq{o.s.space, name, o.in.colon, o.s.space, of}
	if k > 0 {
		e = append(seq{literal(",")}, e...)
	}
	o.s.b.empty(o.s.b.emit(e, from[k]), to[min(k+1, o.top)])
}

// others are members of names that are not listed. A name may come twice, so that
// all of them together count for one where members must be many.
func (o objectMaker) others(level []int32, end int32, free []freeName) {
	b := o.s.b
	if len(free) == 0 {
		return
	}
	if o.least > 0 {
		after := o.level()
		for k := range level {
			for _, f := range free {
				o.one(level, after, k, f.name, f.of)
			}
		}
		for k := 1; k < len(after); k++ {
			loop := b.node()
			b.empty(after[k], loop)
			for _, f := range free {
				b.empty(b.emit(seq{literal(","), o.s.space, f.name, o.in.colon, o.s.space, f.of}, loop), loop)
			}
			if k >= o.least {
				b.empty(loop, end)
			}
		}
		return
	}
	for k := range level {
		for _, f := range free {
			o.one(level, level, k, f.name, f.of)
		}
	}
}

// emitArray is the arrays of a case.
func (s *schemas) emitArray(c oneCase, _ types) (expr, error) {
	least, err := s.whole(c, "minItems", 0, larger)
	if err != nil {
		return nil, err
	}
	most, err := s.whole(c, "maxItems", -1, smaller)
	if err != nil {
		return nil, err
	}
	if most >= 0 && most < least {
		return alt{}, nil
	}
	first := 0
	for _, o := range c {
		prefix, _, err := s.itemsOf(o)
		if err != nil {
			return nil, err
		}
		first = max(first, len(prefix))
	}
	var item []ref
	for i := range first + 1 {
		g, err := s.item(c, i)
		if err != nil {
			return nil, err
		}
		r, err := s.rule(g)
		if err != nil {
			return nil, err
		}
		item = append(item, r)
	}
	return s.arrayOf(item, least, most)
}

// arrayOf is arrays whose items are these, the last of them as often as need be.
func (s *schemas) arrayOf(item []ref, least, most int) (expr, error) {
	first := len(item) - 1
	b := s.b
	rule := b.rule()
	at := b.emit(seq{literal("["), s.space}, b.rules[rule])
	end, some := b.node(), b.node() // some items came
	comma := expr(literal(","))
	if s.sloppy {
		comma = seq{s.space, literal(",")}
		b.empty(b.emit(comma, some), end)
	}
	last := max(first, least, 1)
	if most >= 0 {
		last = most
	}
	for i := 0; ; i++ {
		if b.err != nil {
			return nil, b.err
		}
		if i >= least {
			b.empty(at, end)
		}
		if i > 0 && i >= least {
			b.empty(at, some)
		}
		if most >= 0 && i == last {
			break
		}
		e := seq{item[min(i, first)]}
		if i > 0 {
			e = seq{comma, s.space, item[min(i, first)]}
		}
		if most < 0 && i == last {
			loop := b.node()
			b.empty(at, loop)
			b.empty(b.emit(e, loop), loop)
			b.empty(loop, end)
			b.empty(loop, some)
			break
		}
		at = b.emit(e, at)
	}
	close := b.emit(seq{s.space, literal("]")}, end)
	if b.err == nil {
		b.nodes[close].final = true
	}
	return ref(rule), b.err
}
