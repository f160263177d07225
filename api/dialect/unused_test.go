package dialect

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/api/anthropic"
	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/api/rerank"
	"metalfleet.dev/metalfleet/api/responses"
)

// bodies have an object at every place where fields without effect may occur.
var bodies = map[string]string{
	PathChat: `{"model":"m","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,aaaa"}},{"type":"text","text":"hi"}]}],"tools":[{"type":"function","function":{"name":"f"}}],
		"stream":true,"stream_options":{},"structured_outputs":{"regex":"a"},"thinking":{"type":"enabled"},"reasoning":{}}`,
	PathCompletions: `{"model":"m","prompt":"hi","stream":true,"stream_options":{},"structured_outputs":{"regex":"a"}}`,
	PathEmbeddings:  `{"model":"m","input":"hi"}`,
	PathRerank:      `{"model":"m","query":"q","documents":["a"]}`,
	PathRerankV2:    `{"model":"m","query":"q","documents":["a"]}`,
	PathMessages:    `{"max_tokens":9,` + messages,
	PathCountTokens: `{` + messages,
	PathResponses:   responseBody,
	PathInputTokens: responseBody,
}

const responseBody = `{"model":"m","input":[{"type":"message","role":"assistant","content":[{"type":"output_text","text":"hi"}]},
		{"type":"function_call","call_id":"c","name":"f","arguments":"{}"},{"type":"function_call_output","call_id":"c","output":"x"},{"type":"reasoning"},
		{"type":"custom_tool_call","call_id":"d","name":"g","input":"x"},{"type":"custom_tool_call_output","call_id":"d","output":"x"}],
		"tools":[{"type":"function","name":"f"},{"type":"custom","name":"g"}],"text":{},"reasoning":{},"stream_options":{}}`

const messages = `"model":"m","system":[{"type":"text","text":"s"}],"messages":[{"role":"assistant","content":[{"type":"text","text":"a"},{"type":"tool_use","id":"t","name":"f","input":{}}]},
	{"role":"user","content":[{"type":"tool_result","tool_use_id":"t","content":[{"type":"text","text":"r"}]}]}],"tools":[{"name":"f","input_schema":{"type":"object"}}],"thinking":{"type":"adaptive"},"output_config":{}}`

func decodeBody(d *openai.Decoder, route string, body []byte) error {
	var err error
	switch route {
	case PathChat:
		_, err = d.Chat(body)
	case PathCompletions:
		_, err = d.Completion(body)
	case PathEmbeddings:
		_, err = d.Embedding(body)
	case PathRerank:
		_, err = rerank.Decode(d, body, rerank.V1)
	case PathRerankV2:
		_, err = rerank.Decode(d, body, rerank.V2)
	case PathMessages:
		_, err = anthropic.Decode(d, body)
	case PathCountTokens:
		_, err = anthropic.DecodeCount(d, body)
	case PathResponses:
		_, err = responses.Decode(d, body)
	case PathInputTokens:
		_, err = responses.DecodeCount(d, body)
	}
	return err
}

