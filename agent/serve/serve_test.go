package serve_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/testr"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	"metalfleet.dev/metalfleet/agent/serve"
	"metalfleet.dev/metalfleet/agent/serve/servetest"
	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/dialect"
	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/metal/wire"
	"metalfleet.dev/metalfleet/test/patience"
)

var here = serve.Target{ReplicaUID: "uid-1", Epoch: 7}

// port is the agent's handler over plain HTTP/1.1, with one scripted replica
// "m".
type port struct {
	t    *testing.T
	fake *servetest.Fake
	url  string
	seen chan *wire.GenerateRequest
}

func newPort(t *testing.T, script servetest.Script, change ...func(*serve.Config)) *port {
	p := &port{t: t, fake: servetest.New(), seen: make(chan *wire.GenerateRequest, 16)}
	p.fake.Add("m", here, func(ctx context.Context, r *wire.GenerateRequest, send func(*wire.GenerateEvent) error) error {
		p.seen <- r
		return script(ctx, r, send)
	})
	c := serve.Config{Engines: p.fake, Mac: "mac-a", Log: testr.New(t)}
	for _, f := range change {
		f(&c)
	}
	s := httptest.NewServer(serve.NewHandler(c))
	t.Cleanup(s.Close)
	t.Cleanup(func() { p.fake.Lose(here) }) // first: Close waits for requests
	p.url = s.URL
	return p
}

func (p *port) do(method, path, body string, headers ...string) *http.Response {
	p.t.Helper()
	r, err := http.NewRequestWithContext(p.t.Context(), method, p.url+path, strings.NewReader(body))
	if err != nil {
		p.t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { resp.Body.Close() })
	return resp
}

func (p *port) chat(extra string) *http.Response {
	return p.do("POST", "/v1/chat/completions", `{"model":"m","messages":[{"role":"user","content":"hi"}]`+extra+`}`)
}

func read(t *testing.T, r *http.Response) string {
	t.Helper()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// eventually polls a condition about the world.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.NewTimer(patience.Of(t))
	defer deadline.Stop()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-deadline.C:
			t.Fatalf("never came true: %s", what)
		case <-tick.C:
		}
	}
}

var varying = regexp.MustCompile(`"id":"([a-z]+-)[0-9a-f]{24}"|"created":[0-9]+`)

func normal(s string) string {
	return varying.ReplaceAllStringFunc(s, func(m string) string {
		if strings.HasPrefix(m, `"created"`) {
			return `"created":1`
		}
		return varying.ReplaceAllString(m, `"id":"${1}X"`)
	})
}

// TestAnAnswerIsOfTheModelThatTheGatewaySays, where its client asked for an alias.
func TestAnAnswerIsOfTheModelThatTheGatewaySays(t *testing.T) {
	p := newPort(t, servetest.Say("a"))
	for path, prompt := range map[string]string{"/v1/chat/completions": `"messages":[{"role":"user","content":"hi"}]`, "/v1/completions": `"prompt":"x"`,
		"/v1/messages": `"max_tokens":5,"messages":[{"role":"user","content":"hi"}]`, "/v1/responses": `"input":"x"`} {
		for _, stream := range []string{"true", "false"} {
			got := read(t, p.do("POST", path, `{"model":"m",`+prompt+`,"stream":`+stream+`}`, agentapi.HeaderModel, "canary"))
			if !strings.Contains(got, `"model":"canary"`) || strings.Contains(got, `"model":"m"`) {
				t.Errorf("%s, stream %s: %s", path, stream, got)
			}
		}
	}
}

func TestChatStreamIsExact(t *testing.T) {
	p := newPort(t, servetest.Say("Par", "", "is"))
	resp := p.chat(`,"stream":true,"stream_options":{"include_usage":true}`)
	if resp.StatusCode != 200 || resp.Header.Get("Content-Type") != "text/event-stream" {
		t.Errorf("%d %s", resp.StatusCode, resp.Header.Get("Content-Type"))
	}
	chunk := func(choices, usage string) string {
		return `data: {"id":"chatcmpl-X","object":"chat.completion.chunk","created":1,"model":"m","choices":[` + choices + `],"usage":` + usage + "}\n\n"
	}
	want := chunk(`{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}`, "null") +
		chunk(`{"index":0,"delta":{"content":"Par"},"logprobs":null,"finish_reason":null}`, "null") +
		chunk(`{"index":0,"delta":{"content":"is"},"logprobs":null,"finish_reason":null}`, "null") +
		chunk(`{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop"}`, "null") +
		chunk("", `{"prompt_tokens":3,"completion_tokens":3,"total_tokens":6,"prompt_tokens_details":{"cached_tokens":1},"completion_tokens_details":{"reasoning_tokens":0}}`) +
		"data: [DONE]\n\n"
	if d := cmp.Diff(want, normal(read(t, resp))); d != "" {
		t.Error(d)
	}
	if resp.Header.Get(agentapi.HeaderMac) != "mac-a" || resp.Header.Get(agentapi.HeaderRequestID) == "" {
		t.Errorf("headers %v", resp.Header)
	}
}

