package proxy_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/dialect"
	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/gateway/keys"
	"metalfleet.dev/metalfleet/gateway/proxy"
	"metalfleet.dev/metalfleet/gateway/route"
	"metalfleet.dev/metalfleet/test/patience"
)

const (
	backgroundBody = `{"model":"m","input":"x","background":true}`
	createdEvent   = `{"type":"response.created","response":{"id":"resp_1","status":"in_progress"}}`
)

// slowResponse is an agent whose response continues when next is closed. It sends the error
// of the request's context to ended.
func slowResponse(next <-chan struct{}, ended chan<- error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		agentapi.SetIgnored(w.Header(), agentapi.HeaderIgnored, []string{"metadata"})
		out := openai.NewEventWriter(w)
		_ = out.Comment("waits")
		_ = out.Event("response.created", json.RawMessage(createdEvent))
		select {
		case <-next:
		case <-r.Context().Done():
			ended <- r.Context().Err()
			return
		}
		_ = out.Event("response.completed", json.RawMessage(`{"type":"response.completed"}`))
		agentapi.SetTokens(w.Header(), http.TrailerPrefix+agentapi.HeaderTokens, 100, 50)
		ended <- nil
	}
}

func TestBackgroundResponseContinuesWithoutItsClient(t *testing.T) {
	const limit = 1000
	l := newLocked(t)
	token := l.key("k", keys.Grant{Models: []string{"*"}, TokensPerMinute: limit})
	next, ended := make(chan struct{}), make(chan error, 1)
	m := l.addMac("mac-a", slowResponse(next, ended))
	resp := l.with(token, "POST", dialect.PathResponses, backgroundBody)
	if got := read(t, resp); resp.StatusCode != 200 || got != `{"id":"resp_1","status":"in_progress"}` || resp.Header.Get("Content-Type") != "application/json" ||
		resp.Header.Get(agentapi.HeaderMac) != "mac-a" || resp.Header.Get(agentapi.HeaderIgnored) != "metadata" || resp.Header.Get("Cache-Control") != "" {
		t.Errorf("%d %v %s", resp.StatusCode, resp.Header, got)
	}
	if seen := <-m.seen; seen.Header.Get(agentapi.HeaderBackground) != "true" {
		t.Error("the agent is not asked for a stream")
	}
	if n := l.counter("requests_in_flight"); n != 1 {
		t.Errorf("%v requests run", n)
	}
	close(next)
	if err := <-ended; err != nil {
		t.Errorf("the request to the agent ended with %v", err)
	}
	eventually(t, "the tokens are counted", func() bool { return l.counter("api_key_tokens_total") == 150 })
	eventually(t, "nothing runs", func() bool { return l.counter("requests_in_flight") == 0 })
}

func TestStreamInTheBackgroundContinuesWithoutItsClient(t *testing.T) {
	w := newWorld(t)
	next, ended := make(chan struct{}), make(chan error, 2)
	w.addMac("mac-a", slowResponse(next, ended))
	body := strings.Replace(backgroundBody, "true", `true,"stream":true`, 1)
	ask := func(ctx context.Context) (*http.Response, *bufio.Reader) {
		resp, err := w.try(ctx, "POST", dialect.PathResponses, body)
		if err != nil {
			t.Fatal(err)
		}
		return resp, bufio.NewReader(resp.Body)
	}
	ctx, leave := context.WithCancel(t.Context())
	_, left := ask(ctx)
	resp, stays := ask(t.Context())
	for _, client := range []*bufio.Reader{left, stays} {
		for line := ""; !strings.Contains(line, "in_progress"); {
			var err error
			if line, err = client.ReadString('\n'); err != nil {
				t.Fatal(err)
			}
		}
	}
	leave()
	close(next)
	for range 2 {
		if err := <-ended; err != nil {
			t.Errorf("a request to the agent ended with %v", err)
		}
	}
	rest, err := io.ReadAll(stays)
	if err != nil || !strings.Contains(string(rest), "event: response.completed\n") || resp.Header.Get("Content-Type") != "text/event-stream" {
		t.Errorf("%v %q, %v", resp.Header, rest, err)
	}
}

