//go:build !race

package responses

import (
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"metalfleet.dev/metalfleet/api/openai"
)

// strictly decodes without ignoring a field.
func strictly() *openai.Decoder { return &openai.Decoder{Strict: true} }

func TestIDNamesTheReplicaThatStoresTheResponse(t *testing.T) {
	seen := map[string]bool{}
	for _, mac := range []string{"a", "studio-1.office", strings.Repeat("m", 63)} {
		for kind, prefix := range prefixes {
			i := newItem(kind, mac)
			if got, ok := MacOf(i.ID); !ok || got != mac || !strings.HasPrefix(i.ID, prefix) || seen[i.ID] {
				t.Errorf("the item %q is of %q, %v", i.ID, got, ok)
			}
			seen[i.ID] = true
		}
		id := NewID(mac)
		if got, ok := MacOf(id); !ok || got != mac || seen[id] || IDOf("/v1/responses/"+id+"/cancel") != id || strings.Trim(id, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") != "" {
			t.Errorf("%q is of %q, %v", id, got, ok)
		}
		seen[id] = true
	}
	for _, id := range []string{"", "resp_", "resp_" + strings.Repeat("0", 32), "tool_" + strings.Repeat("0", 40), "msg_" + strings.Repeat("0", 32), "resp_" + strings.Repeat("0", 32) + "!", NewID(strings.Repeat("m", 300))} {
		if mac, ok := MacOf(id); ok {
			t.Errorf("%q is of %q", id, mac)
		}
	}
}

const (
	honoured = "honoured"
	refused  = "refused"
)

// documentedFields are those of openai-python 3.54.0,
// types/responses/response_create_params.py, each with a value that means
// something. One without a verdict changes nothing.
var documentedFields = map[string]struct{ value, verdict string }{
	"background":             {`true`, honoured},
	"context_management":     {`[{"type":"compaction"}]`, refused},
	"conversation":           {`"conv_1"`, refused},
	"include":                {`["message.output_text.logprobs"]`, honoured},
	"input":                  {`"other"`, honoured},
	"instructions":           {`"i"`, honoured},
	"max_output_tokens":      {`5`, honoured},
	"max_tool_calls":         {`5`, refused},
	"metadata":               {`{"a":"b"}`, honoured},
	"model":                  {`"other"`, honoured},
	"moderation":             {`{"model":"m"}`, refused},
	"parallel_tool_calls":    {`false`, honoured},
	"previous_response_id":   {`"resp_1"`, honoured},
	"prompt":                 {`{"id":"p"}`, refused},
	"prompt_cache_key":       {`"k"`, honoured},
	"prompt_cache_options":   {`{"mode":"implicit"}`, refused},
	"prompt_cache_retention": {`"24h"`, refused},
	"reasoning":              {`{"effort":"low"}`, honoured},
	"safety_identifier":      {`"k"`, refused},
	"service_tier":           {`"priority"`, refused},
	"store":                  {`false`, honoured},
	"stream":                 {`true`, honoured},
	"stream_options":         {`{"include_obfuscation":true}`, refused},
	"temperature":            {`0.5`, honoured},
	"text":                   {`{"format":{"type":"json_object"}}`, honoured},
	"tool_choice":            {`"none"`, honoured},
	"tools":                  {`[{"type":"function","name":"f"}]`, honoured},
	"top_logprobs":           {`5`, honoured},
	"top_p":                  {`0.5`, honoured},
	"truncation":             {`"auto"`, honoured},
	"user":                   {`"u"`, honoured},
}

func body(base map[string]string, name, value string) []byte {
	members := maps.Clone(base)
	if name != "" {
		members[name] = value
	}
	var out []string
	for _, k := range slices.Sorted(maps.Keys(members)) {
		out = append(out, `"`+k+`":`+members[k])
	}
	return []byte("{" + strings.Join(out, ",") + "}")
}

var sameIDs = cmpopts.IgnoreFields(Item{}, "ID")

func TestEveryDocumentedFieldIsHonouredOrRefusedByName(t *testing.T) {
	base := map[string]string{"model": `"m"`, "input": `"hi"`}
	without, err := Decode(strictly(), body(base, "", ""))
	if err != nil {
		t.Fatal(err)
	}
	for name, f := range documentedFields {
		got, err := Decode(strictly(), body(base, name, f.value))
		var e *openai.Error
		switch {
		case f.verdict == refused:
			if !errors.As(err, &e) || !strings.HasPrefix(e.Param, name) || e.Code != openai.CodeUnsupportedParameter || !strings.Contains(e.Message, "'"+name) {
				t.Errorf("%s: want a refusal of it, got %v", name, err)
			}
		case err != nil:
			t.Errorf("%s is refused: %v", name, err)
		case cmp.Equal(got, without, sameIDs) != (f.verdict == ""):
			t.Errorf("%s leaves the request as it was, or does not", name)
		}
	}
}

