package proxy_test

import (
	"bufio"
	"context"
	"net/http"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/gateway/keys"
)

// The body says little of a prompt with stored items or images at URLs. A client that leaves a
// stream before its end has used what its Mac reported when it began, and what it received.
func TestThePromptOfAStreamIsCountedIfItsClientLeaves(t *testing.T) {
	l := newLocked(t)
	l.addMac("a", func(rw http.ResponseWriter, r *http.Request) {
		agentapi.SetTokens(rw.Header(), agentapi.HeaderTokens, 400, 0)
		rw.WriteHeader(http.StatusProcessing)
		rw.Header().Del(agentapi.HeaderTokens)
		events(untilGone, "a", "b")(rw, r)
	})
	token := l.key("k", keys.Grant{Models: []string{"m"}, TokensPerMinute: 1000})
	ctx, leave := context.WithCancel(t.Context())
	resp, err := l.try(ctx, "POST", chatPath, `{"model":"m","stream":true}`, "Authorization", "Bearer "+token)
	if err != nil {
		t.Fatal(err)
	}
	for lines := bufio.NewScanner(resp.Body); lines.Scan() && !strings.Contains(lines.Text(), `"b"`); {
	}
	leave()
	l.idle()
	if got := l.counter("api_key_tokens_total"); got != 402 {
		t.Errorf("%v tokens were counted, want 402", got)
	}
}
