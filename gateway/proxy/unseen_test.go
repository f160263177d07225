package proxy_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/dialect"
	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/api/responses"
	"metalfleet.dev/metalfleet/gateway/keys"
	"metalfleet.dev/metalfleet/gateway/route"
)

// tokens is a Mac's answer with a count of tokens.
func tokens(prompt, generated int) http.HandlerFunc {
	return func(rw http.ResponseWriter, r *http.Request) {
		agentapi.SetTokens(rw.Header(), agentapi.HeaderTokens, prompt, generated)
		say("{}")(rw, r)
	}
}

// serving makes a Mac serve another model as well.
func (w *world) serving(mac, model string) {
	w.deployment(model, model)
	w.table.SetReplica(route.Replica{UID: "replica-" + mac + "-" + model, Epoch: 3, Deployment: route.Key{Namespace: "ns", Name: model}, DeploymentUID: model, Mac: mac, Ready: true})
}

// TestAMacThatCountsTokensLocksNoKeyOut: a stolen Mac invents tokens at one of two models. The key uses
// 9 % of its limit at the other Mac, which serves both.
func TestAMacThatCountsTokensLocksNoKeyOut(t *testing.T) {
	const limit, each = 100_000, 150
	for name, stolen := range map[string]http.HandlerFunc{
		"in a header": tokens(1<<31, 1<<31),
		"in the header of a long answer": func(rw http.ResponseWriter, r *http.Request) {
			agentapi.SetTokens(rw.Header(), agentapi.HeaderTokens, 1<<31, 1<<31)
			say(`{"text":"`+strings.Repeat("x", 200_000)+`"}`)(rw, r)
		},
		"in a trailer": func(rw http.ResponseWriter, r *http.Request) {
			events(nil, "a", "[DONE]")(rw, r)
			agentapi.SetTokens(rw.Header(), http.TrailerPrefix+agentapi.HeaderTokens, 1<<31, 1<<31)
		},
		"as events": func(rw http.ResponseWriter, r *http.Request) {
			events(nil, append(strings.Split(strings.Repeat("x", 5000), ""), "[DONE]")...)(rw, r)
		},
		"before an error": func(rw http.ResponseWriter, _ *http.Request) {
			agentapi.SetTokens(rw.Header(), agentapi.HeaderTokens, 1<<31, 1<<31)
			rw.WriteHeader(http.StatusProcessing)
			rw.Header().Del(agentapi.HeaderTokens)
			_ = openai.WriteError(rw, openai.Invalid("x", "no"))
		},
		"in a refusal": func(rw http.ResponseWriter, _ *http.Request) {
			agentapi.SetTokens(rw.Header(), agentapi.HeaderTokens, 1<<31, 1<<31)
			rw.Header().Set(agentapi.HeaderRetryable, "true")
			_ = openai.WriteError(rw, openai.Overloaded(time.Second))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLocked(t)
			l.addMac("stolen", stolen)
			l.addMac("honest", tokens(each/3, each-each/3))
			l.serving("honest", "other")
			token := l.key("k", keys.Grant{Models: []string{"m", "other"}, TokensPerMinute: limit})
			const requests = 300
			served := map[string]int{}
			for n := range requests {
				model := []string{"m", "other"}[n%2]
				resp := l.with(token, "POST", chatPath, `{"model":"`+model+`"}`)
				read(t, resp)
				if resp.StatusCode != http.StatusTooManyRequests {
					served[model]++
				}
				l.pass(time.Second)
			}
			for _, model := range []string{"m", "other"} {
				if served[model] < requests/2*9/10 {
					t.Errorf("%d of %d requests for %s were served", served[model], requests/2, model)
				}
			}
		})
	}
}

// TestTokensThatOnlyAMacNamesHaveTheLimitThere: those of a stored conversation are in no request. The Mac
// that stores it is not used for the key until they are below its limit, and others are.
func TestTokensThatOnlyAMacNamesHaveTheLimitThere(t *testing.T) {
	l := newLocked(t)
	l.addMac("a", tokens(6000, 10))
	b := l.addMac("b", tokens(20, 10))
	token := l.key("k", keys.Grant{Models: []string{"m"}, TokensPerMinute: 10_000})
	stored := func() *http.Response {
		l.idle()
		return l.with(token, "POST", dialect.PathResponses, `{"model":"m","input":"x","previous_response_id":"`+responses.NewID("a")+`"}`)
	}
	for range 2 {
		if resp := stored(); resp.StatusCode != http.StatusOK {
			t.Fatalf("within the limit: %d %s", resp.StatusCode, read(t, resp))
		}
	}
	resp := stored()
	if after := resp.Header.Get("Retry-After"); resp.StatusCode != http.StatusTooManyRequests || after == "" || len(after) > 2 {
		t.Errorf("over the limit: %d, again in %s s: %s", resp.StatusCode, after, read(t, resp))
	}
	for range 5 {
		if resp := l.ask(token); resp.StatusCode != http.StatusOK {
			t.Errorf("a request for the other Mac: %d %s", resp.StatusCode, read(t, resp))
		}
	}
	if n := b.requests.Load(); n != 5 {
		t.Errorf("the other Mac has %d requests, want 5", n)
	}
	l.pass(time.Minute)
	if resp := stored(); resp.StatusCode != http.StatusOK {
		t.Errorf("a minute later: %d %s", resp.StatusCode, read(t, resp))
	}
}
