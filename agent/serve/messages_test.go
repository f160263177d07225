package serve_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	"metalfleet.dev/metalfleet/agent/serve/servetest"
	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/anthropic"
	"metalfleet.dev/metalfleet/api/dialect"
	"metalfleet.dev/metalfleet/metal/wire"
)

func (p *port) message(extra string, headers ...string) (status int, body string) {
	p.t.Helper()
	resp := p.do("POST", dialect.PathMessages, `{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"hi"}]`+extra+`}`, headers...)
	return resp.StatusCode, idless(read(p.t, resp))
}

// idless is an answer with X for its id.
func idless(s string) string {
	const prefix = `"id":"msg_`
	for at := strings.Index(s, prefix); at >= 0; {
		end := at + len(prefix)
		s = s[:end] + "X" + s[end+strings.IndexByte(s[end:], '"'):]
		return s
	}
	return s
}

// stoppedBy is the end of a text that a stop string ended.
func stoppedBy(stop string) *wire.GenerateEvent {
	e := servetest.Finish(wire.FinishReason_FINISH_REASON_STOP, 2)
	e.GetFinished().Stop = stop
	return e
}

func TestMessagesStream(t *testing.T) {
	p := newPort(t, servetest.Events(servetest.Admit(), servetest.Text("Par"), servetest.Text(""), servetest.Text("is"), stoppedBy("\n")))
	status, got := p.message(`,"stream":true`)
	const want = `event: message_start
data: {"type":"message_start","message":{"id":"msg_X","type":"message","role":"assistant","model":"m","content":[],"stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":3,"cache_creation_input_tokens":0,"cache_read_input_tokens":0,"output_tokens":0}}}

event: ping
data: {"type":"ping"}

event: content_block_start
data: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"Par"}}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"is"}}

event: content_block_stop
data: {"type":"content_block_stop","index":0}

event: message_delta
data: {"type":"message_delta","delta":{"stop_reason":"stop_sequence","stop_sequence":"\n"},"usage":{"input_tokens":2,"cache_creation_input_tokens":0,"cache_read_input_tokens":1,"output_tokens":2}}

event: message_stop
data: {"type":"message_stop"}

`
	if d := cmp.Diff(want, got); d != "" || status != 200 {
		t.Errorf("%d %s", status, d)
	}
}

func TestMessagesWithoutStreaming(t *testing.T) {
	length := wire.FinishReason_FINISH_REASON_LENGTH
	full := servetest.Finish(length, 9)
	full.GetFinished().ContextFull = true
	full.GetFinished().Usage.ReasoningTokens = 4
	for name, tc := range map[string]struct {
		script servetest.Script
		want   string
	}{
		"a turn that ended": {script: servetest.Say("a", "b"), want: `"content":[{"type":"text","text":"ab"}],"stop_reason":"end_turn","stop_sequence":null,` +
			`"usage":{"input_tokens":2,"cache_creation_input_tokens":0,"cache_read_input_tokens":1,"output_tokens":2}}`},
		"a stop sequence": {script: servetest.Events(servetest.Admit(), servetest.Text("a"), stoppedBy("END")), want: `"stop_reason":"stop_sequence","stop_sequence":"END"`},
		"the limit":       {script: servetest.Events(servetest.Admit(), servetest.Text("a"), servetest.Finish(length, 9)), want: `"stop_reason":"max_tokens","stop_sequence":null`},
		"the context": {script: servetest.Events(servetest.Admit(), servetest.Text("a"), full), want: `"stop_reason":"model_context_window_exceeded","stop_sequence":null,` +
			`"usage":{"input_tokens":2,"cache_creation_input_tokens":0,"cache_read_input_tokens":1,"output_tokens":9,"output_tokens_details":{"thinking_tokens":4}}}`},
		"no text": {script: servetest.Say(), want: `"content":[],"stop_reason":"end_turn"`},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPort(t, tc.script)
			status, got := p.message("")
			if status != 200 || !strings.HasPrefix(got, `{"id":"msg_X","type":"message","role":"assistant","model":"m",`) || !strings.Contains(got, tc.want) {
				t.Errorf("%d %s, want %s", status, got, tc.want)
			}
		})
	}
}

