package proxy_test

import (
	"fmt"
	"io"
	"net/http"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/gateway/keys"
	"metalfleet.dev/metalfleet/gateway/pick"
	"metalfleet.dev/metalfleet/gateway/proxy"
	"metalfleet.dev/metalfleet/gateway/route"
)

// addOther starts a Mac with one ready replica of another deployment.
func (w *world) addOther(name string, answer http.HandlerFunc) *mac {
	w.t.Helper()
	m := w.addMac("mac-of-"+name, answer)
	w.table.DeleteReplica("replica-mac-of-" + name)
	w.deployment(name, name)
	w.other(name, true)
	return m
}

func (w *world) other(name string, ready bool) {
	w.table.SetReplica(route.Replica{UID: "replica-" + name, Epoch: 1, Deployment: route.Key{Namespace: "ns", Name: name},
		DeploymentUID: name, Mac: "mac-of-" + name, Ready: ready, Sequences: 1})
}

// routing routes requests for the model "m" to others.
func (w *world) routing(r *route.Routing) {
	w.table.SetDeployment(route.Deployment{Key: route.Key{Namespace: "ns", Name: "m"}, UID: "m", Names: "m", Routing: r})
}

func (w *world) wantAnswer(resp *http.Response, text, by string) {
	w.t.Helper()
	if got := read(w.t, resp); got != text || resp.Header.Get(agentapi.HeaderModel) != by {
		w.t.Errorf("%d %q by %q, want %q by %q", resp.StatusCode, got, resp.Header.Get(agentapi.HeaderModel), text, by)
	}
}

func conversation(n int) string {
	return fmt.Sprintf(`{"model":"m","messages":[{"role":"user","content":"conversation %d"}]}`, n)
}

// A conversation that began at the canary stays there, at every gateway; and the response
// names the deployment that served it.
func TestACanaryGetsItsPartAndKeepsConversations(t *testing.T) {
	w := newWorld(t)
	w.addMac("a", say(`"m"`))
	canary := w.addOther("canary", say(`"canary"`))
	w.routing(&route.Routing{Split: []route.Share{{Deployment: "canary", Percent: 30}}})
	first := map[int]string{}
	const conversations = 300
	for n := range conversations {
		resp := w.do("POST", chatPath, conversation(n))
		by := resp.Header.Get(agentapi.HeaderModel)
		first[n] = read(t, resp)
		if by != map[string]string{`"m"`: "ns/m", `"canary"`: "ns/canary"}[first[n]] {
			t.Fatalf("%s by %q", first[n], by)
		}
	}
	if got := canary.requests.Load(); got < conversations*20/100 || got > conversations*40/100 {
		t.Errorf("the canary got %d of %d, want about 30 %%", got, conversations)
	}
	for n := range 50 {
		if got := read(t, w.do("POST", chatPath, conversation(n))); got != first[n] {
			t.Errorf("conversation %d moved from %s to %s", n, first[n], got)
		}
	}
	seen := <-canary.seen
	if seen.Header.Get(agentapi.HeaderModel) != "canary" || seen.Header.Get(agentapi.HeaderReplica) != "replica-canary" {
		t.Errorf("the agent receives %v", seen.Header)
	}
	if body, _ := io.ReadAll(seen.Body); len(body) == 0 || string(body[:12]) != `{"model":"m"` {
		t.Errorf("the agent gets %s, want the client's body", body)
	}
	// A request that names a deployment is served by that one, and the response names no
	// other.
	for range 20 {
		w.wantAnswer(w.do("POST", chatPath, `{"model":"ns/m","messages":[]}`), `"m"`, "")
	}
}

