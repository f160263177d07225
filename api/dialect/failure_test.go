package dialect

import (
	"errors"
	"strings"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/api/responses"
)

// TestErrorsInEventsHaveTheStatusOfTheirType, of those that agents send.
func TestErrorsInEventsHaveTheStatusOfTheirType(t *testing.T) {
	for _, e := range []*openai.Error{openai.EngineFailed(errors.New("x")), openai.Internal(errors.New("x"))} {
		for _, of := range []*Dialect{OpenAI, Anthropic, Responses} {
			wantStatus(t, of, e, 500)
		}
	}
	for _, of := range []*Dialect{OpenAI, Anthropic} {
		wantStatus(t, of, openai.Invalid("x", "x"), 400)
		wantStatus(t, of, openai.PrefillMemoryExceeded(openai.Memory{}), 400)
		wantStatus(t, of, openai.RateLimited(time.Second), 429)
		wantStatus(t, of, openai.Aborted("x", time.Second), 503)
		wantStatus(t, of, openai.InsufficientMemory(openai.Memory{}), 503)
	}
	for _, e := range []*openai.Error{openai.Invalid("x", "x"), openai.RateLimited(time.Second), openai.Aborted("x", time.Second)} {
		wantStatus(t, Responses, e, 400)
	}
}

func wantStatus(t *testing.T, of *Dialect, e *openai.Error, want int) {
	t.Helper()
	event, err := of.ErrorEvent(e, "req-1")
	if got := of.ErrorStatus(event); err != nil || got != want {
		t.Errorf("%s: status %d of %s, want %d", of.Name, got, event, want)
	}
}

func TestEventsThatEndAStreamWithAnError(t *testing.T) {
	failedWith := func(instructions, status string, e *openai.Error) string {
		data, err := openai.Marshal(responses.NewAnswer("resp_1", 1, &responses.Request{Instructions: &instructions}).Fail(status, e)[0].Data)
		if err != nil {
			t.Fatal(err)
		}
		return "event: response.failed\ndata: " + string(data)
	}
	failed := func(status string, e *openai.Error) string { return failedWith("", status, e) }
	long := strings.Repeat("x", ErrorBytes)
	for _, tc := range []struct {
		of    *Dialect
		event string
		want  int
	}{
		{OpenAI, "data: [DONE]", 0},
		{OpenAI, `data: {"choices":[{"error":1}]}`, 0},
		{OpenAI, `data: {"error":"x"}`, 500},
		{Anthropic, "event: message_stop\ndata: {}", 0},
		{Anthropic, "event: error", 0},
		{Anthropic, "event: error\ndata: {", 500},
		{Rerank, `data: {"error":{}}`, 0},
		{Responses, "event: response.completed\ndata: {}", 0},
		{Responses, failed(responses.StatusCancelled, nil), 0},
		{Responses, failed(responses.StatusFailed, openai.Invalid("x", "x")), 400},
		{Responses, failed(responses.StatusFailed, openai.Aborted("x", time.Second)), 503},
		{Responses, failedWith(long, responses.StatusCancelled, nil), 0},
		{Responses, failedWith(long, responses.StatusFailed, openai.Invalid("x", "x")), 503},
		{OpenAI, `data: {"error":{"type":"invalid_request_error","message":"` + long + `"}}`, 500},
	} {
		if got := tc.of.ErrorStatus([]byte(tc.event)); got != tc.want {
			t.Errorf("%s: %q has status %d, want %d", tc.of.Name, tc.event, got, tc.want)
		}
	}
}