func TestCompletionStreamAndWholeAnswers(t *testing.T) {
	p := newPort(t, servetest.Events(servetest.Admit(), servetest.Text("a b"), servetest.Finish(wire.FinishReason_FINISH_REASON_LENGTH, 2)))
	got := normal(read(t, p.do("POST", "/v1/completions", `{"model":"m","prompt":"x","stream":true}`)))
	want := `data: {"id":"cmpl-X","object":"text_completion","created":1,"model":"m","choices":[{"index":0,"text":"a b","logprobs":null,"finish_reason":null}]}` + "\n\n" +
		`data: {"id":"cmpl-X","object":"text_completion","created":1,"model":"m","choices":[{"index":0,"text":"","logprobs":null,"finish_reason":"length"}]}` + "\n\ndata: [DONE]\n\n"
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	usage := `"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5,"prompt_tokens_details":{"cached_tokens":1},"completion_tokens_details":{"reasoning_tokens":0}}`
	got = normal(read(t, p.do("POST", "/v1/completions", `{"model":"m","prompt":"x"}`)))
	want = `{"id":"cmpl-X","object":"text_completion","created":1,"model":"m","choices":[{"index":0,"text":"a b","logprobs":null,"finish_reason":"length"}],` + usage + `}`
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	got = normal(read(t, p.chat("")))
	want = `{"id":"chatcmpl-X","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"a b","refusal":null},"logprobs":null,"finish_reason":"length"}],` + usage + `}`
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestRequestsReachTheEngineWhole(t *testing.T) {
	p := newPort(t, servetest.Say("x"))
	read(t, p.do("POST", "/v1/chat/completions", `{"model":"m","messages":[{"role":"developer","content":"be"},
		{"role":"user","name":"n","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}],
		"temperature":0,"top_p":0.5,"min_p":0.25,"top_k":-1,"seed":-3,"stop":["u","v"],"max_completion_tokens":9,
		"frequency_penalty":0.5,"presence_penalty":-1}`, agentapi.HeaderRequestID, "r1"))
	k := int32(0)
	want := &wire.GenerateRequest{Id: "r1", MaxTokens: 9, Stop: []string{"u", "v"},
		Sampling: &wire.Sampling{Temperature: proto.Float32(0), TopP: proto.Float32(0.5), MinP: proto.Float32(0.25), TopK: &k, Seed: proto.Int64(-3),
			FrequencyPenalty: proto.Float32(0.5), PresencePenalty: proto.Float32(-1)},
		Input: &wire.GenerateRequest_Chat{Chat: &wire.Chat{SplitReasoning: true, Messages: []*wire.ChatMessage{
			{Role: "system", Content: "be"}, {Role: "user", Name: "n", Content: "ab"}}}}}
	if d := cmp.Diff(want, <-p.seen, protocmp.Transform()); d != "" {
		t.Error(d)
	}
	read(t, p.do("POST", "/v1/completions", `{"model":"m","prompt":[1,2]}`, agentapi.HeaderRequestID, "r2"))
	want = &wire.GenerateRequest{Id: "r2", MaxTokens: openai.DefaultCompletionTokens, Sampling: &wire.Sampling{},
		Input: &wire.GenerateRequest_Tokens{Tokens: &wire.TokenList{Ids: []int32{1, 2}}}}
	if d := cmp.Diff(want, <-p.seen, protocmp.Transform()); d != "" {
		t.Error(d)
	}
	read(t, p.do("POST", "/v1/completions", `{"model":"m","prompt":"once"}`, agentapi.HeaderRequestID, "not fit"))
	if got := <-p.seen; got.GetPrompt() != "once" || !strings.HasPrefix(got.GetId(), "req-") {
		t.Errorf("request %v", got)
	}
}

// ranked is an event with the log-probabilities of its tokens.
func ranked(text string, tokens ...string) *wire.GenerateEvent {
	d := &wire.Delta{Text: text}
	for _, token := range tokens {
		one := &wire.Logprob{Logprob: -0.5, Text: []byte(token)}
		d.Logprobs = append(d.Logprobs, &wire.TokenLogprobs{Chosen: one, Top: []*wire.Logprob{one}})
	}
	return &wire.GenerateEvent{Event: &wire.GenerateEvent_Delta{Delta: d}}
}

func TestLogprobsAreToldOnBothRoutesStreamedAndWhole(t *testing.T) {
	p := newPort(t, servetest.Events(servetest.Admit(), ranked(""), ranked("é", "\xc3", "\xa9"), ranked("", "!"), servetest.Finish(wire.FinishReason_FINISH_REASON_STOP, 3)))
	token := func(text, bytes string) string {
		one := `"token":"` + text + `","logprob":-0.5,"bytes":[` + bytes + `]`
		return `{` + one + `,"top_logprobs":[{` + one + `}]}`
	}
	first, second, third := token(`\\xc3`, "195"), token(`\\xa9`, "169"), token("!", "33")
	got := normal(read(t, p.chat(`,"logprobs":true,"top_logprobs":1`)))
	if want := `"logprobs":{"content":[` + first + `,` + second + `,` + third + `],"refusal":null},"finish_reason":"stop"`; !strings.Contains(got, want) {
		t.Errorf("%s\nhas no\n%s", got, want)
	}
	r := <-p.seen
	if r.TopLogprobs == nil || r.GetTopLogprobs() != 1 {
		t.Errorf("the engine is asked for %v", r.TopLogprobs)
	}
	chunk := func(delta, logprobs, finish string) string {
		return `data: {"id":"chatcmpl-X","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":` + delta + `,"logprobs":` + logprobs + `,"finish_reason":` + finish + "}]}\n\n"
	}
	want := chunk(`{"role":"assistant","content":""}`, "null", "null") +
		chunk(`{"content":"é"}`, `{"content":[`+first+`,`+second+`],"refusal":null}`, "null") +
		chunk(`{"content":""}`, `{"content":[`+third+`],"refusal":null}`, "null") + chunk(`{}`, "null", `"stop"`) + "data: [DONE]\n\n"
	if d := cmp.Diff(want, normal(read(t, p.chat(`,"logprobs":true,"stream":true`)))); d != "" {
		t.Error(d)
	}
	if r := <-p.seen; r.TopLogprobs == nil || r.GetTopLogprobs() != 0 {
		t.Errorf("the engine is asked for %v", r.TopLogprobs)
	}
	got = normal(read(t, p.do("POST", "/v1/completions", `{"model":"m","prompt":"x","logprobs":1}`)))
	want = `"text":"é","logprobs":{"tokens":["bytes:\\xc3","bytes:\\xa9","!"],"token_logprobs":[-0.5,-0.5,-0.5],"top_logprobs":[{"bytes:\\xc3":-0.5},{"bytes:\\xa9":-0.5},{"!":-0.5}],"text_offset":[0,0,1]}`
	if !strings.Contains(got, want) {
		t.Errorf("%s\nhas no\n%s", got, want)
	}
	got = normal(read(t, p.do("POST", "/v1/completions", `{"model":"m","prompt":"x","logprobs":1,"stream":true}`)))
	if want := `"text":"","logprobs":{"tokens":["!"],"token_logprobs":[-0.5],"top_logprobs":[{"!":-0.5}],"text_offset":[1]}`; !strings.Contains(got, want) {
		t.Errorf("%s\nhas no\n%s", got, want)
	}
}

func TestBiasReachesTheEngineAndAnEchoStandsInFront(t *testing.T) {
	p := newPort(t, servetest.Events(servetest.Admit(), servetest.Prompt("a"), servetest.Text(" b"), servetest.Finish(wire.FinishReason_FINISH_REASON_STOP, 1)))
	got := read(t, p.do("POST", "/v1/completions", `{"model":"m","prompt":"a","echo":true,"logit_bias":{"5":-100,"6":1.5}}`))
	if !strings.Contains(got, `"text":"a b","logprobs":null`) {
		t.Errorf("whole: %s", got)
	}
	r := <-p.seen
	if d := cmp.Diff(map[int32]float32{5: -100, 6: 1.5}, r.GetSampling().GetLogitBias()); d != "" || r.TopLogprobs != nil || !r.GetEcho() {
		t.Errorf("%s, alternatives %v", d, r.TopLogprobs)
	}
	got = read(t, p.do("POST", "/v1/completions", `{"model":"m","prompt":"a","echo":true,"stream":true}`))
	if a, b := strings.Index(got, `"text":"a"`), strings.Index(got, `"text":" b"`); a < 0 || b < a {
		t.Errorf("streamed: %s", got)
	}
}

func TestAFormReachesTheEngineWithTheNameOfItsField(t *testing.T) {
	p := newPort(t, servetest.Say("b"))
	for _, c := range []struct{ path, body, want string }{
		{path: "/v1/chat/completions", body: `"messages":[{"role":"user","content":"a"}],"response_format":{"type":"json_schema","json_schema":{"name":"n","strict":true,"schema":{ "type": "object" }}}`,
			want: `json_schema:"{\"type\":\"object\"}" param:"response_format.json_schema.schema"`},
		{path: "/v1/chat/completions", body: `"messages":[{"role":"user","content":"a"}],"response_format":{"type":"json_object"}`, want: `json_object:true param:"response_format"`},
		{path: "/v1/completions", body: `"prompt":"a","structured_outputs":{"choice":["a","b"]}`, want: `choice:{texts:"a" texts:"b"} param:"structured_outputs.choice"`},
		{path: "/v1/completions", body: `"prompt":"a","guided_regex":"a+"`, want: `regex:"a+" param:"guided_regex"`},
		{path: "/v1/completions", body: `"prompt":"a","structured_outputs":{"grammar":"root ::= \"a\""}`, want: `grammar:"root ::= \"a\"" param:"structured_outputs.grammar"`},
		{path: "/v1/completions", body: `"prompt":"a"`, want: `<nil>`},
	} {
		read(t, p.do("POST", c.path, `{"model":"m",`+c.body+`}`))
		got := strings.Join(strings.Fields((<-p.seen).GetConstraint().String()), " ")
		if strings.ReplaceAll(got, "{ ", "{") != c.want {
			t.Errorf("%s: the engine gets %s, want %s", c.body, got, c.want)
		}
	}
}

func TestThoughtsComeApartFromTheAnswerStreamedAndWhole(t *testing.T) {
	say := servetest.Say("b")
	p := newPort(t, func(ctx context.Context, r *wire.GenerateRequest, send func(*wire.GenerateEvent) error) error {
		return say(ctx, r, func(e *wire.GenerateEvent) error {
			if err := send(e); err != nil || e.GetAdmitted() == nil {
				return err
			}
			for _, d := range []*wire.Delta{{Reasoning: "Hm"}, {Reasoning: "m.", Text: "a"}} {
				if err := send(&wire.GenerateEvent{Event: &wire.GenerateEvent_Delta{Delta: d}}); err != nil {
					return err
				}
			}
			return nil
		})
	})
	got := read(t, p.do("POST", "/v1/chat/completions", `{"model":"m","messages":[{"role":"user","content":"x"},{"role":"assistant","content":"y","reasoning_content":"<z>"},{"role":"user","content":"x"}]}`))
	if want := `"message":{"role":"assistant","content":"ab","refusal":null,"reasoning_content":"Hmm.","reasoning":"Hmm."}`; !strings.Contains(got, want) {
		t.Errorf("%s\nhas no\n%s", got, want)
	}
	if chat := (<-p.seen).GetChat(); !chat.GetSplitReasoning() || chat.GetMessages()[1].GetExtraJson() != `{"reasoning_content":"<z>"}` || chat.GetMessages()[0].GetExtraJson() != "" {
		t.Errorf("the engine gets %v", chat)
	}
	got = read(t, p.do("POST", "/v1/chat/completions", `{"model":"m","messages":[{"role":"user","content":"x"}],"stream":true}`))
	at := 0
	for _, want := range []string{`"delta":{"role":"assistant","content":""}`, `"delta":{"reasoning_content":"Hm","reasoning":"Hm"}`, `"delta":{"reasoning_content":"m.","reasoning":"m."}`, `"delta":{"content":"a"}`, `"delta":{"content":"b"}`} {
		n := strings.Index(got[at:], want)
		if n < 0 {
			t.Fatalf("%s\nhas no %s after the previous one", got, want)
		}
		at += n
	}
}

// refusal is the client's error before the first byte.
type refusal struct {
	status    int
	code      string
	retry     string
	retryable bool
}

func (p *port) wantRefusal(resp *http.Response, want refusal) *openai.Error {
	p.t.Helper()
	body := read(p.t, resp)
	e := openai.ParseError(resp.StatusCode, resp.Header, []byte(body))
	got := refusal{status: resp.StatusCode, code: e.Code, retry: resp.Header.Get("Retry-After"), retryable: resp.Header.Get(agentapi.HeaderRetryable) == "true"}
	if got != want {
		p.t.Errorf("refusal %+v, want %+v; body %s", got, want, body)
	}
	if resp.Header.Get("Content-Type") != "application/json" {
		p.t.Errorf("content type %q", resp.Header.Get("Content-Type"))
	}
	return e
}

// On both routes, streamed or not, with figures where memory is the cause.
func TestRefusalComesBeforeTheFirstByte(t *testing.T) {
	tests := map[string]struct {
		script servetest.Script
		want   refusal
	}{
		"the request cannot be meant": {script: servetest.Refuse(&wire.Refusal{Code: wire.Code_CODE_INVALID, Message: "no", Param: "stop"}),
			want: refusal{status: 400, code: openai.CodeInvalidValue, retry: "", retryable: false}},
		"too long": {script: servetest.Refuse(&wire.Refusal{Code: wire.Code_CODE_CONTEXT_LENGTH, Message: "no"}),
			want: refusal{status: 400, code: openai.CodeContextLengthExceeded, retry: "", retryable: false}},
		"too much memory": {script: servetest.Refuse(&wire.Refusal{Code: wire.Code_CODE_MEMORY, UsedBytes: 1, NeededBytes: 2, LimitBytes: 3}),
			want: refusal{status: 413, code: openai.CodePrefillMemoryExceeded, retry: "", retryable: false}},
		"too much memory while others run": {script: servetest.Refuse(&wire.Refusal{Code: wire.Code_CODE_MEMORY, UsedBytes: 1, NeededBytes: 2, LimitBytes: 3, RetryAfterMilliseconds: 1000}),
			want: refusal{status: 503, code: openai.CodePrefillMemoryExceeded, retry: "1", retryable: true}},
		"the model can never be loaded here": {script: servetest.Refuse(&wire.Refusal{Code: wire.Code_CODE_NO_ROOM, Message: "no", UsedBytes: 1, NeededBytes: 2, LimitBytes: 3}),
			want: refusal{status: 507, code: openai.CodeInsufficientMemory, retry: "", retryable: true}},
		"the model may be loaded later": {script: servetest.Refuse(&wire.Refusal{Code: wire.Code_CODE_NO_ROOM, Message: "no", UsedBytes: 1, NeededBytes: 2, LimitBytes: 3, RetryAfterMilliseconds: 7000}),
			want: refusal{status: 503, code: openai.CodeInsufficientMemory, retry: "7", retryable: true}},
		"aborted before the first byte": {script: servetest.Events(servetest.Admit(), servetest.FailWith(&wire.Refusal{Code: wire.Code_CODE_ABORTED, Message: "the Mac is short of memory", RetryAfterMilliseconds: 5000})),
			want: refusal{status: 503, code: openai.CodeAborted, retry: "5", retryable: true}},
		"too much memory at the first chunk": {script: servetest.Events(servetest.Admit(), servetest.FailWith(&wire.Refusal{Code: wire.Code_CODE_MEMORY, UsedBytes: 1, NeededBytes: 2, LimitBytes: 3})),
			want: refusal{status: 413, code: openai.CodePrefillMemoryExceeded, retry: "", retryable: false}},
		"queue full": {script: servetest.Refuse(&wire.Refusal{Code: wire.Code_CODE_QUEUE_FULL, Message: "no", RetryAfterMilliseconds: 2500}),
			want: refusal{status: 503, code: agentapi.CodeQueueFull, retry: "3", retryable: true}},
		"not ready": {script: servetest.Refuse(&wire.Refusal{Code: wire.Code_CODE_NOT_READY, Message: "no"}),
			want: refusal{status: 503, code: agentapi.CodeReplicaNotReady, retry: "1", retryable: true}},
		"cancelled by the engine": {script: servetest.Refuse(&wire.Refusal{Code: wire.Code_CODE_CANCELLED, Message: "no"}),
			want: refusal{status: 503, code: agentapi.CodeReplicaNotReady, retry: "1", retryable: true}},
		"back end failed": {script: servetest.Refuse(&wire.Refusal{Code: wire.Code_CODE_INTERNAL, Message: "secret"}),
			want: refusal{status: 500, code: openai.CodeEngineFailed, retry: "", retryable: false}},
		"engine died": {script: func(context.Context, *wire.GenerateRequest, func(*wire.GenerateEvent) error) error {
			return status.Error(codes.Unavailable, "error reading from server: EOF")
		}, want: refusal{status: 502, code: agentapi.CodeEngineLost, retry: "", retryable: true}},
		"engine breaks the protocol": {script: servetest.Events(servetest.Text("x")), want: refusal{status: 500, code: openai.CodeEngineFailed, retry: "", retryable: false}},
		"engine ends at once":        {script: servetest.Events(), want: refusal{status: 500, code: openai.CodeEngineFailed, retry: "", retryable: false}},
		"died after admission, nothing sent": {script: func(_ context.Context, _ *wire.GenerateRequest, send func(*wire.GenerateEvent) error) error {
			_ = send(servetest.Admit())
			return serve.ErrEngineLost
		}, want: refusal{status: 502, code: agentapi.CodeEngineLost, retry: "", retryable: true}},
	}
	for name, tc := range tests {
		for _, stream := range []string{"", `,"stream":true`} {
			t.Run(name+stream, func(t *testing.T) {
				p := newPort(t, tc.script)
				p.wantRefusal(p.do("POST", "/v1/completions", `{"model":"m","prompt":"x"`+stream+`}`), tc.want)
				e := p.wantRefusal(p.chat(stream), tc.want)
				if strings.Contains(e.Message, "secret") {
					t.Errorf("message reveals internals: %s", e.Message)
				}
				figures := tc.want.code == openai.CodePrefillMemoryExceeded || tc.want.code == openai.CodeInsufficientMemory
				if figures && (e.Memory == nil || *e.Memory != openai.Memory{Used: 1, Needed: 2, Limit: 3}) {
					t.Errorf("memory %+v", e.Memory)
				}
				if holds, _ := p.fake.Holds(here); holds != 0 {
					t.Errorf("%d holds left", holds)
				}
			})
		}
	}
}

func TestWholeAnswersAreNeverHalf(t *testing.T) {
	p := newPort(t, servetest.Events(servetest.Admit(), servetest.Text("half"), servetest.FailWith(&wire.Refusal{Code: wire.Code_CODE_INTERNAL, Message: "nan"})))
	p.wantRefusal(p.chat(""), refusal{status: 500, code: openai.CodeEngineFailed, retry: "", retryable: false})
	p = newPort(t, servetest.Events(servetest.Admit(), servetest.Text("half"), servetest.Finish(wire.FinishReason_FINISH_REASON_UNSPECIFIED, 1)))
	p.wantRefusal(p.chat(""), refusal{status: 500, code: openai.CodeEngineFailed, retry: "", retryable: false})
}

func TestReplicasAreFoundByHeaderOrName(t *testing.T) {
	p := newPort(t, servetest.Say("x"))
	const path, body = "/v1/completions", `{"model":"any name of the gateway","prompt":"x"}`
	ask := func(headers ...string) *http.Response { return p.do("POST", path, body, headers...) }
	if r := ask(agentapi.HeaderReplica, "uid-1", agentapi.HeaderEpoch, "7"); r.StatusCode != 200 {
		t.Errorf("by header: %d %s", r.StatusCode, read(t, r))
	}
	p.wantRefusal(ask(agentapi.HeaderReplica, "uid-1", agentapi.HeaderEpoch, "8"), refusal{status: 503, code: agentapi.CodeReplicaNotHere, retry: "1", retryable: true})
	p.wantRefusal(ask(agentapi.HeaderReplica, "uid-2", agentapi.HeaderEpoch, "7"), refusal{status: 503, code: agentapi.CodeReplicaNotHere, retry: "1", retryable: true})
	p.wantRefusal(ask(agentapi.HeaderReplica, "uid-1"), refusal{status: 400, code: openai.CodeInvalidValue, retry: "", retryable: false})
	p.wantRefusal(ask(agentapi.HeaderEpoch, "7"), refusal{status: 400, code: openai.CodeInvalidValue, retry: "", retryable: false})
	p.wantRefusal(ask(agentapi.HeaderReplica, "uid-1", agentapi.HeaderEpoch, "x"), refusal{status: 400, code: openai.CodeInvalidValue, retry: "", retryable: false})
	p.wantRefusal(ask(), refusal{status: 404, code: openai.CodeModelNotFound, retry: "", retryable: false})
	p.fake.SetReady(here, false)
	p.wantRefusal(p.chat(""), refusal{status: 503, code: agentapi.CodeReplicaNotReady, retry: "1", retryable: true})
}

func TestBadRequestsAreRefused(t *testing.T) {
	accepting := true
	p := newPort(t, servetest.Say("x"), func(c *serve.Config) {
		c.MaxBodyBytes = 200
		c.Metrics = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "figures") })
		c.Accepting = func() bool { return accepting }
		c.Logs = func(name string, n int) ([]byte, error) {
			if name == "" {
				return nil, fs.ErrNotExist
			}
			return fmt.Appendf(nil, "%s %d", name, n), nil
		}
	})
	p.wantRefusal(p.do("POST", "/v1/chat/completions", `{"model":`), refusal{status: 400, code: openai.CodeMalformedJSON, retry: "", retryable: false})
	p.wantRefusal(p.chat(`,"suffix":1,"seed":"x"`), refusal{status: 400, code: openai.CodeInvalidValue, retry: "", retryable: false})
	p.wantRefusal(p.chat(`,"user":"`+strings.Repeat("x", 200)+`"`), refusal{status: 413, code: openai.CodeBodyTooLarge, retry: "", retryable: false})
	p.wantRefusal(p.do("GET", "/v1/nothing", ""), refusal{status: 404, code: openai.CodeRouteNotFound, retry: "", retryable: false})
	p.wantRefusal(p.do("GET", "/v1/models/unknown", ""), refusal{status: 404, code: openai.CodeModelNotFound, retry: "", retryable: false})
	for path, allowed := range map[string]string{"/v1/chat/completions": "POST", "/v1/completions": "POST", "/v1/models": "GET", "/v1/models/m": "GET", agentapi.PathHealth: "GET"} {
		r := p.do("DELETE", path, "")
		p.wantRefusal(r, refusal{status: 405, code: openai.CodeMethodNotAllowed, retry: "", retryable: false})
		if r.Header.Get("Allow") != allowed {
			t.Errorf("%s: Allow %q", path, r.Header.Get("Allow"))
		}
	}
	var list openai.ModelList
	if err := json.Unmarshal([]byte(read(t, p.do("GET", "/v1/models", ""))), &list); err != nil || len(list.Data) != 1 || list.Data[0].ID != "m" {
		t.Errorf("models %+v, %v", list, err)
	}
	if r := p.do("GET", "/v1/models/m", ""); r.StatusCode != 200 {
		t.Errorf("model: %d", r.StatusCode)
	}
	if r := p.do("GET", agentapi.PathHealth, ""); r.StatusCode != 204 {
		t.Errorf("health: %d", r.StatusCode)
	}
	if r := p.do("GET", agentapi.PathMetrics, ""); r.StatusCode != 200 || read(t, r) != "figures" {
		t.Errorf("metrics: %d", r.StatusCode)
	}
	if r := p.do("GET", agentapi.PathLogs+"/0123456789ab?bytes=9", ""); r.StatusCode != 200 || read(t, r) != "0123456789ab 9" {
		t.Errorf("log of an engine: %d", r.StatusCode)
	}
	for path, want := range map[string]int{agentapi.PathLogs + "?bytes=9": 404, agentapi.PathLogs + "/x": 400, agentapi.PathLogs + "/x?bytes=1048577": 400} {
		if r := p.do("GET", path, ""); r.StatusCode != want {
			t.Errorf("%s: %d, want %d", path, r.StatusCode, want)
		}
	}
	accepting = false
	p.wantRefusal(p.do("GET", agentapi.PathHealth, ""), refusal{status: 503, code: agentapi.CodeReplicaNotReady, retry: "1", retryable: true})
	p.wantRefusal(p.chat(""), refusal{status: 503, code: agentapi.CodeReplicaNotReady, retry: "1", retryable: true})
}

