//go:build oracle

package clients

import (
	"context"
	"crypto/tls"
	"net/http/httptest"
	"path/filepath"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"

	"metalfleet.dev/metalfleet/agent/serve"
	"metalfleet.dev/metalfleet/agent/serve/servetest"
	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/agentapi/agentapitest"
	"metalfleet.dev/metalfleet/api/front"
	"metalfleet.dev/metalfleet/gateway/fairqueue"
	"metalfleet.dev/metalfleet/gateway/identity"
	"metalfleet.dev/metalfleet/gateway/proxy"
	"metalfleet.dev/metalfleet/gateway/route"
	"metalfleet.dev/metalfleet/metal/wire"
	"metalfleet.dev/metalfleet/test/oracle/clients/table"
	"metalfleet.dev/metalfleet/test/oracle/clients/tinyfleet"
)

const (
	// keepAlive is how long a stream is idle before an event keeps it open, and
	// wait how long each stage takes that comes before an answer.
	keepAlive = 20 * time.Millisecond
	wait      = 200 * time.Millisecond
)

var slowTarget = serve.Target{ReplicaUID: "replica", Epoch: 1}

// loading are engines that take a while to load the model.
type loading struct{ *servetest.Fake }

func (l loading) Acquire(ctx context.Context, t serve.Target) (serve.Hold, error) {
	time.Sleep(wait)
	return l.Fake.Acquire(ctx, t)
}

// slowly takes a while for the prompt, and again within the answer.
func slowly(_ context.Context, _ *wire.GenerateRequest, send func(*wire.GenerateEvent) error) error {
	for _, e := range []*wire.GenerateEvent{servetest.Admit(), servetest.Text("Par"), servetest.Text("is"), servetest.Finish(wire.FinishReason_FINISH_REASON_STOP, 2)} {
		if err := send(e); err != nil {
			return err
		}
		time.Sleep(wait)
	}
	return nil
}

// slowGateway is a gateway and an agent whose requests wait in every stage. The
// function it returns makes the next request wait in the queue too.
func slowGateway(t *testing.T) (url string, queue func()) {
	ca := agentapitest.NewCA(t)
	pem := ca.Gateway()
	id, err := identity.Parse(map[string][]byte{"tls.crt": pem.Certificate, "tls.key": pem.Key, "ca.crt": pem.CA})
	if err != nil {
		t.Fatal(err)
	}
	fake := servetest.New()
	fake.Add("m", slowTarget, slowly)
	agent := httptest.NewUnstartedServer(serve.NewHandler(serve.Config{Engines: loading{Fake: fake}, Mac: "mac-a", Limits: front.Limits{KeepAlive: keepAlive}, Log: logr.Discard()}))
	agent.EnableHTTP2 = true
	agent.TLS = agentapi.ServerTLS(ca.Mac("mac-a").Pair(t), ca.Roots())
	pair, err := ca.Mac("mac-a").Pair(t)()
	if err != nil {
		t.Fatal(err)
	}
	agent.TLS.Certificates = []tls.Certificate{*pair} // httptest would add its own
	agent.StartTLS()
	t.Cleanup(agent.Close)

	routes := route.NewTable()
	key := route.Key{Namespace: "ns", Name: "m"}
	routes.SetDeployment(route.Deployment{Key: key, UID: "m", Names: "m"})
	routes.SetMac(route.Mac{Name: "mac-a", Address: agent.Listener.Addr().String(), Open: true})
	ready := func(is bool) {
		routes.SetReplica(route.Replica{UID: slowTarget.ReplicaUID, Epoch: slowTarget.Epoch, Deployment: key, DeploymentUID: "m", Mac: "mac-a", Ready: is})
	}
	routes.MarkSynced()
	p := proxy.New(proxy.Config{Table: routes, Identity: func() *identity.Identity { return id }, Registry: prometheus.NewRegistry(), Log: logr.Discard(),
		Limits: front.Limits{KeepAlive: keepAlive}, Waiting: fairqueue.Limits{Count: 10, Bytes: 1 << 20, Age: time.Minute}})
	t.Cleanup(p.Close)
	front := httptest.NewServer(p)
	t.Cleanup(front.Close)
	return front.URL, func() {
		ready(false)
		time.AfterFunc(wait, func() { ready(true) })
	}
}