func TestInvalidRequestIsRefusedByPath(t *testing.T) {
	input := func(items string) string { return `{"model":"m","input":` + items + `}` }
	for name, tc := range map[string]struct{ body, param string }{
		"no model":                   {`{"input":"a"}`, "model"},
		"no input":                   {`{"model":"m"}`, "input"},
		"an empty list":              {input(`[]`), "input"},
		"an empty text":              {input(`""`), "input"},
		"a number":                   {input(`5`), "input"},
		"a number within":            {input(`[5]`), "input[0]"},
		"a call of another kind":     {input(`[{"type":"shell_call","call_id":"c"}]`), "input[0].type"},
		"a custom call of nothing":   {input(`[{"type":"custom_tool_call","call_id":"c","name":"f"}]`), "input[0].input"},
		"a call without an id":       {input(`[{"type":"function_call","name":"f","arguments":"{}"}]`), "input[0].call_id"},
		"a call without a name":      {input(`[{"type":"function_call","call_id":"c","arguments":"{}"}]`), "input[0].name"},
		"a call without arguments":   {input(`[{"type":"function_call","call_id":"c","name":"f"}]`), "input[0].arguments"},
		"arguments that are a list":  {input(`[{"type":"function_call","call_id":"c","name":"f","arguments":"[]"}]`), "input[0].arguments"},
		"an output without an id":    {input(`[{"type":"function_call_output","output":"a"}]`), "input[0].call_id"},
		"an output of nothing":       {input(`[{"type":"function_call_output","call_id":"c"}]`), "input[0].output"},
		"an output with an image":    {input(`[{"type":"function_call_output","call_id":"c","output":[{"type":"input_image","image_url":"u"}]}]`), "input[0].output[0].type"},
		"thoughts that are hidden":   {input(`[{"type":"reasoning","id":"r","summary":[],"encrypted_content":"x"}]`), "input[0].encrypted_content"},
		"a summary of thoughts":      {input(`[{"type":"reasoning","summary":[{"type":"summary_text","text":"a"}]}]`), "input[0].summary"},
		"thoughts of another type":   {input(`[{"type":"reasoning","content":[{"type":"text","text":"a"}]}]`), "input[0].content[0].type"},
		"a tool that is run there":   {`{"model":"m","input":"a","tools":[{"type":"web_search","filters":{}}]}`, "tools[0].type"},
		"a tool without a type":      {`{"model":"m","input":"a","tools":[{"name":"f"}]}`, "tools[0].type"},
		"a tool without a name":      {`{"model":"m","input":"a","tools":[{"type":"function"}]}`, "tools[0].name"},
		"two tools of one name":      {`{"model":"m","input":"a","tools":[{"type":"function","name":"f"},{"type":"function","name":"f"}]}`, "tools"},
		"a choice of a hosted tool":  {`{"model":"m","input":"a","tools":[{"type":"function","name":"f"}],"tool_choice":{"type":"file_search"}}`, "tool_choice.type"},
		"a choice of no name":        {`{"model":"m","input":"a","tools":[{"type":"function","name":"f"}],"tool_choice":{"type":"function"}}`, "tool_choice.name"},
		"a choice of another name":   {`{"model":"m","input":"a","tools":[{"type":"function","name":"f"}],"tool_choice":{"type":"function","name":"g"}}`, "tool_choice"},
		"a choice of nothing":        {`{"model":"m","input":"a","tool_choice":"required"}`, "tool_choice"},
		"an effort of no name":       {`{"model":"m","input":"a","reasoning":{"effort":"huge"}}`, "reasoning.effort"},
		"a summary":                  {`{"model":"m","input":"a","reasoning":{"summary":"auto"}}`, "reasoning.summary"},
		"a reference to nothing":     {input(`[{"type":"item_reference","id":""}]`), "input[0].id"},
		"no role":                    {input(`[{"content":"a"}]`), "input[0].role"},
		"another role":               {input(`[{"role":"tool","content":"a"}]`), "input[0].role"},
		"no content":                 {input(`[{"role":"user"}]`), "input[0].content"},
		"empty content":              {input(`[{"role":"user","content":[]}]`), "input[0].content"},
		"empty text of a message":    {input(`[{"role":"user","content":""}]`), "input[0].content"},
		"an image":                   {input(`[{"role":"user","content":[{"type":"input_image","image_url":"u"}]}]`), "input[0].content[0].type"},
		"what the assistant says":    {input(`[{"role":"user","content":[{"type":"output_text","text":"a"}]}]`), "input[0].content[0].type"},
		"what the assistant is told": {input(`[{"role":"assistant","content":[{"type":"input_text","text":"a"}]}]`), "input[0].content[0].type"},
		"a part without text":        {input(`[{"role":"user","content":[{"type":"input_text"}]}]`), "input[0].content[0].text"},
		"a part without type":        {input(`[{"role":"user","content":[{"text":"a"}]}]`), "input[0].content[0].type"},
		"annotations":                {input(`[{"role":"assistant","content":[{"type":"output_text","text":"a","annotations":[{}]}]}]`), "input[0].content[0].annotations"},
		"metadata that is no text":   {`{"model":"m","input":"a","metadata":{"a":1}}`, "metadata.a"},
		"metadata given twice":       {`{"model":"m","input":"a","metadata":{"a":"1","\u0061":"2"}}`, "metadata.a"},
		"a value that is too long":   {metadata(`"a":"` + strings.Repeat("é", 513) + `"`), "metadata"},
		"a key that is too long":     {metadata(`"` + strings.Repeat("é", 65) + `":"a"`), "metadata"},
		"too many pairs":             {metadata(pairs(17)), "metadata"},
		"a form of no type":          {`{"model":"m","input":"a","text":{"format":{"name":"x"}}}`, "text.format.type"},
		"a form of another type":     {`{"model":"m","input":"a","text":{"format":{"type":"yaml"}}}`, "text.format.type"},
		"a form without a schema":    {`{"model":"m","input":"a","text":{"format":{"type":"json_schema","name":"x"}}}`, "text.format.schema"},
		"a schema that is a list":    {`{"model":"m","input":"a","text":{"format":{"type":"json_schema","schema":[]}}}`, "text.format.schema"},
		"a schema of an object":      {`{"model":"m","input":"a","text":{"format":{"type":"json_object","schema":{}}}}`, "text.format.schema"},
		"another truncation":         {`{"model":"m","input":"a","truncation":"middle"}`, "truncation"},
		"too many alternatives":      {`{"model":"m","input":"a","top_logprobs":21}`, "top_logprobs"},
		"another thing to include":   {`{"model":"m","input":"a","include":["reasoning.encrypted_content"]}`, "include[0]"},
		"a grammar of no syntax":     {custom(`,"format":{"type":"grammar","definition":"a"}`), "tools[0].format.syntax"},
		"a grammar without text":     {custom(`,"format":{"type":"grammar","syntax":"lark"}`), "tools[0].format.definition"},
		"a format of no type":        {custom(`,"format":{"type":"x"}`), "tools[0].format.type"},
		"a namespace without a name": {`{"model":"m","input":"a","tools":[{"type":"namespace","tools":[]}]}`, "tools[0].name"},
		"a namespace without tools":  {`{"model":"m","input":"a","tools":[{"type":"namespace","name":"n"}]}`, "tools[0].tools"},
		"a tool within a namespace":  {`{"model":"m","input":"a","tools":[{"type":"namespace","name":"n","tools":[{"type":"function"}]}]}`, "tools[0].tools[0].name"},
		"a choice of no mode":        {`{"model":"m","input":"a","tool_choice":{"type":"allowed_tools","tools":[]}}`, "tool_choice.mode"},
		"a choice of unknown tools":  {`{"model":"m","input":"a","tools":[{"type":"function","name":"f"}],"tool_choice":{"type":"allowed_tools","mode":"auto","tools":[{"type":"function","name":"g"}]}}`, "tool_choice"},
		"a field that nobody knows":  {`{"model":"m","input":"a","n":2}`, "n"},
		"a field of another API":     {`{"model":"m","input":"a","max_tokens":2}`, "max_tokens"},
		"no tokens":                  {`{"model":"m","input":"a","max_output_tokens":0}`, "max_output_tokens"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Decode(strictly(), []byte(tc.body))
			var e *openai.Error
			if !errors.As(err, &e) || e.Status != 400 || e.Param != tc.param {
				t.Errorf("%v", err)
			}
		})
	}
}

