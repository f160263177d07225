package proxy_test

import (
	"fmt"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/gateway/keys"
	"metalfleet.dev/metalfleet/gateway/proxy"
)

// ignoredFields returns the counts of ignored fields by label.
func (w *world) ignoredFields() map[string]float64 {
	w.t.Helper()
	families, err := w.metrics.Gather()
	if err != nil {
		w.t.Fatal(err)
	}
	out := map[string]float64{}
	for _, f := range families {
		if f.GetName() == "metalfleet_gateway_ignored_fields_total" {
			for _, m := range f.GetMetric() {
				out[m.GetLabel()[0].GetValue()] += m.GetCounter().GetValue()
			}
		}
	}
	return out
}

func ignoring(names string, answer http.HandlerFunc) http.HandlerFunc {
	return func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set(agentapi.HeaderIgnored, names)
		answer(rw, r)
	}
}

func TestIgnoredFieldsReachTheClientAndAreCounted(t *testing.T) {
	const names = "metadata, messages[].content[].cache_control, tools[].cache_control, tools[web_search], surprise, other_surprise"
	for kind, answer := range map[string]http.HandlerFunc{"whole": say("{}"), "stream": events(nil, "a", "b", "[DONE]")} {
		w := newWorld(t)
		w.addMac("a", ignoring(names, answer))
		resp := w.chat()
		if read(t, resp); resp.Header.Get(agentapi.HeaderIgnored) != names {
			t.Errorf("%s: the client got %q", kind, resp.Header.Get(agentapi.HeaderIgnored))
		}
		want := map[string]float64{"metadata": 1, "cache_control": 1, "tools": 1, "other": 1}
		if d := cmp.Diff(want, w.ignoredFields()); d != "" {
			t.Errorf("%s: %s", kind, d)
		}
	}
}

func TestLabelsOfIgnoredFieldsDoNotGrowWithTheNamesThatClientsChoose(t *testing.T) {
	w := newWorld(t)
	n := 0
	w.addMac("a", func(rw http.ResponseWriter, r *http.Request) {
		n++
		ignoring(fmt.Sprintf("field_%d, tools[kind_%d]", n, n), say("{}"))(rw, r)
	})
	for range 50 {
		read(t, w.chat())
	}
	if d := cmp.Diff(map[string]float64{"tools": 50, "other": 50}, w.ignoredFields()); d != "" {
		t.Error(d)
	}
}

// Keep-alive events have already sent the headers.
func TestIgnoredFieldsOfAStreamThatWasKeptOpenComeInItsTrailer(t *testing.T) {
	w := newWorld(t, func(c *proxy.Config) { c.KeepAlive = time.Millisecond })
	begun := make(chan bool)
	w.addMac("a", func(rw http.ResponseWriter, r *http.Request) {
		<-begun
		ignoring("metadata", events(nil, "a", "[DONE]"))(rw, r)
	})
	resp := w.do("POST", chatPath, `{"model":"m","messages":[],"stream":true}`)
	first := make([]byte, 1)
	if _, err := io.ReadFull(resp.Body, first); err != nil || first[0] != ':' {
		t.Fatalf("%q, %v", first, err)
	}
	close(begun)
	read(t, resp)
	if got := resp.Trailer.Get(agentapi.HeaderIgnored); got != "metadata" || w.ignoredFields()["metadata"] != 1 {
		t.Errorf("trailer %v, counted %v", resp.Trailer, w.ignoredFields())
	}
}

func TestStrictFieldsOfTheGatewayOrOfAKeyReachTheAgent(t *testing.T) {
	for name, tc := range map[string]struct {
		gateway, key bool
		want         string
	}{"neither": {}, "gateway": {gateway: true, want: "true"}, "key": {key: true, want: "true"}} {
		t.Run(name, func(t *testing.T) {
			l := newLocked(t, func(c *proxy.Config) { c.StrictFields = tc.gateway })
			m := l.addMac("a", say("{}"))
			token := l.key("k", keys.Grant{Models: []string{"*"}, StrictFields: tc.key})
			// A client cannot set the agent's header itself.
			read(t, l.with(token, "POST", chatPath, chatBody, agentapi.HeaderStrictFields, map[string]string{"": "true", "true": "false"}[tc.want]))
			if got := (<-m.seen).Header.Get(agentapi.HeaderStrictFields); got != tc.want {
				t.Errorf("the agent got %q, want %q", got, tc.want)
			}
		})
	}
}

func TestAgentsKeepTheAttributionBlockOnlyForAGatewayThatDoes(t *testing.T) {
	for keep, want := range map[bool]string{false: "", true: "keep"} {
		w := newWorld(t, func(c *proxy.Config) { c.KeepAttribution = keep })
		m := w.addMac("a", say("{}"))
		read(t, w.do("POST", "/v1/messages", `{"model":"m","messages":[]}`, agentapi.HeaderAttribution, "keep"))
		if got := (<-m.seen).Header.Get(agentapi.HeaderAttribution); got != want {
			t.Errorf("%t: the agent got %q", keep, got)
		}
	}
}

// Clients of Anthropic's API name betas in the query and in a header.
func TestBetasOfClientsAreAccepted(t *testing.T) {
	w := newWorld(t)
	m := w.addMac("a", say("{}"))
	resp := w.do("POST", "/v1/messages?beta=true", `{"model":"m","messages":[]}`, "Anthropic-Beta", "oauth-2025-04-20,context-management-2025-06-27", "Anthropic-Version", "2023-06-01")
	if read(t, resp); resp.StatusCode != http.StatusOK {
		t.Errorf("status %d", resp.StatusCode)
	}
	seen := <-m.seen
	if seen.URL.Path != "/v1/messages" || seen.URL.RawQuery != "" {
		t.Errorf("the agent is asked %s with %v", seen.URL, seen.Header)
	}
}
