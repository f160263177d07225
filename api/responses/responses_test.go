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
// types/responses/response_create_params.py, each with a significant value. An empty
// verdict means that the field has no effect.
var documentedFields = map[string]struct{ value, verdict string }{
	"background":             {value: `true`, verdict: honoured},
	"context_management":     {value: `[{"type":"compaction"}]`, verdict: refused},
	"conversation":           {value: `"conv_1"`, verdict: refused},
	"include":                {value: `["message.output_text.logprobs"]`, verdict: honoured},
	"input":                  {value: `"other"`, verdict: honoured},
	"instructions":           {value: `"i"`, verdict: honoured},
	"max_output_tokens":      {value: `5`, verdict: honoured},
	"max_tool_calls":         {value: `5`, verdict: refused},
	"metadata":               {value: `{"a":"b"}`, verdict: honoured},
	"model":                  {value: `"other"`, verdict: honoured},
	"moderation":             {value: `{"model":"m"}`, verdict: refused},
	"parallel_tool_calls":    {value: `false`, verdict: honoured},
	"previous_response_id":   {value: `"resp_1"`, verdict: honoured},
	"prompt":                 {value: `{"id":"p"}`, verdict: refused},
	"prompt_cache_key":       {value: `"k"`, verdict: honoured},
	"prompt_cache_options":   {value: `{"mode":"implicit"}`, verdict: refused},
	"prompt_cache_retention": {value: `"24h"`, verdict: refused},
	"reasoning":              {value: `{"effort":"low"}`, verdict: honoured},
	"safety_identifier":      {value: `"k"`, verdict: refused},
	"service_tier":           {value: `"priority"`, verdict: refused},
	"store":                  {value: `false`, verdict: honoured},
	"stream":                 {value: `true`, verdict: honoured},
	"stream_options":         {value: `{"include_obfuscation":true}`, verdict: refused},
	"temperature":            {value: `0.5`, verdict: honoured},
	"text":                   {value: `{"format":{"type":"json_object"}}`, verdict: honoured},
	"tool_choice":            {value: `"none"`, verdict: honoured},
	"tools":                  {value: `[{"type":"function","name":"f"}]`, verdict: honoured},
	"top_logprobs":           {value: `5`, verdict: honoured},
	"top_p":                  {value: `0.5`, verdict: honoured},
	"truncation":             {value: `"auto"`, verdict: honoured},
	"user":                   {value: `"u"`, verdict: honoured},
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
		"no model":                    {body: `{"input":"a"}`, param: "model"},
		"no input":                    {body: `{"model":"m"}`, param: "input"},
		"an empty list":               {body: input(`[]`), param: "input"},
		"an empty text":               {body: input(`""`), param: "input"},
		"a number":                    {body: input(`5`), param: "input"},
		"a number within":             {body: input(`[5]`), param: "input[0]"},
		"a call of another kind":      {body: input(`[{"type":"shell_call","call_id":"c"}]`), param: "input[0].type"},
		"a custom call of nothing":    {body: input(`[{"type":"custom_tool_call","call_id":"c","name":"f"}]`), param: "input[0].input"},
		"a call without an id":        {body: input(`[{"type":"function_call","name":"f","arguments":"{}"}]`), param: "input[0].call_id"},
		"a call without a name":       {body: input(`[{"type":"function_call","call_id":"c","arguments":"{}"}]`), param: "input[0].name"},
		"a call without arguments":    {body: input(`[{"type":"function_call","call_id":"c","name":"f"}]`), param: "input[0].arguments"},
		"arguments that are a list":   {body: input(`[{"type":"function_call","call_id":"c","name":"f","arguments":"[]"}]`), param: "input[0].arguments"},
		"an output without an id":     {body: input(`[{"type":"function_call_output","output":"a"}]`), param: "input[0].call_id"},
		"an output of nothing":        {body: input(`[{"type":"function_call_output","call_id":"c"}]`), param: "input[0].output"},
		"an output with an image":     {body: input(`[{"type":"function_call_output","call_id":"c","output":[{"type":"input_image","image_url":"data:image/png;base64,aaaa"}]}]`), param: "input[0].output[0].type"},
		"thoughts that are hidden":    {body: input(`[{"type":"reasoning","id":"r","summary":[],"encrypted_content":"x"}]`), param: "input[0].encrypted_content"},
		"a summary of thoughts":       {body: input(`[{"type":"reasoning","summary":[{"type":"summary_text","text":"a"}]}]`), param: "input[0].summary"},
		"thoughts of another type":    {body: input(`[{"type":"reasoning","content":[{"type":"text","text":"a"}]}]`), param: "input[0].content[0].type"},
		"a tool that is run there":    {body: `{"model":"m","input":"a","tools":[{"type":"web_search","filters":{}}]}`, param: "tools[0].type"},
		"a tool without a type":       {body: `{"model":"m","input":"a","tools":[{"name":"f"}]}`, param: "tools[0].type"},
		"a tool without a name":       {body: `{"model":"m","input":"a","tools":[{"type":"function"}]}`, param: "tools[0].name"},
		"two tools of one name":       {body: `{"model":"m","input":"a","tools":[{"type":"function","name":"f"},{"type":"function","name":"f"}]}`, param: "tools"},
		"a choice of a hosted tool":   {body: `{"model":"m","input":"a","tools":[{"type":"function","name":"f"}],"tool_choice":{"type":"file_search"}}`, param: "tool_choice.type"},
		"a choice of no name":         {body: `{"model":"m","input":"a","tools":[{"type":"function","name":"f"}],"tool_choice":{"type":"function"}}`, param: "tool_choice.name"},
		"a choice of another name":    {body: `{"model":"m","input":"a","tools":[{"type":"function","name":"f"}],"tool_choice":{"type":"function","name":"g"}}`, param: "tool_choice"},
		"a choice of nothing":         {body: `{"model":"m","input":"a","tool_choice":"required"}`, param: "tool_choice"},
		"an effort of no name":        {body: `{"model":"m","input":"a","reasoning":{"effort":"huge"}}`, param: "reasoning.effort"},
		"a summary":                   {body: `{"model":"m","input":"a","reasoning":{"summary":"auto"}}`, param: "reasoning.summary"},
		"a reference to nothing":      {body: input(`[{"type":"item_reference","id":""}]`), param: "input[0].id"},
		"no role":                     {body: input(`[{"content":"a"}]`), param: "input[0].role"},
		"another role":                {body: input(`[{"role":"tool","content":"a"}]`), param: "input[0].role"},
		"no content":                  {body: input(`[{"role":"user"}]`), param: "input[0].content"},
		"empty content":               {body: input(`[{"role":"user","content":[]}]`), param: "input[0].content"},
		"empty text of a message":     {body: input(`[{"role":"user","content":""}]`), param: "input[0].content"},
		"an image that is no URL":     {body: input(`[{"role":"user","content":[{"type":"input_image","image_url":"u"}]}]`), param: "input[0].content[0].image_url"},
		"an image in a file":          {body: input(`[{"role":"user","content":[{"type":"input_image","file_id":"f"}]}]`), param: "input[0].content[0].image_url"},
		"an image of an assistant":    {body: input(`[{"role":"assistant","content":[{"type":"input_image","image_url":"data:image/png;base64,aaaa"}]}]`), param: "input[0].content[0].type"},
		"an image to fetch":           {body: input(`[{"role":"user","content":[{"type":"input_image","image_url":"https://h/i.png"}]}]`), param: "input[0].content[0].image_url"},
		"what the assistant says":     {body: input(`[{"role":"user","content":[{"type":"output_text","text":"a"}]}]`), param: "input[0].content[0].type"},
		"input text of the assistant": {body: input(`[{"role":"assistant","content":[{"type":"input_text","text":"a"}]}]`), param: "input[0].content[0].type"},
		"a part without text":         {body: input(`[{"role":"user","content":[{"type":"input_text"}]}]`), param: "input[0].content[0].text"},
		"a part without type":         {body: input(`[{"role":"user","content":[{"text":"a"}]}]`), param: "input[0].content[0].type"},
		"annotations":                 {body: input(`[{"role":"assistant","content":[{"type":"output_text","text":"a","annotations":[{}]}]}]`), param: "input[0].content[0].annotations"},
		"metadata that is no text":    {body: `{"model":"m","input":"a","metadata":{"a":1}}`, param: "metadata.a"},
		"metadata given twice":        {body: `{"model":"m","input":"a","metadata":{"a":"1","\u0061":"2"}}`, param: "metadata.a"},
		"a value that is too long":    {body: metadata(`"a":"` + strings.Repeat("é", 513) + `"`), param: "metadata"},
		"a key that is too long":      {body: metadata(`"` + strings.Repeat("é", 65) + `":"a"`), param: "metadata"},
		"too many pairs":              {body: metadata(pairs(17)), param: "metadata"},
		"a form of no type":           {body: `{"model":"m","input":"a","text":{"format":{"name":"x"}}}`, param: "text.format.type"},
		"a form of another type":      {body: `{"model":"m","input":"a","text":{"format":{"type":"yaml"}}}`, param: "text.format.type"},
		"a form without a schema":     {body: `{"model":"m","input":"a","text":{"format":{"type":"json_schema","name":"x"}}}`, param: "text.format.schema"},
		"a schema that is a list":     {body: `{"model":"m","input":"a","text":{"format":{"type":"json_schema","schema":[]}}}`, param: "text.format.schema"},
		"a schema of an object":       {body: `{"model":"m","input":"a","text":{"format":{"type":"json_object","schema":{}}}}`, param: "text.format.schema"},
		"another truncation":          {body: `{"model":"m","input":"a","truncation":"middle"}`, param: "truncation"},
		"too many alternatives":       {body: `{"model":"m","input":"a","top_logprobs":21}`, param: "top_logprobs"},
		"another thing to include":    {body: `{"model":"m","input":"a","include":["reasoning.encrypted_content"]}`, param: "include[0]"},
		"a grammar of no syntax":      {body: custom(`,"format":{"type":"grammar","definition":"a"}`), param: "tools[0].format.syntax"},
		"a grammar without text":      {body: custom(`,"format":{"type":"grammar","syntax":"lark"}`), param: "tools[0].format.definition"},
		"a format of no type":         {body: custom(`,"format":{"type":"x"}`), param: "tools[0].format.type"},
		"a namespace without a name":  {body: `{"model":"m","input":"a","tools":[{"type":"namespace","tools":[]}]}`, param: "tools[0].name"},
		"a namespace without tools":   {body: `{"model":"m","input":"a","tools":[{"type":"namespace","name":"n"}]}`, param: "tools[0].tools"},
		"a tool within a namespace":   {body: `{"model":"m","input":"a","tools":[{"type":"namespace","name":"n","tools":[{"type":"function"}]}]}`, param: "tools[0].tools[0].name"},
		"a choice of no mode":         {body: `{"model":"m","input":"a","tool_choice":{"type":"allowed_tools","tools":[]}}`, param: "tool_choice.mode"},
		"a choice of unknown tools":   {body: `{"model":"m","input":"a","tools":[{"type":"function","name":"f"}],"tool_choice":{"type":"allowed_tools","mode":"auto","tools":[{"type":"function","name":"g"}]}}`, param: "tool_choice"},
		"an unknown field":            {body: `{"model":"m","input":"a","n":2}`, param: "n"},
		"a field of another API":      {body: `{"model":"m","input":"a","max_tokens":2}`, param: "max_tokens"},
		"no tokens":                   {body: `{"model":"m","input":"a","max_output_tokens":0}`, param: "max_output_tokens"},
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

// TestErrorsRepeatLittleOfARequest: an error waits for its client to read it, and counts nowhere.
func TestErrorsRepeatLittleOfARequest(t *testing.T) {
	long := strings.Repeat("x", 1<<20)
	for name, body := range map[string]string{
		"a key of metadata":   metadata(`"` + long + `":1`),
		"a type of an item":   `{"model":"m","input":[{"type":"` + long + `"}]}`,
		"a field of an item":  `{"model":"m","input":[{"type":"message","role":"user","content":"a","` + long + `":1}]}`,
		"a role":              `{"model":"m","input":[{"role":"` + long + `","content":"a"}]}`,
		"a tool":              `{"model":"m","input":"a","tools":[{"type":"` + long + `"}]}`,
		"a tool choice":       `{"model":"m","input":"a","tool_choice":"` + long + `"}`,
		"a field of a format": `{"model":"m","input":"a","text":{"format":{"type":"text","` + long + `":1}}}`,
		"a field":             `{"model":"m","input":"a","` + long + `":1}`,
	} {
		_, err := Decode(strictly(), []byte(body))
		if e := openai.AsError(err); err == nil || len(e.Message)+len(e.Param) > 2<<10 {
			t.Errorf("%s: %d bytes of message and %d of its parameter (%.80v)", name, len(e.Message), len(e.Param), err)
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

// The official clients' types have a closed list of codes, and a cancelled response is not
// a failed one.
func TestAFailureHasACodeOfTheClientsOwnList(t *testing.T) {
	for code, tc := range map[string]struct {
		status string
		err    *openai.Error
	}{
		"rate_limit_exceeded": {status: StatusFailed, err: &openai.Error{Status: 429, Code: "queue_full"}},
		"server_error":        {status: StatusFailed, err: &openai.Error{Status: 503, Code: "engine_failed"}},
		"invalid_prompt":      {status: StatusFailed, err: &openai.Error{Status: 400, Code: "invalid_value"}},
		"":                    {status: StatusCancelled, err: &openai.Error{Status: 409, Code: "response_cancelled"}},
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
	got, err := DecodeSettings(body, func(int) error { return nil })
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
		if r, err := DecodeSettings([]byte(refused), func(int) error { return nil }); err == nil {
			t.Errorf("%s: %+v", name, r)
		}
	}
}

func TestAnImageIsKeptAsItWasSent(t *testing.T) {
	const url = "data:image/png;base64,iVBORw0KGgo="
	r, err := Decode(&openai.Decoder{}, []byte(`{"model":"m","input":[{"role":"user","content":[{"type":"input_text","text":"a"},{"type":"input_image","image_url":"`+url+`","detail":"auto"}]}]}`))
	if err != nil {
		t.Fatal(err)
	}
	p := r.Input[0].Content[1]
	if m, ok := p.Image(); !ok || string(m.Data) != "\x89PNG\r\n\x1a\n" {
		t.Errorf("%v, %q", ok, m.Data)
	}
	b, err := openai.Marshal(p)
	if want := `{"detail":"auto","image_url":"` + url + `","type":"input_image"}`; err != nil || strings.TrimSpace(string(b)) != want {
		t.Errorf("%s, %v, want %s", b, err, want)
	}
	if r.Input[0].Bytes() < int64(len(url)) {
		t.Error("the image takes no memory")
	}
}

// TestBytesOfAnItemAreThoseOfItsJSON, so that a text of control characters, which JSON
// writes in six, is not in memory uncounted while a client reads it.
func TestBytesOfAnItemAreThoseOfItsJSON(t *testing.T) {
	for _, text := range []string{strings.Repeat("plain ", 1000), strings.Repeat("\x01", 1000), strings.Repeat("\"\\\n\r\t", 1000), strings.Repeat("é語", 1000), strings.Repeat("\u2028\u2029", 1000)} {
		i := Item{Type: ItemMessage, Role: "user", Content: []Part{{Type: "input_text", Text: text}}}
		raw, err := openai.Marshal(i)
		if n := i.Bytes(); err != nil || n < int64(len(raw))-128 || n > int64(len(raw))+128 {
			t.Errorf("%.10q: %d bytes are counted, its JSON has %d (%v)", text, n, len(raw), err)
		}
	}
}

// TestLogprobsOfAnItemCountByTheirOwnTokens: the alternatives of a short token may be long, and the
// other way round.
func TestLogprobsOfAnItemCountByTheirOwnTokens(t *testing.T) {
	one := func(length int) openai.TokenLogprob {
		return openai.TokenLogprob{Token: strings.Repeat("x", length), Logprob: -1.5, Bytes: make([]int, length)}
	}
	for name, c := range map[string]struct{ chosen, top int }{"long alternatives": {1, 1000}, "a long choice": {1000, 1}} {
		l := openai.ChatLogprob{TokenLogprob: one(c.chosen), TopLogprobs: slices.Repeat([]openai.TokenLogprob{one(c.top)}, 20)}
		i := Item{Content: []Part{{Logprobs: &[]openai.ChatLogprob{l, l}}}}
		takes := int64(2 * 9 * (c.chosen + 20*c.top)) // each byte as text and as a number
		if n := i.Bytes(); n < takes || n > takes+takes/8+50*logprobBytes {
			t.Errorf("%s: %d bytes are counted, and they take %d", name, n, takes)
		}
	}
}
