package proxy_test

import (
	"net/http"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/gateway/keys"
	"metalfleet.dev/metalfleet/gateway/route"
)

// Claude Code fills its menu from this list. Anthropic's clients identify themselves by
// their API version.
func TestModelsAreListedInAnthropicsFormForItsClients(t *testing.T) {
	l := newLocked(t)
	for _, name := range []string{"claude-coder", "claude-writer", "secret"} {
		l.table.SetDeployment(route.Deployment{Key: route.Key{Namespace: "ns", Name: name}, UID: name, Created: 86400, Names: name})
	}
	l.table.SetReplica(route.Replica{UID: "r", Deployment: route.Key{Namespace: "ns", Name: "claude-coder"}, DeploymentUID: "claude-coder", Mac: "a", Ready: true,
		Facts: route.Facts{Context: 32768, Architecture: "qwen3", Quantization: "Q4_K_M"}})
	token := l.key("k", keys.Grant{Models: []string{"claude-coder", "claude-writer"}})
	get := func(path string) (int, string) {
		resp := l.with(token, "GET", path, "", "Anthropic-Version", "2023-06-01")
		return resp.StatusCode, read(t, resp)
	}
	const coder = `{"type":"model","id":"claude-coder","display_name":"claude-coder","description":"qwen3, Q4_K_M, 32768 tokens of context","created_at":"1970-01-02T00:00:00Z","max_input_tokens":32768,"max_tokens":32768,"lifecycle":"active","capabilities":null,"line":null,"deprecated_at":null,"retires_at":null}`
	const writer = `{"type":"model","id":"claude-writer","display_name":"claude-writer","created_at":"1970-01-02T00:00:00Z","max_input_tokens":null,"max_tokens":null,"lifecycle":"active","capabilities":null,"line":null,"deprecated_at":null,"retires_at":null}`
	for path, want := range map[string]string{
		"/v1/models?limit=1000":                        `{"data":[` + coder + `,` + writer + `],"first_id":"claude-coder","last_id":"claude-writer","has_more":false}`,
		"/v1/models?limit=1":                           `{"data":[` + coder + `],"first_id":"claude-coder","last_id":"claude-coder","has_more":true}`,
		"/v1/models?limit=1&after_id=claude-coder":     `{"data":[` + writer + `],"first_id":"claude-writer","last_id":"claude-writer","has_more":false}`,
		"/v1/models/claude-coder":                      coder,
		"/v1/models?before_id=claude-coder&limit=1000": `{"data":[],"first_id":null,"last_id":null,"has_more":false}`,
	} {
		if status, got := get(path); status != http.StatusOK || got != want {
			t.Errorf("%s: %d\n%s, want\n%s", path, status, got, want)
		}
	}
	for path, want := range map[string]int{"/v1/models?limit=none": http.StatusBadRequest, "/v1/models/secret": http.StatusNotFound} {
		if status, got := get(path); status != want || !strings.HasPrefix(got, `{"type":"error","error":{"type":"`) {
			t.Errorf("%s: %d %s", path, status, got)
		}
	}
	if got := read(t, l.with(token, "GET", "/v1/models", "")); !strings.HasPrefix(got, `{"object":"list"`) {
		t.Errorf("other clients get %s", got)
	}
}
