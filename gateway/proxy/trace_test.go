package proxy_test

import (
	"net/http"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/tracing"
	"metalfleet.dev/metalfleet/api/tracing/tracetest"
	"metalfleet.dev/metalfleet/gateway/keys"
	"metalfleet.dev/metalfleet/gateway/proxy"
)

// TestARequestIsTracedToItsMac: also where a first Mac refuses it. No text of a client is in
// a span.
func TestARequestIsTracedToItsMac(t *testing.T) {
	const secret = "the-client-wrote-this"
	c := tracetest.New(t)
	tracer, flush := c.Tracer("gateway")
	l := newLocked(t, func(c *proxy.Config) { c.Tracer = tracer })
	asked := make(chan string, 9)
	refuses := true
	for _, name := range []string{"a", "b"} {
		l.addMac(name, func(rw http.ResponseWriter, r *http.Request) {
			asked <- r.Header.Get("Traceparent")
			if refuses {
				refuses = false
				rw.Header().Set(agentapi.HeaderRetryable, "true")
				rw.WriteHeader(http.StatusServiceUnavailable)
				return
			}
			agentapi.SetTokens(rw.Header(), agentapi.HeaderTokens, 100, 50)
			say(`{"text":"`+secret+`"}`)(rw, r)
		})
	}
	read(t, l.with(l.key("good", keys.Grant{Models: []string{"m"}}), "POST", chatPath, `{"model":"m","messages":[{"role":"user","content":"`+secret+`"}]}`))
	read(t, l.with("", "POST", chatPath, `{"model":"`+secret+`"}`))
	l.idle()
	flush()

	var tries []tracetest.Span
	var served, refused *tracetest.Span
	for _, s := range c.Spans() {
		switch {
		case s.Name == "request to a replica":
			tries = append(tries, s)
		case s.Name == "POST "+chatPath && s.Attributes[tracing.Status] == int64(http.StatusOK):
			served = &s
		case s.Name == "POST "+chatPath:
			refused = &s
		}
		for _, v := range s.Attributes {
			if text, _ := v.(string); strings.Contains(text, secret) {
				t.Errorf("%s has what a client wrote: %v", s.Name, s.Attributes)
			}
		}
	}
	if served == nil || refused == nil || len(tries) != 2 {
		t.Fatalf("the spans are %+v", c.Spans())
	}
	if a := served.Attributes; a[tracing.Model] != "ns/m" || a[tracing.Key] != "good" || a[tracing.InputTokens] != int64(100) || a[tracing.OutputTokens] != int64(50) || a[tracing.Mac] == "" {
		t.Errorf("the request is %v", a)
	}
	if refused.Attributes[tracing.Status] != int64(http.StatusUnauthorized) || refused.Trace == served.Trace {
		t.Errorf("the refused request is %+v", refused)
	}
	for i, try := range tries {
		if parent := <-asked; try.Parent != served.ID || parent != "00-"+served.Trace+"-"+try.ID+"-01" {
			t.Errorf("try %d is %+v; the Mac was sent %s", i, try, parent)
		}
	}
	if tries[0].Failure == "" || tries[1].Failure != "" || tries[0].Attributes[tracing.Mac] == tries[1].Attributes[tracing.Mac] {
		t.Errorf("the tries are %+v", tries)
	}
}
