package proxy_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"

	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/agentapi/agentapitest"
	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/gateway/identity"
	"metalfleet.dev/metalfleet/gateway/proxy"
	"metalfleet.dev/metalfleet/gateway/route"
	"metalfleet.dev/metalfleet/test/patience"
)

// world is a gateway in front of scripted Macs, over real TLS on loopback.
type world struct {
	t       *testing.T
	ca      *agentapitest.CA
	ids     identity.Store
	table   *route.Table
	url     string
	stop    context.CancelCauseFunc // ends all requests, as a drain does
	metrics *prometheus.Registry
	proxy   *proxy.Proxy
}

func newWorld(t *testing.T, change ...func(*proxy.Config)) *world {
	t.Helper()
	w := &world{t: t, ca: agentapitest.NewCA(t), table: route.NewTable(), metrics: prometheus.NewRegistry()}
	w.renewIdentity()
	w.table.MarkSynced()
	c := proxy.Config{Table: w.table, Identity: w.ids.Current, Registry: w.metrics, Log: logr.Discard()}
	for _, f := range change {
		f(&c)
	}
	p := proxy.New(c)
	w.proxy = p
	requests, stop := context.WithCancelCause(context.Background())
	w.stop = stop
	s := httptest.NewUnstartedServer(p)
	s.Config.BaseContext = func(net.Listener) context.Context { return requests }
	s.Start()
	t.Cleanup(func() { stop(nil); s.Close(); p.Close() })
	w.url, w.proxy = s.URL, p
	return w
}

func (w *world) renewIdentity() {
	w.t.Helper()
	pem := w.ca.Gateway()
	id, err := identity.Parse(map[string][]byte{"tls.crt": pem.Certificate, "tls.key": pem.Key, "ca.crt": pem.CA})
	if err != nil {
		w.t.Fatal(err)
	}
	w.ids.Set(id)
}

// mac is a scripted agent.
type mac struct {
	name     string
	server   *httptest.Server
	requests atomic.Int64
	conns    atomic.Int64
	seen     chan *http.Request
	left     chan struct{}              // one value per request that ended
	tls      atomic.Pointer[tls.Config] // for the next handshake; nil: the initial one
}

func (w *world) deployment(name string, names ...string) {
	w.table.SetDeployment(route.Deployment{Key: route.Key{Namespace: "ns", Name: name}, UID: name, Names: strings.Join(names, "\n")})
}

// addMac starts a Mac with one ready replica of the model "m" on it.
func (w *world) addMac(name string, answer http.HandlerFunc) *mac {
	w.t.Helper()
	m := &mac{name: name, seen: make(chan *http.Request, 1000), left: make(chan struct{}, 1000)}
	m.server = httptest.NewUnstartedServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		m.requests.Add(1)
		body, _ := io.ReadAll(r.Body)
		seen := r.Clone(context.Background())
		seen.Body = io.NopCloser(bytes.NewReader(body))
		m.seen <- seen
		defer func() { m.left <- struct{}{} }()
		answer(rw, r)
	}))
	m.server.EnableHTTP2 = true
	m.server.TLS = agentapi.ServerTLS(w.ca.Mac(name).Pair(w.t), w.ca.Roots())
	pair, _ := w.ca.Mac(name).Pair(w.t)()
	m.server.TLS.Certificates = []tls.Certificate{*pair} // httptest would add its own
	m.server.TLS.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return m.tls.Load(), nil }
	m.server.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			m.conns.Add(1)
		}
	}
	m.server.Config.ErrorLog = nil
	m.server.StartTLS()
	w.t.Cleanup(m.kill)
	w.deployment("m", "m")
	w.table.SetMac(route.Mac{Name: name, Address: m.server.Listener.Addr().String(), Open: true})
	w.setReady(name, true)
	return m
}

func (w *world) setReady(mac string, ready bool) {
	w.table.SetReplica(route.Replica{UID: "replica-" + mac, Epoch: 3, Deployment: route.Key{Namespace: "ns", Name: "m"},
		DeploymentUID: "m", Mac: mac, Ready: ready})
}

// kill simulates a crash: connections break, and no new one is accepted.
func (m *mac) kill() {
	_ = m.server.Listener.Close()
	m.server.CloseClientConnections()
}

