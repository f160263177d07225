package proxy_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/api/dialect"
	"metalfleet.dev/metalfleet/api/responses"
	"metalfleet.dev/metalfleet/gateway/keys"
)

// A client without a key sends as many requests as it can. It displaces no earlier line of the
// audit log and hides no refusal of another client; the metric counts them all.
func TestAttackAFloodOfRefusedRequests(t *testing.T) {
	l := newLocked(t)
	l.addMac("a", say("{}"))
	token := l.key("narrow", keys.Grant{Models: []string{"other"}})
	const flood = 1000
	for range flood {
		if resp := l.do("GET", "/v1/models", ""); resp.StatusCode != http.StatusUnauthorized {
			t.Fatal(resp.Status)
		}
	}
	lines := func(part string) int { return strings.Count(l.log.String(), part) }
	refused := lines("reason=key_missing")
	if refused < 10 || refused > 100 {
		t.Errorf("%d lines about %d requests", refused, flood)
	}
	l.ask(token)
	l.wantAudit("key=narrow", "reason=model_outside_key", fmt.Sprintf("dropped=%d", flood-refused))
	if n := l.values("api_key_refusals_total", "reason")["key_missing"]; n != flood {
		t.Errorf("%v refusals are counted, want %d", n, flood)
	}
	l.pass(time.Minute)
	l.do("GET", "/v1/models", "")
	l.wantAudit("reason=key_missing", "dropped=0")
}

// TestLinesAboutFailedRequestsAreBounded: one client causes any number of failures that have a reason for the log.
func TestLinesAboutFailedRequestsAreBounded(t *testing.T) {
	l := newLocked(t)
	token := l.key("team", keys.Grant{Models: []string{"*"}})
	l.addMac("a", say("{}")).kill()
	const flood = 300
	for range flood {
		if resp := l.with(token, "DELETE", dialect.PathResponses+"/"+responses.NewID("a"), ""); resp.StatusCode != http.StatusServiceUnavailable {
			t.Fatal(resp.Status)
		}
	}
	if n := strings.Count(l.log.String(), "msg=\"Request failed\""); n < 10 || n > 100 {
		t.Errorf("%d lines about %d failed requests", n, flood)
	}
}