func TestEngineLostMidStreamIsAnErrorEvent(t *testing.T) {
	p := newPort(t, servetest.Hang(servetest.Admit(), servetest.Text("half")))
	resp := p.chat(`,"stream":true`)
	events := openai.NewEventReader(resp.Body)
	for range 2 {
		if _, err := events.Next(); err != nil {
			t.Fatal(err)
		}
	}
	p.fake.Lose(here)
	_, err := events.Next()
	var e *openai.Error
	if !errors.As(err, &e) || e.Code != agentapi.CodeEngineLost {
		t.Errorf("end of stream = %v, want an error event", err)
	}
	if rest, err := io.ReadAll(resp.Body); err != nil || len(rest) != 0 {
		t.Errorf("after the error: %q, %v; want an orderly end", rest, err)
	}
	eventually(t, "hold released", func() bool { holds, _ := p.fake.Holds(here); return holds == 0 })
}

func TestEngineErrorMidStreamIsAnErrorEvent(t *testing.T) {
	p := newPort(t, servetest.Events(servetest.Admit(), servetest.Text("half"), servetest.FailWith(&wire.Refusal{Code: wire.Code_CODE_INTERNAL, Message: "nan"})))
	got := normal(read(t, p.do("POST", "/v1/completions", `{"model":"m","prompt":"x","stream":true}`)))
	if !strings.HasSuffix(got, `"code":"engine_failed"}}`+"\n\n") || strings.Contains(got, "[DONE]") || !strings.Contains(got, "half") {
		t.Errorf("stream %s", got)
	}
}

