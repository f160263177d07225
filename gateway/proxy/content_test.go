package proxy

import (
	"net/http/httptrace"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/api/intake"
)

// TestALateReportOfAnEarlierAttemptKeepsNoBody: that attempt may end its sending after the next one did.
func TestALateReportOfAnEarlierAttemptKeepsNoBody(t *testing.T) {
	bodies := &intake.Bodies{Max: 1 << 20}
	data, kept, err := bodies.Read(strings.NewReader("body"), "a", 4, 1<<20, func() {})
	if err != nil {
		t.Fatal(err)
	}
	c := newContent(data, kept, true)
	var sent []func(httptrace.WroteRequestInfo)
	for range 2 {
		if !c.recall() {
			t.Fatal("the body is gone")
		}
		sent = append(sent, httptrace.ContextClientTrace(c.sending(t.Context())).WroteRequest)
	}
	sent[1](httptrace.WroteRequestInfo{})
	sent[0](httptrace.WroteRequestInfo{})
	c.answer()
	if n := bodies.Held(); n > 0 {
		t.Errorf("%d bytes are held of a request whose response has begun", n)
	}
}