func (w *world) do(method, path, body string, headers ...string) *http.Response {
	w.t.Helper()
	resp, err := w.try(w.t.Context(), method, path, body, headers...)
	if err != nil {
		w.t.Fatal(err)
	}
	return resp
}

func (w *world) try(ctx context.Context, method, path, body string, headers ...string) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, method, w.url+path, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	resp, err := http.DefaultClient.Do(r)
	if err == nil {
		w.t.Cleanup(func() { resp.Body.Close() })
	}
	return resp, err
}

const chatPath = "/v1/chat/completions"

func (w *world) chat() *http.Response {
	w.t.Helper()
	return w.do("POST", chatPath, `{"model":"m","messages":[]}`)
}

func read(t *testing.T, r *http.Response) string {
	t.Helper()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// refusal is an error response before the first byte of a stream.
type refusal struct {
	status int
	code   string
	retry  string
}

func (w *world) wantRefusal(resp *http.Response, want refusal) {
	w.t.Helper()
	body := read(w.t, resp)
	e := openai.ParseError(resp.StatusCode, resp.Header, []byte(body))
	got := refusal{status: resp.StatusCode, code: e.Code, retry: resp.Header.Get("Retry-After")}
	if got != want || resp.Header.Get("Content-Type") != "application/json" || resp.Header.Get(agentapi.HeaderRequestID) == "" {
		w.t.Errorf("refusal %+v, want %+v; headers %v; body %s", got, want, resp.Header, body)
	}
	if resp.Header.Get(agentapi.HeaderRetryable) != "" {
		w.t.Error("a header between agent and gateway reached the client")
	}
}

func (w *world) counter(name string) float64 {
	w.t.Helper()
	families, err := w.metrics.Gather()
	if err != nil {
		w.t.Fatal(err)
	}
	sum := 0.0
	for _, f := range families {
		if f.GetName() == "metalfleet_gateway_"+name {
			for _, m := range f.GetMetric() {
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return sum
}

func say(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, text)
	}
}

// events streams the given texts; hang decides what follows the last one.
func events(hang func(*http.Request), texts ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		out := openai.NewEventWriter(w)
		for _, t := range texts {
			if t == "[DONE]" {
				_ = out.Done()
				continue
			}
			if out.Send(map[string]string{"text": t}) != nil {
				return
			}
		}
		if hang != nil {
			hang(r)
		}
	}
}

func untilGone(r *http.Request) { <-r.Context().Done() }

func abort(*http.Request) { panic(http.ErrAbortHandler) }

// refuse responds like an agent that refused without side effects.
func refuse(e *openai.Error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set(agentapi.HeaderRetryable, "true")
		_ = openai.WriteError(w, e)
	}
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.NewTimer(patience.Of(t))
	defer deadline.Stop()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-deadline.C:
			t.Fatalf("never came true: %s", what)
		case <-tick.C:
		}
	}
}

func (w *world) idle() {
	w.t.Helper()
	eventually(w.t, "no request in flight", func() bool { return w.counter("requests_in_flight") == 0 })
}

func TestRequestsAreForwardedWhole(t *testing.T) {
	w := newWorld(t)
	m := w.addMac("a", say(`{"answer":1}`))
	const body = `{ "model" : "m", "anything":[1,2] }`
	resp := w.do("POST", chatPath, body, agentapi.HeaderRequestID, "r-1", "Authorization", "Bearer secret",
		agentapi.HeaderReplica, "forged", agentapi.HeaderEpoch, "99", "Accept", "application/json")
	if got := read(t, resp); got != `{"answer":1}` || resp.StatusCode != 200 {
		t.Errorf("%d %s", resp.StatusCode, got)
	}
	if resp.Header.Get(agentapi.HeaderMac) != "a" || resp.Header.Get(agentapi.HeaderRequestID) != "r-1" {
		t.Errorf("headers %v", resp.Header)
	}
	seen := <-m.seen
	if b, _ := io.ReadAll(seen.Body); string(b) != body || seen.Proto != "HTTP/2.0" || seen.URL.Path != chatPath {
		t.Errorf("the agent saw %s %s %s", seen.Proto, seen.URL.Path, b)
	}
	for name, want := range map[string]string{"Authorization": "", agentapi.HeaderReplica: "replica-a", agentapi.HeaderEpoch: "3",
		agentapi.HeaderRequestID: "r-1", "Accept": "", "Content-Type": "application/json"} {
		if got := seen.Header.Get(name); got != want {
			t.Errorf("the agent saw %s %q, want %q", name, got, want)
		}
	}
}