// Clients give up on a stream that is idle for long.
func TestStreamInTheBackgroundIsKeptOpenWhileItWaits(t *testing.T) {
	w := newWorld(t, queueOf(10, impatient))
	next, ended := make(chan struct{}), make(chan error, 1)
	close(next)
	w.addMac("mac-a", slowResponse(next, ended))
	w.setReady("mac-a", false)
	resp := w.do("POST", dialect.PathResponses, strings.Replace(backgroundBody, "true", `true,"stream":true`, 1))
	in := bufio.NewReader(resp.Body)
	for events := 0; events < 2; {
		line, err := in.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(line, "event: response.") {
			events++
		}
	}
	w.setReady("mac-a", true)
	if rest, err := io.ReadAll(in); err != nil || !strings.Contains(string(rest), "event: response.completed\n") {
		t.Errorf("%q, %v", rest, err)
	}
}

// Without its id, no one can retrieve a response.
func TestClientThatLeavesBeforeItsBackgroundResponseBeginsCancelsIt(t *testing.T) {
	w := newWorld(t)
	ended := make(chan struct{})
	m := w.addMac("mac-a", func(_ http.ResponseWriter, r *http.Request) { untilGone(r); close(ended) })
	ctx, leave := context.WithCancel(t.Context())
	go func() { <-m.seen; leave() }()
	if resp, err := w.try(ctx, "POST", dialect.PathResponses, backgroundBody); err == nil {
		t.Errorf("%d", resp.StatusCode)
	}
	select {
	case <-ended:
	case <-time.After(patience.Of(t)):
		t.Error("the agent continues")
	}
}

func TestRefusalOfABackgroundResponse(t *testing.T) {
	w := newWorld(t)
	w.addMac("mac-a", func(rw http.ResponseWriter, _ *http.Request) {
		_ = openai.WriteError(rw, openai.Invalid("input", "no"))
	})
	resp := w.do("POST", dialect.PathResponses, backgroundBody)
	if got := read(t, resp); resp.StatusCode != 400 || !strings.Contains(got, `"message":"no"`) {
		t.Errorf("by the agent: %d %s", resp.StatusCode, got)
	}
	w.setReady("mac-a", false)
	w.wantRefusal(w.do("POST", dialect.PathResponses, backgroundBody), refusal{status: 503, code: openai.CodeNoEndpoint, retry: "2"})
	w.wantRefusal(w.do("POST", dialect.PathResponses, `{"background":true}`), refusal{status: 400, code: openai.CodeMissingParameter})
	eventually(t, "nothing runs", func() bool { return w.counter("requests_in_flight") == 0 })
}

func TestMacThatIsLostBreaksOffABackgroundResponse(t *testing.T) {
	w := newWorld(t)
	w.addMac("mac-a", func(rw http.ResponseWriter, r *http.Request) {
		_ = openai.NewEventWriter(rw).Event("response.created", json.RawMessage(createdEvent))
		abort(r)
	})
	if got := read(t, w.do("POST", dialect.PathResponses, strings.Replace(backgroundBody, "true", `true,"stream":true`, 1))); !strings.Contains(got, "event: error\n") {
		t.Error(got)
	}
}

func TestDrainWaitsForBackgroundResponses(t *testing.T) {
	for name, late := range map[string]bool{"one that ends in time": false, "one that is too late": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			next, ended := make(chan struct{}), make(chan error, 1)
			w.addMac("mac-a", slowResponse(next, ended))
			read(t, w.do("POST", dialect.PathResponses, backgroundBody))
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			drained := make(chan struct{})
			go func() { w.proxy.Drain(ctx); close(drained) }()
			select {
			case <-drained:
				t.Fatal("the drain is over although a response runs")
			case <-time.After(20 * time.Millisecond):
			}
			if late {
				cancel()
			} else {
				close(next)
			}
			if err := <-ended; late != (err != nil) {
				t.Errorf("the response ended with %v", err)
			}
			<-drained
		})
	}
}

