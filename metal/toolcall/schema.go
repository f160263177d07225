package toolcall

import (
	"bytes"
	"encoding/json"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// kinds is a set of JSON types; the empty set declares nothing.
type kinds uint8

const (
	kindNull kinds = 1 << iota
	kindBoolean
	kindString
	kindInteger
	kindNumber
	kindArray
	kindObject
	// kindOther is a type that JSON does not have.
	kindOther
)

// kindNamed is the type with a name.
func kindNamed(name string) kinds {
	switch name {
	case "null":
		return kindNull
	case "boolean":
		return kindBoolean
	case "string":
		return kindString
	case "integer":
		return kindInteger
	case "number":
		return kindNumber
	case "array":
		return kindArray
	case "object":
		return kindObject
	}
	return kindOther
}

// kindsNamed are the types with the names in a list.
func kindsNamed(list []any) (out kinds) {
	for _, v := range list {
		if name, ok := v.(string); ok {
			out |= kindNamed(name)
		}
	}
	return out
}

// kindsOf are the types of values.
func kindsOf(list []any) (out kinds) {
	for _, v := range list {
		switch v := v.(type) {
		case nil:
			out |= kindNull
		case bool:
			out |= kindBoolean
		case string:
			out |= kindString
		case json.Number:
			out |= numberKind(v.String())
		case []any:
			out |= kindArray
		case *schema:
			out |= kindObject
		}
	}
	return out
}

// numberKind is the type of a JSON number.
func numberKind(text string) kinds {
	if strings.ContainsAny(text, ".eE") {
		return kindNumber
	}
	return kindInteger
}

// schema is an object within the schema of a tool. It is read leniently: what is not
// understood declares nothing, like a schema that is nil.
type schema struct {
	// id is unique among the schemas of a request, from 1 on.
	id int
	// members are JSON values whose objects are schemas.
	members map[string]any
	// target is the schema that $ref names; nil for none.
	target *schema
	// kinds are the types that a value may have, once read is set.
	kinds kinds
	read  bool
	// endless is set if the types depend on themselves: such a schema declares none.
	endless bool
}

// schemaOf is a JSON value that is an object, as a schema; nil for other values.
func schemaOf(v any) *schema {
	s, _ := v.(*schema)
	return s
}

// at is the value of a member.
func (s *schema) at(name string) (v any, ok bool) {
	if s == nil {
		return nil, false
	}
	v, ok = s.members[name]
	return v, ok
}

// list is the value of a member that is a list.
func (s *schema) list(name string) []any {
	v, _ := s.at(name)
	list, _ := v.([]any)
	return list
}

// property is the schema of a declared member.
func (s *schema) property(name string) (of *schema, declared bool) {
	properties, _ := s.at("properties")
	v, declared := schemaOf(properties).at(name)
	return schemaOf(v), declared
}

// items are the schemas of the first items of a list, and of the rest.
func (s *schema) items() (first []any, rest *schema) {
	switch items := s.members["items"].(type) {
	case []any:
		return items, nil
	case *schema:
		rest = items
	}
	return s.list("prefixItems"), rest
}

// readKinds reads the types of a schema, once. A schema that is reached through more than
// maxDepth others, or through itself, declares none.
func (s *schema) readKinds(depth int) (out kinds, ends bool) {
	if s == nil {
		return 0, true
	}
	if !s.read {
		s.read, s.endless = true, true // until the end is reached
		if depth < maxDepth {
			s.kinds, ends = s.ownKinds(depth + 1)
			s.endless = !ends
		}
		if s.members["nullable"] == true && s.kinds != 0 {
			s.kinds |= kindNull
		}
	}
	return s.kinds, !s.endless
}

func (s *schema) ownKinds(depth int) (out kinds, ends bool) {
	switch t := s.members["type"].(type) {
	case string:
		return kindNamed(t), true
	case []any:
		return kindsNamed(t), true
	}
	if list, ok := s.members["enum"].([]any); ok {
		return kindsOf(list), true
	}
	if v, ok := s.members["const"]; ok {
		return kindsOf([]any{v}), true
	}
	if s.target != nil {
		return s.target.readKinds(depth)
	}
	for _, keyword := range []string{"anyOf", "oneOf"} {
		list := s.list(keyword)
		for i, of := range list {
			some, ends := schemaOf(of).readKinds(depth)
			if some == 0 {
				return 0, ends
			}
			if out |= some; i == len(list)-1 {
				return out, true
			}
		}
	}
	for _, of := range s.list("allOf") {
		if some, ends := schemaOf(of).readKinds(depth); some != 0 || !ends {
			return some, ends
		}
	}
	return 0, true
}

// schemas reads the schemas of the tools of a request. It takes time in proportion to their
// size: each object is read once, and each target of a reference is found once.
type schemas struct {
	n        int // objects that were read
	followed int // bytes of the references that were followed
	// of the schema under way:
	root    any
	objects []*schema
	targets map[string]*schema
}

// read reads the schema of a tool; what is not JSON declares nothing.
func (r *schemas) read(raw json.RawMessage) *schema {
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	var root any
	if err := dec.Decode(&root); err != nil {
		return nil
	}
	r.objects, r.targets = nil, map[string]*schema{}
	r.root = r.value(root)
	objects := r.objects
	for _, s := range objects {
		s.target = r.target(s)
	}
	for _, s := range objects {
		s.readKinds(0)
	}
	return schemaOf(r.root)
}

// value has the objects within a JSON value be schemas.
func (r *schemas) value(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for _, name := range slices.Sorted(maps.Keys(v)) {
			v[name] = r.value(v[name])
		}
		return r.object(v)
	case []any:
		for i := range v {
			v[i] = r.value(v[i])
		}
	}
	return v
}

func (r *schemas) object(members map[string]any) *schema {
	r.n++
	s := &schema{id: r.n, members: members}
	r.objects = append(r.objects, s)
	return s
}

// target is the schema that another refers to; nil for none.
func (r *schemas) target(s *schema) *schema {
	ref, _ := s.members["$ref"].(string)
	if ref == "" {
		return nil
	}
	if to, known := r.targets[ref]; known {
		return to
	}
	var to *schema
	if v, ok := r.resolve(ref); ok {
		if to = schemaOf(v); to == nil {
			to = r.object(nil) // it declares nothing
		}
	}
	r.targets[ref] = to
	return to
}

// maxReferences is the most bytes of all references of a request that are followed, each once: every
// part of one takes a step.
const maxReferences = 1 << 20

// unescape turns a part of a JSON pointer into a name.
var unescape = strings.NewReplacer("~1", "/", "~0", "~")

// resolve finds the target of a reference within the schema; none if the references so far have too
// many bytes.
func (r *schemas) resolve(ref string) (any, bool) {
	pointer, local := strings.CutPrefix(ref, "#")
	if r.followed += len(ref); !local || r.followed > maxReferences {
		return nil, false
	}
	pointer, err := url.PathUnescape(pointer)
	if err != nil {
		return nil, false
	}
	at := r.root
	_, pointer, more := strings.Cut(pointer, "/")
	for more {
		var part string
		part, pointer, more = strings.Cut(pointer, "/")
		part = unescape.Replace(part)
		switch of := at.(type) {
		case *schema:
			at = of.members[part]
		case []any:
			n, err := strconv.Atoi(part)
			if err != nil || n < 0 || n >= len(of) {
				return nil, false
			}
			at = of[n]
		default:
			return nil, false
		}
		if at == nil {
			return nil, false
		}
	}
	return at, true
}
