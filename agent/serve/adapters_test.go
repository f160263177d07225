package serve_test

import (
	"net/http"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/agent/serve/servetest"
	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/dialect"
)

// TestAnAdapterOfTheGatewayOrOfTheNameAnswers: the engine gets the adapter that the gateway
// states, and without one that of the name; the response has the client's name.
func TestAnAdapterOfTheGatewayOrOfTheNameAnswers(t *testing.T) {
	p := newPort(t, servetest.Say("a"))
	p.fake.SetAdapters("m", here, "one", "two")
	gateway := []string{agentapi.HeaderReplica, here.ReplicaUID, agentapi.HeaderEpoch, "7"}
	for name, c := range map[string]struct {
		model, adapter string
		headers        []string
	}{
		"the model":                  {"m", "", nil},
		"an adapter":                 {"m:one", "one", nil},
		"another":                    {"m:two", "two", nil},
		"the gateway's":              {"alias", "two", append(gateway, agentapi.HeaderAdapter, "two")},
		"the gateway's, not another": {"m:one", "two", append(gateway, agentapi.HeaderAdapter, "two")},
		"a name of another model":    {"other:one", "", gateway},
	} {
		for path, prompt := range map[string]string{dialect.PathChat: `"messages":[{"role":"user","content":"hi"}]`, dialect.PathCompletions: `"prompt":"x"`,
			dialect.PathMessages: `"max_tokens":5,"messages":[{"role":"user","content":"hi"}]`, dialect.PathResponses: `"input":"x"`} {
			got := read(t, p.do("POST", path, `{"model":"`+c.model+`",`+prompt+`}`, c.headers...))
			if seen := <-p.seen; seen.GetAdapter() != c.adapter || !strings.Contains(got, `"model":"`+c.model+`"`) {
				t.Errorf("%s at %s: adapter %q, want %q: %s", name, path, seen.GetAdapter(), c.adapter, got)
			}
		}
	}
}

// TestAnAdapterThatTheReplicaLacksIsAnUnknownModel: its model alone would answer otherwise.
func TestAnAdapterThatTheReplicaLacksIsAnUnknownModel(t *testing.T) {
	p := newPort(t, servetest.Say("a"))
	p.fake.SetAdapters("m", here, "one")
	for path, c := range map[string][2]string{
		dialect.PathChat:        {`"messages":[{"role":"user","content":"hi"}]`, `"code":"model_not_found"`},
		dialect.PathCompletions: {`"prompt":"x"`, `"code":"model_not_found"`},
		dialect.PathMessages:    {`"max_tokens":5,"messages":[{"role":"user","content":"hi"}]`, `"type":"not_found_error"`},
		dialect.PathResponses:   {`"input":"x"`, `"code":"model_not_found"`},
	} {
		for name, headers := range map[string][]string{
			"m:two": nil,
			"m":     {agentapi.HeaderReplica, here.ReplicaUID, agentapi.HeaderEpoch, "7", agentapi.HeaderAdapter, "two"},
		} {
			resp := p.do("POST", path, `{"model":"`+name+`",`+c[0]+`}`, headers...)
			if got := read(t, resp); resp.StatusCode != http.StatusNotFound || !strings.Contains(got, c[1]) || resp.Header.Get(agentapi.HeaderRetryable) != "" {
				t.Errorf("%s at %s: %d %s", name, path, resp.StatusCode, got)
			}
		}
	}
	if len(p.seen) != 0 {
		t.Errorf("the engine received %v", <-p.seen)
	}
}
