//go:build !race

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/api/openai"
)

// bodies returns the operations with a request body.
func bodies() map[string]route {
	out := map[string]route{}
	for _, d := range documents() {
		for _, o := range d.operations {
			if o.body != nil {
				out[o.method+" "+o.path] = *o.body
			}
		}
	}
	return out
}

func TestDocumentsSayWhatTheDecodersTake(t *testing.T) {
	if len(bodies()) != 9 {
		t.Errorf("%d operations take a body, want 9", len(bodies()))
	}
	for name, r := range bodies() {
		for _, strict := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s strict %t", name, strict), func(t *testing.T) { r.wantSchemaOfDecoder(t, strict) })
		}
	}
}

func (r route) wantSchemaOfDecoder(t *testing.T, strict bool) {
	s, refused, err := r.schema(strict)
	if err != nil {
		t.Fatal(err)
	}
	properties := s["properties"].(schema)
	if !slices.Equal(slices.Sorted(maps.Keys(properties)), slices.Sorted(maps.Keys(r.fields))) {
		t.Errorf("the document has %v, the references %v", slices.Sorted(maps.Keys(properties)), slices.Sorted(maps.Keys(r.fields)))
	}
	for field, property := range properties {
		for value, ok := range probes(t, property) {
			if field == "top_logprobs" && properties["logprobs"] != nil {
				value += `,"logprobs":true` // it is allowed only together with this one
			}
			if r.takes(strict, field, value) != ok {
				t.Errorf("%s: %.60s is taken: %t, and the document says the opposite", field, value, !ok)
			}
		}
		if _, is := refused[field]; is && r.takes(strict, field, r.fields[field]) {
			t.Errorf("%s is said to be refused, and is taken", field)
		}
	}
	for _, field := range s["required"].([]string) {
		without := maps.Clone(r.base)
		delete(without, field)
		if _, err := r.decode(&openai.Decoder{Strict: strict}, body(without, "", "")); err == nil {
			t.Errorf("%s is said to be required, and is not", field)
		}
	}
	var e *openai.Error
	_, err = r.decode(&openai.Decoder{Strict: strict}, body(r.base, "no_such_field", "1"))
	if closed := errors.As(err, &e) && e.Code == openai.CodeUnknownParameter; closed != (s["additionalProperties"] == false) {
		t.Errorf("the document takes other fields: %v, and the decoder says %v", !closed, err)
	}
}

// probes returns values for a field's schema, and whether the schema allows each.
func probes(t *testing.T, property any) map[string]bool {
	t.Helper()
	whole, err := json.Marshal(property)
	if err != nil {
		t.Fatal(err)
	}
	var s struct {
		AnyOf            []json.RawMessage
		Type             any
		Enum             []json.RawMessage
		Minimum, Maximum *json.Number
		MinLength        int
		MaxItems         int
		Items            *struct {
			Type string
		}
	}
	if err := json.Unmarshal(whole, &s); err != nil {
		t.Fatal(err)
	}
	out := map[string]bool{}
	if len(s.AnyOf) == 2 && string(s.AnyOf[1]) == `{"type":"null"}` {
		out = probes(t, s.AnyOf[0])
		out["null"] = true
		return out
	}
	for _, v := range s.Enum {
		out[string(v)] = true
		out[`"no such value"`] = false
	}
	for kind, value := range map[string]string{"string": `"xa"`, "boolean": "true", "object": `{"no":{}}`, "array": "[{}]", "number": "0.25"} {
		if s.Type != nil && s.Type != kind && (s.Type != "integer" || kind != "number") {
			out[value] = false
		}
	}
	if s.Type == "integer" {
		out["0.25"] = false
	}
	if s.Minimum != nil {
		out[s.Minimum.String()], out[beyond(*s.Minimum, -1)] = true, false
		out[s.Maximum.String()], out[beyond(*s.Maximum, 1)] = true, false
	}
	if s.MinLength > 0 {
		out[`""`], out[`"x"`] = false, true
	}
	if s.MaxItems > 0 && s.Items != nil && s.Items.Type == "string" {
		list := func(n int) string { return "[" + strings.Repeat(`"a",`, n-1) + `"a"]` }
		out[list(s.MaxItems)], out[list(s.MaxItems+1)] = true, false
	}
	return out
}

// beyond returns a number that is farther out; for the largest integers, whose successors
// do not fit, one with another digit.
func beyond(n json.Number, by int64) string {
	if f, err := n.Float64(); err == nil && strings.Contains(n.String(), ".") {
		return fmt.Sprint(f + float64(by))
	}
	v, err := n.Int64()
	if err != nil || v+by < v != (by < 0) {
		return n.String() + "0"
	}
	return fmt.Sprint(v + by)
}

func TestADocumentThatSaysSomethingElseIsFound(t *testing.T) {
	root := t.TempDir()
	if err := os.CopyFS(filepath.Join(root, "docs"), os.DirFS(filepath.Join("..", "..", "docs"))); err != nil {
		t.Fatal(err)
	}
	if err := run(root, true); err != nil {
		t.Fatal(err)
	}
	for _, d := range documents() {
		path := filepath.Join(root, "api", "openapi", d.file)
		good, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, append(good, '\n'), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := run(root, false); err == nil || !strings.Contains(err.Error(), d.file) {
			t.Errorf("another %s is taken: %v", d.file, err)
		}
		if err := run(root, true); err != nil {
			t.Fatal(err)
		}
	}
	if err := run(root, false); err != nil {
		t.Error(err)
	}
}

func TestAFieldThatIsTakenNeedsASchema(t *testing.T) {
	r := bodies()["post /v1/rerank"]
	r.schemas = maps.Clone(r.schemas)
	delete(r.schemas, "top_n")
	if _, _, err := r.schema(false); err == nil || !strings.Contains(err.Error(), "top_n") {
		t.Errorf("a field without a schema is written: %v", err)
	}
}

func TestWhatARefusalOffersIsTaken(t *testing.T) {
	r := bodies()["post /v1/rerank"]
	if _, err := r.harmless("rank_fields", `Omit it or send ["other"].`, true); err == nil {
		t.Error("a refusal offers what is refused too")
	}
	got, err := r.harmless("rank_fields", `Omit it or send ["text"].`, true)
	if err != nil || len(got) != 2 {
		t.Errorf("offered are %v, %v", got, err)
	}
	// The decoder's own message is used, regardless of its wording.
	field, message, err := r.property("rank_fields", false)
	if values, ok := field.(schema)["enum"].([]any); err != nil || !ok || len(values) != 2 {
		t.Errorf("the message %q offers %v, %v", message, field, err)
	}
}
