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
			{"user", []Block{{Type: "text", Text: "hi"}}},
			{"assistant", []Block{{Type: "thinking", Text: "hm"}, {Type: "text", Text: "c"}, {Type: "tool_use", ID: "t1", Name: "f", Input: json.RawMessage(`{"q": 1}`)}}},
			{"user", []Block{{Type: "tool_result", ID: "t1", Failed: true, Text: "r\ns"}, {Type: "text", Text: "d"}}},
		}}
	if d := cmp.Diff(want, got, cmp.AllowUnexported(Request{})); d != "" {
		t.Error(d)
	}
}

const (
	honoured = "honoured"
	refused  = "refused"
)

// documentedFields are those of anthropic-sdk-python's
// types/message_create_params.py and beta/message_create_params.py, each with a
// value that means something. One without a verdict changes nothing of an answer.
var documentedFields = map[string]struct{ value, verdict string }{
	"model":              {`"other"`, honoured},
	"messages":           {`[{"role":"user","content":"other"}]`, honoured},
	"max_tokens":         {`5`, honoured},
	"system":             {`"s"`, honoured},
	"stop_sequences":     {`["\n"]`, honoured},
	"stream":             {`true`, honoured},
	"temperature":        {`0.5`, honoured},
	"top_k":              {`5`, honoured},
	"top_p":              {`0.5`, honoured},
	"metadata":           {`{"user_id":"u"}`, ""}, // accepted without effect
	"cache_control":      {`{"type":"ephemeral"}`, ""},
	"tools":              {`[{"name":"f","input_schema":{"type":"object"}}]`, honoured},
	"tool_choice":        {`{"type":"none"}`, honoured},
	"thinking":           {`{"type":"enabled","budget_tokens":1024}`, honoured},
	"service_tier":       {`"standard_only"`, ""}, // there is one tier
	"container":          {`"c"`, refused},
	"inference_geo":      {`"eu"`, refused},
	"mcp_servers":        {`[{"type":"url"}]`, refused},
	"context_management": {`{"edits":[]}`, refused},
	"output_config":      {`{"effort":"low"}`, honoured},
	"output_format":      {`{"type":"json_schema","schema":{}}`, honoured},
	"thread":             {`{"type":"create"}`, refused},
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
		"no model":                     {`{"max_tokens":9,"messages":[{"role":"user","content":"a"}]}`, "model"},
		"no limit":                     {`{"model":"m","messages":[{"role":"user","content":"a"}]}`, "max_tokens"},
		"no messages":                  {with("[]"), "messages"},
		"a turn of another role":       {with(`[{"role":"tool","content":"a"}]`), "messages[0].role"},
		"a system turn with an image":  {with(`[{"role":"system","content":[{"type":"image"}]}]`), "messages[0].content[0].type"},
		"a format of another type":     {format(`{"type":"yaml"}`), "output_config.format.type"},
		"a format without a schema":    {format(`{"type":"json_schema"}`), "output_config.format.schema"},
		"a schema that is a number":    {format(`{"type":"json_schema","schema":5}`), "output_config.format.schema"},
		"an effort of no name":         {`{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"a"}],"output_config":{"effort":"huge"}}`, "output_config.effort"},
		"no content":                   {with(`[{"role":"user"}]`), "messages[0].content"},
		"empty content":                {with(`[{"role":"user","content":[]}]`), "messages[0].content"},
		"an empty text":                {with(`[{"role":"user","content":""}]`), "messages[0].content"},
		"a number":                     {with(`[{"role":"user","content":5}]`), "messages[0].content"},
		"an image":                     {block(`{"type":"image","source":{}}`), "messages[0].content[0].type"},
		"a document":                   {block(`{"type":"document","source":{}}`), "messages[0].content[0].type"},
		"thoughts that cannot be read": {said(`{"type":"redacted_thinking","data":"x"}`), "messages[0].content[0].type"},
		"a result the assistant gives": {said(`{"type":"tool_result","tool_use_id":"a"}`), "messages[0].content[0].type"},
		"a use by the user":            {block(`{"type":"tool_use","id":"a","name":"f","input":{}}`), "messages[0].content[0].type"},
		"a block without type":         {block(`{"text":"a"}`), "messages[0].content[0].type"},
		"a block without text":         {block(`{"type":"text"}`), "messages[0].content[0].text"},
		"a block with more":            {block(`{"type":"text","text":"a","x":1}`), "messages[0].content[0].x"},
		"citations":                    {block(`{"type":"text","text":"a","citations":[{}]}`), "messages[0].content[0].citations"},
		"a use without id":             {said(`{"type":"tool_use","name":"f","input":{}}`), "messages[0].content[0].id"},
		"a use without input":          {said(`{"type":"tool_use","id":"a","name":"f"}`), "messages[0].content[0].input"},
		"a use of a list":              {said(`{"type":"tool_use","id":"a","name":"f","input":[]}`), "messages[0].content[0].input"},
		"a result of nothing":          {block(`{"type":"tool_result"}`), "messages[0].content[0].tool_use_id"},
		"a result that is an image":    {block(`{"type":"tool_result","tool_use_id":"a","content":[{"type":"image"}]}`), "messages[0].content[0].content[0].type"},
		"a cache of another kind":      {block(`{"type":"text","text":"a","cache_control":{"type":"forever"}}`), "messages[0].content[0].cache_control.type"},
		"a cache for no time":          {block(`{"type":"text","text":"a","cache_control":{"type":"ephemeral","ttl":""}}`), "messages[0].content[0].cache_control.ttl"},
		"a cache for another time":     {block(`{"type":"text","text":"a","cache_control":{"type":"ephemeral","ttl":"2h"}}`), "messages[0].content[0].cache_control.ttl"},
		"an empty stop":                {`{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"a"}],"stop_sequences":[""]}`, "stop_sequences[0]"},
		"too many stops":               {`{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"a"}],"stop_sequences":["a"` + strings.Repeat(`,"a"`, 16) + `]}`, "stop_sequences"},
		"as hot as OpenAI's may be":    {`{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"a"}],"temperature":1.5}`, "temperature"},
		"a field that nobody knows":    {`{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"a"}],"n":2}`, "n"},
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
