package proxy_test

import (
	"net/http"
	"testing"

	"metalfleet.dev/metalfleet/api/agentapi"
)

// TestARefusalThatDoesNotEnd: a Mac sends the head of a refusal and no more. Another one answers.
func TestARefusalThatDoesNotEnd(t *testing.T) {
	w := newWorld(t)
	bad := w.addMac("a", func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set(agentapi.HeaderRetryable, "true")
		rw.WriteHeader(http.StatusServiceUnavailable)
		_ = http.NewResponseController(rw).Flush() // its end is awaited
		<-r.Context().Done()
	})
	w.addMac("b", say(`"b"`))
	for range 2 { // one of them goes to the first
		if got := read(t, w.chat()); got != `"b"` {
			t.Errorf("the client gets %s", got)
		}
	}
	if bad.requests.Load() == 0 {
		t.Error("no request went to the Mac whose refusals do not end")
	}
}
