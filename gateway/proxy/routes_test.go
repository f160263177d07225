package proxy_test

import (
	"net/http"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/dialect"
	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/api/responses"
	"metalfleet.dev/metalfleet/gateway/proxy"
	"metalfleet.dev/metalfleet/gateway/route"
)

// The agent and metrics see one path for each route.
func TestEveryFormOfAPathIsForwardedAsOne(t *testing.T) {
	w := newWorld(t)
	m := w.addMac("a", say(`{"answer":true}`))
	for want, paths := range map[string][]string{
		dialect.PathChat:        {"/v1/chat/completions/", "//v1/chat/completions", "/chat/completions", "/v1/v1/chat/completions"},
		dialect.PathMessages:    {"/messages", "/v1/v1/messages?beta=true"},
		dialect.PathRerank:      {"/rerank"},
		dialect.PathRerankV2:    {"/v1/v2/rerank"},
		dialect.PathScore:       {"/score"},
		dialect.PathEmbeddings:  {"/embeddings/"},
		dialect.PathCompletions: {"/completions"},
		dialect.PathResponses:   {"/responses"},
		dialect.PathInputTokens: {"/responses/input_tokens"},
	} {
		for _, path := range paths {
			resp := w.do("POST", path, `{"model":"m"}`)
			if got := read(t, resp); resp.StatusCode != 200 || got != `{"answer":true}` || resp.Request.URL.Path != strings.Split(path, "?")[0] {
				t.Errorf("%s: %d %s", path, resp.StatusCode, got)
			}
			if seen := <-m.seen; seen.URL.Path != want {
				t.Errorf("%s is forwarded as %s, want %s", path, seen.URL.Path, want)
			}
			if !w.counts("requests_total", "route", want) {
				t.Errorf("%s is not counted as %s", path, want)
			}
		}
	}
	if n := w.labels("requests_total", "route"); n > 11 {
		t.Errorf("%d routes are counted", n)
	}
}

// labels counts the values of a label.
func (w *world) labels(metric, label string) int {
	return len(w.values(metric, label))
}

// counts reports whether the metric has a series above 0 with that label value.
func (w *world) counts(metric, label, value string) bool {
	return w.values(metric, label)[value] > 0
}

func (w *world) values(metric, label string) map[string]float64 {
	w.t.Helper()
	families, err := w.metrics.Gather()
	if err != nil {
		w.t.Fatal(err)
	}
	out := map[string]float64{}
	for _, f := range families {
		if f.GetName() != "metalfleet_gateway_"+metric {
			continue
		}
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetName() == label {
					out[l.GetValue()] += m.GetCounter().GetValue()
				}
			}
		}
	}
	return out
}

func TestHeadIsGetWithoutABody(t *testing.T) {
	w := newWorld(t)
	m := w.addMac("mac-a", say(`{"stored":true}`))
	stored := dialect.PathResponses + "/" + responses.NewID("mac-a")
	for _, path := range []string{"/v1/models", "/v1/models/m", "//v1/models/", "/models", "/", "/health", "/api/tags", "/api/version", stored} {
		get, head := w.do("GET", path, ""), w.do("HEAD", path, "")
		body := read(t, get)
		if get.StatusCode != 200 || body == "" || head.StatusCode != 200 || read(t, head) != "" ||
			head.Header.Get("Content-Type") != get.Header.Get("Content-Type") || get.ContentLength > 0 && head.ContentLength != get.ContentLength {
			t.Errorf("%s: GET %d %q %v, HEAD %d %v", path, get.StatusCode, body, get.Header, head.StatusCode, head.Header)
		}
	}
	for _, method := range []string{http.MethodGet, http.MethodHead} { // a Mac sends no body in vain
		if seen := <-m.seen; seen.Method != method {
			t.Errorf("the agent is asked with %s, want %s", seen.Method, method)
		}
	}
	for path, want := range map[string]int{"/v1/models/missing": 404, "/v1/nothing": 404, chatPath: 405} {
		if resp := w.do("HEAD", path, ""); resp.StatusCode != want {
			t.Errorf("%s: %d", path, resp.StatusCode)
		}
	}
}

// Load balancers and clients probe without a key.
func TestProbesNeedNoKey(t *testing.T) {
	draining := false
	l := newLocked(t, func(c *proxy.Config) { c.Draining = func() bool { return draining } })
	for _, path := range []string{"/", "/v1", "/health", "/health/", "/v1/health"} {
		if resp := l.do("GET", path, ""); resp.StatusCode != 200 {
			t.Errorf("%s: %d %s", path, resp.StatusCode, read(t, resp))
		}
	}
	if got := read(t, l.do("GET", "/health", "")); got != `{"status":"ok"}` {
		t.Errorf("health %s", got)
	}
	for _, path := range []string{"/v1/models", "/api/tags", "/api/version"} {
		if resp := l.do("GET", path, ""); resp.StatusCode != 401 {
			t.Errorf("%s: %d", path, resp.StatusCode)
		}
	}
	draining = true
	l.wantRefusal(l.do("GET", "/health", ""), refusal{status: 503, code: "shutting_down", retry: "2"})
	if resp := l.do("GET", "/", ""); resp.StatusCode != 200 {
		t.Errorf("a gateway that drains still listens: %d", resp.StatusCode)
	}
}

func TestAGatewayThatHasJustStartedIsNotHealthy(t *testing.T) {
	w := newWorld(t, func(c *proxy.Config) { c.Table = route.NewTable() })
	w.wantRefusal(w.do("GET", "/health", ""), refusal{status: 503, code: openai.CodeNoEndpoint, retry: "2"})
}

func TestUnknownRoutesAreNamed(t *testing.T) {
	w := newWorld(t)
	for path, want := range map[string]string{
		"/v1/images/generations": `"code":"route_not_found"`,
		"/v1/nothing/":           `There is no route POST /v1/nothing/.`,
		"/v1/messages/batches":   `{"type":"error","error":{"type":"not_found_error"`,
		"/api/chat":              `{"error":"There is no route POST /api/chat. Of Ollama's API`,
	} {
		resp := w.do("POST", path, "{}")
		if got := read(t, resp); resp.StatusCode != 404 || !strings.Contains(got, want) || !w.counts("requests_total", "route", "other") {
			t.Errorf("%s: %d %s", path, resp.StatusCode, got)
		}
	}
}

// A request takes a slot for each choice that an agent runs at once, where its route has choices.
func TestOnlyRoutesWithChoicesTakeSeveralSlots(t *testing.T) {
	w := newWorld(t)
	slots := make(chan float64, 1)
	w.addMac("a", func(rw http.ResponseWriter, r *http.Request) {
		slots <- w.gauge("vllm:num_requests_running")
		say("{}")(rw, r)
	})
	for path, want := range map[string]float64{
		dialect.PathChat: agentapi.ChoicesAtOnce, dialect.PathCompletions: agentapi.ChoicesAtOnce,
		dialect.PathResponses: 1, dialect.PathMessages: 1, dialect.PathEmbeddings: 1,
	} {
		w.do("POST", path, `{"model":"m","n":128}`)
		if got := <-slots; got != want {
			t.Errorf("%s: %v slots, want %v", path, got, want)
		}
	}
}
