package proxy_test

import (
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/dialect"
	"metalfleet.dev/metalfleet/api/responses"
	"metalfleet.dev/metalfleet/gateway/keys"
	"metalfleet.dev/metalfleet/gateway/proxy"
	"metalfleet.dev/metalfleet/gateway/route"
)

// Every gateway finds it, also after a restart.
func TestStoredResponseIsRoutedByItsID(t *testing.T) {
	w := newWorld(t)
	a, b := w.addMac("mac-a", say(`{"of":"a"}`)), w.addMac("mac-b", say(`{"of":"b"}`))
	id := responses.NewID("mac-b")
	for _, call := range []struct{ method, rest string }{
		{method: "GET"}, {method: "DELETE"}, {method: "POST", rest: "/cancel"}, {method: "GET", rest: "/input_items?limit=5&order=asc"}, {method: "GET", rest: "?api_key=secret"},
	} {
		resp := w.do(call.method, dialect.PathResponses+"/"+id+call.rest, "")
		if got := read(t, resp); resp.StatusCode != 200 || got != `{"of":"b"}` || resp.Header.Get(agentapi.HeaderMac) != "mac-b" {
			t.Errorf("%s%s: %d %s", call.method, call.rest, resp.StatusCode, got)
		}
		seen := <-b.seen
		if want := dialect.PathResponses + "/" + id + strings.TrimSuffix(call.rest, "secret"); seen.Method != call.method || seen.URL.RequestURI() != want || seen.Header.Get(agentapi.HeaderReplica) != "" {
			t.Errorf("the agent sees %s %s, %v; want %s", seen.Method, seen.URL.RequestURI(), seen.Header, want)
		}
	}
	before := b.requests.Load()
	for _, query := range []string{"?limit=1;api_key=secret", "?limit=%zz", "?limit=1&limit=2"} {
		if resp := w.do("GET", dialect.PathResponses+"/"+id+"/input_items"+query, ""); resp.StatusCode != 400 {
			t.Errorf("%s: %d %s", query, resp.StatusCode, read(t, resp))
		}
	}
	many := "?a" + strings.Repeat("&a", 32)
	for _, path := range []string{dialect.PathResponses + "/" + id, dialect.PathModels, "/"} {
		if got := read(t, w.do("GET", path+many, "")); !strings.Contains(got, "more than 32 parameters") {
			t.Errorf("%s with 33 parameters: %s", path, got)
		}
	}
	if b.requests.Load() != before {
		t.Error("a part of a query went on to the agent")
	}
	w.setReady("mac-b", false) // it keeps what it has stored
	if resp := w.do("GET", dialect.PathResponses+"/"+id, ""); resp.StatusCode != 200 {
		t.Errorf("a Mac without a ready replica: %d", resp.StatusCode)
	}
	for name, other := range map[string]string{"an unknown Mac": responses.NewID("mac-z"), "nonsense": "resp_1"} {
		if resp := w.do("GET", dialect.PathResponses+"/"+other, ""); resp.StatusCode != 404 {
			t.Errorf("%s: %d", name, resp.StatusCode)
		}
	}
	b.kill()
	if resp := w.do("GET", dialect.PathResponses+"/"+id, ""); resp.StatusCode != http.StatusServiceUnavailable || resp.Header.Get("Retry-After") == "" {
		t.Errorf("a Mac that is gone: %d", resp.StatusCode)
	}
	if a.requests.Load() != 0 {
		t.Errorf("another Mac was asked %d times", a.requests.Load())
	}
}