// TestMetadataIsCountedInCharacters: the API states its bounds in characters, as
// JSON Schema counts them, not in bytes.
func TestMetadataIsCountedInCharacters(t *testing.T) {
	key, value := strings.Repeat("😀", 64), strings.Repeat("😀", 512)
	for name, members := range map[string]string{
		"the longest key and value": `"` + key + `":"` + value + `"`,
		"the most pairs":            pairs(16),
	} {
		r, err := Decode(strictly(), []byte(metadata(members)))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if name == "the longest key and value" && r.Metadata[key] != value {
			t.Errorf("%s: read as %q", name, r.Metadata)
		}
	}
}

// custom is a request with a custom tool.
func custom(members string) string {
	return `{"model":"m","input":"a","tools":[{"type":"custom","name":"f"` + members + `}]}`
}

func metadata(members string) string {
	return `{"model":"m","input":"a","metadata":{` + members + `}}`
}

func pairs(n int) string {
	var out []string
	for i := range n {
		out = append(out, fmt.Sprintf(`"k%d":"v"`, i))
	}
	return strings.Join(out, ",")
}

func TestAQueryIsReadWholeOrRefused(t *testing.T) {
	for raw, param := range map[string]string{"limit=1;x": "", "limit=%zz": "", "limit=1&limit=2": "limit", "limit=1&limi%74=2": "limit"} {
		_, err := ParseQuery(raw)
		var e *openai.Error
		if !errors.As(err, &e) || e.Status != 400 || e.Param != param || strings.Contains(e.Message, "zz") {
			t.Errorf("%s: %v", raw, err)
		}
	}
	got, err := ParseQuery("limit=1&order=asc")
	if err != nil || got.Get("limit") != "1" || got.Get("order") != "asc" {
		t.Errorf("%v, %v", got, err)
	}
}

