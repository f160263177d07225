//go:build !race

package anthropic

import (
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"metalfleet.dev/metalfleet/api/openai"
)

// strictly decodes without ignoring a field.
func strictly() *openai.Decoder { return &openai.Decoder{Strict: true} }

func TestRequestIsParsed(t *testing.T) {
	got, err := Decode(strictly(), []byte(`{"model":"m","max_tokens":9,"stream":true,"temperature":1,"top_p":0.5,"top_k":3,
		"stop_sequences":["x","\n\ny"],"metadata":{"user_id":"u"},"cache_control":{"type":"ephemeral"},
		"system":[{"type":"text","text":"a","cache_control":{"type":"ephemeral","ttl":"1h"}},{"type":"text","text":"b"}],
		"messages":[{"role":"user","content":"hi"},
			{"role":"assistant","content":[{"type":"thinking","thinking":"hm","signature":"s"},{"type":"text","text":"c","citations":null},
				{"type":"tool_use","id":"t1","name":"f","input":{"q": 1}}]},
			{"role":"user","content":[{"type":"tool_result","tool_use_id":"t1","is_error":true,"content":[{"type":"text","text":"r"},{"type":"text","text":"s"}]},
				{"type":"text","text":"d"}]}]}`))
	if err != nil {
		t.Fatal(err)
	}
	one, half, three := 1.0, 0.5, 3
	want := &Request{Model: "m", MaxTokens: 9, Stream: true, Temperature: &one, TopP: &half, TopK: &three, Stop: []string{"x", "\n\ny"},
		System: "a\n\nb", Messages: []Message{
			{Role: "user", Blocks: []Block{{Type: "text", Text: "hi"}}},
			{Role: "assistant", Blocks: []Block{{Type: "thinking", Text: "hm"}, {Type: "text", Text: "c"}, {Type: "tool_use", ID: "t1", Name: "f", Input: json.RawMessage(`{"q": 1}`)}}},
			{Role: "user", Blocks: []Block{{Type: "tool_result", ID: "t1", Failed: true, Text: "r\ns"}, {Type: "text", Text: "d"}}},
		}}
	if d := cmp.Diff(want, got, cmp.AllowUnexported(Request{})); d != "" {
		t.Error(d)
	}
}

const (
	honoured = "honoured"
	refused  = "refused"
)

