package dialect

import (
	"net/http/httptest"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"metalfleet.dev/metalfleet/api/openai"
)

// Unknown routes get OpenAI's error format.
func TestPathDecidesTheShapeOfAnError(t *testing.T) {
	for path, want := range map[string]*Dialect{
		PathChat: OpenAI, PathCompletions: OpenAI, PathModels: OpenAI, PathEmbeddings: OpenAI, PathModels + "/m": OpenAI,
		PathRerank: Rerank, PathRerankV2: Rerank, PathMessages: Anthropic, PathCountTokens: Anthropic, PathMessages + "/batches": Anthropic,
		PathResponses: Responses, PathResponses + "/resp_1/cancel": Responses,
		"/": OpenAI, "/mounted/v1/messages": OpenAI, "/v1/messagesx": OpenAI, "/v1/responsesx": OpenAI,
	} {
		if got := Of(path); got != want {
			t.Errorf("%s is %s, want %s", path, got.Name, want.Name)
		}
	}
}

func TestErrorsOfEachDialect(t *testing.T) {
	e := openai.RateLimited(1500 * time.Millisecond)
	const plain = `{"error":{"message":"Too many requests. Slow down and try again.","type":"rate_limit_error","param":null,"code":"rate_limit_exceeded"}`
	for _, tc := range []struct {
		of          *Dialect
		body, event string
	}{
		{of: OpenAI, body: plain + "}", event: "data: " + plain + "}\n\n"},
		{of: Rerank, body: plain + `,"message":"` + e.Message + `","detail":"` + e.Message + `"}`, event: "data: " + plain + "}\n\n"},
		{of: Anthropic, body: `{"type":"error","error":{"type":"rate_limit_error","message":"` + e.Message + `"},"request_id":"req-1"}`,
			event: "event: error\ndata: " + `{"type":"error","error":{"type":"rate_limit_error","message":"` + e.Message + `"},"request_id":"req-1"}` + "\n\n"},
		{of: Responses, body: plain + "}", event: "event: error\ndata: " + `{"type":"error","code":"rate_limit_exceeded","message":"` + e.Message + `","param":null,"sequence_number":0}` + "\n\n"},
	} {
		t.Run(tc.of.Name, func(t *testing.T) {
			w := httptest.NewRecorder()
			if err := tc.of.WriteError(w, e, "req-1"); err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(tc.body, w.Body.String()); d != "" || w.Code != 429 || w.Header().Get("Retry-After") != "2" || w.Header().Get("Content-Type") != "application/json" {
				t.Errorf("%d %v %s", w.Code, w.Header(), d)
			}
			back := ParseError(w.Code, w.Header(), w.Body.Bytes())
			if back.Code != e.Code || back.Message != e.Message || back.RetryAfter != 2*time.Second || back.Status != 429 {
				t.Errorf("read again: %+v", back)
			}
			event, err := tc.of.ErrorEvent(e, "req-1")
			if d := cmp.Diff(tc.event, string(event)); err != nil || d != "" {
				t.Errorf("%v %s", err, d)
			}
			if tc.of != Rerank && !tc.of.Ends(event) {
				t.Error("an error does not end the stream")
			}
		})
	}
}

func TestStreamsEndAsTheirDialectsSay(t *testing.T) {
	for _, tc := range []struct {
		of    *Dialect
		event string
		ends  bool
	}{
		{of: OpenAI, event: "data: [DONE]", ends: true},
		{of: OpenAI, event: `data: {"choices":[]}`},
		{of: OpenAI, event: "event: message_stop\ndata: {}"},
		{of: Anthropic, event: "event: message_stop\ndata: {}", ends: true},
		{of: Anthropic, event: "event: message_delta\ndata: {}"},
		{of: Anthropic, event: "data: [DONE]"},
		{of: Responses, event: "event: response.completed\ndata: {}", ends: true},
		{of: Responses, event: "event: response.incomplete\ndata: {}", ends: true},
		{of: Responses, event: "event: response.failed\ndata: {}", ends: true},
		{of: Responses, event: "event: response.output_text.done\ndata: {}"},
		{of: Responses, event: "event: response.completed_later\ndata: {}"},
	} {
		if got := tc.of.Ends([]byte(tc.event)); got != tc.ends {
			t.Errorf("%s, %q: %v", tc.of.Name, tc.event, got)
		}
		if len(tc.event) > EndBytes && tc.of.Ends([]byte(tc.event[:EndBytes])) != tc.ends {
			t.Errorf("%s, %q: its first bytes say another thing", tc.of.Name, tc.event)
		}
	}
}
