package serve_test

import (
	"slices"
	"testing"

	"metalfleet.dev/metalfleet/agent/serve"
	"metalfleet.dev/metalfleet/agent/serve/servetest"
	"metalfleet.dev/metalfleet/api/tracing"
	"metalfleet.dev/metalfleet/api/tracing/tracetest"
)

func TestTheEnginesWorkIsPartOfTheTrace(t *testing.T) {
	c := tracetest.New(t)
	tracer, flush := c.Tracer("agent")
	p := newPort(t, servetest.Say("some words"), func(s *serve.Config) { s.Tracer = tracer })
	read(t, p.do("POST", "/v1/chat/completions", `{"model":"m","messages":[{"role":"user","content":"hi"}]}`,
		"Traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"))
	flush()
	request, acquire, generate := c.Named("agent"), c.Named("acquire the engine"), c.Named("generate")
	if request.Trace != "0af7651916cd43dd8448eb211c80319c" || request.Parent != "b7ad6b7169203331" || acquire.Parent != request.ID || generate.Parent != request.ID {
		t.Errorf("the spans are %+v", c.Spans())
	}
	if request.Attributes[tracing.Mac] != "mac-a" || request.Attributes[tracing.Status] != int64(200) {
		t.Errorf("the request is %v", request.Attributes)
	}
	if a := generate.Attributes; a[tracing.OutputTokens] == nil || a[tracing.OutputTokens] == int64(0) || a[tracing.InputTokens] == nil || !slices.Equal(generate.Events, []string{"admitted", "first token"}) {
		t.Errorf("the engine's work is %+v", generate)
	}
}

// TestASpanEndsWithItsRequest, whose client disconnects in the middle.
func TestASpanEndsWithItsRequest(t *testing.T) {
	c := tracetest.New(t)
	tracer, flush := c.Tracer("agent")
	p := newPort(t, servetest.Hang(servetest.Admit(), servetest.Text("half")), func(s *serve.Config) { s.Tracer = tracer })
	resp := p.chat(`,"stream":true`)
	if _, err := resp.Body.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	eventually(t, "the engine's request was cancelled", func() bool { holds, ended := p.fake.Holds(here); return holds == 0 && ended == 1 })
	flush()
	c.Named("generate")
}
