package grammar

import (
	"crypto/sha256"
	"encoding/json"
	"slices"
)

// satisfies says whether a value that a schema lists satisfies a whole case.
func (s *opener) satisfies(v value, c oneCase) (bool, error) {
	if s.b.exceeds(len(c)) {
		return false, tooLarge("steps to compile", maxWork)
	}
	if n, isNumber := v.(json.Number); isNumber && !s.b.meter.spend(weight(n)) { // whose type takes its digits
		return false, s.b.meter.err
	}
	kinds, err := s.typesOf(c)
	if err != nil || kinds&typeOfValue(v) == 0 {
		return false, err
	}
	for _, o := range c {
		if want, ok := o.get("const"); ok && (!s.b.meter.spend(weight(want)+weight(v)) || !equal(want, v)) {
			return false, s.b.meter.err
		}
		if list, ok := o.get("enum"); ok {
			if all, _ := list.([]value); !s.lists(all, v) {
				return false, s.b.meter.err
			}
		}
	}
	switch v := v.(type) {
	case string:
		if !s.b.meter.spend(weight(v)) {
			return false, s.b.meter.err
		}
		return s.fitsString(v, c)
	case json.Number:
		s.b.meter.spend(weight(v))
		return s.fitsNumber(v, c)
	case []value:
		return s.fitsArray(v, c)
	case *members:
		return s.fitsObject(v, c)
	}
	return true, nil
}

// lists reports whether a list of values has one that equals v.
func (s *opener) lists(all []value, v value) bool {
	if len(all) == 0 || !s.b.meter.spend(weight(v)) {
		return false
	}
	known := s.enums[&all[0]]
	if known == nil {
		if !s.b.meter.hold(entryBytes * len(all)) {
			return false
		}
		known = make(map[[sha256.Size]byte]bool, len(all))
		for _, e := range all {
			if !s.b.meter.spend(weight(e)) {
				return false
			}
			known[digest(e)] = true
		}
		s.enums[&all[0]] = known
	}
	return known[digest(v)]
}

func typeOfValue(v value) types {
	switch v := v.(type) {
	case nil:
		return typeNull
	case bool:
		return typeBool
	case string:
		return typeString
	case []value:
		return typeArray
	case *members:
		return typeObject
	case json.Number:
		if r, ok := exact(v); ok && r.IsInt() {
			return typeInteger
		}
	}
	return typeFraction
}

func (s *opener) satisfiesGoal(v value, g goal) (bool, error) {
	cases, err := s.open(g)
	held := 0 // while values within this one are looked at
	for _, c := range cases {
		held += 2 * caseBytes * (1 + len(c))
	}
	defer s.b.meter.hold(-held)
	if !s.b.meter.hold(held) {
		return false, s.b.meter.err
	}
	for _, c := range cases {
		if ok, failed := s.satisfies(v, c); ok || failed != nil {
			return ok, failed
		}
	}
	return false, err
}

func (s *opener) fitsArray(v []value, c oneCase) (bool, error) {
	least, err := s.whole(c, "minItems", 0, larger)
	if err != nil {
		return false, err
	}
	most, err := s.whole(c, "maxItems", -1, smaller)
	if err != nil || len(v) < least || most >= 0 && len(v) > most {
		return false, err
	}
	for i, e := range v {
		g, err := s.item(c, i)
		if err != nil {
			return false, err
		}
		if ok, err := s.satisfiesGoal(e, g); !ok {
			return false, err
		}
	}
	return true, nil
}

func (s *opener) fitsObject(v *members, c oneCase) (bool, error) {
	sh, err := s.membersOf(c)
	if err != nil {
		return false, err
	}
	least, err := s.whole(c, "minProperties", 0, larger)
	if err != nil {
		return false, err
	}
	most, err := s.whole(c, "maxProperties", -1, smaller)
	if err != nil || len(v.names) < least || most >= 0 && len(v.names) > most {
		return false, err
	}
	for name := range sh.required {
		if _, there := v.of[name]; !there {
			return false, nil
		}
	}
	for _, name := range v.names {
		g, err := s.member(c, name, true, s.matchesName(c, name))
		if err != nil {
			return false, err
		}
		if ok, err := s.satisfiesGoal(v.of[name], g); !ok {
			return false, err
		}
	}
	return true, nil
}

// apartAll reports whether certainly no value satisfies a case of a and a case
// of b.
func (s *opener) apartAll(a, b []oneCase) bool { return s.apartWithin(a, b, 0) }

const maxApart = 4

func (s *opener) apartWithin(a, b []oneCase, depth int) bool {
	for _, x := range a {
		for _, y := range b {
			if !s.apart(x, y, depth) {
				return false
			}
		}
	}
	return true
}

// apart tells two cases apart by their types, by values that they list, by the
// ranges of their numbers, and by members that both require.
func (s *opener) apart(a, b oneCase, depth int) bool {
	if s.b.exceeds(len(a)+len(b)) || depth > maxApart {
		return false
	}
	x, errX := s.typesOf(a)
	y, errY := s.typesOf(b)
	if errX != nil || errY != nil {
		return false
	}
	for _, way := range [][2]oneCase{{a, b}, {b, a}} {
		values, listed, err := s.listed(way[0])
		if err != nil {
			return false
		}
		none := listed && !slices.ContainsFunc(values, func(v value) bool {
			fits, err := s.satisfies(v, way[1])
			return fits || err != nil
		})
		if none {
			return true
		}
	}
	shared := x & y
	if shared&(typeInteger|typeFraction) != 0 && s.rangesApart(a, b) {
		shared &^= typeInteger | typeFraction
	}
	if shared&typeObject != 0 && s.objectsApart(a, b, depth) {
		shared &^= typeObject
	}
	return shared == 0
}

func (s *opener) rangesApart(a, b oneCase) bool {
	lowA, highA, errA := s.bounds(a)
	lowB, highB, errB := s.bounds(b)
	below := func(high, low bound) bool {
		if high.at == nil || low.at == nil {
			return false
		}
		d := high.at.Cmp(low.at)
		return d < 0 || d == 0 && (high.strict || low.strict)
	}
	return errA == nil && errB == nil && (below(highA, lowB) || below(highB, lowA))
}

func (s *opener) objectsApart(a, b oneCase, depth int) bool {
	x, errX := s.membersOf(a)
	y, errY := s.membersOf(b)
	if errX != nil || errY != nil {
		return false
	}
	for _, name := range slices.Concat(x.names, y.names) {
		if !x.required[name] && !y.required[name] {
			continue
		}
		gx, errX := s.member(a, name, true, s.matchesName(a, name))
		gy, errY := s.member(b, name, true, s.matchesName(b, name))
		if errX != nil || errY != nil {
			return false
		}
		if !x.required[name] || !y.required[name] {
			// One alone requires it: the other has to forbid it.
			other := gx
			if x.required[name] {
				other = gy
			}
			if slices.ContainsFunc(other, func(p place) bool { return p.of == false }) {
				return true
			}
			continue
		}
		cx, errX := s.open(gx)
		cy, errY := s.open(gy)
		if errX == nil && errY == nil && s.apartWithin(cx, cy, depth+1) {
			return true
		}
	}
	return false
}
