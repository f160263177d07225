//go:build !race

package serve_test

import (
	"runtime"
	"strings"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/agent/serve"
	"metalfleet.dev/metalfleet/agent/serve/servetest"
	"metalfleet.dev/metalfleet/api/dialect"
	"metalfleet.dev/metalfleet/test/patience"
)

// heap is what the live objects of this process take.
func heap() int64 {
	runtime.GC()
	runtime.GC() // of pools, too
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// An answer may take hours, and a tenant may have many: the conversation of a response is then
// in the cache, which is bounded, or nowhere. Reasoning is in the input and in few prompts.
func TestARunningResponseKeepsNoConversation(t *testing.T) {
	const n, each, cache = 8, 4 << 20, 4 << 20
	long := `{"type":"reasoning","summary":[],"content":[{"type":"reasoning_text","text":"` + strings.Repeat("a", each) + `"}]},`
	for name, body := range map[string]string{
		"stored":     `{"model":"m","stream":true,"input":[` + long + `{"role":"user","content":"hi"}]}`,
		"not stored": `{"model":"m","stream":true,"store":false,"input":[` + long + `{"role":"user","content":"hi"}]}`,
		"many items": `{"model":"m","stream":true,"store":false,"input":[` + strings.Repeat(`{"type":"reasoning","summary":[]},`, 30_000) + `{"role":"user","content":"hi"}]}`,
	} {
		t.Run(name, func(t *testing.T) {
			p := newPort(t, servetest.Hang(servetest.Admit(), servetest.Text("x")), func(c *serve.Config) { c.ResponsesBytes = cache })
			before := heap()
			for range n {
				resp := p.do("POST", dialect.PathResponses, body)
				if _, err := resp.Body.Read(make([]byte, 16)); err != nil || resp.StatusCode != 200 {
					t.Fatal(resp.StatusCode, err)
				}
				<-p.seen
			}
			grown := heap() - before
			for end := time.Now().Add(patience.Of(t)); grown > 2*cache && time.Now().Before(end); grown = heap() - before {
				runtime.Gosched() // the last request may not have let go of its body yet
			}
			if grown > 2*cache {
				t.Errorf("%d running answers keep %d bytes, want at most %d", n, grown, 2*cache)
			}
		})
	}
}
