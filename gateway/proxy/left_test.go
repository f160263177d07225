package proxy_test

import (
	"bufio"
	"context"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/dialect"
	"metalfleet.dev/metalfleet/api/openai"
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

// A Mac reports nothing while it computes vectors. A client that limits the time of its request has
// had that time.
func TestARequestThatReachesItsTimeLimitIsCounted(t *testing.T) {
	l := newLocked(t)
	l.addMac("a", func(_ http.ResponseWriter, r *http.Request) { untilGone(r) })
	token := l.key("k", keys.Grant{Models: []string{"m"}, TokensPerMinute: 1000})
	body := `{"model":"m","input":"` + strings.Repeat("a", 400) + `"}`
	resp, err := l.try(t.Context(), "POST", dialect.PathEmbeddings, body, "Authorization", "Bearer "+token, agentapi.HeaderTimeout, "0.1")
	if err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode != http.StatusGatewayTimeout {
		t.Errorf("status %d", resp.StatusCode)
	}
	l.idle()
	if got, want := l.counter("api_key_tokens_total"), float64(1+len(body)/4); got != want {
		t.Errorf("%v tokens were counted, want %v", got, want)
	}
}

// TestTokensBeforeARefusalAreCounted: a Mac scores pair after pair, and may refuse the last one.
func TestTokensBeforeARefusalAreCounted(t *testing.T) {
	l := newLocked(t)
	used := 0
	l.addMac("a", func(rw http.ResponseWriter, _ *http.Request) {
		agentapi.SetTokens(rw.Header(), agentapi.HeaderTokens, used, 0)
		_ = openai.WriteError(rw, openai.Invalid("text_2", "too long"))
	})
	token := l.key("k", keys.Grant{Models: []string{"m"}, TokensPerMinute: 2000})
	body := `{"model":"m","text_1":["q","r"],"text_2":["` + strings.Repeat("a", 2400) + `","b"]}`
	for _, used = range []int{600, 0} {
		if resp := l.with(token, "POST", dialect.PathScore, body); resp.StatusCode != http.StatusBadRequest {
			t.Errorf("status %d", resp.StatusCode)
		}
	}
	l.idle()
	if got := l.counter("api_key_tokens_total"); got != 600 {
		t.Errorf("%v tokens were counted, want 600", got)
	}
}

// TestTokensBeforeAnotherMacTakesOverAreCounted: a Mac scores pairs, and then has no place for the last one.
func TestTokensBeforeAnotherMacTakesOverAreCounted(t *testing.T) {
	for name, last := range map[string]http.HandlerFunc{
		"another answers": func(rw http.ResponseWriter, r *http.Request) {
			agentapi.SetTokens(rw.Header(), agentapi.HeaderTokens, 700, 0)
			say("scores")(rw, r)
		},
		"another refuses": refuse(notReady),
	} {
		t.Run(name, func(t *testing.T) {
			l := newLocked(t)
			var tries atomic.Int64
			for _, mac := range []string{"a", "b"} {
				l.addMac(mac, func(rw http.ResponseWriter, r *http.Request) {
					if tries.Add(1) > 1 {
						last(rw, r)
						return
					}
					agentapi.SetTokens(rw.Header(), agentapi.HeaderTokens, 600, 0)
					refuse(notReady)(rw, r)
				})
			}
			token := l.key("k", keys.Grant{Models: []string{"m"}, TokensPerMinute: 5000})
			read(t, l.with(token, "POST", dialect.PathScore, `{"model":"m","text_1":["q","r"],"text_2":["a","b"]}`))
			l.idle()
			want := map[string]float64{"another answers": 1300, "another refuses": 600}[name]
			if got := l.counter("api_key_tokens_total"); got != want {
				t.Errorf("%v tokens were counted, want %v", got, want)
			}
		})
	}
}
