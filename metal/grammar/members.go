package grammar

import (
	"slices"
	"strconv"
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

// membersOf reads the keywords of objects.
func (s *document) membersOf(c oneCase) (shapeOf, error) {
	sh := shapeOf{required: map[string]bool{}}
	var named []string
	free, held := false, 0
	defer func() { s.b.meter.hold(-held) }()
	for _, o := range c {
		properties, err := s.objectAt(o, "properties")
		if err != nil {
			return sh, err
		}
		list, isList := []value(nil), true
		if v, ok := o.get("required"); ok {
			list, isList = v.([]value)
		}
		patterns, err := s.objectAt(o, "patternProperties")
		if err != nil {
			return sh, err
		}
		bytes := entryBytes * (len(list) + len(properties.names) + len(patterns.names))
		held += bytes
		if !s.b.meter.hold(bytes) || !s.b.meter.spend(8*len(list)+nameWork(properties.names)+nameWork(patterns.names)) {
			return sh, s.b.meter.err
		}
		named = append(named, properties.names...)
		sh.patterns = append(sh.patterns, patterns.names...)
		_, more := o.get("additionalProperties")
		free = free || more
		if !isList {
			return sh, s.malformed("required", o.at, "a list of names")
		}
		for _, e := range list {
			name, isText := e.(string)
			if !isText {
				return sh, s.malformed("required", o.at, "a list of names")
			}
			s.b.meter.spend(len(name) / (4 * textBytes))
			sh.required[name] = true
			named = append(named, name)
		}
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

// nameWork is the work of looking up names.
func nameWork(names []string) int {
	n := 8 * len(names)
	for _, name := range names {
		n += len(name) / (4 * textBytes)
	}
	return n
}

// objectAt is a keyword that holds an object; absent ones are empty.
func (s *document) objectAt(o object, keyword string) (*members, error) {
	v, ok := o.get(keyword)
	if !ok {
		return &members{}, nil
	}
	m, isObject := v.(*members)
	if !isObject {
		return nil, s.malformed(keyword, o.at, "an object")
	}
	return m, nil
}

// member is the goal of the member with a name. matching marks the patterns
// that match the name.
func (s *document) member(c oneCase, name string, named bool, matching func(pattern string) (bool, error)) (goal, error) {
	var g goal
	for _, o := range c {
		if !s.b.meter.spend(1 + len(name)/(4*textBytes)) {
			return nil, s.b.meter.err
		}
		hit := false
		if m, err := s.objectAt(o, "properties"); err != nil {
			return nil, err
		} else if v, ok := m.of[name]; ok && named {
			g, hit = append(g, place{of: v, at: o.at.under("properties").under(name)}), true
		}
		m, err := s.objectAt(o, "patternProperties")
		if err != nil {
			return nil, err
		}
		s.b.meter.spend(4 * (1 + len(m.names)))
		for _, p := range m.names {
			ok, err := matching(p)
			if err != nil {
				return nil, err
			}
			if ok {
				g, hit = append(g, place{of: m.of[p], at: o.at.under("patternProperties").under(p)}), true
			}
		}
		if v, ok := o.get("additionalProperties"); ok && !hit {
			g = append(g, place{of: v, at: o.at.under("additionalProperties")})
		}
	}
	return g, nil
}

func (s *document) matchesName(c oneCase, name string) func(string) (bool, error) {
	return func(pattern string) (bool, error) {
		r, err := s.pattern("patternProperties", pattern, c[0].at)
		return err == nil && r.matches(s.b.meter, name), err
	}
}

// itemSchemas are the schemas of an object's arrays: of the first items, and of the rest.
type itemSchemas struct {
	prefix []place
	rest   *place
}

// itemsOf are those of an object, read once.
func (s *document) itemsOf(o object) (prefix []place, rest *place, err error) {
	if known, ok := s.items[o.members]; ok {
		return known.prefix, known.rest, nil
	}
	if prefix, rest, err = s.readItems(o); err == nil {
		s.b.meter.spend(8 * len(prefix))
		s.items[o.members] = itemSchemas{prefix, rest}
	}
	return prefix, rest, err
}

func (s *document) readItems(o object) (prefix []place, rest *place, err error) {
	list := func(keyword string, v value) error {
		all, isList := v.([]value)
		if !isList || len(all) == 0 {
			return s.malformed(keyword, o.at, "a non-empty list of schemas")
		}
		at := o.at.under(keyword)
		if !s.b.meter.hold(3 * placeBytes * len(all)) {
			return s.b.meter.err
		}
		for i, of := range all {
			prefix = append(prefix, place{of: of, at: at.under(strconv.Itoa(i))})
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
		rest = &place{of: v, at: o.at.under(further)}
	}
	return prefix, rest, nil
}

func (s *document) item(c oneCase, i int) (goal, error) {
	g := make(goal, 0, len(c))
	if !s.b.meter.spend(len(c)) {
		return nil, s.b.meter.err
	}
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
