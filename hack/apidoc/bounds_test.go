//go:build !race

package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/big"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"
)

// TestEveryStatementOfADocumentHolds tries values at and just past every bound of every
// field's schema, at any depth: lengths, numbers of elements and members, patterns, ranges,
// types, constants. The decoder must reject what the document rejects, and accept what it
// allows.
func TestEveryStatementOfADocumentHolds(t *testing.T) {
	for name, r := range bodies() {
		for _, strict := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s strict %t", name, strict), func(t *testing.T) {
				s, _, err := r.schema(strict)
				if err != nil {
					t.Fatal(err)
				}
				for field, property := range s["properties"].(schema) {
					rule := plain(t, property)
					for _, value := range edges(rule) {
						raw := encode(t, called(field, value))
						want := allows(t, rule, value)
						if got := r.takes(strict, field, raw+companions(r, field, value)); got != want {
							t.Errorf("%s: %.160s is taken: %t, and the document says the opposite", field, raw, got)
						}
					}
				}
			})
		}
	}
}

// companions returns the other fields that a value needs: options of a stream need a
// stream, and a choice of a tool needs the tool.
func companions(r route, field string, value any) string {
	switch field {
	case "stream_options":
		return `,"stream":true`
	case "top_logprobs":
		if _, known := r.fields["logprobs"]; known {
			return `,"logprobs":true`
		}
	case "tool_choice":
		tools := strings.ReplaceAll(r.fields["tools"], `"f"`, toolOf(value))
		for _, tool := range listOf(members(value)["tools"]) { // of which several may be called
			if toolOf(tool) == `"f"` {
				continue
			}
			tools = strings.TrimSuffix(tools, "]") + "," + strings.TrimPrefix(strings.ReplaceAll(r.fields["tools"], `"f"`, toolOf(tool)), "[")
		}
		return `,"tools":` + tools
	}
	return ""
}

// called returns a list of chat messages with the call that its tool message answers.
func called(field string, value any) any {
	for _, m := range listOf(value) {
		message, _ := m.(map[string]any)
		id, _ := message["tool_call_id"].(string)
		if field == "messages" && message["role"] == "tool" && id != "" {
			call := map[string]any{"id": id, "function": map[string]any{"name": "f"}}
			return append([]any{map[string]any{"role": "assistant", "tool_calls": []any{call}}}, listOf(value)...)
		}
	}
	return value
}

// toolOf returns the tool name in a tool choice, as JSON.
func toolOf(value any) string {
	choice, _ := value.(map[string]any)
	if f, ok := choice["function"].(map[string]any); ok {
		choice = f
	}
	if name, ok := choice["name"].(string); ok && allowed.MatchString(name) {
		b, _ := json.Marshal(name)
		return string(b)
	}
	return `"f"`
}

var allowed = regexp.MustCompile(`^[A-Za-z0-9_.-]+$`)

// plain returns a schema as a client of the document parses it.
func plain(t *testing.T, property any) any {
	t.Helper()
	return decoded(t, encode(t, property))
}

func encode(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func decoded(t *testing.T, raw string) any {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(raw))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		t.Fatal(err)
	}
	return v
}

// allows reports whether a schema allows a value. An unknown keyword fails the test, so
// that every statement is checked.
func allows(t *testing.T, rule, value any) bool {
	t.Helper()
	if all, ok := rule.(bool); ok {
		return all
	}
	for keyword, want := range rule.(map[string]any) {
		if !keeps(t, rule.(map[string]any), keyword, want, value) {
			return false
		}
	}
	return true
}

