package toolcall

import (
	"bytes"
	"encoding/json"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// shape is what a schema declares about a value, as far as it helps to read one. It is read
// leniently: what it does not understand declares nothing.
type shape struct {
	root any
	// of are the schemas that may apply to the value; none declares nothing.
	of []any
}

// maxSchemas bounds the schemas that are looked at for one value.
const maxSchemas = 64

// shapeOf reads a schema; what is no JSON declares nothing.
func shapeOf(raw json.RawMessage) shape {
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	var root any
	if err := dec.Decode(&root); err != nil {
		return shape{}
	}
	return shape{root: root, of: []any{root}}
}

// flat are the schemas of a value with those that they refer to or combine.
func (s shape) flat() []map[string]any {
	var out []map[string]any
	work := slices.Clone(s.of)
	for n := 0; len(work) > 0 && n < maxSchemas; n++ {
		m, _ := work[0].(map[string]any)
		work = work[1:]
		if m == nil {
			continue
		}
		out = append(out, m)
		if to, ok := s.resolve(m["$ref"]); ok {
			work = append(work, to)
		}
		for _, keyword := range []string{"allOf", "anyOf", "oneOf"} {
			if list, ok := m[keyword].([]any); ok {
				work = append(work, list...)
			}
		}
	}
	return out
}

// member is the shape of a member of an object.
func (s shape) member(name string) shape {
	out := shape{root: s.root}
	for _, m := range s.flat() {
		properties, _ := m["properties"].(map[string]any)
		if of, ok := properties[name]; ok {
			out.of = append(out.of, of)
		} else if more, ok := m["additionalProperties"].(map[string]any); ok {
			out.of = append(out.of, more)
		}
	}
	return out
}

// item is the shape of an item of a list.
func (s shape) item(i int) shape {
	out := shape{root: s.root}
	for _, m := range s.flat() {
		first, _ := m["prefixItems"].([]any)
		if list, ok := m["items"].([]any); ok {
			first = list
		}
		switch rest, ok := m["items"].(map[string]any); {
		case i < len(first):
			out.of = append(out.of, first[i])
		case ok:
			out.of = append(out.of, rest)
		}
	}
	return out
}

// names are those of the declared members, sorted.
func (s shape) names() []string {
	var out []string
	for _, m := range s.flat() {
		properties, _ := m["properties"].(map[string]any)
		for name := range properties {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// required are the members that the schema itself requires.
func (s shape) required() (out []string) {
	for _, of := range s.of {
		m, _ := of.(map[string]any)
		list, _ := m["required"].([]any)
		out = append(out, textsOf(list)...)
	}
	return out
}

// types that the value may have, sorted; nil where nothing is declared.
func (s shape) types() []string {
	var out []string
	budget := maxSchemas
	for _, of := range s.of {
		some := s.typesOf(of, &budget)
		if some == nil {
			return nil
		}
		out = append(out, some...)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// typesOf one schema; nil where it allows any.
func (s shape) typesOf(of any, budget *int) []string {
	m, _ := of.(map[string]any)
	if *budget--; m == nil || *budget < 0 {
		return nil
	}
	out := s.ownTypes(m, budget)
	if m["nullable"] == true && out != nil {
		out = append(slices.Clone(out), "null")
	}
	return out
}

func (s shape) ownTypes(m map[string]any, budget *int) []string {
	switch t := m["type"].(type) {
	case string:
		return []string{t}
	case []any:
		return textsOf(t)
	}
	if list, ok := m["enum"].([]any); ok {
		return kindsOf(list)
	}
	if v, ok := m["const"]; ok {
		return kindsOf([]any{v})
	}
	if to, ok := s.resolve(m["$ref"]); ok {
		return s.typesOf(to, budget)
	}
	for _, keyword := range []string{"anyOf", "oneOf"} {
		list, _ := m[keyword].([]any)
		var all []string
		for i, of := range list {
			some := s.typesOf(of, budget)
			if some == nil {
				return nil
			}
			if all = append(all, some...); i == len(list)-1 {
				return all
			}
		}
	}
	list, _ := m["allOf"].([]any)
	for _, of := range list {
		if some := s.typesOf(of, budget); some != nil {
			return some
		}
	}
	return nil
}

func textsOf(list []any) (out []string) {
	for _, v := range list {
		if text, ok := v.(string); ok {
			out = append(out, text)
		}
	}
	return out
}

// kindsOf are the types of values.
func kindsOf(list []any) (out []string) {
	for _, v := range list {
		switch v := v.(type) {
		case nil:
			out = append(out, "null")
		case bool:
			out = append(out, "boolean")
		case string:
			out = append(out, "string")
		case json.Number:
			out = append(out, numberType(v.String()))
		case []any:
			out = append(out, "array")
		case map[string]any:
			out = append(out, "object")
		}
	}
	return out
}

// numberType of a JSON number.
func numberType(text string) string {
	if strings.ContainsAny(text, ".eE") {
		return "number"
	}
	return "integer"
}

// whole reports whether the value is declared to be an integer.
func (s shape) whole() bool {
	types := s.types()
	return slices.Contains(types, "integer") && !slices.Contains(types, "number")
}

// resolve finds the target of a reference within the schema.
func (s shape) resolve(ref any) (any, bool) {
	text, _ := ref.(string)
	pointer, local := strings.CutPrefix(text, "#")
	if !local {
		return nil, false
	}
	pointer, err := url.PathUnescape(pointer)
	if err != nil {
		return nil, false
	}
	at := s.root
	for i, part := range strings.Split(pointer, "/") {
		if i == 0 {
			continue
		}
		part = strings.NewReplacer("~1", "/", "~0", "~").Replace(part)
		switch of := at.(type) {
		case map[string]any:
			at = of[part]
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
