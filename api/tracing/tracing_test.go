package tracing_test

import (
	"context"
	"flag"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"

	"metalfleet.dev/metalfleet/api/tracing"
	"metalfleet.dev/metalfleet/api/tracing/tracetest"
)

const client = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

func TestATraceGoesThroughPrograms(t *testing.T) {
	c := tracetest.New(t)
	gateway, flushGateway := c.Tracer("gateway")
	agent, flushAgent := c.Tracer("agent")

	ctx, outer := gateway.Serve(t.Context(), http.Header{"Traceparent": {client}}, "outer")
	header := http.Header{}
	call := tracing.Call(ctx, header, "call")
	within, inner := agent.Serve(t.Context(), header, "inner")
	_, part := tracing.Begin(within, "part")
	part.Event("half")
	part.Number(tracing.OutputTokens, 7)
	part.Text(tracing.Model, strings.Repeat("m", 1000))
	part.Text(tracing.Mac, "")
	part.End("it broke")
	inner.End("")
	call.End("")
	outer.End("")
	flushGateway()
	flushAgent()

	spans := map[string]tracetest.Span{}
	for _, name := range []string{"outer", "call", "inner", "part"} {
		spans[name] = c.Named(name)
		if spans[name].Trace != client[3:35] {
			t.Errorf("%s is in the trace %s", name, spans[name].Trace)
		}
	}
	for child, parent := range map[string]string{"outer": client[36:52], "call": spans["outer"].ID, "inner": spans["call"].ID, "part": spans["inner"].ID} {
		if spans[child].Parent != parent {
			t.Errorf("the parent of %s is %s, want %s", child, spans[child].Parent, parent)
		}
	}
	got := spans["part"]
	if got.Service != "agent" || got.Failure != "it broke" || len(got.Events) != 1 || got.Attributes[tracing.OutputTokens] != int64(7) {
		t.Errorf("the span is %+v", got)
	}
	if model, _ := got.Attributes[tracing.Model].(string); len(model) != 256 {
		t.Errorf("an attribute has %d bytes", len(model))
	}
	if _, has := got.Attributes[tracing.Mac]; has {
		t.Error("an empty attribute was sent")
	}
}

// TestAttackClientsThatWantEveryRequestTraced: a gateway traces its part of the requests of all.
func TestAttackClientsThatWantEveryRequestTraced(t *testing.T) {
	for _, tc := range []struct {
		service, ratio, flag string
		want                 int
	}{
		{service: "gateway", ratio: "0", flag: "01", want: 0}, {service: "gateway", ratio: "1", flag: "01", want: 20},
		{service: "gateway", ratio: "1", flag: "00", want: 0}, {service: "agent", ratio: "0", flag: "01", want: 20},
	} {
		c := tracetest.New(t)
		tracer, flush := c.Tracer(tc.service, "--trace-ratio="+tc.ratio)
		for range 20 {
			ctx, s := tracer.Serve(t.Context(), http.Header{"Traceparent": {client[:len(client)-2] + tc.flag}}, "of a client")
			_, part := tracing.Begin(ctx, "part")
			part.End("")
			s.End("")
		}
		flush()
		if n := len(c.Spans()); n != 2*tc.want {
			t.Errorf("%s with the ratio %s and the flag %s: %d spans, want %d", tc.service, tc.ratio, tc.flag, n, 2*tc.want)
		}
	}
}

func TestWithoutACollectorNothingHappens(t *testing.T) {
	var f tracing.Flags
	tracer, err := f.New("gateway", "v1", logr.Discard())
	if err != nil || tracer != nil {
		t.Fatal(tracer, err)
	}
	header := http.Header{}
	ctx, s := tracer.Serve(t.Context(), http.Header{"Traceparent": {client}}, "x")
	_, part := tracing.Begin(ctx, "y")
	for _, s := range []*tracing.Span{s, part, tracing.Call(ctx, header, "z")} {
		s.Text("a", "b")
		s.Number("a", 1)
		s.Event("e")
		s.End("")
	}
	if err := tracer.Close(ctx); err != nil || len(header) > 0 {
		t.Errorf("%v, %v", err, header)
	}
}

func TestWrongFlagsAreRefused(t *testing.T) {
	for _, args := range [][]string{{"--traces=collector:4318"}, {"--traces=/x"}, {"--traces=http://c", "--trace-ratio=2"}, {"--traces=http://c", "--trace-ratio=NaN"}} {
		var f tracing.Flags
		set := flag.NewFlagSet("x", flag.ContinueOnError)
		set.SetOutput(io.Discard)
		f.Bind(set)
		if err := set.Parse(args); err != nil {
			t.Fatal(err)
		}
		if err := f.Check(); err == nil {
			t.Errorf("%q is accepted", args)
		}
	}
}

// TestASlowCollectorDelaysNoRequest: what does not fit is dropped.
func TestASlowCollectorDelaysNoRequest(t *testing.T) {
	held := make(chan struct{})
	slow := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-held }))
	defer slow.Close()
	defer close(held)
	c := tracetest.New(t)
	c.URL = slow.URL
	tracer, _ := c.Tracer("gateway")
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 10_000 {
			_, s := tracer.Serve(context.Background(), nil, "x")
			s.End("")
		}
	}()
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		t.Fatal("the spans wait for the collector")
	}
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	if err := tracer.Close(ctx); err != nil {
		t.Error(err)
	}
}

// TestAStateOfATraceThatIsTooLong: it stays with its span until that is sent, and no limit counts it.
func TestAStateOfATraceThatIsTooLong(t *testing.T) {
	c := tracetest.New(t)
	gateway, flush := c.Tracer("gateway")
	defer flush()
	for state, want := range map[string]string{"a=b": "a=b", "a=b" + strings.Repeat(",", 510): ""} {
		ctx, span := gateway.Serve(t.Context(), http.Header{"Traceparent": {client}, "Tracestate": {state}}, "outer")
		header := http.Header{}
		tracing.Call(ctx, header, "call").End("")
		span.End("")
		if got := header.Get("Tracestate"); got != want || header.Get("Traceparent")[:35] != client[:35] {
			t.Errorf("after a state of %d bytes: %q", len(state), header)
		}
	}
}