// System prompt, thinking, tool use and tool results stand where chat templates
// expect them.
func TestMessagesConversationReachesTheTemplate(t *testing.T) {
	p := newPort(t, servetest.Say("x"))
	p.do("POST", dialect.PathMessages, `{"model":"m","max_tokens":9,"system":"s","temperature":0.5,"top_k":4,"stop_sequences":["E"],"messages":[
		{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},
		{"role":"assistant","content":[{"type":"thinking","thinking":"hm","signature":"x"},{"type":"text","text":"c"},{"type":"tool_use","id":"t1","name":"f","input":{"q":"<"}}]},
		{"role":"user","content":[{"type":"tool_result","tool_use_id":"t1","content":"r"},{"type":"text","text":"d"}]},
		{"role":"assistant","content":[{"type":"tool_use","id":"t2","name":"g","input":{}}]},
		{"role":"user","content":[{"type":"tool_result","tool_use_id":"t2","is_error":true,"content":"no"}]}]}`, agentapi.HeaderRequestID, "id-1")
	hot, k := float32(0.5), int32(4)
	want := &wire.GenerateRequest{Id: "id-1", MaxTokens: 9, Stop: []string{"E"}, Sampling: &wire.Sampling{Temperature: &hot, TopK: &k},
		Input: &wire.GenerateRequest_Chat{Chat: &wire.Chat{SplitReasoning: true, TemplateArgumentsJson: `{"enable_thinking":false,"thinking":false}`, Messages: []*wire.ChatMessage{
			{Role: "system", Content: "s"},
			{Role: "user", Content: "a\n\nb"},
			{Role: "assistant", Content: "c", ExtraJson: `{"reasoning_content":"hm","tool_calls":[{"id":"t1","type":"function","function":{"name":"f","arguments":{"q":"<"}}}]}`},
			{Role: "tool", Name: "f", Content: "r", ExtraJson: `{"tool_call_id":"t1"}`},
			{Role: "user", Content: "d"},
			{Role: "assistant", ExtraJson: `{"tool_calls":[{"id":"t2","type":"function","function":{"name":"g","arguments":{}}}]}`},
			{Role: "tool", Name: "g", Content: "Error: no", ExtraJson: `{"tool_call_id":"t2"}`},
		}}}}
	if d := cmp.Diff(want, <-p.seen, protocmp.Transform()); d != "" {
		t.Error(d)
	}
}

