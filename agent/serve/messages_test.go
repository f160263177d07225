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
	for name, tc := range map[string]struct {
		script servetest.Script
		want   string
	}{
		"a turn that ended": {servetest.Say("a", "b"), `"content":[{"type":"text","text":"ab"}],"stop_reason":"end_turn","stop_sequence":null,` +
			`"usage":{"input_tokens":2,"cache_creation_input_tokens":0,"cache_read_input_tokens":1,"output_tokens":2}}`},
		"a stop sequence": {servetest.Events(servetest.Admit(), servetest.Text("a"), stoppedBy("END")), `"stop_reason":"stop_sequence","stop_sequence":"END"`},
		"the limit":       {servetest.Events(servetest.Admit(), servetest.Text("a"), servetest.Finish(length, 9)), `"stop_reason":"max_tokens","stop_sequence":null`},
		"no text":         {servetest.Say(), `"content":[],"stop_reason":"end_turn"`},
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
		Input: &wire.GenerateRequest_Chat{Chat: &wire.Chat{SplitReasoning: true, TemplateArgumentsJson: `{"enable_thinking":false}`, Messages: []*wire.ChatMessage{
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
		"another version":        {"", "2023-01-01", "this server supports 2023-06-01 and 2026-10-21"},
		"a turn to be continued": {`,"messages":[{"role":"assistant","content":"a"}]`, "", "does not continue"},
		"a result of no tool":    {`,"messages":[{"role":"user","content":[{"type":"tool_result","tool_use_id":"t9"}]}]`, "", "t9"},
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