func TestASplitByKeyOrByChance(t *testing.T) {
	l := newLocked(t)
	l.addMac("a", say(`"m"`))
	l.addOther("canary", say(`"canary"`))
	split := []route.Share{{Deployment: "canary", Percent: 50}}
	l.routing(&route.Routing{Split: split, SessionAffinity: "APIKey"})
	of := map[string]int{}
	for n := range 12 {
		token := l.key(fmt.Sprint("key-", n), keys.Grant{Models: []string{"m"}})
		var first string
		for turn := range 5 {
			got := read(t, l.do("POST", chatPath, conversation(turn), "Authorization", "Bearer "+token))
			if turn == 0 {
				first = got
				of[got]++
			}
			if got != first {
				t.Fatalf("a key is answered by %s, and by %s", first, got)
			}
		}
	}
	if len(of) != 2 {
		t.Errorf("twelve keys go to %v, want both", of)
	}
	l.routing(&route.Routing{Split: split, SessionAffinity: "None"})
	token, by := l.key("one", keys.Grant{Models: []string{"m"}}), map[string]int{}
	for range 40 {
		by[read(t, l.do("POST", chatPath, conversation(1), "Authorization", "Bearer "+token))]++
	}
	if len(by) != 2 {
		t.Errorf("one conversation was answered by %v, want both", by)
	}
}

// TestACanaryWithoutReplicasFailsNoRequest: a canary without replicas must not fail its share of
// the requests.
func TestACanaryWithoutReplicasFailsNoRequest(t *testing.T) {
	w := newWorld(t)
	w.addMac("a", say(`"m"`))
	w.addOther("canary", say(`"canary"`))
	w.routing(&route.Routing{Split: []route.Share{{Deployment: "canary", Percent: 100}, {Deployment: "unknown", Percent: 0}}})
	w.wantAnswer(w.chat(), `"canary"`, "ns/canary")
	w.other("canary", false)
	w.wantAnswer(w.chat(), `"m"`, "ns/m")
	w.table.DeleteDeployment(route.Key{Namespace: "ns", Name: "canary"}, "canary")
	w.wantAnswer(w.chat(), `"m"`, "ns/m")
}

func TestFallbacksAnswerInTheirOrder(t *testing.T) {
	for name, first := range map[string]struct {
		answer http.HandlerFunc
		ready  bool
		passed string
	}{
		"no replica":     {answer: say(`"m"`), passed: "none_ready"},
		"it refuses":     {answer: refuse(notReady), ready: true, passed: "refused"},
		"it breaks off":  {answer: func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, ready: true, passed: "refused"},
		"no room for it": {answer: refuse(&openai.Error{Status: 507, Code: "insufficient_memory", Message: "no"}), ready: true, passed: "refused"},
	} {
		t.Run(name, func(t *testing.T) {
			for _, change := range []func(*proxy.Config){func(*proxy.Config) {}, queueOf(10)} {
				w := newWorld(t, change)
				w.addMac("a", first.answer)
				w.setReady("a", first.ready)
				w.addOther("second", say(`"second"`))
				w.addOther("third", say(`"third"`))
				w.routing(&route.Routing{Fallbacks: []string{"missing", "second", "third"}, Patience: time.Hour})
				w.wantAnswer(w.chat(), `"second"`, "ns/second")
				if w.passed(first.passed) != 1 {
					t.Errorf("not counted as %s", first.passed)
				}
				w.other("second", false)
				w.wantAnswer(w.chat(), `"third"`, "ns/third")
			}
		})
	}
}

// passed counts the requests that were passed on to another deployment for a reason.
func (w *world) passed(reason string) float64 {
	w.t.Helper()
	families, err := w.metrics.Gather()
	if err != nil {
		w.t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == "metalfleet_gateway_fallbacks_total" && m.GetLabel()[0].GetValue() == reason {
				return m.GetCounter().GetValue()
			}
		}
	}
	return 0
}