// TestResponsesInTheBackgroundOfAClientWithoutAKey: they last when it has left, and it could take all
// slots of a model with some short requests.
func TestResponsesInTheBackgroundOfAClientWithoutAKey(t *testing.T) {
	const most = 4
	w := newWorld(t)
	next, ended := make(chan struct{}), make(chan error, 10)
	var refuses atomic.Bool
	refuses.Store(true)
	w.addMac("mac-a", func(rw http.ResponseWriter, r *http.Request) {
		if refuses.Load() {
			_ = openai.WriteError(rw, openai.Invalid("input", "no"))
			return
		}
		slowResponse(next, ended)(rw, r)
	})
	ask := func(address, body string) (status int, text string) {
		resp := w.fromTo(address, dialect.PathResponses, body)
		if resp == nil {
			t.FailNow()
		}
		return resp.StatusCode, read(t, resp)
	}
	for range 2 * most { // which end at once
		if status, text := ask("127.0.0.2", backgroundBody); status != http.StatusBadRequest {
			t.Fatalf("%d %s", status, text)
		}
	}
	idle := func() bool { return w.counter("requests_in_flight") == 0 && w.proxy.Bodies().Held() == 0 }
	eventually(t, "those that ended count no more", idle)
	refuses.Store(false)
	for n := range most {
		if status, text := ask("127.0.0.2", backgroundBody); status != http.StatusOK {
			t.Fatalf("response %d: %d %s", n, status, text)
		}
	}
	if status, text := ask("127.0.0.2", backgroundBody); status != http.StatusTooManyRequests || !strings.Contains(text, "in the background") {
		t.Errorf("one more than %d: %d %s", most, status, text)
	}
	if status, text := ask("127.0.0.3", backgroundBody); status != http.StatusOK {
		t.Errorf("another client: %d %s", status, text)
	}
	close(next)
	for range most + 1 {
		<-ended
	}
	eventually(t, "nothing runs or is held", idle)
	if status, text := ask("127.0.0.2", backgroundBody); status != http.StatusOK {
		t.Errorf("after they ended: %d %s", status, text)
	}
}

// TestResponsesInTheBackgroundOfManyAddresses: addresses that left keep at most as many sequences of a
// model as its replicas run at once, and never all places in the queues of its engines.
func TestResponsesInTheBackgroundOfManyAddresses(t *testing.T) {
	const sequences = 12
	w := newWorld(t)
	next, ended := make(chan struct{}), make(chan error, 100)
	w.addMac("mac-a", slowResponse(next, ended))
	w.table.SetReplica(route.Replica{UID: "replica-mac-a", Epoch: 3, Deployment: route.Key{Namespace: "ns", Name: "m"},
		DeploymentUID: "m", Mac: "mac-a", Ready: true, Sequences: sequences})
	began := 0
	for n := range 3 * sequences {
		resp := w.fromTo(fmt.Sprintf("127.0.0.%d", n+2), dialect.PathResponses, backgroundBody)
		switch text := read(t, resp); {
		case resp.StatusCode == http.StatusOK:
			if began++; began > sequences {
				t.Fatalf("%d responses in the background began, want %d", began, sequences)
			}
		case resp.StatusCode != http.StatusTooManyRequests || !strings.Contains(text, "the clients of a model"):
			t.Fatalf("address %d: %d %s", n, resp.StatusCode, text)
		}
	}
	if began != sequences {
		t.Errorf("%d responses in the background began, want %d", began, sequences)
	}
	close(next)
	for range began {
		<-ended
	}
	eventually(t, "those that ended count no more", func() bool {
		return w.fromTo("127.0.0.2", dialect.PathResponses, backgroundBody).StatusCode == http.StatusOK
	})
}

// TestMemoryOfResponsesInTheBackground: they outlive their connections, and the gateway counts their
// memory with that of bodies until they end.
func TestMemoryOfResponsesInTheBackground(t *testing.T) {
	const n, each = 6, 32 << 10 // more than a client without a key may have
	l := newLocked(t, func(c *proxy.Config) { c.MaxHeldBytes = 64 * each })
	token := l.key("k", keys.Grant{Models: []string{"*"}})
	next, ended := make(chan struct{}), make(chan error, 100)
	l.addMac("mac-a", slowResponse(next, ended))
	ask := func() int { return l.with(token, "POST", dialect.PathResponses, backgroundBody).StatusCode }
	running := 0
	for ; running < n; running++ {
		if status := ask(); status != http.StatusOK {
			t.Fatalf("response %d: %d", running, status)
		}
	}
	if held := l.proxy.Bodies().Held(); held < n*each {
		t.Errorf("%d bytes count for %d responses in the background, want at least %d", held, n, n*each)
	}
	refused := 0
	for ; running < 64 && refused == 0; running++ {
		if refused = ask(); refused == http.StatusOK {
			refused = 0
		}
	}
	if refused != http.StatusServiceUnavailable {
		t.Errorf("without memory for another one: %d after %d", refused, running)
	}
	close(next)
	eventually(t, "nothing runs or is held", func() bool { return l.counter("requests_in_flight") == 0 && l.proxy.Bodies().Held() == 0 })
}
