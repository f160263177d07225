package serve_test

import (
	"testing"

	"metalfleet.dev/metalfleet/agent/serve/servetest"
	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/dialect"
	"metalfleet.dev/metalfleet/api/openai"
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
			if resp := p.do("POST", tc.path, body, agentapi.HeaderTenant, "tenant/a"); resp.StatusCode != 200 {
				t.Fatal(resp.Status)
			}
			for n := len(p.seen); n > 0; n-- {
				if r := <-p.seen; r.GetTenant() != "tenant/a" || r.GetCacheSalt() != tc.salt {
					t.Errorf("the engine is given the tenant %q and the salt %q", r.GetTenant(), r.GetCacheSalt())
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
