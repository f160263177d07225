package main

import (
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"strings"

	"metalfleet.dev/metalfleet/api/openai"
)

// schema is one of JSON Schema, as OpenAPI 3.1 has them.
type schema = map[string]any

// shape is what a Go value looks like as JSON. A list is never null: clients
// iterate over it.
func shape(t reflect.Type) any {
	switch t { // types with their own MarshalJSON
	case reflect.TypeFor[openai.Vector]():
		return schema{"anyOf": []any{schema{"type": "array", "items": schema{"type": "number"}}, schema{"type": "string"}}}
	case reflect.TypeFor[json.RawMessage]():
		return schema{}
	case reflect.TypeFor[openai.ChunkUsage]():
		return shape(reflect.TypeFor[*openai.Usage]())
	}
	switch t.Kind() {
	case reflect.Pointer:
		return orNull(shape(t.Elem()))
	case reflect.Struct:
		return object(t)
	case reflect.Slice:
		return schema{"type": "array", "items": shape(t.Elem())}
	case reflect.Map:
		return schema{"type": "object", "additionalProperties": shape(t.Elem())}
	case reflect.String:
		return schema{"type": "string"}
	case reflect.Bool:
		return schema{"type": "boolean"}
	case reflect.Int, reflect.Int32, reflect.Int64:
		return schema{"type": "integer"}
	case reflect.Float32, reflect.Float64:
		return schema{"type": "number"}
	case reflect.Interface:
		return schema{}
	}
	panic("no JSON of " + t.String())
}

// orNull also takes null.
func orNull(s any) any { return schema{"anyOf": []any{s, schema{"type": "null"}}} }

// object requires the members that are always present, and allows no others.
func object(t reflect.Type) any {
	properties, required := schema{}, map[string]bool{}
	for f := range fields(t) {
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		properties[name] = shape(f.Type)
		if !strings.Contains(options, "omit") {
			required[name] = true
		}
	}
	return schema{"type": "object", "properties": properties, "required": slices.Sorted(maps.Keys(required)), "additionalProperties": false}
}

// fields returns the fields of a struct, including those of embedded structs.
func fields(t reflect.Type) func(yield func(reflect.StructField) bool) {
	return func(yield func(reflect.StructField) bool) {
		for _, f := range reflect.VisibleFields(t) {
			if f.Anonymous || !f.IsExported() {
				continue
			}
			if !yield(f) {
				return
			}
		}
	}
}