func TestHangUpCancelsTheEngineAndReleasesTheHold(t *testing.T) {
	for _, stream := range []string{"", `,"stream":true`} {
		for name, script := range map[string]servetest.Script{
			"before admission": servetest.Hang(),
			"after admission":  servetest.Hang(servetest.Admit()),
			"in the answer":    servetest.Hang(servetest.Admit(), servetest.Text("x")),
		} {
			t.Run(name+stream, func(t *testing.T) {
				p := newPort(t, script)
				ctx, hangUp := context.WithCancel(t.Context())
				defer hangUp()
				r, err := http.NewRequestWithContext(ctx, "POST", p.url+"/v1/completions", strings.NewReader(`{"model":"m","prompt":"x"`+stream+`}`))
				if err != nil {
					t.Fatal(err)
				}
				done := make(chan struct{})
				go func() {
					defer close(done)
					if resp, err := http.DefaultClient.Do(r); err == nil {
						_, _ = io.Copy(io.Discard, resp.Body)
						_ = resp.Body.Close()
					}
				}()
				<-p.seen
				hangUp()
				<-done
				eventually(t, "request ended and hold released", func() bool {
					holds, ended := p.fake.Holds(here)
					return holds == 0 && ended == 1
				})
			})
		}
	}
}

func TestClientThatNeverReadsIsBounded(t *testing.T) {
	p := newPort(t, servetest.Endless(strings.Repeat("x", 64<<10)), func(c *serve.Config) { c.WriteTimeout = 500 * time.Millisecond })
	resp := p.do("POST", "/v1/completions", `{"model":"m","prompt":"x","stream":true}`)
	if resp.StatusCode != 200 {
		t.Fatal(resp.Status)
	}
	eventually(t, "request ended and hold released", func() bool {
		holds, ended := p.fake.Holds(here)
		return holds == 0 && ended == 1
	})
}

