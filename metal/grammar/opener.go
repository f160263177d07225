package grammar

import (
	"crypto/sha256"
	"slices"
	"strconv"
)

// opener finds the cases of goals, and compares values and cases.
type opener struct {
	document
	// enums are the values of lists, see digest, by the first of each list.
	enums map[*value]map[[sha256.Size]byte]bool
	// opened are the bytes of the cases that are being found.
	opened int
}

func newOpener(b *builder, root value, how manner) opener {
	return opener{document: newDocument(b, root, how), enums: map[*value]map[[sha256.Size]byte]bool{}}
}

// opening is the schemas that are being opened, the last first.
type opening struct {
	of    *members
	outer *opening
	depth int
}

// maxOpening bounds the schemas that apply to one value because one refers to the next, or
// combines it: cases of more of them take more work than there is.
const maxOpening = 512

// holds reports whether a schema is being opened.
func (o *opening) holds(m *members) bool {
	for ; o != nil; o = o.outer {
		if o.of == m {
			return true
		}
	}
	return false
}

// open finds the cases of a goal.
func (s *opener) open(g goal) ([]oneCase, error) {
	all := []oneCase{{}}
	before := s.opened
	defer func() {
		s.b.meter.hold(before - s.opened)
		s.opened = before
	}()
	for _, p := range g {
		more, err := s.openOne(p, nil)
		if err != nil {
			return nil, err
		}
		if all, err = s.product(all, more); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// product is each of one with each of the other.
func (s *opener) product(a, b []oneCase) ([]oneCase, error) {
	if len(a)*len(b) > maxCases {
		return nil, tooLarge("alternatives of one value", maxCases)
	}
	var out []oneCase
	for _, x := range a {
		for _, y := range b {
			bytes := 2 * caseBytes * (1 + len(x) + len(y))
			s.opened += bytes
			if !s.b.meter.hold(bytes) || !s.b.meter.spend(1+len(x)+len(y)*(len(x)+len(y))) {
				return nil, s.b.meter.err
			}
			joined := slices.Clone(x)
			for _, o := range y {
				if !slices.ContainsFunc(joined, func(have object) bool { return have.members == o.members }) {
					joined = append(joined, o)
				}
			}
			out = append(out, joined)
		}
	}
	return out, nil
}

// openOne finds the cases of a schema; outer are those that it is opened for.
func (s *opener) openOne(p place, outer *opening) ([]oneCase, error) {
	size := 0
	if m, ok := p.of.(*members); ok {
		size = len(m.names)
	}
	if s.b.exceeds(size) {
		return nil, tooLarge("steps to compile", maxWork)
	}
	switch of := p.of.(type) {
	case bool:
		if of {
			return []oneCase{{}}, nil
		}
		return nil, nil
	case *members:
		if err := s.checkKeywords(of, p.at); err != nil {
			return nil, err
		}
		here := &opening{of: of, outer: outer, depth: 1}
		if outer != nil {
			here.depth += outer.depth
		}
		if here.depth > maxOpening {
			return nil, tooLarge("schemas that apply to one value", maxOpening)
		}
		return s.openObject(object{of, p.at, s.skipped()}, here)
	}
	return nil, s.fault(ErrInvalid, "", p.at, "a schema must be an object, true or false")
}

func (s *opener) openObject(o object, here *opening) ([]oneCase, error) {
	all := []oneCase{{o}}
	if v, ok := o.get("$ref"); ok {
		target, err := s.resolve(v, o.at)
		if err != nil {
			return nil, err
		}
		s.b.meter.spend(here.depth / 4)
		if m, isObject := target.of.(*members); isObject && here.holds(m) {
			return nil, s.fault(errUnsupported, "$ref", o.at, `the keyword "$ref" leads back to itself without a value in between`)
		}
		more, err := s.openOne(target, here)
		if err != nil {
			return nil, err
		}
		if all, err = s.product(all, more); err != nil {
			return nil, err
		}
	}
	for _, keyword := range []string{"allOf", "anyOf", "oneOf"} {
		v, ok := o.get(keyword)
		if !ok {
			continue
		}
		list, isList := v.([]value)
		if !isList || len(list) == 0 {
			return nil, s.malformed(keyword, o.at, "a non-empty list of schemas")
		}
		more, err := s.openList(keyword, list, o.at, here)
		if err != nil {
			return nil, err
		}
		if all, err = s.product(all, more); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// openList opens allOf, anyOf and oneOf.
func (s *opener) openList(keyword string, list []value, at *spot, here *opening) ([]oneCase, error) {
	in := at.under(keyword)
	each := func(use func(i int, cases []oneCase) error) error {
		for i, of := range list {
			cases, err := s.openOne(place{of: of, at: in.under(strconv.Itoa(i))}, here)
			if err != nil {
				return err
			}
			if err := use(i, cases); err != nil {
				return err
			}
		}
		return nil
	}
	if keyword == "allOf" {
		all := []oneCase{{}}
		err := each(func(_ int, cases []oneCase) (err error) {
			all, err = s.product(all, cases)
			return err
		})
		return all, err
	}
	var all []oneCase
	alternatives := map[int][]oneCase{}
	var some []int // those with a case, of which there are at most maxCases: each pair is compared
	err := each(func(i int, cases []oneCase) error {
		if len(all)+len(cases) > maxCases {
			return tooLarge("alternatives of one value", maxCases)
		}
		if len(cases) > 0 {
			all, alternatives[i], some = append(all, cases...), cases, append(some, i)
		}
		return nil
	})
	if err != nil || keyword == "anyOf" || s.forgiving {
		return all, err
	}
	for n, i := range some {
		for _, j := range some[:n] {
			if !s.apartAll(alternatives[j], alternatives[i]) {
				return nil, s.unsupported("oneOf", at, "alternatives %d and %d may both match the same value; use anyOf, or add a const that distinguishes them", j, i)
			}
		}
	}
	return all, nil
}
