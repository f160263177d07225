package proxy_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/dialect"
	"metalfleet.dev/metalfleet/gateway/route"
)

// adapted gives a deployment of the world adapters, and replicas them too.
func (w *world) adapted(name string, routing *route.Routing, adapters string, names ...string) {
	w.table.SetDeployment(route.Deployment{Key: route.Key{Namespace: "ns", Name: name}, UID: name, Names: strings.Join(names, "\n"), Adapters: adapters, Routing: routing})
}

func (w *world) replicaWith(mac, deployment, adapters string) {
	w.table.SetReplica(route.Replica{UID: "replica-" + mac, Epoch: 3, Deployment: route.Key{Namespace: "ns", Name: deployment},
		DeploymentUID: deployment, Mac: mac, Ready: true, Adapters: adapters})
}

func named(model string) string {
	return fmt.Sprintf(`{"model":%q,"messages":[{"role":"user","content":"hi"}]}`, model)
}

// The adapter of a name is stated to the agent, so that a replica without it cannot answer
// with its model alone.
func TestANameWithAnAdapterIsForwardedWithIt(t *testing.T) {
	w := newWorld(t)
	a := w.addMac("a", say(`"m"`))
	w.adapted("m", nil, "one\ntwo", "m", "m:one", "m:two", "ns/m:one", "ns/m:two", "ns/m")
	w.replicaWith("a", "m", "one\ntwo")
	for name, adapter := range map[string]string{"m": "", "ns/m": "", "m:one": "one", "m:two": "two", "ns/m:one": "one"} {
		read(t, w.do("POST", chatPath, named(name)))
		seen := <-a.seen
		if got := seen.Header.Get(agentapi.HeaderAdapter); got != adapter {
			t.Errorf("%s is forwarded with the adapter %q, want %q", name, got, adapter)
		}
		if body, _ := io.ReadAll(seen.Body); string(body) != named(name) {
			t.Errorf("%s: the body is %s", name, body)
		}
	}
}

// An adapter that a deployment does not have is an unknown model, in each dialect.
func TestAnUnknownAdapterIsAnUnknownModel(t *testing.T) {
	w := newWorld(t)
	a := w.addMac("a", say(`"m"`))
	w.adapted("m", nil, "one", "m", "m:one", "ns/m:one", "ns/m")
	w.replicaWith("a", "m", "one")
	for path, want := range map[string]string{
		dialect.PathChat: `"code":"model_not_found"`, dialect.PathCompletions: `"code":"model_not_found"`, dialect.PathResponses: `"code":"model_not_found"`,
		dialect.PathMessages: `"type":"not_found_error"`, dialect.PathRerank: `"detail":"`,
	} {
		for _, name := range []string{"m:two", "ns/m:two", "m:", "m:one:one"} {
			resp := w.do("POST", path, named(name))
			if got := read(t, resp); resp.StatusCode != http.StatusNotFound || !strings.Contains(got, want) || !strings.Contains(got, name) {
				t.Errorf("%s at %s: %d %s", name, path, resp.StatusCode, got)
			}
		}
	}
	if n := a.requests.Load(); n != 0 {
		t.Errorf("the Mac received %d requests", n)
	}
}

// While a rollout adds an adapter, only replicas of the new revision answer with it, and
// those of both answer without.
func TestARolloutThatAddsAnAdapterNeverAnswersWithoutIt(t *testing.T) {
	w := newWorld(t, queueOf(10))
	before, after := w.addMac("before", say(`"before"`)), w.addMac("after", say(`"after"`))
	w.adapted("m", nil, "one\ntwo", "m", "m:one", "m:two", "ns/m")
	w.replicaWith("before", "m", "one")
	w.replicaWith("after", "m", "one\ntwo")
	for range 20 {
		if got := read(t, w.do("POST", chatPath, named("m:two"))); got != `"after"` {
			t.Fatalf("answered by %s", got)
		}
	}
	if n := before.requests.Load(); n != 0 {
		t.Errorf("the replica without the adapter received %d requests", n)
	}
	by := map[string]int{}
	for n := range 40 {
		by[read(t, w.do("POST", chatPath, fmt.Sprintf(`{"model":"m:one","messages":[{"role":"user","content":"%d"}]}`, n)))]++
	}
	if len(by) != 2 {
		t.Errorf("an adapter of both is answered by %v", by)
	}
	// Without a replica that has it, the request waits, as for a deployment without replicas.
	w.table.DeleteReplica("replica-after")
	resp := w.do("POST", chatPath, named("m:two"), agentapi.HeaderTimeout, "0.2")
	if got := read(t, resp); resp.StatusCode < 500 || before.requests.Load() > 40 || strings.Contains(got, "before") {
		t.Errorf("%d %s", resp.StatusCode, got)
	}
	_ = after
}

// A request for an adapter passes only to deployments that have one of this name.
func TestAnAdapterIsRoutedToDeploymentsThatHaveIt(t *testing.T) {
	w := newWorld(t)
	w.addMac("a", say(`"m"`))
	w.addOther("without", say(`"without"`))
	with := w.addOther("with", say(`"with"`))
	routing := &route.Routing{Split: []route.Share{{Deployment: "without", Percent: 100}}, Fallbacks: []string{"with"}}
	w.adapted("m", routing, "one", "m", "m:one", "ns/m")
	w.replicaWith("a", "m", "one")
	w.adapted("with", nil, "one", "with", "with:one", "ns/with")
	w.table.DeleteReplica("replica-with")
	w.replicaWith("mac-of-with", "with", "one")
	w.wantAnswer(w.do("POST", chatPath, named("m")), `"without"`, "ns/without")
	w.wantAnswer(w.do("POST", chatPath, named("m:one")), `"m"`, "ns/m")
	w.table.DeleteReplica("replica-a")
	w.wantAnswer(w.do("POST", chatPath, named("m:one")), `"with"`, "ns/with")
	seen := <-with.seen
	if got := seen.Header.Get(agentapi.HeaderModel); got != "with:one" || seen.Header.Get(agentapi.HeaderAdapter) != "one" {
		t.Errorf("the answer is to name %q", got)
	}
}

func TestListsOfModelsContainTheirAdapters(t *testing.T) {
	w := newWorld(t)
	w.addMac("a", say(`"m"`))
	w.adapted("m", nil, "one", "m", "m:one", "ns/m:one", "ns/m")
	w.adapted("bare", nil, "one", "ns/bare:one", "ns/bare")
	var list struct {
		Data []struct {
			ID string `json:"id"`
		} `json:"data"`
	}
	if err := json.Unmarshal([]byte(read(t, w.do("GET", "/v1/models", ""))), &list); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, m := range list.Data {
		got = append(got, m.ID)
	}
	if want := []string{"m", "m:one", "ns/bare", "ns/bare:one"}; !slices.Equal(got, want) {
		t.Errorf("listed %q, want %q", got, want)
	}
	for name, status := range map[string]int{"m:one": 200, "ns/m:one": 200, "m:two": 404} {
		if resp := w.do("GET", "/v1/models/"+name, ""); resp.StatusCode != status {
			t.Errorf("%s: %d, want %d", name, resp.StatusCode, status)
		}
	}
}
