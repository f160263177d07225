package serve_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	"metalfleet.dev/metalfleet/agent/serve"
	"metalfleet.dev/metalfleet/agent/serve/servetest"
	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/responses"
	"metalfleet.dev/metalfleet/metal/wire"
)

// callOf is an event with parts of calls after a text.
func callOf(text string, calls ...*wire.CallDelta) *wire.GenerateEvent {
	e := servetest.Text(text)
	e.GetDelta().Calls = calls
	return e
}

// calls is an answer: text, a call in pieces, and one that came at once.
func calls() servetest.Script {
	return servetest.Events(servetest.Admit(), callOf("See.", &wire.CallDelta{Name: "f"}, &wire.CallDelta{Arguments: `{"a"`}),
		callOf("", &wire.CallDelta{Arguments: `: 1}`}, &wire.CallDelta{Ended: true}), callOf("", &wire.CallDelta{Name: "g", Arguments: "{}", Ended: true}),
		servetest.Finish(wire.FinishReason_FINISH_REASON_STOP, 3))
}

// broken is an answer with a call that never was one.
func broken() servetest.Script {
	return servetest.Events(servetest.Admit(), callOf("", &wire.CallDelta{Name: "f", Arguments: `{"a`}, &wire.CallDelta{Written: "<f>{"}, &wire.CallDelta{Ended: true, Written: "\"a"}),
		servetest.Text("rest"),
		servetest.Finish(wire.FinishReason_FINISH_REASON_STOP, 3))
}

const someTools = `,"tools":[{"type":"function","function":{"name":"f","description":"d","parameters":{"type":"object"}}},{"type":"function","function":{"name":"g"}}]`

var someID = regexp.MustCompile(`(call_|toolu_|fc_|msg_|resp_)[0-9a-f]{24}`)

// called is an answer with X for the ids of its calls.
func called(s string) string { return someID.ReplaceAllString(normal(s), "${1}X") }

