package proxy_test

import (
	"net/http"
	"testing"

	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/openai"
)

// TestAttackAMacThatRejectsRequests: it gets few more of a client whose requests other Macs
// answer, whether it rejects them or passes them on.
func TestAttackAMacThatRejectsRequests(t *testing.T) {
	for name, retryable := range map[string]string{"rejects": "", "refuses": "true"} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			bad := w.addMac("bad", func(rw http.ResponseWriter, _ *http.Request) {
				rw.Header().Set(agentapi.HeaderRetryable, retryable)
				_ = openai.WriteError(rw, &openai.Error{Status: http.StatusBadRequest, Type: openai.TypeInvalidRequest, Message: "no"})
			})
			for _, mac := range []string{"a", "b"} {
				w.addMac(mac, say(`"good"`))
			}
			for range 300 {
				read(t, w.chat())
			}
			if n := bad.requests.Load(); n > 20 {
				t.Errorf("it got %d of 300 requests", n)
			}
		})
	}
}