// No other Mac has a stored response: a single lost connection must not hide it.
func TestStoredResponseIsReadAgainAfterALostConnection(t *testing.T) {
	w := newWorld(t)
	stored := responses.NewAnywhere()
	here, anywhere := dialect.PathResponses+"/"+responses.NewID("mac-a"), dialect.PathResponses+"/"+stored.ID()
	proof := stored.Proof()
	var fails atomic.Int64
	m := w.addMac("mac-a", func(rw http.ResponseWriter, r *http.Request) {
		if fails.Add(-1) >= 0 {
			abort(r)
		}
		if !strings.HasPrefix(r.URL.Path, here) && r.URL.Path != anywhere {
			rw.WriteHeader(http.StatusNotFound)
			return
		}
		rw.Header().Set(agentapi.HeaderResponseProof, proof)
		say("{}")(rw, r)
	})
	for _, c := range []struct {
		name, method, path string
		fails              int64
		status             int
		requests           int64
	}{
		{name: "one lost connection", method: "GET", path: here, fails: 1, status: 200, requests: 2},
		{name: "its items", method: "GET", path: here + "/input_items", fails: 1, status: 200, requests: 2},
		{name: "the search for its Mac", method: "GET", path: anywhere, fails: 1, status: 200, requests: 3},
		{name: "two lost connections", method: "GET", path: here, fails: 2, status: 503, requests: 2},
		{name: "a deletion, which may have been done", method: "DELETE", path: here, fails: 1, status: 503, requests: 1},
		{name: "a cancellation", method: "POST", path: here + "/cancel", fails: 1, status: 503, requests: 1},
	} {
		fails.Store(c.fails)
		before := m.requests.Load()
		resp := w.do(c.method, c.path, "")
		if got := read(t, resp); resp.StatusCode != c.status || m.requests.Load()-before != c.requests {
			t.Errorf("%s: %d %s after %d requests, want %d after %d", c.name, resp.StatusCode, got, m.requests.Load()-before, c.status, c.requests)
		}
	}
	if n := w.counter("macs_suspected_total"); n > 0 { // the streams were reset, which the requests of others do not concern
		t.Errorf("%v times the Mac is avoided", n)
	}
}

// A compromised Mac claims to store the responses of other Macs. It knows which ids exist, for
// clients ask for them, and it may answer before the Mac that stores one.
func TestAttackAMacThatClaimsResponses(t *testing.T) {
	w := newWorld(t)
	kept, tried := responses.NewAnywhere(), responses.NewAnywhere()
	keeps := func(text string, wait time.Duration, proofs map[string]string) http.HandlerFunc {
		return func(rw http.ResponseWriter, r *http.Request) {
			proof, ok := proofs[strings.TrimPrefix(r.URL.Path, dialect.PathResponses+"/")]
			if !ok {
				rw.WriteHeader(http.StatusNotFound)
				return
			}
			time.Sleep(wait)
			rw.Header().Set(agentapi.HeaderResponseProof, proof)
			say(text)(rw, r)
		}
	}
	failed := tried.Proof() // of a Mac that did not answer the request, or said so
	w.addMac("mac-a", keeps("forged", 0, map[string]string{kept.ID(): failed, tried.ID(): failed}))
	w.addMac("mac-b", keeps("forged", 0, map[string]string{kept.ID(): "", tried.ID(): strings.TrimPrefix(tried.ID(), "resp_")}))
	w.addMac("mac-z", keeps("stored", 100*time.Millisecond, map[string]string{kept.ID(): kept.Proof(), tried.ID(): tried.Proof()}))
	for id, want := range map[string]string{kept.ID(): "stored", tried.ID(): "stored", responses.NewAnywhere().ID(): ""} {
		resp := w.do("GET", dialect.PathResponses+"/"+id, "")
		if got := read(t, resp); want != "" && got != want || want == "" && resp.StatusCode != http.StatusNotFound {
			t.Errorf("%s: %d %s, want %q", id, resp.StatusCode, got, want)
		}
	}
}