func TestSilentStreamsAreKeptOpen(t *testing.T) {
	p := newPort(t, servetest.Hang(servetest.Admit()), func(c *serve.Config) { c.KeepAlive = 5 * time.Millisecond })
	resp := p.chat(`,"stream":true`)
	line, err := bufio.NewReader(resp.Body).ReadString('\n')
	if err != nil || !dialect.OpenAI.Idle([]byte(line+"\n")) {
		t.Errorf("first line %q, %v", line, err)
	}
	// Before admission silence is total: the client may still be refused.
	p = newPort(t, func(_ context.Context, _ *wire.GenerateRequest, _ func(*wire.GenerateEvent) error) error {
		<-time.After(50 * time.Millisecond)
		return wire.Refuse(&wire.Refusal{Code: wire.Code_CODE_INVALID, Message: "no"})
	}, func(c *serve.Config) { c.KeepAlive = time.Millisecond })
	p.wantRefusal(p.chat(`,"stream":true`), refusal{status: 400, code: openai.CodeInvalidValue, retry: "", retryable: false})
}

// The agent serves the same paths as the gateway, and HEAD wherever GET works.
func TestPathsAndHeadAreThoseOfTheGateway(t *testing.T) {
	p := newPort(t, servetest.Say("a"))
	for _, path := range []string{"/v1/models", "/v1/models/", "//models", "/v1/models/m", agentapi.PathHealth} {
		get, head := p.do("GET", path, ""), p.do("HEAD", path, "")
		if get.StatusCode != head.StatusCode || get.StatusCode/100 != 2 || read(t, head) != "" || head.Header.Get("Content-Type") != get.Header.Get("Content-Type") {
			t.Errorf("%s: GET %d, HEAD %d %v", path, get.StatusCode, head.StatusCode, head.Header)
		}
	}
	resp := p.do("POST", "/chat/completions/", `{"model":"m","messages":[{"role":"user","content":"hi"}]}`)
	if got := read(t, resp); resp.StatusCode != 200 || !strings.Contains(got, `"object":"chat.completion"`) {
		t.Errorf("%d %s", resp.StatusCode, got)
	}
	var stored struct{ ID string }
	if err := json.Unmarshal([]byte(read(t, p.do("POST", "/responses", `{"model":"m","input":"hi"}`))), &stored); err != nil {
		t.Fatal(err)
	}
	for id, want := range map[string]int{stored.ID: 200, "resp_1": 404} {
		if resp := p.do("HEAD", "/v1/responses/"+id, ""); resp.StatusCode != want || read(t, resp) != "" {
			t.Errorf("%s: %d", id, resp.StatusCode)
		}
	}
}