func TestWaitForABusyDeploymentIsBoundedByItsRouting(t *testing.T) {
	w := newWorld(t, queueOf(10))
	m, end, _ := w.busy()
	w.addOther("second", say(`"second"`))
	var first []*later
	for range 2 { // one that runs, and one queued
		first = append(first, w.later(t.Context(), chatBody))
	}
	eventually(t, "it has all that it may have", func() bool { return m.requests.Load() == 2 })
	w.routing(&route.Routing{Fallbacks: []string{"second"}, Patience: 20 * time.Millisecond})
	w.wantAnswer(w.do("POST", chatPath, chatBody, agentapi.HeaderTimeout, "20"), `"second"`, "ns/second")
	w.routing(&route.Routing{Fallbacks: []string{"second"}}) // no replica at all
	w.wantAnswer(w.chat(), `"second"`, "ns/second")
	w.routing(&route.Routing{Fallbacks: []string{"second"}, Patience: time.Hour})
	waits := w.later(t.Context(), chatBody)
	w.waiting(1)
	close(end)
	waits.want(t, 200, "{}")
	if by := waits.resp.Header.Get(agentapi.HeaderModel); by != "ns/m" {
		t.Errorf("answered by %q", by)
	}
	for _, f := range first {
		f.want(t, 200, "{}")
	}
}

func TestWithoutReplicasTheRequestWaitsForTheFirstDeployment(t *testing.T) {
	w := newWorld(t, queueOf(10))
	w.addMac("a", say(`"m"`))
	w.setReady("a", false)
	w.addOther("second", say(`"second"`))
	w.other("second", false)
	w.routing(&route.Routing{Fallbacks: []string{"second"}, Patience: time.Millisecond})
	l := w.later(t.Context(), chatBody)
	w.waiting(1)
	w.setReady("a", true)
	l.want(t, 200, `"m"`)
	w = newWorld(t)
	w.addMac("a", refuse(notReady))
	w.routing(&route.Routing{Fallbacks: []string{"missing"}})
	w.wantRefusal(w.chat(), refusal{status: 503, code: agentapi.CodeReplicaNotReady, retry: "3"}) // as without routing
}

// A key for a name may be served by any deployment that the name is routed to, but may not
// use those under their own names.
func TestAKeyForANameAllowsItsRoutedDeployments(t *testing.T) {
	l := newLocked(t)
	l.addMac("a", say(`"m"`))
	l.setReady("a", false)
	l.addOther("second", say(`"second"`))
	l.routing(&route.Routing{Fallbacks: []string{"second"}})
	alias, target := l.key("alias", keys.Grant{Models: []string{"m"}}), l.key("target", keys.Grant{Models: []string{"second"}})
	ask := func(token, model string) *http.Response {
		return l.do("POST", chatPath, `{"model":"`+model+`","messages":[]}`, "Authorization", "Bearer "+token)
	}
	l.wantAnswer(ask(alias, "m"), `"second"`, "ns/second")
	l.wantRefusal(ask(alias, "second"), refusal{status: 404, code: openai.CodeModelNotFound})
	l.wantRefusal(ask(alias, "ns/second"), refusal{status: 404, code: openai.CodeModelNotFound})
	l.wantAnswer(ask(target, "second"), `"second"`, "")
	l.wantRefusal(ask(target, "m"), refusal{status: 404, code: openai.CodeModelNotFound})
}

// TestEachModelHasItsOwnTurns: if requests for two models alternate, each model still
// cycles through its replicas.
func TestEachModelHasItsOwnTurns(t *testing.T) {
	w := newWorld(t, func(c *proxy.Config) { c.Pick = pick.RoundRobin })
	a, b := w.addMac("a", say("{}")), w.addMac("b", say("{}"))
	w.addOther("other", say("{}"))
	for range 4 {
		read(t, w.chat())
		read(t, w.do("POST", chatPath, `{"model":"other","messages":[]}`))
	}
	if x, y := a.requests.Load(), b.requests.Load(); x != 2 || y != 2 {
		t.Errorf("the two replicas got %d and %d of 4", x, y)
	}
}