// TestAttackReadsOfStoredResponsesThatWait: at the Mac, a tenant's reads wait until its clients
// have read others. Each is a stream of the Mac's tunnel, which has a thousand for all tenants.
func TestAttackReadsOfStoredResponsesThatWait(t *testing.T) {
	l := newLocked(t)
	mallory, victim := l.key("mallory", keys.Grant{Models: []string{"*"}}), l.key("victim", keys.Grant{Models: []string{"*"}})
	large, path := dialect.PathResponses+"/"+responses.NewID("mac-a"), dialect.PathResponses+"/"+responses.NewID("mac-a")
	const most = 64
	wait := make(chan struct{})
	var waiting atomic.Int64
	l.addMac("mac-a", func(rw http.ResponseWriter, r *http.Request) {
		if r.URL.Path == large && waiting.Add(1) <= most {
			<-wait
		}
		say("{}")(rw, r)
	})
	var all sync.WaitGroup
	for range most {
		all.Go(func() { l.with(mallory, "GET", large, "") })
	}
	eventually(t, "the reads wait", func() bool { return waiting.Load() == most })
	if resp := l.with(mallory, "GET", large, ""); resp.StatusCode != http.StatusTooManyRequests {
		t.Errorf("one more read: %d", resp.StatusCode)
	}
	if resp := l.with(victim, "GET", path, ""); resp.StatusCode != http.StatusOK {
		t.Errorf("a read of another tenant: %d", resp.StatusCode)
	}
	close(wait)
	all.Wait()
	if resp := l.with(mallory, "GET", path, ""); resp.StatusCode != http.StatusOK {
		t.Errorf("a read after them: %d", resp.StatusCode)
	}
}

// Regression: the timeout for unread request bodies ended the request, and then
// every later one of the connection.
func TestResponseWithoutABodyMayBeSlow(t *testing.T) {
	const unread = 50 * time.Millisecond
	w := newWorld(t, func(c *proxy.Config) { c.ReadTimeout = unread })
	w.addMac("mac-a", func(rw http.ResponseWriter, r *http.Request) {
		time.Sleep(4 * unread)
		say("{}")(rw, r)
	})
	id := responses.NewID("mac-a")
	for _, call := range []struct{ method, rest string }{{method: "GET"}, {method: "POST", rest: "/cancel"}, {method: "GET", rest: "/input_items"}, {method: "DELETE"}} {
		resp := w.do(call.method, dialect.PathResponses+"/"+id+call.rest, "")
		if got := read(t, resp); resp.StatusCode != 200 || got != "{}" {
			t.Errorf("%s%s: %d %q", call.method, call.rest, resp.StatusCode, got)
		}
	}
}

func TestContinuationIsRoutedToTheStoringMac(t *testing.T) {
	w := newWorld(t)
	a, b := w.addMac("mac-a", say("{}")), w.addMac("mac-b", say("{}"))
	ask := func(id string) *http.Response {
		return w.do("POST", dialect.PathResponses, `{"model":"m","input":"x","previous_response_id":"`+id+`"}`)
	}
	for range 10 {
		if resp := ask(responses.NewID("mac-b")); resp.StatusCode != 200 {
			t.Fatal(read(t, resp))
		}
	}
	if a.requests.Load() != 0 || b.requests.Load() != 10 {
		t.Errorf("%d and %d requests", a.requests.Load(), b.requests.Load())
	}
	for _, id := range []string{responses.NewID("mac-z"), "resp_1", "other"} {
		resp := ask(id)
		if got := read(t, resp); resp.StatusCode != 400 || !strings.Contains(got, responses.CodePreviousNotFound) {
			t.Errorf("%s: %d %s", id, resp.StatusCode, got)
		}
	}
}