// documentedFields are those of anthropic-sdk-python's types/message_create_params.py and
// beta/message_create_params.py, each with a significant value. An empty verdict means that
// the field does not change the response.
var documentedFields = map[string]struct{ value, verdict string }{
	"model":              {value: `"other"`, verdict: honoured},
	"messages":           {value: `[{"role":"user","content":"other"}]`, verdict: honoured},
	"max_tokens":         {value: `5`, verdict: honoured},
	"system":             {value: `"s"`, verdict: honoured},
	"stop_sequences":     {value: `["\n"]`, verdict: honoured},
	"stream":             {value: `true`, verdict: honoured},
	"temperature":        {value: `0.5`, verdict: honoured},
	"top_k":              {value: `5`, verdict: honoured},
	"top_p":              {value: `0.5`, verdict: honoured},
	"metadata":           {value: `{"user_id":"u"}`}, // accepted without effect
	"cache_control":      {value: `{"type":"ephemeral"}`},
	"tools":              {value: `[{"name":"f","input_schema":{"type":"object"}}]`, verdict: honoured},
	"tool_choice":        {value: `{"type":"none"}`, verdict: honoured},
	"thinking":           {value: `{"type":"enabled","budget_tokens":1024}`, verdict: honoured},
	"service_tier":       {value: `"standard_only"`}, // there is only one tier
	"container":          {value: `"c"`, verdict: refused},
	"inference_geo":      {value: `"eu"`, verdict: refused},
	"mcp_servers":        {value: `[{"type":"url"}]`, verdict: refused},
	"context_management": {value: `{"edits":[]}`, verdict: refused},
	"output_config":      {value: `{"effort":"low"}`, verdict: honoured},
	"output_format":      {value: `{"type":"json_schema","schema":{}}`, verdict: honoured},
	"thread":             {value: `{"type":"create"}`, verdict: refused},
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

func TestEveryDocumentedFieldIsHonouredOrRefusedByName(t *testing.T) {
	base := map[string]string{"model": `"m"`, "max_tokens": "9", "messages": `[{"role":"user","content":"hi"}]`}
	without, err := Decode(strictly(), body(base, "", ""))
	if err != nil {
		t.Fatal(err)
	}
	for name, f := range documentedFields {
		got, err := Decode(strictly(), body(base, name, f.value))
		var e *openai.Error
		switch {
		case f.verdict == refused:
			if !errors.As(err, &e) || e.Param != name || e.Code != openai.CodeUnsupportedParameter || !strings.Contains(e.Message, "'"+name+"'") {
				t.Errorf("%s: want a refusal of it, got %v", name, err)
			}
		case err != nil:
			t.Errorf("%s is refused: %v", name, err)
		case cmp.Equal(got, without, cmp.AllowUnexported(Request{})) != (f.verdict == ""):
			t.Errorf("%s leaves the request as it was, or does not", name)
		}
	}
}

func TestInvalidRequestIsRefusedByPath(t *testing.T) {
	with := func(messages string) string { return `{"model":"m","max_tokens":9,"messages":` + messages + `}` }
	block := func(b string) string { return with(`[{"role":"user","content":[` + b + `]}]`) }
	said := func(b string) string { return with(`[{"role":"assistant","content":[` + b + `]}]`) }
	format := func(f string) string {
		return `{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"a"}],"output_config":{"format":` + f + `}}`
	}
	for name, tc := range map[string]struct{ body, param string }{
		"no model":                     {body: `{"max_tokens":9,"messages":[{"role":"user","content":"a"}]}`, param: "model"},
		"no limit":                     {body: `{"model":"m","messages":[{"role":"user","content":"a"}]}`, param: "max_tokens"},
		"no messages":                  {body: with("[]"), param: "messages"},
		"a turn of another role":       {body: with(`[{"role":"tool","content":"a"}]`), param: "messages[0].role"},
		"a system turn with an image":  {body: with(`[{"role":"system","content":[{"type":"image"}]}]`), param: "messages[0].content[0].type"},
		"a format of another type":     {body: format(`{"type":"yaml"}`), param: "output_config.format.type"},
		"a format without a schema":    {body: format(`{"type":"json_schema"}`), param: "output_config.format.schema"},
		"a schema that is a number":    {body: format(`{"type":"json_schema","schema":5}`), param: "output_config.format.schema"},
		"an effort of no name":         {body: `{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"a"}],"output_config":{"effort":"huge"}}`, param: "output_config.effort"},
		"no content":                   {body: with(`[{"role":"user"}]`), param: "messages[0].content"},
		"empty content":                {body: with(`[{"role":"user","content":[]}]`), param: "messages[0].content"},
		"an empty text":                {body: with(`[{"role":"user","content":""}]`), param: "messages[0].content"},
		"a number":                     {body: with(`[{"role":"user","content":5}]`), param: "messages[0].content"},
		"an image of nothing":          {body: block(`{"type":"image"}`), param: "messages[0].content[0].source"},
		"an image without a type":      {body: block(`{"type":"image","source":{}}`), param: "messages[0].content[0].source.type"},
		"an image without data":        {body: block(`{"type":"image","source":{"type":"base64"}}`), param: "messages[0].content[0].source.data"},
		"an image that is no base64":   {body: block(`{"type":"image","source":{"type":"base64","media_type":"image/png","data":"!"}}`), param: "messages[0].content[0].source.data"},
		"an image in a file":           {body: block(`{"type":"image","source":{"type":"file","file_id":"f"}}`), param: "messages[0].content[0].source.type"},
		"an image to fetch":            {body: block(`{"type":"image","source":{"type":"url","url":"https://h/i.png"}}`), param: "messages[0].content[0].source.url"},
		"an image of the assistant":    {body: said(`{"type":"image","source":{"type":"base64","data":"aaaa"}}`), param: "messages[0].content[0].type"},
		"a document":                   {body: block(`{"type":"document","source":{}}`), param: "messages[0].content[0].type"},
		"thoughts that cannot be read": {body: said(`{"type":"redacted_thinking","data":"x"}`), param: "messages[0].content[0].type"},
		"a result the assistant gives": {body: said(`{"type":"tool_result","tool_use_id":"a"}`), param: "messages[0].content[0].type"},
		"a use by the user":            {body: block(`{"type":"tool_use","id":"a","name":"f","input":{}}`), param: "messages[0].content[0].type"},
		"a block without type":         {body: block(`{"text":"a"}`), param: "messages[0].content[0].type"},
		"a block without text":         {body: block(`{"type":"text"}`), param: "messages[0].content[0].text"},
		"a block with more":            {body: block(`{"type":"text","text":"a","x":1}`), param: "messages[0].content[0].x"},
		"citations":                    {body: block(`{"type":"text","text":"a","citations":[{}]}`), param: "messages[0].content[0].citations"},
		"a use without id":             {body: said(`{"type":"tool_use","name":"f","input":{}}`), param: "messages[0].content[0].id"},
		"a use without input":          {body: said(`{"type":"tool_use","id":"a","name":"f"}`), param: "messages[0].content[0].input"},
		"a use of a list":              {body: said(`{"type":"tool_use","id":"a","name":"f","input":[]}`), param: "messages[0].content[0].input"},
		"a result of nothing":          {body: block(`{"type":"tool_result"}`), param: "messages[0].content[0].tool_use_id"},
		"a result that is an image":    {body: block(`{"type":"tool_result","tool_use_id":"a","content":[{"type":"image"}]}`), param: "messages[0].content[0].content[0].type"},
		"a cache of another kind":      {body: block(`{"type":"text","text":"a","cache_control":{"type":"forever"}}`), param: "messages[0].content[0].cache_control.type"},
		"a cache for no time":          {body: block(`{"type":"text","text":"a","cache_control":{"type":"ephemeral","ttl":""}}`), param: "messages[0].content[0].cache_control.ttl"},
		"a cache for another time":     {body: block(`{"type":"text","text":"a","cache_control":{"type":"ephemeral","ttl":"2h"}}`), param: "messages[0].content[0].cache_control.ttl"},
		"an empty stop":                {body: `{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"a"}],"stop_sequences":[""]}`, param: "stop_sequences[0]"},
		"too many stops":               {body: `{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"a"}],"stop_sequences":["a"` + strings.Repeat(`,"a"`, 16) + `]}`, param: "stop_sequences"},
		"as hot as OpenAI's may be":    {body: `{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"a"}],"temperature":1.5}`, param: "temperature"},
		"an unknown field":             {body: `{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"a"}],"n":2}`, param: "n"},
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

func TestAResponseIsHeldToASchemaByEitherName(t *testing.T) {
	const schema = `{"type":"json_schema","schema":{ "type": "object" }}`
	decode := func(extra string) (*Request, error) {
		return Decode(&openai.Decoder{}, []byte(`{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"a"}],`+extra+`}`))
	}
	for extra, param := range map[string]string{
		`"output_config":{"format":` + schema + `}`: "output_config.format.schema",
		`"output_format":` + schema:                 "output_format.schema",
	} {
		r, err := decode(extra)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(&openai.Constraint{Kind: openai.ConstraintSchema, Text: `{"type":"object"}`, Param: param}, r.Constraint); d != "" {
			t.Errorf("%s: %s", extra, d)
		}
	}
	var e *openai.Error
	if _, err := decode(`"output_format":` + schema + `,"output_config":{"format":` + schema + `}`); !errors.As(err, &e) || !strings.Contains(e.Message, "Send only one of them") {
		t.Errorf("two schemas: %v", err)
	}
}

func TestTheAttributionBlockIsCutFromTheHeadOfTheSystemPrompt(t *testing.T) {
	const block = "x-anthropic-billing-header: cc_version=2.1; cch=543cf;"
	for system, want := range map[string][2]string{
		`"` + block + `"`:                  {block, ""},
		`"` + block + `\n\nYou are\nkind"`: {block, "You are\nkind"},
		`[{"type":"text","text":"` + block + `"},{"type":"text","text":"You are"},{"type":"text","text":"kind"}]`: {block, "You are\n\nkind"},
		`[{"type":"text","text":"` + block + `\nYou are"},{"type":"text","text":"kind"}]`:                         {block, "You are\n\nkind"},
		`[{"type":"text","text":"` + block + `"}]`:                                                                {block, ""},
		`[{"type":"text","text":"You are"},{"type":"text","text":"` + block + `"}]`:                               {"", "You are\n\n" + block},
		`" ` + block + `"`: {"", " " + block},
		`"You are"`:        {"", "You are"},
		`[]`:               {"", ""},
	} {
		r, err := Decode(&openai.Decoder{}, []byte(`{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"a"}],"system":`+system+`}`))
		if err != nil || r.Attribution != want[0] || r.System != want[1] {
			t.Errorf("%s: %q and %q, %v", system, r.Attribution, r.System, err)
		}
	}
}

func TestThreadsAreRefusedAsTheToolRunnerExpects(t *testing.T) {
	_, err := Decode(&openai.Decoder{}, []byte(`{"model":"m","max_tokens":9,"thread":{"type":"create"},"messages":[{"role":"user","content":"a"}]}`))
	raw, err := ErrorBody(openai.AsError(err), "id")
	if err != nil {
		t.Fatal(err)
	}
	var body struct {
		Error struct {
			Type    string
			Details struct {
				ErrorCode   string `json:"error_code"`
				Unsupported []string
			}
		}
	}
	if err := json.Unmarshal(raw, &body); err != nil || body.Error.Type != "invalid_request_error" || body.Error.Details.ErrorCode != "thread_unsupported_request" || !slices.Equal(body.Error.Details.Unsupported, []string{"thread"}) {
		t.Errorf("%s, %v", raw, err)
	}
}

func TestThinkingThatCannotBeReadIsLeftOut(t *testing.T) {
	var d openai.Decoder
	r, err := Decode(&d, []byte(`{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"a"},
		{"role":"assistant","content":[{"type":"redacted_thinking","data":"x"},{"type":"text","text":"b"}]},{"role":"user","content":"c"}]}`))
	if err != nil || len(r.Messages[1].Blocks) != 1 || r.Messages[1].Blocks[0].Text != "b" || !slices.Equal(d.Ignored(), []string{"messages[].content[redacted_thinking]"}) {
		t.Errorf("%+v, %v, ignored %q", r, err, d.Ignored())
	}
}

func TestCountTokensTakesNoSettings(t *testing.T) {
	const base = `{"model":"m","system":"s","messages":[{"role":"user","content":"a"}]`
	if r, err := DecodeCount(strictly(), []byte(base+"}")); err != nil || r.System != "s" || len(r.Messages) != 1 {
		t.Errorf("%+v, %v", r, err)
	}
	var e *openai.Error
	if _, err := DecodeCount(strictly(), []byte(base+`,"max_tokens":1}`)); !errors.As(err, &e) || e.Param != "max_tokens" {
		t.Errorf("%v", err)
	}
}

func TestErrorTypesFollowTheStatus(t *testing.T) {
	for status, want := range map[int]string{400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error",
		405: "invalid_request_error", 413: "request_too_large", 415: "invalid_request_error", 429: "rate_limit_error", 500: "api_error", 502: "api_error",
		503: "overloaded_error", 504: "timeout_error", 507: "overloaded_error", 529: "overloaded_error"} {
		got, err := ErrorBody(&openai.Error{Status: status, Message: "m"}, "")
		if want := `{"type":"error","error":{"type":"` + want + `","message":"m"},"request_id":null}`; err != nil || string(got) != want {
			t.Errorf("%d: %s, %v", status, got, err)
		}
	}
}
