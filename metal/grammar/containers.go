package grammar

import (
	"fmt"
	"slices"
	"strings"
)

// shapeOf are the members that a case speaks of.
type shapeOf struct {
	names    []string
	required map[string]bool
	// patterns of names, of any object.
	patterns []string
	open     bool // names beyond these may come
}

const (
	maxNames    = 2_000
	maxPatterns = 4
)

func pointer(path, keyword, name string) string {
	return path + "/" + keyword + "/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(name)
}

// membersOf reads the keywords of objects.
func (s *schemas) membersOf(c oneCase) (shapeOf, error) {
	sh := shapeOf{required: map[string]bool{}}
	var named []string
	free := false
	for _, o := range c {
		properties, err := s.objectAt(o, "properties")
		if err != nil {
			return sh, err
		}
		named = append(named, properties.names...)
		patterns, err := s.objectAt(o, "patternProperties")
		if err != nil {
			return sh, err
		}
		sh.patterns = append(sh.patterns, patterns.names...)
		_, more := o.get("additionalProperties")
		free = free || more
		v, ok := o.get("required")
		list, isList := v.([]value)
		if ok && !isList {
			return sh, s.malformed("required", o.path, "a list of names")
		}
		for _, e := range list {
			name, isText := e.(string)
			if !isText {
				return sh, s.malformed("required", o.path, "a list of names")
			}
			sh.required[name] = true
			named = append(named, name)
		}
	}
	if !s.b.meter.spend(8 * len(named)) {
		return sh, s.b.meter.err
	}
	known := make(map[string]bool, len(named))
	for _, n := range named {
		if !known[n] {
			known[n] = true
			sh.names = append(sh.names, n)
		}
		if len(sh.names) > maxNames {
			return sh, tooLarge("members of one object", maxNames)
		}
	}
	slices.Sort(sh.patterns)
	sh.patterns = slices.Compact(sh.patterns)
	if len(sh.patterns) > maxPatterns {
		return sh, tooLarge("name patterns in one object", maxPatterns)
	}
	// A schema that lists properties and does not mention others means only
	// these: other members are valid, but are not generated.
	sh.open = free || len(sh.patterns) > 0 || len(sh.names) == 0 || s.sloppy
	return sh, nil
}

// objectAt is a keyword that holds an object; absent ones are empty.
func (s *schemas) objectAt(o object, keyword string) (*members, error) {
	v, ok := o.get(keyword)
	if !ok {
		return &members{}, nil
	}
	m, isObject := v.(*members)
	if !isObject {
		return nil, s.malformed(keyword, o.path, "an object")
	}
	return m, nil
}

// member is the goal of the member with a name. matching marks the patterns
// that match the name.
func (s *schemas) member(c oneCase, name string, named bool, matching func(pattern string) (bool, error)) (goal, error) {
	var g goal
	for _, o := range c {
		if !s.b.meter.spend(1) {
			return nil, s.b.meter.err
		}
		hit := false
		if m, err := s.objectAt(o, "properties"); err != nil {
			return nil, err
		} else if v, ok := m.of[name]; ok && named {
			g, hit = append(g, place{v, pointer(o.path, "properties", name)}), true
		}
		m, err := s.objectAt(o, "patternProperties")
		if err != nil {
			return nil, err
		}
		for _, p := range m.names {
			ok, err := matching(p)
			if err != nil {
				return nil, err
			}
			if ok {
				g, hit = append(g, place{m.of[p], pointer(o.path, "patternProperties", p)}), true
			}
		}
		if v, ok := o.get("additionalProperties"); ok && !hit {
			g = append(g, place{v, o.path + "/additionalProperties"})
		}
	}
	return g, nil
}

func (s *schemas) matchesName(c oneCase, name string) func(string) (bool, error) {
	return func(pattern string) (bool, error) {
		r, err := s.pattern("patternProperties", pattern, c[0].path)
		return err == nil && r.matches(s.b.meter, name), err
	}
}

// freeName is a class of names that are not listed, and what their members are.
type freeName struct {
	name expr
	of   ref
}

// freeNames are the classes of other names, by which patterns match them.
func (s *schemas) freeNames(c oneCase, sh shapeOf) ([]freeName, error) {
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
		name, err := s.namesOf(sh, inSubset)
		if err != nil {
			return nil, err
		}
		out = append(out, freeName{name, of})
	}
	return out, nil
}