func TestOneConnectionPerMac(t *testing.T) {
	w := newWorld(t)
	m := w.addMac("a", say("{}"))
	for range 20 {
		read(t, w.chat())
	}
	if n := m.conns.Load(); n != 1 {
		t.Errorf("%d connections", n)
	}
	w.renewIdentity() // a new certificate is used at the next handshake
	read(t, w.chat())
	if n := m.conns.Load(); n != 1 {
		t.Errorf("%d connections after a new certificate, want 1", n)
	}
}

func TestWhatNoAgentNeedsToSee(t *testing.T) {
	w := newWorld(t, func(c *proxy.Config) { c.MaxBodyBytes = 300 })
	m := w.addMac("a", say("{}"))
	w.deployment("idle", "idle")
	w.wantRefusal(w.do("POST", chatPath, `{"model":"unknown"}`), refusal{status: 404, code: openai.CodeModelNotFound})
	w.wantRefusal(w.do("POST", chatPath, `{"model":"idle"}`), refusal{status: 503, code: openai.CodeNoEndpoint, retry: "2"})
	w.wantRefusal(w.do("POST", chatPath, `{"model":"ns/idle"}`), refusal{status: 503, code: openai.CodeNoEndpoint, retry: "2"})
	w.wantRefusal(w.do("POST", chatPath, `{"model":"m"`), refusal{status: 400, code: openai.CodeMalformedJSON})
	w.wantRefusal(w.do("POST", chatPath, `{}`), refusal{status: 400, code: openai.CodeMissingParameter})
	w.wantRefusal(w.do("POST", chatPath, `{"model":"m","x":"`+strings.Repeat("x", 300)+`"}`), refusal{status: 413, code: openai.CodeBodyTooLarge})
	w.wantRefusal(w.do("POST", "/v1/images/generations", `{"model":"m"}`), refusal{status: 404, code: openai.CodeRouteNotFound})
	w.wantRefusal(w.do("GET", "/v1/models/unknown", ""), refusal{status: 404, code: openai.CodeModelNotFound})
	for path, allowed := range map[string]string{chatPath: "POST", "/v1/completions": "POST", "/v1/models": "GET, HEAD", "/v1/models/m": "GET, HEAD"} {
		r := w.do("DELETE", path, "")
		w.wantRefusal(r, refusal{status: 405, code: openai.CodeMethodNotAllowed})
		if r.Header.Get("Allow") != allowed {
			t.Errorf("%s: Allow %q", path, r.Header.Get("Allow"))
		}
	}
	if n := m.requests.Load(); n != 0 {
		t.Errorf("the agent saw %d requests", n)
	}
}

func TestBodyWithoutLengthIsBounded(t *testing.T) {
	w := newWorld(t, func(c *proxy.Config) { c.MaxBodyBytes = 300 })
	r, err := http.NewRequestWithContext(t.Context(), "POST", w.url+chatPath, io.MultiReader(strings.NewReader(strings.Repeat("x", 400))))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	w.wantRefusal(resp, refusal{status: 413, code: openai.CodeBodyTooLarge})
}

func TestModelsAreListedByServedName(t *testing.T) {
	w := newWorld(t)
	w.deployment("one", "one", "uno")
	w.deployment("two")
	got := read(t, w.do("GET", "/v1/models", ""))
	want := `{"object":"list","data":[{"id":"ns/two","object":"model","created":0,"owned_by":"ns"},` +
		`{"id":"one","object":"model","created":0,"owned_by":"ns"},{"id":"uno","object":"model","created":0,"owned_by":"ns"}]}`
	if got != want {
		t.Errorf("models %s", got)
	}
	if got := read(t, w.do("GET", "/v1/models/ns/one", "")); got != `{"id":"ns/one","object":"model","created":0,"owned_by":"ns"}` {
		t.Errorf("model %s", got)
	}
}

