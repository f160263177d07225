package serve_test

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/agent/serve"
	"metalfleet.dev/metalfleet/agent/serve/servetest"
	"metalfleet.dev/metalfleet/api/agentapi"
)

// TestABodyCountsWithWhatItsObjectsTake: the messages of a body take many times its bytes once
// they are decoded, and count until an engine admits the request.
func TestABodyCountsWithWhatItsObjectsTake(t *testing.T) {
	const objects = 2000
	list := strings.TrimSuffix(strings.Repeat(`{"role":"user","content":"x"},`, objects), ",")
	for path, body := range map[string]string{
		"/v1/chat/completions": `{"model":"m","messages":[` + list + `]}`,
		"/v1/messages":         `{"model":"m","max_tokens":1,"messages":[` + list + `]}`,
		"/v1/responses":        `{"model":"m","store":false,"input":[` + list + `]}`,
	} {
		p := newPort(t, servetest.Hang(), func(c *serve.Config) { c.BodiesBytes = 8 << 20 })
		ctx, cancel := context.WithCancel(t.Context())
		answers := make(chan int, 16)
		ask := func() (waits bool) {
			go func() {
				r, err := http.NewRequestWithContext(ctx, http.MethodPost, p.url+path, strings.NewReader(body))
				if err != nil {
					t.Error(err)
					return
				}
				r.Header.Set(agentapi.HeaderTenant, "a")
				if got, err := http.DefaultClient.Do(r); err == nil {
					answers <- got.StatusCode
					got.Body.Close()
				}
			}()
			select {
			case <-p.seen:
				return true
			case status := <-answers:
				if status != http.StatusServiceUnavailable {
					t.Errorf("%s: status %d", path, status)
				}
				return false
			}
		}
		waiting := 0
		for waiting < 8 && ask() {
			waiting++
		}
		if taken := int64(waiting) * objects * 700; waiting == 0 || taken > 4<<20 {
			t.Errorf("%s: %d requests of one tenant wait, whose messages take about %d bytes, more than its half of 8 MiB", path, waiting, taken)
		}
		cancel()
	}
}

// TestSchemasOfToolsAreNotDecoded: they stay JSON, and so tools of thousands of properties count
// as little more than their bytes.
func TestSchemasOfToolsAreNotDecoded(t *testing.T) {
	p := newPort(t, servetest.Say("Hi"), func(c *serve.Config) { c.BodiesBytes = 1 << 20 })
	schema := `{"type":"object","properties":{"\"{":{"type":"string"},"b":{"anyOf":[` + strings.TrimSuffix(strings.Repeat(`{},`, 5000), ",") + `]}}}`
	r := p.chat(`,"tools":[{"type":"function","function":{"name":"f","parameters":` + schema + `}}]`)
	if body := read(t, r); r.StatusCode != http.StatusOK {
		t.Errorf("status %d: %s", r.StatusCode, body)
	}
}
