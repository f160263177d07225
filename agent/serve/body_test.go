package serve_test

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/agent/serve"
	"metalfleet.dev/metalfleet/agent/serve/servetest"
	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/metal/wire"
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
		waiting := p.waiting(path, body)
		if taken := int64(waiting) * objects * 700; waiting == 0 || taken > 4<<20 {
			t.Errorf("%s: %d requests of one tenant wait, whose messages take about %d bytes, more than its half of 8 MiB", path, waiting, taken)
		}
	}
}

// waiting returns how many of one tenant's requests wait for the engine at the same time: at most 8.
func (p *port) waiting(path, body string) (n int) {
	ctx, cancel := context.WithCancel(p.t.Context())
	defer cancel()
	answers := make(chan int, 16)
	ask := func() (waits bool) {
		go func() {
			r, err := http.NewRequestWithContext(ctx, http.MethodPost, p.url+path, strings.NewReader(body))
			if err != nil {
				p.t.Error(err)
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
				p.t.Errorf("%s: status %d", path, status)
			}
			return false
		}
	}
	for n < 8 && ask() {
		n++
	}
	return n
}

// TestTokensCountWithWhatTheyTake: a token of one digit takes two bytes of a body, and four once it
// is decoded.
func TestTokensCountWithWhatTheyTake(t *testing.T) {
	const tokens = 512 << 10
	list := "[" + strings.TrimSuffix(strings.Repeat("1,", tokens), ",") + "]"
	for name, c := range map[string]struct{ path, body string }{
		"one prompt":      {"/v1/completions", `{"model":"m","prompt":` + list + `}`},
		"several prompts": {"/v1/completions", `{"model":"m","prompt":[[1],` + list + `]}`},
		"several choices": {"/v1/completions", `{"model":"m","n":2,"prompt":` + list + `}`},
		"embeddings":      {"/v1/embeddings", `{"model":"r","input":[` + list + `]}`},
		"one embedding":   {"/v1/embeddings", `{"model":"r","input":` + list + `}`},
	} {
		p := newPort(t, servetest.Hang(), func(c *serve.Config) { c.BodiesBytes = 16 << 20 })
		p.fake.AddReader("r", reading, servetest.Reader{Embed: func(ctx context.Context, _ *wire.EmbedRequest) (*wire.EmbedResponse, error) {
			p.seen <- nil
			<-ctx.Done()
			return nil, ctx.Err()
		}})
		n := p.waiting(c.path, c.body)
		if taken := int64(n) * tokens * 4; n == 0 || taken > 8<<20 {
			t.Errorf("%s: %d requests of one tenant wait, whose tokens take %d bytes, more than its half of 16 MiB", name, n, taken)
		}
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