func TestFakePassesTheSuite(t *testing.T) {
	f := servetest.New()
	f.Add("m", here, servetest.Say("a", "b"))
	idle := serve.Target{ReplicaUID: "uid-2", Epoch: 1}
	f.Add("n", idle, servetest.Say("a"))
	f.SetReady(idle, false)
	servetest.Run(t, servetest.Subject{Engines: f, Model: "m", Ready: here, NotReady: idle,
		Request: func() *wire.GenerateRequest { return &wire.GenerateRequest{Id: "r"} }})
}

// Clients must not take the error event for a normal end.
func TestAbortedStreamEndsWithItsReason(t *testing.T) {
	p := newPort(t, servetest.Events(servetest.Admit(), servetest.Text("half"),
		servetest.FailWith(&wire.Refusal{Code: wire.Code_CODE_ABORTED, Message: "the Mac is over its ceiling", RetryAfterMilliseconds: 5000})))
	got := read(t, p.chat(`,"stream":true`))
	if !strings.Contains(got, "half") || strings.Contains(got, "[DONE]") ||
		!strings.HasSuffix(got, `"type":"service_unavailable_error","param":null,"code":"aborted_for_memory"}}`+"\n\n") || !strings.Contains(got, "the Mac is over its ceiling") {
		t.Errorf("the stream is %q", got)
	}
}

