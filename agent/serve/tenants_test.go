package serve_test

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/agent/serve/servetest"
	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/dialect"
	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/metal/wire"
	"metalfleet.dev/metalfleet/test/patience"
)

// Every text route names to the engine whose cache the prompt may use: the tenant by the
// gateway's header, the salt by the client's field.
func TestTheEngineLearnsTenantAndSalt(t *testing.T) {
	p := newPort(t, servetest.Say("hi"))
	for name, tc := range map[string]struct{ path, body, salt string }{
		"chat":                {path: dialect.PathChat, body: `{"model":"m","messages":[{"role":"user","content":"x"}]`, salt: "s"},
		"completion":          {path: dialect.PathCompletions, body: `{"model":"m","prompt":"x"`, salt: "s"},
		"several completions": {path: dialect.PathCompletions, body: `{"model":"m","n":2,"prompt":["x","y"]`, salt: "s"},
		"response":            {path: dialect.PathResponses, body: `{"model":"m","input":"x"`, salt: "s"},
		"message":             {path: dialect.PathMessages, body: `{"model":"m","max_tokens":5,"messages":[{"role":"user","content":"x"}]`, salt: ""},
	} {
		t.Run(name, func(t *testing.T) {
			body := tc.body + `}`
			if tc.salt != "" {
				body = tc.body + `,"cache_salt":"` + tc.salt + `"}`
			}
			for _, want := range []struct{ tenant, client string }{{tenant: "tenant/a"}, {client: "c"}} {
				if resp := p.do("POST", tc.path, body, agentapi.HeaderTenant, want.tenant, agentapi.HeaderClient, want.client); resp.StatusCode != 200 {
					t.Fatal(resp.Status)
				}
				for n := len(p.seen); n > 0; n-- {
					r := <-p.seen
					if r.GetTenant() != want.tenant || r.GetClient() != want.client || r.GetCacheSalt() != tc.salt {
						t.Errorf("the engine is given the tenant %q, the client %q and the salt %q", r.GetTenant(), r.GetClient(), r.GetCacheSalt())
					}
				}
			}
		})
	}
	for _, bad := range []string{`""`, `5`} {
		resp := p.do("POST", dialect.PathChat, `{"model":"m","messages":[{"role":"user","content":"x"}],"cache_salt":`+bad+`}`)
		if resp.StatusCode != 400 {
			t.Errorf("cache_salt %s: %s, want an error (%s)", bad, resp.Status, openai.CodeInvalidValue)
		}
	}
}

// TestSlowReadersWithoutKeysShareTheMemory: the answer of one client waits for none of another's.
func TestSlowReadersWithoutKeysShareTheMemory(t *testing.T) {
	a := unhurried(t, 12<<20)
	a.fake.AddReader("e", here, servetest.Reader{Embed: func(context.Context, *wire.EmbedRequest) (*wire.EmbedResponse, error) {
		vector := &wire.Vector{Values: slices.Repeat([]float32{0.01}, 4096)}
		return &wire.EmbedResponse{Usage: &wire.Usage{PromptTokens: 1}, Vectors: slices.Repeat([]*wire.Vector{vector}, 256)}, nil
	}})
	body := `{"model":"e","input":["a"` + strings.Repeat(`,"a"`, 255) + `]}`
	ctx, cancel := context.WithTimeout(t.Context(), patience.Of(t))
	defer cancel()
	for _, client := range []string{"a", "b"} { // of which each leaves no room for another one of its own
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, a.url+dialect.PathEmbeddings, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set(agentapi.HeaderClient, client)
		resp, err := a.client.Do(r)
		if err != nil {
			t.Fatalf("the answer to %s: %v", client, err)
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			t.Errorf("the answer to %s: %s", client, resp.Status)
		}
	}
}