// namesOf are all names but those listed, which these patterns alone match.
func (s *schemas) namesOf(sh shapeOf, matching func(string) (bool, error)) (expr, error) {
	if len(sh.names) == 0 && len(sh.patterns) == 0 {
		return seq{literal(`"`), s.content, literal(`"`)}, nil
	}
	listed := oneOf(s.b.meter, sh.names)
	if listed == nil {
		return nil, tooLarge("characters of names in one object", maxRegular)
	}
	all := listed.not(s.b.meter)
	for _, p := range sh.patterns {
		r, err := s.pattern("patternProperties", p, "")
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
	all, err := s.writable(all)
	if err != nil {
		return nil, err
	}
	return seq{literal(`"`), s.b.emitRegular(all, inJSON), literal(`"`)}, nil
}

// emitObject is the objects of a case: listed members in their order, then others.
func (s *schemas) emitObject(c oneCase, _ types) (expr, error) {
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
	free, err := s.freeNames(c, sh)
	if err != nil {
		return nil, err
	}
	if s.forgiving && least <= len(sh.required) && most < 0 && len(sh.names) <= maxTaken {
		return s.anyOrder(c, sh, free)
	}
	if least <= len(sh.required) {
		least = 0
	}
	if least > 0 && most >= 0 && len(free) > 0 {
		return nil, s.unsupported("minProperties", c[0].path, "the combination with maxProperties is supported only if additionalProperties is false")
	}
	o := objectMaker{s: s, least: least, most: most, top: most}
	if most < 0 {
		o.top = max(1, least)
	}
	return o.make(c, sh, free)
}

// objectMaker makes the rule of an object. Its nodes know how many members came,
// up to top.
type objectMaker struct {
	s                *schemas
	least, most, top int
}

func (o objectMaker) make(c oneCase, sh shapeOf, free []freeName) (expr, error) {
	b := o.s.b
	rule := b.rule()
	level := o.level()
	b.empty(b.emit(literal("{"), b.rules[rule]), level[0])
	for _, name := range sh.names {
		g, err := o.s.member(c, name, true, o.s.matchesName(c, name))
		if err != nil {
			return nil, err
		}
		of, err := o.s.rule(g)
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
			o.one(level, next, k, literal(quoted(name)), of)
		}
		level = next
	}
	end := b.node()
	for k := o.least; k < len(level); k++ {
		b.empty(level[k], end)
	}
	o.others(level, end, free)
	last := b.emit(seq{o.s.space, literal("}")}, end)
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
	if o.most >= 0 && k >= o.most {
		return
	}
	e := seq{o.s.space, name, literal(":"), o.s.space, of}
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
				b.empty(b.emit(seq{literal(","), o.s.space, f.name, literal(":"), o.s.space, f.of}, loop), loop)
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

// itemSchemas are the schemas of an object's arrays: of the first items, and of the rest.
type itemSchemas struct {
	prefix []place
	rest   *place
}

// itemsOf are those of an object, read once.
func (s *schemas) itemsOf(o object) (prefix []place, rest *place, err error) {
	if known, ok := s.items[o.path]; ok {
		return known.prefix, known.rest, nil
	}
	if prefix, rest, err = s.readItems(o); err == nil {
		s.b.meter.spend(8 * len(prefix))
		s.items[o.path] = itemSchemas{prefix, rest}
	}
	return prefix, rest, err
}

func (s *schemas) readItems(o object) (prefix []place, rest *place, err error) {
	list := func(keyword string, v value) error {
		all, isList := v.([]value)
		if !isList || len(all) == 0 {
			return s.malformed(keyword, o.path, "a non-empty list of schemas")
		}
		for i, of := range all {
			prefix = append(prefix, place{of, fmt.Sprintf("%s/%s/%d", o.path, keyword, i)})
		}
		return nil
	}
	further := "items"
	if v, ok := o.get("prefixItems"); ok {
		if err := list("prefixItems", v); err != nil {
			return nil, nil, err
		}
	} else if v, ok := o.get("items"); ok {
		if _, isList := v.([]value); isList {
			if err := list("items", v); err != nil {
				return nil, nil, err
			}
			further = "additionalItems"
		}
	}
	if v, ok := o.get(further); ok {
		rest = &place{v, o.path + "/" + further}
	}
	return prefix, rest, nil
}

func (s *schemas) item(c oneCase, i int) (goal, error) {
	var g goal
	for _, o := range c {
		prefix, rest, err := s.itemsOf(o)
		if err != nil {
			return nil, err
		}
		if i < len(prefix) {
			g = append(g, prefix[i])
		} else if rest != nil {
			g = append(g, *rest)
		}
	}
	return g, nil
}