func keeps(t *testing.T, rule map[string]any, keyword string, want, value any) bool {
	t.Helper()
	text, isText := value.(string)
	list, isList := value.([]any)
	object, isObject := value.(map[string]any)
	number, isNumber := value.(json.Number)
	switch keyword {
	case "type":
		kinds, several := want.([]any)
		if !several {
			kinds = []any{want}
		}
		return slices.ContainsFunc(kinds, func(k any) bool { return isKind(value, k.(string)) })
	case "const":
		return reflect.DeepEqual(value, want)
	case "not":
		return !allows(t, want, value)
	case "enum":
		return slices.ContainsFunc(want.([]any), func(w any) bool { return reflect.DeepEqual(value, w) })
	case "anyOf":
		return slices.ContainsFunc(want.([]any), func(w any) bool { return allows(t, w, value) })
	case "minLength":
		return !isText || utf8.RuneCountInString(text) >= whole(want)
	case "maxLength":
		return !isText || utf8.RuneCountInString(text) <= whole(want)
	case "pattern":
		return !isText || regexp.MustCompile(want.(string)).MatchString(text)
	case "contentSchema":
		return !isText || text == "" || !json.Valid([]byte(text)) || allows(t, want, decoded(t, text))
	case "minimum":
		return !isNumber || rational(number).Cmp(rational(want)) >= 0
	case "maximum":
		return !isNumber || rational(number).Cmp(rational(want)) <= 0
	case "minItems":
		return !isList || len(list) >= whole(want)
	case "maxItems":
		return !isList || len(list) <= whole(want)
	case "items":
		return !isList || !slices.ContainsFunc(list, func(v any) bool { return !allows(t, want, v) })
	case "minProperties":
		return !isObject || len(object) >= whole(want)
	case "maxProperties":
		return !isObject || len(object) <= whole(want)
	case "required":
		return !isObject || !slices.ContainsFunc(want.([]any), func(name any) bool { _, ok := object[name.(string)]; return !ok })
	case "propertyNames":
		return !slices.ContainsFunc(slices.Collect(maps.Keys(object)), func(name string) bool { return !allows(t, want, name) })
	case "properties":
		for name, w := range want.(map[string]any) {
			if v, ok := object[name]; ok && !allows(t, w, v) {
				return false
			}
		}
		return true
	case "additionalProperties":
		known, _ := rule["properties"].(map[string]any)
		for name, v := range object {
			if _, ok := known[name]; !ok && !allows(t, want, v) {
				return false
			}
		}
		return true
	}
	t.Fatalf("the test does not know the keyword %s", keyword)
	return false
}

func isKind(value any, kind string) bool {
	switch v := value.(type) {
	case nil:
		return kind == "null"
	case bool:
		return kind == "boolean"
	case string:
		return kind == "string"
	case []any:
		return kind == "array"
	case map[string]any:
		return kind == "object"
	case json.Number:
		return kind == "number" || kind == "integer" && rational(v).IsInt()
	}
	return false
}

func whole(v any) int {
	n, _ := strconv.Atoi(string(v.(json.Number)))
	return n
}

func rational(v any) *big.Rat {
	r, _ := new(big.Rat).SetString(string(v.(json.Number)))
	return r
}

// kinds returns a value of each type.
func kinds() []any {
	return []any{nil, true, "", "a", json.Number("0.25"), json.Number("3"), []any{}, []any{map[string]any{}}, map[string]any{}, map[string]any{"no": map[string]any{}}}
}

// edges returns values at and just past the bounds of a schema.
func edges(rule any) []any {
	r, ok := rule.(map[string]any)
	if !ok {
		return kinds()
	}
	out := kinds()
	for _, branch := range listOf(r["anyOf"]) {
		out = append(out, edges(branch)...)
	}
	out = append(out, listOf(r["enum"])...)
	if v, ok := r["const"]; ok {
		out = append(out, v)
	}
	out = append(out, lengths(r)...)
	for _, bound := range []string{"minimum", "maximum"} {
		if b, ok := r[bound].(json.Number); ok {
			out = append(out, b, beyond(b, 1), beyond(b, -1))
		}
	}
	if r["type"] == "array" {
		out = append(out, listEdges(r)...)
	}
	if r["type"] == "object" {
		out = append(out, objectEdges(r)...)
	}
	return out
}

func listOf(v any) []any {
	l, _ := v.([]any)
	return l
}