// Call fragments, as OpenAI's clients assemble them.
func TestChatToolCallStream(t *testing.T) {
	p := newPort(t, calls())
	chunk := func(delta, finish string) string {
		return `data: {"id":"chatcmpl-X","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":` + delta + `,"logprobs":null,"finish_reason":` + finish + "}]}\n\n"
	}
	want := chunk(`{"role":"assistant","content":""}`, "null") + chunk(`{"content":"See."}`, "null") +
		chunk(`{"tool_calls":[{"index":0,"id":"call_X","type":"function","function":{"name":"f","arguments":""}}]}`, "null") +
		chunk(`{"tool_calls":[{"index":0,"function":{"arguments":"{\"a\""}}]}`, "null") +
		chunk(`{"tool_calls":[{"index":0,"function":{"arguments":": 1}"}}]}`, "null") +
		chunk(`{"tool_calls":[{"index":1,"id":"call_X","type":"function","function":{"name":"g","arguments":"{}"}}]}`, "null") +
		chunk(`{}`, `"tool_calls"`) + "data: [DONE]\n\n"
	if d := cmp.Diff(want, called(read(t, p.chat(someTools+`,"stream":true`)))); d != "" {
		t.Error(d)
	}
	got := called(read(t, p.chat(someTools)))
	want = `"message":{"role":"assistant","content":"See.","refusal":null,"tool_calls":[{"id":"call_X","type":"function","function":{"name":"f","arguments":"{\"a\": 1}"}},` +
		`{"id":"call_X","type":"function","function":{"name":"g","arguments":"{}"}}]},"logprobs":null,"finish_reason":"tool_calls"}`
	if !strings.Contains(got, want) {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestMalformedToolCallIsText(t *testing.T) {
	p := newPort(t, broken())
	if got, want := called(read(t, p.chat(someTools))), `"content":"<f>{\"arest","refusal":null},"logprobs":null,"finish_reason":"stop"`; !strings.Contains(got, want) {
		t.Errorf("%s, want %s", got, want)
	}
	got := called(read(t, p.chat(someTools+`,"stream":true`)))
	if !strings.Contains(got, `"content":"rest"`) || !strings.Contains(got, `"finish_reason":"stop"`) {
		t.Error(got)
	}
	p = newPort(t, servetest.Events(servetest.Admit(), callOf("", &wire.CallDelta{Name: "g", Arguments: "{}", Ended: true}), servetest.Finish(wire.FinishReason_FINISH_REASON_STOP, 3)))
	if got := called(read(t, p.chat(someTools))); !strings.Contains(got, `"content":null,`) {
		t.Errorf("an answer of calls alone: %s", got)
	}
}

// A call that max_tokens cut is one in every API: the client knows by the finish reason.
func TestCallCutByTheLimitIsReturned(t *testing.T) {
	p := newPort(t, servetest.Events(servetest.Admit(), callOf("", &wire.CallDelta{Name: "f", Arguments: `{"a": [1], "b": "x`}, &wire.CallDelta{Ended: true, Written: "<f>{"}),
		servetest.Finish(wire.FinishReason_FINISH_REASON_LENGTH, 3)))
	chat := called(read(t, p.chat(someTools)))
	_, message := p.message(messageTools)
	if out := p.respond(responseTools).Output; len(out) != 1 || out[0].Status != responses.StatusIncomplete || *out[0].Arguments != `{"a": [1], "b": "x` {
		t.Errorf("responses: %+v", out)
	}
	for route, c := range map[string]struct{ got, want string }{
		"chat":     {got: chat, want: `"content":null,"refusal":null,"tool_calls":[{"id":"call_X","type":"function","function":{"name":"f","arguments":"{\"a\": [1], \"b\": \"x"}}]},"logprobs":null,"finish_reason":"length"`},
		"messages": {got: called(message), want: `"content":[{"type":"tool_use","id":"toolu_X","name":"f","input":{"a":[1]}}],"stop_reason":"max_tokens"`},
	} {
		if !strings.Contains(c.got, c.want) {
			t.Errorf("%s: %s, want %s", route, c.got, c.want)
		}
	}
}

// A header, or the trailer of a stream, names calls that were returned as text, and the agent
// counts them.
func TestCallsReturnedAsTextAreNamed(t *testing.T) {
	end := servetest.Finish(wire.FinishReason_FINISH_REASON_STOP, 3)
	end.GetFinished().TextCalls = 2
	counted := 0
	p := newPort(t, servetest.Events(servetest.Admit(), servetest.Text("now("), end), func(c *serve.Config) { c.TextCalls = func(n int) { counted += n } })
	whole := p.chat(someTools)
	read(t, whole)
	stream := p.chat(someTools + `,"stream":true`)
	read(t, stream)
	if whole.Header.Get(agentapi.HeaderCalls) != "text" || stream.Trailer.Get(agentapi.HeaderCalls) != "text" || counted != 4 {
		t.Errorf("the header is %q, the trailer %q, %d calls were counted", whole.Header.Get(agentapi.HeaderCalls), stream.Trailer.Get(agentapi.HeaderCalls), counted)
	}
	p = newPort(t, calls())
	whole = p.chat(someTools)
	if read(t, whole); whole.Header.Get(agentapi.HeaderCalls) != "" {
		t.Error("an answer whose calls are calls has the header")
	}
}

// Arguments that a limit cut reach the template as none.
func TestCutArgumentsAreAcceptedBack(t *testing.T) {
	p := newPort(t, servetest.Say("x"))
	for _, arguments := range []string{`{`, `{\"city\": \"Par`, ``, `null`, `{\"city\": 1,`} {
		status := p.do("POST", "/v1/chat/completions", `{"model":"m","messages":[{"role":"user","content":"a"},{"role":"assistant","content":"","tool_calls":[{"id":"c1","type":"function","function":{"name":"f","arguments":"`+arguments+`"}}]},{"role":"tool","tool_call_id":"c1","content":"r"}]}`).StatusCode
		if got := (<-p.seen).GetChat().GetMessages()[1].GetExtraJson(); status != 200 || got != `{"tool_calls":[{"id":"c1","type":"function","function":{"name":"f","arguments":{}}}]}` {
			t.Errorf("%q: %d, the template gets %s", arguments, status, got)
		}
	}
}

// Definitions, tool_choice, and earlier calls with their results.
func TestChatToolsReachTheEngine(t *testing.T) {
	const written = `[{"type":"function","function":{"name":"f","description":"d","parameters":{"type":"object"}}},{"type":"function","function":{"name":"g"}}]`
	for extra, want := range map[string]*wire.Chat{
		"":                             {ToolsJson: written, Calls: &wire.Calls{}},
		`,"tool_choice":"auto"`:        {ToolsJson: written, Calls: &wire.Calls{}},
		`,"tool_choice":"none"`:        {},
		`,"tool_choice":"required"`:    {ToolsJson: written, Calls: &wire.Calls{Required: true}},
		`,"parallel_tool_calls":false`: {ToolsJson: written, Calls: &wire.Calls{Single: true}},
		`,"reasoning_effort":"low"`:    {ToolsJson: written, Calls: &wire.Calls{}, ReasoningEffort: "low"},
		`,"tool_choice":{"type":"function","function":{"name":"g"}}`: {ToolsJson: written, Calls: &wire.Calls{Required: true, Name: "g"}},
	} {
		p := newPort(t, servetest.Say("x"))
		read(t, p.chat(someTools+extra))
		want.SplitReasoning = true
		got := (<-p.seen).GetChat()
		if d := cmp.Diff(want, got, protocmp.Transform(), protocmp.IgnoreFields(&wire.Chat{}, "messages")); d != "" {
			t.Errorf("%s: %s", extra, d)
		}
	}
	p := newPort(t, servetest.Say("x"))
	read(t, p.do("POST", "/v1/chat/completions", `{"model":"m","messages":[{"role":"user","content":"a"},
		{"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function","function":{"name":"f","arguments":"{\"q\": \"<\"}"}}]},
		{"role":"tool","tool_call_id":"c1","content":"r"}]}`))
	want := []*wire.ChatMessage{{Role: "user", Content: "a"},
		{Role: "assistant", ExtraJson: `{"tool_calls":[{"id":"c1","type":"function","function":{"name":"f","arguments":{"q":"<"}}}]}`},
		{Role: "tool", Name: "f", Content: "r", ExtraJson: `{"tool_call_id":"c1"}`}}
	if d := cmp.Diff(want, (<-p.seen).GetChat().GetMessages(), protocmp.Transform()); d != "" {
		t.Error(d)
	}
}

// thoughts is an event with what a model thinks.
func thoughts(text string) *wire.GenerateEvent {
	return &wire.GenerateEvent{Event: &wire.GenerateEvent_Delta{Delta: &wire.Delta{Reasoning: text}}}
}

const messageTools = `,"tools":[{"name":"f","description":"d","input_schema":{"type":"object"}},{"name":"g","input_schema":{"type":"object"}}]`

// Each block starts, continues and stops before the next one.
func TestMessagesToolUseStream(t *testing.T) {
	p := newPort(t, servetest.Events(servetest.Admit(), thoughts("Hm"), callOf("See.", &wire.CallDelta{Name: "f"}, &wire.CallDelta{Arguments: `{"a": 1}`, Ended: true}),
		callOf("", &wire.CallDelta{Name: "g", Arguments: "{}", Ended: true}), servetest.Finish(wire.FinishReason_FINISH_REASON_STOP, 3)))
	const extra = messageTools + `,"thinking":{"type":"enabled","budget_tokens":1024}`
	status, got := p.message(extra + `,"stream":true`)
	got = called(got)
	event := func(name, data string) string {
		return "event: " + name + "\ndata: {\"type\":\"" + name + "\"," + data + "}\n\n"
	}
	block := func(index, start string, deltas ...string) string {
		out := event("content_block_start", `"index":`+index+`,"content_block":{`+start+`}`)
		for _, d := range deltas {
			out += event("content_block_delta", `"index":`+index+`,"delta":{`+d+`}`)
		}
		return out + event("content_block_stop", `"index":`+index)
	}
	want := block("0", `"type":"thinking","thinking":"","signature":""`, `"type":"thinking_delta","thinking":"Hm"`, `"type":"signature_delta","signature":""`) +
		block("1", `"type":"text","text":""`, `"type":"text_delta","text":"See."`) +
		block("2", `"type":"tool_use","id":"toolu_X","name":"f","input":{}`, `"type":"input_json_delta","partial_json":"{\"a\": 1}"`) +
		block("3", `"type":"tool_use","id":"toolu_X","name":"g","input":{}`, `"type":"input_json_delta","partial_json":"{}"`) +
		event("message_delta", `"delta":{"stop_reason":"tool_use","stop_sequence":null},"usage":{"input_tokens":2,"cache_creation_input_tokens":0,"cache_read_input_tokens":1,"output_tokens":3}`)
	at := strings.Index(got, "event: content_block_start")
	if at < 0 || status != 200 {
		t.Fatalf("%d %s", status, got)
	}
	end := strings.Index(got, "event: message_stop")
	if d := cmp.Diff(want, got[at:max(at, end)]); d != "" {
		t.Error(d)
	}
	_, got = p.message(extra)
	if got, want := called(got), `"content":[{"type":"thinking","thinking":"Hm","signature":""},{"type":"text","text":"See."},{"type":"tool_use","id":"toolu_X","name":"f","input":{"a":1}},`+
		`{"type":"tool_use","id":"toolu_X","name":"g","input":{}}],"stop_reason":"tool_use"`; !strings.Contains(got, want) {
		t.Errorf("%s, want %s", got, want)
	}
	_, got = p.message(messageTools)
	if strings.Contains(got, "Hm") {
		t.Errorf("unrequested reasoning: %s", got)
	}
}

// Otherwise the token counts would differ.
func TestToolsRenderTheSameOnEveryRoute(t *testing.T) {
	p := newPort(t, servetest.Say("x"))
	read(t, p.chat(`,"tools":[{"function":{"strict":false,"parameters":{"type": "object"},"description":"d","name":"f"},"type":"function"}]`))
	chat := (<-p.seen).GetChat()
	const tool = `,"tools":[{"input_schema":{"type":"object"},"name":"f","description":"d"}]`
	p.message(tool)
	message := (<-p.seen).GetChat()
	read(t, p.do("POST", "/v1/messages/count_tokens", `{"model":"m","messages":[{"role":"user","content":"hi"}]`+tool+`}`))
	counted := (<-p.seen).GetChat()
	if chat.GetToolsJson() == "" || chat.GetToolsJson() != message.GetToolsJson() || message.GetToolsJson() != counted.GetToolsJson() {
		t.Errorf("%s\n%s\n%s", chat.GetToolsJson(), message.GetToolsJson(), counted.GetToolsJson())
	}
}

func TestMessagesToolChoiceReachesTheEngine(t *testing.T) {
	for extra, want := range map[string]*wire.Calls{
		``:                               {},
		`,"tool_choice":{"type":"any"}`:  {Required: true},
		`,"tool_choice":{"type":"none"}`: nil,
		`,"tool_choice":{"type":"tool","name":"g"}`:                       {Required: true, Name: "g"},
		`,"tool_choice":{"type":"auto","disable_parallel_tool_use":true}`: {Single: true},
	} {
		p := newPort(t, servetest.Say("x"))
		p.message(messageTools + extra)
		got := (<-p.seen).GetChat()
		if d := cmp.Diff(want, got.GetCalls(), protocmp.Transform()); d != "" || (want == nil) != (got.GetToolsJson() == "") {
			t.Errorf("%s: %s", extra, d)
		}
	}
	for extra, param := range map[string]string{
		messageTools + `,"tool_choice":{"type":"tool","name":"h"}`:      "tool_choice",
		messageTools + `,"tool_choice":{"type":"tool"}`:                 "tool_choice.name",
		messageTools + `,"tool_choice":{"type":"some"}`:                 "tool_choice.type",
		messageTools + `,"tool_choice":{"type":"any","name":"f"}`:       "tool_choice.name",
		`,"tools":[{"type":"web_search_20250305","name":"web_search"}]`: "tools[0].type",
		`,"tools":[{"name":"f"}]`:                                       "tools[0].input_schema",
		`,"thinking":{"type":"enabled"}`:                                "thinking.budget_tokens",
		`,"thinking":{"type":"enabled","budget_tokens":5}`:              "thinking.budget_tokens",
		`,"thinking":{"type":"much"}`:                                   "thinking.type",
		`,"thinking":{"type":"disabled","budget_tokens":2000}`:          "thinking.budget_tokens",
	} {
		p := newPort(t, servetest.Say("x"))
		if status, got := p.message(extra, agentapi.HeaderStrictFields, "true"); status != 400 || !strings.Contains(got, param) {
			t.Errorf("%s: %d %s", extra, status, got)
		}
	}
}

func TestResponsesToolChoiceReachesTheEngine(t *testing.T) {
	for extra, want := range map[string]*wire.Calls{
		``:                          {},
		`,"tool_choice":"auto"`:     {},
		`,"tool_choice":"none"`:     nil,
		`,"tool_choice":"required"`: {Required: true},
		`,"tool_choice":{"type":"function","name":"g"}`: {Required: true, Name: "g"},
		`,"parallel_tool_calls":false`:                  {Single: true},
	} {
		p := newPort(t, servetest.Say("x"))
		p.respond(responseTools + extra)
		got := (<-p.seen).GetChat()
		if d := cmp.Diff(want, got.GetCalls(), protocmp.Transform()); d != "" || (want == nil) != (got.GetToolsJson() == "") {
			t.Errorf("%s: %s", extra, d)
		}
	}
}

func TestStrictToolsReachTheEngine(t *testing.T) {
	p := newPort(t, servetest.Say("x"))
	for route, ask := range map[string]func(){
		"chat": func() {
			read(t, p.chat(`,"tool_choice":"required","tools":[{"type":"function","function":{"name":"f"}},{"type":"function","function":{"name":"g","strict":true,"parameters":{"type":"object"}}}]`))
		},
		"messages": func() {
			p.message(`,"tool_choice":{"type":"any"},"tools":[{"name":"f","input_schema":{"type":"object"}},{"name":"g","strict":true,"input_schema":{"type":"object"}}]`)
		},
		"responses": func() {
			p.respond(`,"tool_choice":"required","tools":[{"type":"function","name":"f"},{"type":"function","name":"g","strict":true,"parameters":{"type":"object"}}]`)
		},
	} {
		ask()
		got := (<-p.seen).GetChat()
		if d := cmp.Diff(&wire.Calls{Required: true, Strict: true}, got.GetCalls(), protocmp.Transform()); d != "" || strings.Contains(got.GetToolsJson(), "strict") {
			t.Errorf("%s: %s, %s", route, got.GetToolsJson(), d)
		}
	}
}
