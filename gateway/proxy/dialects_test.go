package proxy_test

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/anthropic"
	"metalfleet.dev/metalfleet/api/dialect"
	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/gateway/keys"
)

// On every route, the other Mac serves the request if the first one refused it without side
// effects.
func TestEveryRouteIsForwardedAndRetried(t *testing.T) {
	for path, body := range map[string]string{
		dialect.PathChat:        `{"model":"m","messages":[]}`,
		dialect.PathCompletions: `{"model":"m","prompt":"a"}`,
		dialect.PathEmbeddings:  `{"model":"m","input":["a",[1]]}`,
		dialect.PathRerank:      `{"model":"m","query":"q","documents":["a"]}`,
		dialect.PathRerankV2:    `{"model":"m","query":"q","documents":["a"]}`,
		dialect.PathMessages:    `{"model":"m","messages":[{"role":"user","content":"a"}],"max_tokens":1}`,
		dialect.PathCountTokens: `{"model":"m","messages":[{"role":"user","content":"a"}]}`,
	} {
		t.Run(path, func(t *testing.T) {
			w := newWorld(t)
			busy := func(rw http.ResponseWriter, r *http.Request) {
				rw.Header().Set(agentapi.HeaderRetryable, "true")
				_ = dialect.Of(path).WriteError(rw, openai.Overloaded(time.Second), "")
			}
			a, b := w.addMac("mac-a", busy), w.addMac("mac-b", busy)
			resp := w.do("POST", path, body)
			got := read(t, resp)
			e := dialect.ParseError(resp.StatusCode, resp.Header, []byte(got))
			if a.requests.Load() != 1 || b.requests.Load() != 1 || e.Status != 503 || e.Code != openai.CodeOverloaded {
				t.Errorf("%d and %d tries; %v", a.requests.Load(), b.requests.Load(), e)
			}
			w.setReady("mac-a", false)
			w.setReady("mac-b", false)
			w.addMac("mac-c", say(`{"answer":true}`))
			resp = w.do("POST", path, body, anthropic.HeaderVersion, anthropic.Version)
			if got := read(t, resp); resp.StatusCode != 200 || got != `{"answer":true}` || resp.Header.Get(agentapi.HeaderMac) != "mac-c" {
				t.Errorf("%d %s", resp.StatusCode, got)
			}
		})
	}
}

func TestAnAgentSeesTheBodyAndTheVersionAsTheClientSentThem(t *testing.T) {
	w := newWorld(t)
	m := w.addMac("mac-a", say("{}"))
	const body = `{"model":"m", "messages":[], "max_tokens":1}`
	w.do("POST", dialect.PathMessages+"?beta=true", body, anthropic.HeaderVersion, "2023-01-01", "X-Api-Key", "secret")
	seen := <-m.seen
	got, _ := io.ReadAll(seen.Body)
	if string(got) != body || seen.Header.Get(anthropic.HeaderVersion) != "2023-01-01" || seen.Header.Get(anthropic.HeaderKey) != "" {
		t.Errorf("%s %v", got, seen.Header)
	}
}

// Clients see one API, regardless of whether the gateway or an agent refuses.
func TestRefusalsOfTheGatewayHaveTheRoutesOwnShape(t *testing.T) {
	w := newWorld(t)
	for path, want := range map[string]string{
		dialect.PathChat:        `{"error":{"message":"`,
		dialect.PathEmbeddings:  `{"error":{"message":"`,
		dialect.PathRerank:      `"detail":"`,
		dialect.PathMessages:    `{"type":"error","error":{"type":"not_found_error","message":"`,
		dialect.PathCountTokens: `"request_id":"id-1"}`,
	} {
		resp := w.do("POST", path, `{"model":"unknown"}`, agentapi.HeaderRequestID, "id-1")
		if got := read(t, resp); resp.StatusCode != 404 || !strings.Contains(got, want) {
			t.Errorf("%s: %d %s", path, resp.StatusCode, got)
		}
	}
}

// A complete stream passes unchanged; a truncated one gets an error event of its API.
func TestStreamsEndAndBreakOffInTheirOwnFormat(t *testing.T) {
	raw := func(text string) http.HandlerFunc {
		return func(rw http.ResponseWriter, _ *http.Request) {
			rw.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(rw, text)
		}
	}
	for path, tc := range map[string]struct{ begin, end, broken string }{
		dialect.PathChat:     {begin: "data: {}\n\n", end: "data: [DONE]\n\n", broken: "data: {\"error\":"},
		dialect.PathMessages: {begin: "event: message_start\ndata: {}\n\n", end: "event: message_stop\ndata: {}\n\n", broken: "event: error\ndata: {\"type\":\"error\""},
	} {
		t.Run(path, func(t *testing.T) {
			w := newWorld(t)
			w.addMac("mac-a", raw(tc.begin+tc.end))
			if got := read(t, w.do("POST", path, `{"model":"m","stream":true}`)); got != tc.begin+tc.end {
				t.Errorf("a whole stream became %q", got)
			}
			w.setReady("mac-a", false)
			w.addMac("mac-b", raw(tc.begin))
			got := read(t, w.do("POST", path, `{"model":"m","stream":true}`))
			if !strings.HasPrefix(got, tc.begin+tc.broken) || !strings.HasSuffix(got, "}\n\n") || strings.Contains(got, tc.end) {
				t.Errorf("a cut stream became %q", got)
			}
		})
	}
}

// The agent sends the names in a header, or in a trailer after a stream.
func TestTextCallsAreNamedToTheClient(t *testing.T) {
	w := newWorld(t)
	w.addMac("mac-a", func(rw http.ResponseWriter, r *http.Request) {
		name := http.TrailerPrefix + agentapi.HeaderCalls
		answer := events(nil, "a", "[DONE]")
		if r.URL.Path == dialect.PathMessages {
			name, answer = agentapi.HeaderCalls, say("{}")
			rw.Header().Set(name, agentapi.CallsText)
		}
		answer(rw, r)
		rw.Header().Set(name, agentapi.CallsText)
	})
	whole, stream := w.do("POST", dialect.PathMessages, `{"model":"m"}`), w.do("POST", dialect.PathChat, `{"model":"m","stream":true}`)
	read(t, whole)
	read(t, stream)
	if whole.Header.Get(agentapi.HeaderCalls) != agentapi.CallsText || stream.Trailer.Get(agentapi.HeaderCalls) != agentapi.CallsText {
		t.Errorf("headers %v, trailer %v", whole.Header, stream.Trailer)
	}
}

// TestEmbeddingsCountAgainstTheirKey, like chats, with the agent's own count.
func TestEmbeddingsCountAgainstTheirKey(t *testing.T) {
	l := newLocked(t)
	token := l.key("team", keys.Grant{Models: []string{"*"}, TokensPerMinute: 1000})
	l.addMac("mac-a", func(rw http.ResponseWriter, _ *http.Request) {
		agentapi.SetTokens(rw.Header(), agentapi.HeaderTokens, 250, 0)
		rw.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(rw, "{}")
	})
	resp := l.with(token, "POST", dialect.PathEmbeddings, `{"model":"m","input":"a"}`)
	if resp.StatusCode != 200 {
		t.Fatal(read(t, resp))
	}
	if left := l.tokensLeft(token); left > 750 || left < 700 {
		t.Errorf("%d tokens are left", left)
	}
}