// No made-up figures are added.
func TestUnestimatablePromptIsRefusedWithTheEnginesMessage(t *testing.T) {
	p := newPort(t, servetest.Refuse(&wire.Refusal{Code: wire.Code_CODE_MEMORY, Message: "the number of heads is not known", LimitBytes: 3}))
	if e := p.wantRefusal(p.chat(""), refusal{status: 413, code: openai.CodePrefillMemoryExceeded, retry: "", retryable: false}); e.Message != "the number of heads is not known" {
		t.Errorf("message %q", e.Message)
	}
}

// loading are engines whose model is loaded by the first request.
type loading struct {
	*servetest.Fake
	began  chan struct{}
	loaded chan error
}

func (l loading) Acquire(ctx context.Context, t serve.Target) (serve.Hold, error) {
	l.began <- struct{}{}
	select {
	case err := <-l.loaded:
		if err != nil {
			return nil, err
		}
		return l.Fake.Acquire(ctx, t)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// TestARequestWaitsForTheLoadThatItBegan, and fails if the load fails; a client
// that disconnects ends the wait.
func TestARequestWaitsForTheLoadThatItBegan(t *testing.T) {
	cold := loading{began: make(chan struct{}, 1), loaded: make(chan error)}
	p := newPort(t, servetest.Say("warm"), func(c *serve.Config) {
		cold.Fake = c.Engines.(*servetest.Fake)
		c.Engines = cold
	})
	for name, c := range map[string]struct {
		load error
		want int
	}{
		"loaded":  {load: nil, want: 200},
		"no room": {load: wire.Refuse(&wire.Refusal{Code: wire.Code_CODE_NO_ROOM, Message: "no"}), want: 507},
	} {
		answered := make(chan *http.Response, 1)
		go func() { answered <- p.chat(`,"stream":true`) }()
		<-cold.began
		select {
		case r := <-answered:
			t.Fatalf("%s: answered with %d before the load ended", name, r.StatusCode)
		default:
		}
		cold.loaded <- c.load
		if r := <-answered; r.StatusCode != c.want {
			t.Errorf("%s: status %d, want %d", name, r.StatusCode, c.want)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	gone := make(chan error, 1)
	go func() {
		r, err := http.NewRequestWithContext(ctx, "POST", p.url+"/v1/completions", strings.NewReader(`{"model":"m","prompt":"x"}`))
		if err == nil {
			_, err = http.DefaultClient.Do(r) //nolint:bodyclose // there is none
		}
		gone <- err
	}()
	<-cold.began
	cancel()
	if err := <-gone; !errors.Is(err, context.Canceled) {
		t.Errorf("the client that went got %v", err)
	}
	eventually(t, "no hold is left", func() bool { holds, _ := p.fake.Holds(here); return holds == 0 })
}
