package toolcall

import (
	"encoding/binary"
	"slices"
)

// shape is what the schemas that may apply to a value declare about it, as far as it helps to
// read one. It is looked up once and kept in a shapeIndex. A shape that is nil declares nothing.
type shape struct {
	in *shapeIndex
	of []*schema
	// kinds that the value may have.
	kinds kinds
	// all are of with those that they refer to or combine, once they were looked up.
	all []*schema
	// listed is how many first items of a list have their own schemas.
	listed int
	// steps are the shapes of members and items that were looked up.
	steps map[step]*shape
}

// step leads from the shape of a value to that of one within it.
type step struct {
	// name of a declared member. All others have the same shape.
	name   string
	others bool
	// item from 1 on, 0 for a member. The items after those that have a schema each have the
	// same shape.
	item int
}

const (
	// maxSchemas bounds the schemas that are looked at for one value.
	maxSchemas = 64
	// maxSteps bounds the steps that are kept for one request, and someShapes, with objectShapes for
	// each object of its schemas, what they take in bytes. What is found after that declares
	// nothing: sets of schemas may be far more than there are schemas.
	maxSteps                 = 4096
	someShapes, objectShapes = 32 << 10, 512
	// shapeBytes and stepBytes are what a shape and a step take without lists and names.
	shapeBytes, stepBytes = 320, 96
)

// shapeIndex has the shapes of the tools of a request, each made once for each set of schemas.
type shapeIndex struct {
	found map[string]*shape // by the ids of the schemas
	steps int
	// bytes of shapes and steps, and the most that they may be.
	bytes, most int
}

// ShapesBytes is what is kept at most of tools with this many objects in their schemas, besides
// these.
func ShapesBytes(objects int) int64 { return someShapes + objectShapes*int64(min(objects, maxSteps)) }

// shape of a value to which these schemas apply.
func (in *shapeIndex) shape(of []*schema) *shape {
	if len(of) == 0 {
		return nil
	}
	var key []byte
	for _, s := range of {
		id := 0
		if s != nil {
			id = s.id
		}
		key = binary.AppendUvarint(key, uint64(id))
	}
	if s, found := in.found[string(key)]; found {
		return s
	}
	s := &shape{in: in, of: of, steps: map[step]*shape{}}
	for _, schema := range of {
		some, _ := schema.readKinds(0)
		if some == 0 {
			s.kinds = 0
			break
		}
		s.kinds |= some
	}
	in.found[string(key)] = s
	in.bytes += shapeBytes + len(key) + 8*cap(of)
	return s
}

// take is the shape that a step leads to, which find looks up the first time.
func (s *shape) take(at step, find func() []*schema) *shape {
	if to, known := s.steps[at]; known {
		return to
	}
	if s.in.steps == maxSteps || s.in.bytes >= s.in.most {
		return nil
	}
	s.in.steps++
	s.in.bytes += stepBytes + len(at.name)
	to := s.in.shape(find())
	s.steps[at] = to
	return to
}

// flat are the schemas of the value with those that they refer to or combine.
func (s *shape) flat() []*schema {
	switch {
	case s == nil:
		return nil
	case s.all != nil:
		return s.all
	}
	for _, of := range s.of {
		s.all = appended(s.all, of)
	}
	for n := 0; n < len(s.all); n++ {
		m := s.all[n]
		first, _ := m.items()
		s.listed = max(s.listed, len(first))
		s.all = appended(s.all, m.target)
		for _, keyword := range []string{"allOf", "anyOf", "oneOf"} {
			list := m.list(keyword)
			for _, of := range list[:min(len(list), maxSchemas)] {
				s.all = appended(s.all, schemaOf(of))
			}
		}
	}
	s.in.bytes += 8 * cap(s.all)
	return s.all
}

// appended adds a schema to others, once and while there is room.
func appended(all []*schema, s *schema) []*schema {
	if s == nil || len(all) == maxSchemas || slices.Contains(all, s) {
		return all
	}
	return append(all, s)
}

// declares reports whether a member is declared by its name.
func (s *shape) declares(name string) bool {
	return slices.ContainsFunc(s.flat(), func(m *schema) bool {
		_, declared := m.property(name)
		return declared
	})
}

// only is the name of the declared member; empty where there is none, or another.
func (s *shape) only() (name string) {
	some := false
	for _, m := range s.flat() {
		properties, _ := m.at("properties")
		of := schemaOf(properties)
		if of == nil {
			continue
		}
		for other := range of.members {
			if some && other != name {
				return ""
			}
			some, name = true, other
		}
	}
	return name
}

// member is the shape of a member of an object.
func (s *shape) member(name string) *shape {
	if s == nil {
		return nil
	}
	at := step{name: name}
	if to, known := s.steps[at]; known {
		return to
	}
	if !s.declares(name) {
		at = step{others: true}
	}
	return s.take(at, func() (out []*schema) {
		for _, m := range s.flat() {
			additional, _ := m.at("additionalProperties")
			if of, declared := m.property(name); declared {
				out = append(out, of)
			} else if more := schemaOf(additional); more != nil {
				out = append(out, more)
			}
		}
		return out
	})
}

// item is the shape of an item of a list.
func (s *shape) item(i int) *shape {
	if s == nil {
		return nil
	}
	all := s.flat()
	i = min(i, s.listed)
	return s.take(step{item: i + 1}, func() (out []*schema) {
		for _, m := range all {
			switch first, rest := m.items(); {
			case i < len(first):
				out = append(out, schemaOf(first[i]))
			case rest != nil:
				out = append(out, rest)
			}
		}
		return out
	})
}

// whole reports whether the value is declared to be an integer.
func (s *shape) whole() bool {
	return s != nil && s.kinds&kindInteger != 0 && s.kinds&kindNumber == 0
}

// text reports whether the value is declared to be a string, and nothing else.
func (s *shape) text() bool { return s != nil && s.kinds == kindString }