// What Claude Code and the official SDKs send with every request.
func TestMessagesOfCodingAgentsAreTaken(t *testing.T) {
	const tool = `"name":"Bash","description":"d","input_schema":{"$schema":"https://json-schema.org/draft/2020-12/schema","type":"object","properties":{},"additionalProperties":false}`
	for name, tc := range map[string]struct{ extra, ignored string }{
		"a cache mark with scope":    {extra: `,"system":[{"type":"text","text":"s","cache_control":{"type":"ephemeral","scope":"global","ttl":"1h"}}]`, ignored: "system[].cache_control"},
		"edits of the context":       {extra: `,"context_management":{"edits":[{"type":"clear_thinking_20251015","keep":"all"}]}`, ignored: "context_management"},
		"adaptive thinking":          {extra: `,"thinking":{"type":"adaptive","display":"summarized"}`, ignored: "thinking.display"},
		"a budget for thinking":      {extra: `,"thinking":{"type":"enabled","budget_tokens":31999}`, ignored: "thinking.budget_tokens"},
		"hints of a tool":            {extra: `,"tools":[{` + tool + `,"eager_input_streaming":true,"defer_loading":true,"input_examples":[{}],"allowed_callers":["code_execution_20260120"],"cache_control":{"type":"ephemeral"}}]`, ignored: "tools[].eager_input_streaming, tools[].defer_loading, tools[].input_examples, tools[].allowed_callers, tools[].cache_control"},
		"neutral hints of a tool":    {extra: `,"tools":[{"type":"custom",` + tool + `,"defer_loading":false,"allowed_callers":["direct"],"strict":false}]`, ignored: ""},
		"tools of Anthropic's":       {extra: `,"tools":[{` + tool + `},{"type":"web_search_20250305","name":"web_search","max_uses":8},{"type":"bash_20250124","name":"bash"}]`, ignored: "tools[web_search_20250305], tools[bash_20250124]"},
		"speed":                      {extra: `,"speed":"fast"`, ignored: "speed"},
		"the usual speed":            {extra: `,"speed":"standard"`, ignored: ""},
		"diagnostics":                {extra: `,"diagnostics":{"previous_message_id":"msg_1"}`, ignored: "diagnostics"},
		"metadata":                   {extra: `,"metadata":{"user_id":"u"}`, ignored: "metadata"},
		"nothing to fall back on":    {extra: `,"fallbacks":[],"mcp_servers":[],"container":null`, ignored: ""},
		"a caller of an earlier use": {extra: `,"messages":[{"role":"user","content":"a"},{"role":"assistant","content":[{"type":"thinking","thinking":"t","signature":"s"},{"type":"tool_use","id":"t1","name":"Bash","input":{},"caller":{"type":"direct"}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"t1","content":"x","is_error":false}]}],"tools":[{` + tool + `}]`, ignored: ""},
	} {
		t.Run(name, func(t *testing.T) {
			body := `"messages":[{"role":"user","content":"hi"}]` + tc.extra
			if strings.Contains(tc.extra, `"messages"`) {
				body = tc.extra[1:]
			}
			for path, limit := range map[string]string{dialect.PathMessages: `"max_tokens":32000,`, dialect.PathCountTokens: ""} {
				p := newPort(t, servetest.Say("x"))
				resp := p.do("POST", path+"?beta=true", `{"model":"m",`+limit+body+`}`, "anthropic-beta", "claude-code-20250219,interleaved-thinking-2025-05-14")
				if got := read(t, resp); resp.StatusCode != 200 || resp.Header.Get(agentapi.HeaderIgnored) != tc.ignored {
					t.Errorf("%s: %d, ignored %q: %s", path, resp.StatusCode, resp.Header.Get(agentapi.HeaderIgnored), got)
				}
			}
		})
	}
}

func TestCountTokensTakesTheFieldsOfAMessage(t *testing.T) {
	p := newPort(t, servetest.Say("x"))
	resp := p.do("POST", dialect.PathCountTokens, `{"model":"m","max_tokens":9,"stream":true,"temperature":2,"messages":[{"role":"user","content":"hi"}]}`)
	if got := read(t, resp); resp.StatusCode != 200 || got != `{"input_tokens":3}` || resp.Header.Get(agentapi.HeaderIgnored) != "max_tokens, stream, temperature" {
		t.Errorf("%d, ignored %q: %s", resp.StatusCode, resp.Header.Get(agentapi.HeaderIgnored), got)
	}
}

func TestMessagesThatWouldBeAnsweredDifferentlyAreRefused(t *testing.T) {
	for extra, param := range map[string]string{
		`,"mcp_servers":[{"type":"url","url":"u","name":"n"}]`: "mcp_servers",
		`,"container":"c"`:            "container",
		`,"fallbacks":["other"]`:      "fallbacks",
		`,"thread":{"type":"create"}`: "thread",
		`,"tool_choice":{"type":"any"},"tools":[{"type":"web_search_20250305","name":"web_search"}]`:                      "tool_choice",
		`,"tool_choice":{"type":"tool","name":"web_search"},"tools":[{"type":"web_search_20250305","name":"web_search"}]`: "tool_choice",
		`,"system":[{"type":"image","source":{"type":"base64","media_type":"image/png","data":"AAAA"}}]`:                  "image",
	} {
		p := newPort(t, servetest.Say("x"))
		if status, got := p.message(extra); status != 400 || !strings.Contains(got, param) {
			t.Errorf("%s: %d %s", extra, status, got)
		}
	}
}