// with returns the body of a route with an additional member at a place.
func with(t *testing.T, route string, p openai.Place, name, value string) []byte {
	t.Helper()
	var body any
	if err := json.Unmarshal([]byte(bodies[route]), &body); err != nil {
		t.Fatal(err)
	}
	object := objectAt(body, strings.FieldsFunc(strings.ReplaceAll(p.Path, "[]", ".[]"), func(r rune) bool { return r == '.' }), p.Type)
	if object == nil {
		t.Fatalf("%s: the body has no object at %q of type %q", route, p.Path, p.Type)
	}
	object[name] = json.RawMessage(value)
	out, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func objectAt(v any, path []string, kind string) map[string]any {
	object, isObject := v.(map[string]any)
	switch {
	case len(path) == 0 && isObject && (kind == "" || object["type"] == kind):
		return object
	case len(path) == 0:
		return nil
	case path[0] != "[]":
		return objectAt(object[path[0]], path[1:], kind)
	}
	list, _ := v.([]any)
	for _, one := range list {
		if found := objectAt(one, path[1:], kind); found != nil {
			return found
		}
	}
	return nil
}

// named returns the name under which a field at a place is reported as ignored.
func named(p openai.Place, u openai.Unused) string {
	if p.Path == "" {
		return u.Name
	}
	return p.Path + "." + u.Name
}

func TestFieldsWithoutEffectAreIgnoredOrRefusedAsListed(t *testing.T) {
	for route, places := range unused() {
		for _, p := range places {
			for _, u := range p.Unused {
				t.Run(route+" "+named(p, u), func(t *testing.T) {
					odd := with(t, route, p, u.Name, `{"of":["any","shape"]}`)
					if u.Refused {
						wantRefusal(t, &openai.Decoder{}, route, odd, openai.CodeUnsupportedParameter, u.Name)
					} else {
						wantIgnored(t, route, odd, named(p, u))
					}
					for _, neutral := range append([]string{"null"}, u.Neutral...) {
						wantIgnored(t, route, with(t, route, p, u.Name, neutral))
					}
				})
			}
		}
	}
}

func TestStrictDecodingRefusesFieldsWithoutEffect(t *testing.T) {
	for route, places := range unused() {
		for _, p := range places {
			for _, u := range p.Unused {
				t.Run(route+" "+named(p, u), func(t *testing.T) {
					code := openai.CodeUnsupportedParameter
					switch {
					case u.Foreign:
						code = openai.CodeUnknownParameter
					case u.Strict != nil || u.Name == "budget_tokens": // has a format that strict decoding checks
						code = ""
					}
					wantRefusal(t, &openai.Decoder{Strict: true}, route, with(t, route, p, u.Name, `{"of":["any","shape"]}`), code, u.Name)
				})
			}
		}
	}
}

func wantIgnored(t *testing.T, route string, body []byte, want ...string) {
	t.Helper()
	var d openai.Decoder
	if err := decodeBody(&d, route, body); err != nil {
		t.Errorf("%s is refused: %v", body, err)
	}
	if got := d.Ignored(); strings.Join(got, ", ") != strings.Join(want, ", ") {
		t.Errorf("%s: ignored are %q, want %q", body, got, want)
	}
}

// wantRefusal requires an error with the code, if any, about the parameter with that last
// member.
func wantRefusal(t *testing.T, d *openai.Decoder, route string, body []byte, code, member string) {
	t.Helper()
	var e *openai.Error
	err := decodeBody(d, route, body)
	if !errors.As(err, &e) || code != "" && e.Code != code || !strings.Contains(e.Param, member) || !strings.Contains(e.Message, member) {
		t.Errorf("%s: %v, want a refusal of %s with code %q", body, err, member, code)
	}
}

func TestUnknownFieldsAreIgnoredAnywhereAndRefusedWhenStrict(t *testing.T) {
	for route, places := range unused() {
		for _, p := range append(places, openai.Place{}) {
			name := named(p, openai.Unused{Name: "no_such_field"})
			body := with(t, route, p, "no_such_field", `{"a":1}`)
			wantIgnored(t, route, body, name)
			wantIgnored(t, route, with(t, route, p, "no_such_field", `null`))
			wantRefusal(t, &openai.Decoder{Strict: true}, route, body, openai.CodeUnknownParameter, "no_such_field")
		}
	}
}

func TestDuplicateMembersAreRefusedAlsoWhenIgnored(t *testing.T) {
	for route, body := range bodies {
		for _, name := range []string{"no_such_field", "user"} {
			twice := strings.Replace(body, "{", `{"`+name+`":"1","`+name+`":"1",`, 1)
			if err := decodeBody(&openai.Decoder{}, route, []byte(twice)); err == nil || !strings.Contains(err.Error(), "appears twice") {
				t.Errorf("%s: %s twice: %v", route, name, err)
			}
		}
	}
	twice := `{"model":"m","input":"a","tools":[{"type":"function","name":"f","type":"web_search"}]}`
	if err := decodeBody(&openai.Decoder{}, PathResponses, []byte(twice)); err == nil || !strings.Contains(err.Error(), "appears twice") {
		t.Errorf("a member of a tool that is left out appears twice: %v", err)
	}
}

func TestLabelsOfIgnoredFieldsAreBounded(t *testing.T) {
	label := FieldLabels()
	for name, want := range map[string]string{
		"metadata":                           "metadata",
		"messages[].content[].cache_control": "cache_control",
		"tools[].function.cache_control":     "cache_control",
		"tools[web_search_20250305]":         "tools",
		"tools[a.b]":                         "tools",
		"include":                            "include",
		"no_such_field":                      OtherField,
		"messages[].no_such_field":           OtherField,
		"logit_bias":                         OtherField,
		"messages[].content[thinking]":       OtherField,
		"tools[a[b]":                         OtherField,
		"suffix":                             OtherField,
		"...":                                OtherField,
		"":                                   OtherField,
	} {
		if got := label(name); got != want {
			t.Errorf("%s is counted as %s, want %s", name, got, want)
		}
	}
}