// idleCalls are streams, and what the client makes of them. Events that keep them
// open are counted where the client passes them on.
var idleCalls = map[string][]table.Step{
	"openai": {
		{Call: "chat.stream", Args: map[string]any{"model": "m", "messages": []any{map[string]any{"role": "user", "content": "hi"}}},
			Want: map[string]any{"events.#": map[string]any{"least": 12.0}, "events.*.choices.*.delta.content": map[string]any{"joined": "Paris"},
				"events.*.id": map[string]any{"matches": "^chatcmpl-"}, "events.-1.choices.0.finish_reason": "stop"}},
		{Call: "chat.helper", Args: map[string]any{"model": "m", "messages": []any{map[string]any{"role": "user", "content": "hi"}}},
			Want: map[string]any{"result.choices.0.message.content": "Paris", "result.choices.0.message.role": "assistant", "result.choices.0.finish_reason": "stop"}},
		{Call: "completions.stream", Args: map[string]any{"model": "m", "prompt": "hi"},
			Want: map[string]any{"events.#": map[string]any{"least": 12.0}, "events.*.choices.*.text": map[string]any{"joined": "Paris"}, "events.-1.choices.0.finish_reason": "stop"}},
		{Call: "responses.stream", Args: map[string]any{"model": "m", "input": "hi"},
			Want: map[string]any{"events.#": map[string]any{"least": 12.0}, "events.0.type": "response.created", "events.-1.type": "response.completed",
				"events.-1.response.output.0.content.0.text": "Paris"}},
		{Call: "responses.helper", Args: map[string]any{"model": "m", "input": "hi"},
			Want: map[string]any{"result.output.0.content.0.text": "Paris", "result.status": "completed"}},
	},
	"anthropic": {
		{Call: "messages.stream", Args: map[string]any{"model": "m", "max_tokens": 9, "messages": []any{map[string]any{"role": "user", "content": "hi"}}},
			Want: map[string]any{"events.*.delta.text": map[string]any{"joined": "Paris"}, "events.0.type": "message_start", "events.-1.type": "message_stop"}},
		{Call: "messages.helper", Args: map[string]any{"model": "m", "max_tokens": 9, "messages": []any{map[string]any{"role": "user", "content": "hi"}}},
			Want: map[string]any{"text": "Paris", "result.content.0.text": "Paris", "result.stop_reason": "end_turn"}},
	},
}

// lacking are the calls that a client has no method for.
var lacking = map[string]map[string]bool{"openai-go": {"completions.stream": true, "responses.helper": true}}

// TestOfficialClientsReadStreamsThatAreKeptOpen: while a request waits in the
// queue, for its model, for its prompt and between two tokens, the events that keep
// its stream open change nothing of what a client's parser and accumulator make.
func TestOfficialClientsReadStreamsThatAreKeptOpen(t *testing.T) {
	root, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	url, queue := slowGateway(t)
	for _, c := range table.Clients() {
		if *client != "" && *client != c.Name {
			continue
		}
		t.Run(c.Name, func(t *testing.T) {
			o := options{root: root, installed: filepath.Join(root, ".cache", "oracle", "clients")}
			r, err := startRunner(t.Context(), o, c, tinyfleet.Door{Name: "slow", URL: url})
			if err != nil {
				t.Fatal(err)
			}
			for _, step := range idleCalls[c.API] {
				if lacking[c.Name][step.Call] {
					continue
				}
				queue()
				got, err := r.ask(step.Call, "", step.Args, nil)
				if err != nil {
					t.Fatal(err)
				}
				if *verbose {
					t.Log(step.Call, show(got))
				}
				if err := table.Judge(step.Want, got, nil); err != nil {
					t.Errorf("%s: %v", step.Call, err)
				}
			}
			for _, err := range r.end() {
				t.Error(err)
			}
		})
	}
}