// TestAFailureHasACodeOfTheClientsOwnList: the official clients' types have a
// closed list of codes, and a response that was cancelled did not fail.
func TestAFailureHasACodeOfTheClientsOwnList(t *testing.T) {
	for code, tc := range map[string]struct {
		status string
		err    *openai.Error
	}{
		"rate_limit_exceeded": {StatusFailed, &openai.Error{Status: 429, Code: "queue_full"}},
		"server_error":        {StatusFailed, &openai.Error{Status: 503, Code: "engine_failed"}},
		"invalid_prompt":      {StatusFailed, &openai.Error{Status: 400, Code: "invalid_value"}},
		"":                    {StatusCancelled, &openai.Error{Status: 409, Code: "response_cancelled"}},
	} {
		a := NewAnswer("resp_1", 1, &Request{Model: "m"})
		a.Fail(tc.status, tc.err)
		got := ""
		if a.Response.Error != nil {
			got = a.Response.Error.Code
		}
		if got != code || a.Response.Status != tc.status {
			t.Errorf("%s: %q, want %q", a.Response.Status, got, code)
		}
	}
}

// A gateway shows a response before its Mac does: it reads what the response shows, at
// the cost of that.
func TestSettingsAreReadWithoutTheInput(t *testing.T) {
	settings := `"model":"m","instructions":"i","temperature":0.5,"metadata":{"a":"b"},"user":"u","max_tool_calls":3,"tools":[{"type":"function","name":"f"}],"text":{"format":{"type":"json_object"}}`
	body := []byte(`{"input":[{"role":"user","content":"` + strings.Repeat("a", 8<<20) + `"}],` + settings + `}`)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	got, err := DecodeSettings(body)
	runtime.ReadMemStats(&after)
	if err != nil {
		t.Fatal(err)
	}
	if made := after.TotalAlloc - before.TotalAlloc; made > 1<<20 {
		t.Errorf("an input of 8 MiB takes %d KiB", made>>10)
	}
	want, err := Decode(&openai.Decoder{}, []byte(`{"input":"x",`+settings+`}`))
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(marshalled(t, NewAnswer("resp_1", 1, want).Response), marshalled(t, NewAnswer("resp_1", 1, got).Response)); d != "" {
		t.Error(d)
	}
	for name, refused := range map[string]string{
		"very long instructions": `{"model":"m","input":"x","instructions":"` + strings.Repeat("a", maxSettings) + `"}`,
		"no model":               `{"input":"x"}`,
		"no input":               `{"model":"m"}`,
		"an input that is none":  `{"model":"m","input":7}`,
		"a member twice":         `{"model":"m","input":"x","user":"a","user":"b"}`,
	} {
		if r, err := DecodeSettings([]byte(refused)); err == nil {
			t.Errorf("%s: %+v", name, r)
		}
	}
}
