package serve_test

import (
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/agent/serve"
	"metalfleet.dev/metalfleet/agent/serve/servetest"
	"metalfleet.dev/metalfleet/api/agentapi"
)

// TestMemoryThatNothingCounts: requests are refused, and other Macs may serve them, while the process
// has more memory than all that counts theirs allow, for any reason.
func TestMemoryThatNothingCounts(t *testing.T) {
	const size = 256 << 20
	p := newPort(t, servetest.Say("x"), func(c *serve.Config) { c.HeapBytes = size })
	go func() {
		for range p.seen {
		}
	}()
	var ids []string
	for range 4 {
		_, after, _ := strings.Cut(read(t, p.do("POST", "/v1/responses", `{"model":"m","input":"hi"}`)), `"id":"`)
		id, _, _ := strings.Cut(after, `"`)
		ids = append(ids, id)
	}
	memory := make([]byte, size)
	runtime.GC()
	refusesRequests(t, p, ids[3])
	gone := func() (all string) {
		for _, id := range ids {
			resp := p.do("HEAD", "/v1/responses/"+id, "")
			all += fmt.Sprint(resp.StatusCode, " ")
		}
		return all
	}
	for until := time.Now().Add(30 * time.Second); gone() != "404 404 200 200 "; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(until) {
			t.Fatalf("stored responses: %s, want the older half of them to give way", gone())
		}
	}
	runtime.KeepAlive(memory)
	for until := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		resp := p.chat("")
		if resp.StatusCode == http.StatusOK {
			break
		}
		if time.Now().After(until) {
			t.Fatalf("long after the memory was left: %d %s", resp.StatusCode, read(t, resp))
		}
	}
	if resp := p.do("DELETE", "/v1/responses/"+ids[3], ""); resp.StatusCode != http.StatusOK {
		t.Errorf("a deletion gets %d", resp.StatusCode)
	}
}

// refusesRequests: requests that take memory, also one that reads a stored response.
func refusesRequests(t *testing.T, p *port, stored string) {
	t.Helper()
	for _, path := range []string{"/v1/chat/completions", "/v1/responses", "/v1/embeddings"} {
		resp := p.do("POST", path, `{"model":"m","input":"hi","messages":[{"role":"user","content":"hi"}]}`)
		if text := read(t, resp); resp.StatusCode != http.StatusServiceUnavailable ||
			resp.Header.Get(agentapi.HeaderRetryable) != "true" || !strings.Contains(text, "no memory for more requests") {
			t.Errorf("%s: %d %s", path, resp.StatusCode, text)
		}
	}
	if resp := p.do("GET", "/v1/responses/"+stored, ""); resp.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("a read gets %d", resp.StatusCode)
	}
}