func TestInstructionsBetweenTurnsReachTheTemplateInTheirPlace(t *testing.T) {
	p := newPort(t, servetest.Say("x"))
	resp := p.do("POST", dialect.PathMessages, `{"model":"m","max_tokens":9,"system":"s","messages":[{"role":"user","content":"a"},
		{"role":"system","content":[{"type":"text","text":"b"},{"type":"text","text":"c"}]},{"role":"user","content":"d"},{"role":"system","content":"e"}]}`)
	if got := read(t, resp); resp.StatusCode != 200 {
		t.Fatalf("%d %s", resp.StatusCode, got)
	}
	want := []*wire.ChatMessage{{Role: "system", Content: "s"}, {Role: "user", Content: "a"}, {Role: "system", Content: "b\n\nc"}, {Role: "user", Content: "d"}, {Role: "system", Content: "e"}}
	if d := cmp.Diff(want, (<-p.seen).GetChat().GetMessages(), protocmp.Transform()); d != "" {
		t.Error(d)
	}
}

func TestThinkingAndEffortOfAMessageReachTheTemplate(t *testing.T) {
	const on, off = `{"enable_thinking":true,"thinking":true}`, `{"enable_thinking":false,"thinking":false}`
	for extra, want := range map[string]struct{ effort, arguments string }{
		``:                                     {effort: "", arguments: off},
		`,"thinking":{"type":"adaptive"}`:      {effort: "", arguments: on},
		`,"thinking":{"type":"disabled"}`:      {effort: "none", arguments: off},
		`,"output_config":{"effort":"medium"}`: {effort: "medium", arguments: off},
		`,"thinking":{"type":"adaptive"},"output_config":{"effort":"low"}`:   {effort: "low", arguments: on},
		`,"thinking":{"type":"disabled"},"output_config":{"effort":"xhigh"}`: {effort: "xhigh", arguments: off},
		`,"thinking":{"type":"enabled"},"output_config":{"task_budget":{}}`:  {effort: "", arguments: on},
		`,"output_config":{}`: {effort: "", arguments: off},
	} {
		p := newPort(t, servetest.Say("x"))
		if status, got := p.message(extra); status != 200 {
			t.Errorf("%s: %d %s", extra, status, got)
			continue
		}
		if chat := (<-p.seen).GetChat(); chat.GetReasoningEffort() != want.effort || chat.GetTemplateArgumentsJson() != want.arguments {
			t.Errorf("%s: effort %q, arguments %s", extra, chat.GetReasoningEffort(), chat.GetTemplateArgumentsJson())
		}
	}
}

func TestTheFormatOfAMessageReachesTheEngine(t *testing.T) {
	const format = `{"type":"json_schema","schema":{ "type": "object" }}`
	for extra, param := range map[string]string{`,"output_config":{"format":` + format + `}`: "output_config.format.schema", `,"output_format":` + format: "output_format.schema"} {
		p := newPort(t, servetest.Say("x"))
		p.message(extra)
		if c := (<-p.seen).GetConstraint(); c.GetJsonSchema() != `{"type":"object"}` || c.GetParam() != param {
			t.Errorf("%s: the engine is asked for %v", extra, c)
		}
	}
}

// Two sessions that differ only in the attribution block have the same prompt.
func TestTheAttributionBlockIsNoPartOfThePromptUnlessTheGatewayKeepsIt(t *testing.T) {
	const block = "x-anthropic-billing-header: cc_version=2.1.120.cf9; cch=543cf;"
	system := `,"system":[{"type":"text","text":"` + block + `"},{"type":"text","text":"You are"}]`
	p := newPort(t, servetest.Say("x"))
	resp := p.do("POST", dialect.PathMessages, `{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"hi"}]`+system+`}`)
	read(t, resp)
	if got := (<-p.seen).GetChat().GetMessages()[0].GetContent(); got != "You are" || resp.Header.Get(agentapi.HeaderIgnored) != "system[x-anthropic-billing-header]" {
		t.Errorf("the system prompt is %q, ignored %q", got, resp.Header.Get(agentapi.HeaderIgnored))
	}
	p = newPort(t, servetest.Say("x"))
	resp = p.do("POST", dialect.PathMessages, `{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"hi"}]`+system+`}`, agentapi.HeaderAttribution, agentapi.AttributionKeep)
	read(t, resp)
	if got := (<-p.seen).GetChat().GetMessages()[0].GetContent(); got != block+"\n\nYou are" || resp.Header.Get(agentapi.HeaderIgnored) != "" {
		t.Errorf("the system prompt is %q, ignored %q", got, resp.Header.Get(agentapi.HeaderIgnored))
	}
}

