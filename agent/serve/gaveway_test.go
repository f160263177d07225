package serve_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/agent/serve"
	"metalfleet.dev/metalfleet/agent/serve/servetest"
	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/metal/wire"
)

// TestAStreamThatGaveWayEndsItsWrite: its memory does not count any more, and is not kept until its
// client has had the time for what it does not read.
func TestAStreamThatGaveWayEndsItsWrite(t *testing.T) {
	a := startAgent(t, servetest.Hang(servetest.Admit(), servetest.Text("x")), time.Second, func(c *serve.Config) { c.AnswersBytes = 16 << 20 })
	a.client.Transport.(*http.Transport).HTTP2 = &http.HTTP2Config{MaxReceiveBufferPerStream: 128 << 10} // as of a gateway
	for _, c := range []struct {
		tenant string
		bytes  int // of the answer, which is in memory twice
	}{{"a", 7600 << 10}, {"b", 3600 << 10}, {"c", 2800 << 10}} {
		body := `{"model":"m","input":"hi","stream":true,"store":false,"instructions":"` + strings.Repeat("x", c.bytes/2) + `"}`
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, a.url+"/v1/responses", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set(agentapi.HeaderTenant, c.tenant)
		resp, err := a.client.Do(r)
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Fatal(c.tenant, resp, err)
		}
		defer resp.Body.Close()
	}
	gone := func() bool { holds, _ := a.fake.Holds(here); return holds == 2 }
	for end := time.Now().Add(10 * time.Second); !gone() && time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
	}
	if !gone() {
		t.Error("the stream that gave way still writes what its client does not read")
	}
}

// TestAnAnswerThatIsRefusedInTheMiddleIsCharged: there is no memory for what the engine computed, as other answers of
// the tenant take it. Its tokens are reported, and no other Mac computes as many again.
func TestAnAnswerThatIsRefusedInTheMiddleIsCharged(t *testing.T) {
	some := servetest.Text("abcd")
	some.GetDelta().Tokens = make([]int32, 100)
	some.GetDelta().Logprobs = slices.Repeat([]*wire.TokenLogprobs{scored("abcd", -1, slices.Repeat([]string{"abcd"}, 20)...)}, 100)
	p := newPort(t, servetest.Hang(append([]*wire.GenerateEvent{servetest.Admit()}, slices.Repeat([]*wire.GenerateEvent{some}, 3)...)...),
		func(c *serve.Config) { c.AnswersBytes = 4 << 20 })
	const asks = 4
	refused := make(chan *http.Response, asks)
	for range asks {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, p.url+"/v1/chat/completions",
			strings.NewReader(`{"model":"m","messages":[{"role":"user","content":"hi"}],"logprobs":true,"top_logprobs":20}`))
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			if resp, err := http.DefaultClient.Do(r); err == nil { // else the test has ended
				_ = resp.Body.Close()
				refused <- resp
			}
		}()
	}
	resp := <-refused
	if n, ok := agentapi.Tokens(resp.Header); resp.StatusCode != http.StatusServiceUnavailable || !ok || n.Generated < 100 || resp.Header.Get(agentapi.HeaderRetryable) != "" {
		t.Errorf("status %d, tokens %v, retryable %q", resp.StatusCode, n, resp.Header.Get(agentapi.HeaderRetryable))
	}
}