// Clients that keep no response id refer to each stored item.
func TestReferenceIsRoutedToTheStoringMac(t *testing.T) {
	w := newWorld(t)
	a, b := w.addMac("mac-a", say("{}")), w.addMac("mac-b", say("{}"))
	typed := `"type":"item_reference",`
	ask := func(path, id string) *http.Response {
		return w.do("POST", path, `{"model":"m","input":[{"role":"user","content":"x"},{`+typed+`"id":"`+id+`"},{"role":"user","content":"y"}]}`)
	}
	at := func(prefix, mac string) string { return prefix + strings.TrimPrefix(responses.NewID(mac), "resp_") }
	for i := range 6 {
		if i == 3 {
			typed = "" // which the type is not needed for
		}
		for path, prefix := range map[string]string{dialect.PathResponses: "msg_", dialect.PathInputTokens: "rs_"} {
			if resp := ask(path, at(prefix, "mac-b")); resp.StatusCode != 200 {
				t.Fatal(read(t, resp))
			}
		}
	}
	if a.requests.Load() != 0 || b.requests.Load() != 12 {
		t.Errorf("%d and %d requests", a.requests.Load(), b.requests.Load())
	}
	for _, id := range []string{at("msg_", "mac-z"), "msg_1", "other"} {
		resp := ask(dialect.PathResponses, id)
		if got := read(t, resp); resp.StatusCode != 404 || !strings.Contains(got, `"code":"`+responses.CodeItemNotFound) {
			t.Errorf("%s: %d %s", id, resp.StatusCode, got)
		}
	}
}

func TestCompactionIsRefusedByName(t *testing.T) {
	w := newWorld(t)
	a := w.addMac("mac-a", say("{}"))
	resp := w.do("POST", dialect.PathResponses+"/compact", `{"model":"m","input":"x"}`)
	if got := read(t, resp); resp.StatusCode != 404 || !strings.Contains(got, "compact") || !strings.Contains(got, `"code":"route_not_found"`) || a.requests.Load() != 0 {
		t.Errorf("%d %s", resp.StatusCode, got)
	}
}

// The tenant is that of the API key, never a header of the client.
func TestAgentLearnsTheTenantOfARequest(t *testing.T) {
	l := newLocked(t)
	token := l.key("team", keys.Grant{Models: []string{"*"}})
	m := l.addMac("mac-a", say("{}"))
	for _, call := range []struct{ method, path, body string }{
		{method: "POST", path: dialect.PathResponses, body: `{"model":"m","input":"x"}`}, {method: "GET", path: dialect.PathResponses + "/" + responses.NewID("mac-a")},
	} {
		if resp := l.with(token, call.method, call.path, call.body, agentapi.HeaderTenant, "other"); resp.StatusCode != 200 {
			t.Fatal(read(t, resp))
		}
		if got := (<-m.seen).Header.Values(agentapi.HeaderTenant); len(got) != 1 || got[0] != "key/team/" {
			t.Errorf("%s: the tenant is %q", call.method, got)
		}
	}
	if resp := l.with("", "GET", dialect.PathResponses+"/"+responses.NewID("mac-a"), ""); resp.StatusCode != 401 {
		t.Errorf("without a key: %d", resp.StatusCode)
	}
	open := newWorld(t)
	n := open.addMac("mac-a", say("{}"))
	open.do("POST", dialect.PathResponses, `{"model":"m","input":"x"}`, agentapi.HeaderTenant, "other")
	if got := (<-n.seen).Header.Get(agentapi.HeaderTenant); got != "" {
		t.Errorf("where no keys are asked the tenant is %q", got)
	}
}

func TestContinuationIsRoutedToTheStoringFallback(t *testing.T) {
	w := newWorld(t)
	w.addMac("a", say(`"m"`))
	other := w.addOther("other", say(`"other"`))
	w.routing(&route.Routing{Fallbacks: []string{"other"}})
	ask := func(mac string) *http.Response {
		return w.do("POST", dialect.PathResponses, `{"model":"m","input":"x","previous_response_id":"`+responses.NewID(mac)+`"}`)
	}
	w.wantAnswer(ask("mac-of-other"), `"other"`, "ns/other")
	w.wantAnswer(ask("a"), `"m"`, "ns/m")
	other.kill() // no other Mac has what it stores
	if resp := ask("mac-of-other"); resp.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("%d %s", resp.StatusCode, read(t, resp))
	}
}
