package grammar

import (
	"fmt"
	"slices"
)

// opener finds the cases of goals, and compares values and cases.
type opener struct {
	document
	// enums are the canonical values of lists, by their first.
	enums map[*value]map[string]bool
}

func newOpener(b *builder, root value, how manner) opener {
	return opener{newDocument(b, root, how), map[*value]map[string]bool{}}
}

// open finds the cases of a goal. following are the references on the way.
func (s *opener) open(g goal, following []string) ([]oneCase, error) {
	all := []oneCase{{}}
	for _, p := range g {
		more, err := s.openOne(p, following)
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
			if !s.b.meter.spend(1 + len(x) + len(y)*(len(x)+len(y))) {
				return nil, s.b.meter.err
			}
			joined := slices.Clone(x)
			for _, o := range y {
				if !slices.ContainsFunc(joined, func(have object) bool { return have.path == o.path }) {
					joined = append(joined, o)
				}
			}
			out = append(out, joined)
		}
	}
	return out, nil
}

func (s *opener) openOne(p place, following []string) ([]oneCase, error) {
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
		if err := s.checkKeywords(of, p.path); err != nil {
			return nil, err
		}
		return s.openObject(object{of, p.path, s.skipped()}, following)
	}
	return nil, &Error{kind: ErrInvalid, Path: p.path, Message: "a schema must be an object, true or false"}
}

func (s *opener) openObject(o object, following []string) ([]oneCase, error) {
	all := []oneCase{{o}}
	var err error
	add := func(more []oneCase, failed error) {
		if err = failed; err == nil {
			all, err = s.product(all, more)
		}
	}
	if v, ok := o.get("$ref"); ok {
		target, found := s.resolve(v, o.path)
		if found != nil {
			return nil, found
		}
		if slices.Contains(following, target.path) {
			return nil, &Error{kind: errUnsupported, Keyword: "$ref", Path: o.path, Message: `the keyword "$ref" leads back to itself without a value in between`}
		}
		add(s.openOne(target, append(slices.Clone(following), target.path)))
	}
	if err != nil {
		return nil, err
	}
	for _, keyword := range []string{"allOf", "anyOf", "oneOf"} {
		v, ok := o.get(keyword)
		if !ok {
			continue
		}
		list, isList := v.([]value)
		if !isList || len(list) == 0 {
			return nil, s.malformed(keyword, o.path, "a non-empty list of schemas")
		}
		add(s.openList(keyword, list, o.path, following))
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}

// openList opens allOf, anyOf and oneOf.
func (s *opener) openList(keyword string, list []value, path string, following []string) ([]oneCase, error) {
	each := make([][]oneCase, len(list))
	for i, of := range list {
		var err error
		if each[i], err = s.openOne(place{of, fmt.Sprintf("%s/%s/%d", path, keyword, i)}, following); err != nil {
			return nil, err
		}
	}
	if keyword == "allOf" {
		all := []oneCase{{}}
		for _, cases := range each {
			var err error
			if all, err = s.product(all, cases); err != nil {
				return nil, err
			}
		}
		return all, nil
	}
	var all []oneCase
	for i, cases := range each {
		if keyword == "oneOf" && !s.forgiving {
			for j := range i {
				if !s.apartAll(each[j], cases) {
					return nil, s.unsupported("oneOf", path, "alternatives %d and %d may both match the same value; use anyOf, or add a const that distinguishes them", j, i)
				}
			}
		}
		all = append(all, cases...)
	}
	if len(all) > maxCases {
		return nil, tooLarge("alternatives of one value", maxCases)
	}
	return all, nil
}
