package proxy_test

import (
	"net/http"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/gateway/keys"
)

// Requests may wait for minutes: one whose key lost its rights meanwhile is not served.
func TestAKeyThatIsRevokedEndsTheRequestsThatWait(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*locked)
		want   refusal
	}{
		"deleted":   {change: func(l *locked) { l.store.Delete("k") }, want: refusal{status: 401, code: openai.CodeInvalidAPIKey}},
		"replaced":  {change: func(l *locked) { l.key("k", keys.Grant{Models: []string{"m"}}) }, want: refusal{status: 401, code: openai.CodeInvalidAPIKey}},
		"expired":   {change: func(l *locked) { l.pass(2 * time.Hour) }, want: refusal{status: 401, code: openai.CodeInvalidAPIKey}},
		"unchanged": {change: func(*locked) {}, want: refusal{status: 200}},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLocked(t, queueOf(2))
			m := l.addMac("a", say("{}"))
			l.setReady("a", false)
			token := l.key("k", keys.Grant{Models: []string{"m"}, Expires: l.time().Add(time.Hour)})
			answered := make(chan *http.Response, 1)
			go func() {
				resp, _ := l.try(t.Context(), "POST", chatPath, chatBody, "Authorization", "Bearer "+token)
				answered <- resp
			}()
			l.waiting(1)
			tc.change(l)
			l.setReady("a", true)
			resp := <-answered
			if resp == nil || resp.StatusCode != tc.want.status || (m.requests.Load() > 0) != (tc.want.status == 200) {
				t.Fatalf("%v, %d requests reached the Mac", resp, m.requests.Load())
			}
			if tc.want.code != "" {
				l.wantRefusal(resp, tc.want)
			}
		})
	}
}