func TestCountTokensGeneratesNothing(t *testing.T) {
	p := newPort(t, servetest.Hang(servetest.Admit()))
	resp := p.do("POST", dialect.PathCountTokens, `{"model":"m","messages":[{"role":"user","content":"hi"}]}`)
	if got := read(t, resp); resp.StatusCode != 200 || got != `{"input_tokens":3}` {
		t.Errorf("%d %s", resp.StatusCode, got)
	}
	if r := <-p.seen; r.GetMaxTokens() != 1 {
		t.Errorf("%v", r)
	}
	eventually(t, "the engine's request was cancelled", func() bool { holds, ended := p.fake.Holds(here); return holds == 0 && ended == 1 })
}

func TestMessagesErrorsHaveAnthropicsShape(t *testing.T) {
	p := newPort(t, servetest.Refuse(&wire.Refusal{Code: wire.Code_CODE_QUEUE_FULL, Message: "full", RetryAfterMilliseconds: 1500}))
	resp := p.do("POST", dialect.PathMessages, `{"model":"m","max_tokens":1,"messages":[{"role":"user","content":"a"}]}`, agentapi.HeaderRequestID, "id-1")
	if got, want := read(t, resp), `{"type":"error","error":{"type":"overloaded_error","message":"full"},"request_id":"id-1"}`; resp.StatusCode != 503 || got != want {
		t.Errorf("%d %s", resp.StatusCode, got)
	}
	h := resp.Header
	if h.Get(anthropic.HeaderRequestID) != "id-1" || h.Get("Retry-After") != "2" || h.Get(agentapi.HeaderRetryable) != "true" || h.Get(dialect.HeaderCode) != agentapi.CodeQueueFull {
		t.Errorf("headers %v", h)
	}
	for name, tc := range map[string]struct{ extra, version, says string }{
		"another version":        {extra: "", version: "2023-01-01", says: "this server supports 2023-06-01 and 2026-10-21"},
		"a turn to be continued": {extra: `,"messages":[{"role":"assistant","content":"a"}]`, version: "", says: "does not continue"},
		"a result of no tool":    {extra: `,"messages":[{"role":"user","content":[{"type":"tool_result","tool_use_id":"t9"}]}]`, version: "", says: "t9"},
	} {
		body := `{"model":"m","max_tokens":9` + tc.extra + `}`
		if tc.extra == "" {
			body = `{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"a"}]}`
		}
		resp := p.do("POST", dialect.PathMessages, body, anthropic.HeaderVersion, tc.version)
		if got := read(t, resp); resp.StatusCode != 400 || !strings.Contains(got, tc.says) || !strings.HasPrefix(got, `{"type":"error","error":{"type":"invalid_request_error"`) {
			t.Errorf("%s: %d %s", name, resp.StatusCode, got)
		}
	}
}

func TestBrokenMessagesStreamEndsWithAnErrorEvent(t *testing.T) {
	p := newPort(t, servetest.Events(servetest.Admit(), servetest.Text("a"), servetest.FailWith(&wire.Refusal{Code: wire.Code_CODE_ABORTED, Message: "the Mac is short of memory"})))
	_, got := p.message(`,"stream":true`, agentapi.HeaderRequestID, "id-1")
	const end = "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"The request was aborted: the Mac is short of memory. Send it again.\"},\"request_id\":\"id-1\"}\n\n"
	if !strings.HasSuffix(got, end) || strings.Contains(got, "message_stop") || strings.Contains(got, "message_delta") {
		t.Errorf("%s", got)
	}
}

func TestBothVersionsOfAnthropicsAPIAreSpoken(t *testing.T) {
	for _, version := range []string{"", anthropic.Version, anthropic.VersionNext} {
		p := newPort(t, servetest.Say("a"))
		resp := p.do("POST", dialect.PathMessages, `{"model":"m","max_tokens":9,"temperature":0.5,"messages":[{"role":"user","content":"hi"}]}`, anthropic.HeaderVersion, version)
		if got := read(t, resp); resp.StatusCode != 200 {
			t.Errorf("version %q: %d %s", version, resp.StatusCode, got)
		}
	}
}
