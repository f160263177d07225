package jinja

// scope holds names; a block's scope hides those around it. Most hold a few,
// which are found faster in a list than in a map.
type scope struct {
	few    [4]binding
	n      int // of few
	vars   map[string]any
	parent *scope
	held   bool // by a value, and charged for
}

type binding struct {
	name string
	v    any
}

// find returns the value of a name, and how many scopes it looked in.
func (s *scope) find(name string) (v any, looked int, found bool) {
	for ; s != nil; s = s.parent {
		looked++
		for i := range s.n {
			if s.few[i].name == name {
				return s.few[i].v, looked, true
			}
		}
		if v, ok := s.vars[name]; ok {
			return v, looked, true
		}
	}
	return nil, looked, false
}

// lookup returns the value of a name. Scopes and what a long name takes to compare count as
// steps.
func (r *run) lookup(name string) (v any, found bool, err error) {
	v, looked, found := r.scope.find(name)
	return v, found, r.spend(looked * (len(name) + 8) / 64)
}

// depth counts the scopes from s to the outermost.
func (s *scope) depth() int {
	n := 0
	for ; s != nil; s = s.parent {
		n++
	}
	return n
}

// set reports whether a new name went into the map, which grows.
func (s *scope) set(name string, v any) (grown bool) {
	for i := range s.n {
		if s.few[i].name == name {
			s.few[i].v = v
			return false
		}
	}
	_, there := s.vars[name]
	if !there && s.n < len(s.few) {
		s.few[s.n] = binding{name, v}
		s.n++
		return false
	}
	if s.vars == nil {
		s.vars = map[string]any{}
	}
	s.vars[name] = v
	return !there
}