// lengths returns strings around the bounds, of characters of one byte and of four, and
// around the patterns in use.
func lengths(r map[string]any) (out []any) {
	for _, bound := range []string{"minLength", "maxLength"} {
		if r[bound] == nil {
			continue
		}
		for _, n := range []int{whole(r[bound]) - 1, whole(r[bound]), whole(r[bound]) + 1} {
			if n >= 0 {
				out = append(out, strings.Repeat("a", n), strings.Repeat("😀", n))
			}
		}
	}
	if r["contentSchema"] != nil {
		out = append(out, "", "{}", " {\"a\":[]}", "[]", "3", "{", "{}{}")
	}
	if r["pattern"] != nil {
		for _, n := range []int{0, 1, 63, 64, 65, 127, 128, 129} {
			out = append(out, strings.Repeat("a", n))
		}
		for _, s := range []string{"-", "_.-", " ", "a b", "é", "a\n", "0", "00", "-1", "1.0", "999999999", "1000000000", "2147483646", "2147483647", "2147483648", "2999999999", "9999999999", "10000000000"} {
			out = append(out, s)
		}
	}
	return out
}

func listEdges(r map[string]any) (out []any) {
	least := 1
	if r["minItems"] != nil {
		least = whole(r["minItems"])
	}
	for _, bound := range []string{"minItems", "maxItems"} {
		if r[bound] == nil {
			continue
		}
		for _, n := range []int{whole(r[bound]) - 1, whole(r[bound]), whole(r[bound]) + 1} {
			if n >= 0 {
				out = append(out, examples(r["items"], n))
			}
		}
	}
	for _, v := range edges(r["items"]) {
		out = append(out, append([]any{v}, examples(r["items"], max(0, least-1))...))
	}
	return out
}

func objectEdges(r map[string]any) (out []any) {
	base, _ := example(r).(map[string]any)
	with := func(name string, v any) map[string]any {
		o := maps.Clone(base)
		o[name] = v
		return o
	}
	out = append(out, base, with("no_such_member", json.Number("1")))
	for _, name := range listOf(r["required"]) {
		o := maps.Clone(base)
		delete(o, name.(string))
		out = append(out, o)
	}
	properties, _ := r["properties"].(map[string]any)
	for name, rule := range properties {
		for _, v := range edges(rule) {
			out = append(out, with(name, v))
		}
	}
	if more, ok := r["additionalProperties"].(map[string]any); ok {
		for _, v := range edges(more) {
			out = append(out, with("1", v))
		}
		if r["propertyNames"] != nil {
			for _, name := range edges(r["propertyNames"]) {
				if s, ok := name.(string); ok {
					out = append(out, with(s, example(more)))
				}
			}
		}
		if r["maxProperties"] != nil {
			for _, n := range []int{whole(r["maxProperties"]), whole(r["maxProperties"]) + 1} {
				o := map[string]any{}
				for i := range n {
					o[fmt.Sprint(i)] = example(more)
				}
				out = append(out, o)
			}
		}
	}
	return out
}

// examples returns values that a schema allows, with different names.
func examples(rule any, n int) []any {
	out := make([]any, n)
	for i := range out {
		out[i] = example(rule)
		if o, ok := out[i].(map[string]any); ok {
			for _, with := range []map[string]any{o, members(o["function"])} {
				if name, ok := with["name"].(string); ok {
					with["name"] = name + strconv.Itoa(i)
				}
			}
		}
	}
	return out
}

func members(v any) map[string]any {
	o, _ := v.(map[string]any)
	return o
}

// example returns the smallest value that a schema allows.
func example(rule any) any {
	r, ok := rule.(map[string]any)
	if !ok {
		return "a"
	}
	if v, ok := r["const"]; ok {
		return v
	}
	for _, from := range []string{"enum", "anyOf"} {
		if l := listOf(r[from]); len(l) > 0 {
			if from == "anyOf" {
				return example(l[0])
			}
			return l[0]
		}
	}
	if r["contentSchema"] != nil {
		return "{}"
	}
	kind := r["type"]
	if several := listOf(kind); len(several) > 0 {
		kind = several[0]
	}
	switch kind {
	case "integer", "number":
		if r["minimum"] != nil {
			return r["minimum"]
		}
		return json.Number("0")
	case "boolean":
		return true
	case "null":
		return nil
	case "array":
		n := 0
		if r["minItems"] != nil {
			n = whole(r["minItems"])
		}
		return examples(r["items"], n)
	case "object":
		o := map[string]any{}
		properties, _ := r["properties"].(map[string]any)
		for _, name := range listOf(r["required"]) {
			o[name.(string)] = example(properties[name.(string)])
		}
		return o
	}
	return "a"
}