func TestServedNamesMayHaveASlash(t *testing.T) {
	w := newWorld(t)
	m := w.addMac("a", say("{}"))
	w.deployment("m", "Org/Model-1", "m")
	for _, path := range []string{"/v1/models/Org/Model-1", "/v1/models/Org%2FModel-1"} {
		if got := read(t, w.do("GET", path, "")); !strings.Contains(got, `"id":"Org/Model-1"`) {
			t.Errorf("%s: %s", path, got)
		}
	}
	if got := read(t, w.do("GET", "/v1/models", "")); !strings.Contains(got, `"id":"Org/Model-1"`) {
		t.Errorf("the list is %s", got)
	}
	if resp := w.do("POST", chatPath, `{"model":"Org/Model-1","messages":[]}`); resp.StatusCode != http.StatusOK || m.requests.Load() != 1 {
		t.Errorf("status %d, %d requests", resp.StatusCode, m.requests.Load())
	}
}

func TestAConflictingNameLeadsToItsOwner(t *testing.T) {
	w := newWorld(t)
	w.addMac("a", say(`"owner"`)) // serves ns/m, which owns "m"
	w.table.SetDeployment(route.Deployment{Key: route.Key{Namespace: "other", Name: "m"}, UID: "x", Created: 99, Names: "m"})
	if got := read(t, w.chat()); got != `"owner"` {
		t.Errorf("answer %s", got)
	}
	w.wantRefusal(w.do("POST", chatPath, `{"model":"other/m"}`), refusal{status: 503, code: openai.CodeNoEndpoint, retry: "2"})
}

func TestBeforeTheTableIsKnownNothingIsUnknown(t *testing.T) {
	w := newWorld(t, func(c *proxy.Config) { c.Table = route.NewTable() })
	w.wantRefusal(w.chat(), refusal{status: 503, code: openai.CodeNoEndpoint, retry: "2"})
	w.wantRefusal(w.do("GET", "/v1/models", ""), refusal{status: 503, code: openai.CodeNoEndpoint, retry: "2"})
	w = newWorld(t, func(c *proxy.Config) { c.Identity = func() *identity.Identity { return nil } })
	w.addMac("a", say("{}"))
	w.wantRefusal(w.chat(), refusal{status: 503, code: openai.CodeNoEndpoint, retry: "2"})
}

func TestAgentsErrorsPassThrough(t *testing.T) {
	w := newWorld(t)
	a := w.addMac("a", func(rw http.ResponseWriter, _ *http.Request) {
		_ = openai.WriteError(rw, openai.PrefillMemoryExceeded(openai.Memory{Used: 1, Needed: 2, Limit: 3}))
	})
	b := w.addMac("b", func(rw http.ResponseWriter, _ *http.Request) { _ = openai.WriteError(rw, openai.EngineFailed(nil)) })
	resp := map[string]*http.Response{}
	for range 2 { // one for each: they share equally
		r := w.chat()
		resp[r.Header.Get(agentapi.HeaderMac)] = r
	}
	w.wantRefusal(resp["a"], refusal{status: 413, code: openai.CodePrefillMemoryExceeded})
	w.wantRefusal(resp["b"], refusal{status: 500, code: openai.CodeEngineFailed})
	if a.requests.Load() != 1 || b.requests.Load() != 1 {
		t.Error("an answer of the model was tried again elsewhere")
	}
}

func TestLeastLoadedIsPicked(t *testing.T) {
	w := newWorld(t)
	release := make(chan struct{})
	macs := map[string]*mac{}
	for i := range 3 {
		name := fmt.Sprint("m", i)
		macs[name] = w.addMac(name, func(rw http.ResponseWriter, r *http.Request) {
			select {
			case <-release:
			case <-r.Context().Done():
			}
			say("{}")(rw, r)
		})
	}
	done := make(chan error, 30)
	for range 30 {
		go func() {
			resp, err := w.try(t.Context(), "POST", chatPath, `{"model":"m"}`)
			if err == nil {
				_, err = io.Copy(io.Discard, resp.Body)
			}
			done <- err
		}()
	}
	eventually(t, "all requests arrived", func() bool {
		return macs["m0"].requests.Load()+macs["m1"].requests.Load()+macs["m2"].requests.Load() == 30
	})
	for name, m := range macs {
		if n := m.requests.Load(); n != 10 {
			t.Errorf("%s holds %d of 30", name, n)
		}
	}
	close(release)
	for range 30 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}
