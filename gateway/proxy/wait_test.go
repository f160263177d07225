package proxy_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/dialect"
	"metalfleet.dev/metalfleet/api/front"
	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/gateway/fairqueue"
	"metalfleet.dev/metalfleet/gateway/keys"
	"metalfleet.dev/metalfleet/gateway/proxy"
	"metalfleet.dev/metalfleet/gateway/route"
)

// queueOf allows that many requests to wait.
func queueOf(count int, change ...func(*proxy.Config)) func(*proxy.Config) {
	return func(c *proxy.Config) {
		c.Waiting = fairqueue.Limits{Count: count, Bytes: 1 << 20, Age: time.Minute}
		for _, f := range change {
			f(c)
		}
	}
}

// gauge returns the value of a gauge for model "m".
func (w *world) gauge(name string) float64 {
	w.t.Helper()
	families, err := w.metrics.Gather()
	if err != nil {
		w.t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == name && len(m.GetLabel()) == 1 && m.GetLabel()[0].GetValue() == "ns/m" {
				return m.GetGauge().GetValue()
			}
		}
	}
	return 0
}

func (w *world) waiting(n float64) {
	w.t.Helper()
	eventually(w.t, fmt.Sprint(n, " requests wait"), func() bool { return w.gauge("vllm:num_requests_waiting") == n })
}

// waits returns a counter's value for one outcome.
func (w *world) waits(outcome string) float64 {
	w.t.Helper()
	families, err := w.metrics.Gather()
	if err != nil {
		w.t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == "metalfleet_gateway_waits_total" && m.GetLabel()[0].GetValue() == outcome {
				return m.GetCounter().GetValue()
			}
		}
	}
	return 0
}

// later is a request that runs concurrently with the test.
type later struct {
	done chan struct{}
	resp *http.Response
	body string
	err  error
}

func (w *world) later(ctx context.Context, body string, headers ...string) *later {
	return w.laterAt(ctx, chatPath, body, headers...)
}

func (w *world) laterAt(ctx context.Context, path, body string, headers ...string) *later {
	l := &later{done: make(chan struct{})}
	go func() {
		defer close(l.done)
		if l.resp, l.err = w.try(ctx, "POST", path, body, headers...); l.err == nil {
			var b strings.Builder
			_, l.err = bufio.NewReader(l.resp.Body).WriteTo(&b)
			l.body = b.String()
		}
	}()
	w.t.Cleanup(func() { <-l.done })
	return l
}

func (l *later) want(t *testing.T, status int, part string) {
	t.Helper()
	<-l.done
	if l.err != nil || l.resp.StatusCode != status || !strings.Contains(l.body, part) {
		t.Errorf("answer %+v %q, %v; want %d with %q", l.resp, l.body, l.err, status, part)
	}
}

// Regression test for GIE #2117: no endpoint existed when the request arrived.
func TestAWaiterGetsAnEndpointThatAppearsLater(t *testing.T) {
	w := newWorld(t, queueOf(10))
	w.addMac("a", say(`"late"`))
	w.setReady("a", false)
	l := w.later(t.Context(), chatBody)
	w.waiting(1)
	if w.gauge("metalfleet_gateway_queue_oldest_seconds") <= 0 {
		t.Error("nothing is said of the time that it has waited")
	}
	w.setReady("a", true)
	l.want(t, 200, `"late"`)
	if h := l.resp.Header; h.Get(agentapi.HeaderQueuePosition) != "1" || h.Get(agentapi.HeaderQueueSeconds) == "" || h.Get(agentapi.HeaderMac) != "a" {
		t.Errorf("headers %v", h)
	}
	w.waiting(0)
	if w.waits("served") != 1 {
		t.Error("not counted as served")
	}
}

// TestWaitersOutliveADeadMac: no replica was ready for the second attempt.
func TestWaitersOutliveADeadMac(t *testing.T) {
	w := newWorld(t, queueOf(10))
	w.addMac("dead", say(`"dead"`)).kill()
	l := w.later(t.Context(), chatBody)
	eventually(t, "it was tried, and waits", func() bool { return w.counter("macs_suspected_total") > 0 && w.gauge("vllm:num_requests_waiting") == 1 })
	w.addMac("new", say(`"new"`))
	l.want(t, 200, `"new"`)
}

func TestARequestThatLeavesTheQueueLeavesNoTrace(t *testing.T) {
	w := newWorld(t, queueOf(10))
	m := w.addMac("a", say("{}"))
	w.setReady("a", false)
	ctx, hangUp := context.WithCancel(t.Context())
	gone := w.later(ctx, chatBody)
	w.waiting(1)
	hangUp()
	<-gone.done
	w.waiting(0)
	w.idle()
	w.setReady("a", true)
	if read(t, w.chat()); m.requests.Load() != 1 || w.waits("left") != 1 {
		t.Errorf("the Mac saw %d requests, want the second one alone", m.requests.Load())
	}
}

// A suspended model is resumed by a person, and not by waiting.
func TestNoRequestWaitsForASuspendedModel(t *testing.T) {
	w := newWorld(t, queueOf(10))
	m := w.addMac("a", say("{}"))
	suspend := func(is bool) {
		w.table.SetDeployment(route.Deployment{Key: route.Key{Namespace: "ns", Name: "m"}, UID: "m", Names: "m", Suspended: is})
	}
	suspend(true)
	if read(t, w.chat()); m.requests.Load() != 1 {
		t.Error("a replica that is still ready was not used")
	}
	w.setReady("a", false)
	w.wantRefusal(w.chat(), refusal{status: 503, code: openai.CodeNoEndpoint})
	suspend(false)
	l := w.later(t.Context(), chatBody)
	w.waiting(1)
	suspend(true) // meanwhile
	l.want(t, 503, openai.CodeNoEndpoint)
	if w.waits("gone") != 1 || w.waits("late") != 0 {
		t.Error("the request waited until its time was over")
	}
	w.idle()
	suspend(false)
	w.setReady("a", true)
	if read(t, w.chat()); m.requests.Load() != 2 {
		t.Errorf("the Mac saw %d requests, want the one before and the one after", m.requests.Load())
	}
}

func TestAWaitIsOverInTime(t *testing.T) {
	w := newWorld(t, queueOf(10, func(c *proxy.Config) { c.Waiting.Age = 50 * time.Millisecond }))
	w.addMac("a", say("{}"))
	w.setReady("a", false)
	w.wantRefusal(w.chat(), refusal{status: 503, code: openai.CodeNoEndpoint, retry: "2"})
	if w.waits("late") != 1 {
		t.Error("not counted as late")
	}
	w = newWorld(t, queueOf(10))
	m := w.addMac("a", say("{}"))
	w.setReady("a", false)
	w.wantRefusal(w.do("POST", chatPath, chatBody, agentapi.HeaderTimeout, "0.05"), refusal{status: 503, code: openai.CodeNoEndpoint, retry: "2"})
	for _, bad := range []string{"soon", "0", "-1", "NaN", "86401"} {
		w.wantRefusal(w.do("POST", chatPath, chatBody, agentapi.HeaderTimeout, bad), refusal{status: 400, code: openai.CodeInvalidValue})
	}
	// A deleted model gets no replica any more, and a gateway that shuts down cannot wait.
	l := w.later(t.Context(), chatBody)
	w.waiting(1)
	w.table.DeleteDeployment(route.Key{Namespace: "ns", Name: "m"}, "m")
	l.want(t, 404, openai.CodeModelNotFound)
	w.deployment("m", "m")
	l = w.later(t.Context(), chatBody)
	w.waiting(1)
	w.stop(front.ErrShuttingDown)
	l.want(t, 503, "shutting_down")
	if m.requests.Load() != 0 {
		t.Error("the Mac saw a request")
	}
}

func TestWaitingStreamIsKeptOpenByEventsThatAddNothing(t *testing.T) {
	w := newWorld(t, queueOf(10, func(c *proxy.Config) { c.KeepAlive = 20 * time.Millisecond }))
	w.addMac("a", func(rw http.ResponseWriter, r *http.Request) {
		if r.Header.Get(agentapi.HeaderRequestID) == "whole" {
			say(`"whole"`)(rw, r)
			return
		}
		events(nil, "x", "[DONE]")(rw, r)
	})
	w.setReady("a", false)
	whole := w.later(t.Context(), chatBody, agentapi.HeaderRequestID, "whole")
	w.waiting(1)
	resp := w.do("POST", chatPath, `{"model":"m","stream":true}`)
	in := bufio.NewReader(resp.Body)
	for range 3 {
		wantKeepAlive(t, in, ": keep-alive, position 2\n")
	}
	if resp.Header.Get("Content-Type") != "text/event-stream" || resp.Header.Get(agentapi.HeaderQueuePosition) != "2" {
		t.Errorf("headers %v", resp.Header)
	}
	w.setReady("a", true)
	var rest strings.Builder
	if _, err := in.WriteTo(&rest); err != nil || !strings.HasSuffix(rest.String(), "data: {\"text\":\"x\"}\n\ndata: [DONE]\n\n") {
		t.Errorf("the stream continues with %q, %v", rest.String(), err)
	}
	whole.want(t, 200, `"whole"`)
	if whole.body != `"whole"` {
		t.Errorf("what is no stream has %q", whole.body)
	}
}

// The replica loads the model or processes a long prompt. A non-streaming request gets
// nothing early, and a late failure is sent inside the stream.
func TestStreamIsKeptOpenWhileItsReplicaIsSilent(t *testing.T) {
	const stream = `{"model":"m","stream":true}`
	for name, tc := range map[string]struct {
		end    string
		answer http.HandlerFunc
	}{
		"an answer": {end: "data: {\"text\":\"x\"}\n\ndata: [DONE]\n\n", answer: events(nil, "x", "[DONE]")},
		"a refusal": {end: `data: {"error":{"message":"no","type":"invalid_request_error","param":"stop","code":"invalid_value"}}` + "\n\n",
			answer: func(rw http.ResponseWriter, _ *http.Request) { _ = openai.WriteError(rw, openai.Invalid("stop", "no")) }},
		"no other replica may be tried": {end: `"code":"replica_not_ready"}}` + "\n\n", answer: refuse(notReady)},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, func(c *proxy.Config) { c.KeepAlive = 5 * time.Millisecond })
			answer := make(chan struct{})
			w.addMac("a", func(rw http.ResponseWriter, r *http.Request) {
				<-answer
				if r.Header.Get(agentapi.HeaderRequestID) == "whole" {
					say(`"whole"`)(rw, r)
					return
				}
				tc.answer(rw, r)
			})
			whole := w.later(t.Context(), chatBody, agentapi.HeaderRequestID, "whole")
			resp := w.do("POST", chatPath, stream)
			in := bufio.NewReader(resp.Body)
			for range 3 {
				wantKeepAlive(t, in, ": keep-alive\n")
			}
			close(answer)
			var rest strings.Builder
			if _, err := in.WriteTo(&rest); err != nil || !strings.HasSuffix(rest.String(), tc.end) || strings.Contains(rest.String(), "[DONE]") != (name == "an answer") {
				t.Errorf("the stream continues with %q, %v", rest.String(), err)
			}
			if resp.StatusCode != 200 || resp.Header.Get("Content-Type") != "text/event-stream" {
				t.Errorf("%d, headers %v", resp.StatusCode, resp.Header)
			}
			whole.want(t, 200, `"whole"`)
			if whole.body != `"whole"` || whole.resp.Header.Get(agentapi.HeaderMac) != "a" {
				t.Errorf("what is no stream has %q, headers %v", whole.body, whole.resp.Header)
			}
		})
	}
}

// wantKeepAlive reads a keep-alive of a chat stream: a human-readable comment, and an event
// that adds nothing.
func wantKeepAlive(t *testing.T, in *bufio.Reader, comment string) {
	t.Helper()
	var got string
	for range 3 {
		line, err := in.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		got += line
	}
	event, ok := strings.CutPrefix(got, comment)
	if !ok || !strings.HasPrefix(event, `data: {"id":"chatcmpl-`) || !dialect.OpenAI.Idle([]byte(event)) {
		t.Fatalf("%q keeps the stream open, want %q and an empty chunk", got, comment)
	}
}

// The Mac's request is cancelled, and the Mac is not avoided.
func TestADisconnectFromASilentStreamIsNoticed(t *testing.T) {
	w := newWorld(t, func(c *proxy.Config) { c.KeepAlive = time.Millisecond })
	m := w.addMac("a", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	ctx, hangUp := context.WithCancel(t.Context())
	resp, err := w.try(ctx, "POST", chatPath, `{"model":"m","stream":true}`)
	if err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(resp.Body).ReadString('\n'); err != nil || line != ": keep-alive\n" {
		t.Fatalf("line %q, %v", line, err)
	}
	<-m.seen
	hangUp()
	<-m.left
	w.idle()
	if w.counter("retries_total")+w.counter("macs_suspected_total") != 0 {
		t.Error("the Mac was blamed")
	}
}

// busy is a Mac that runs one request at a time; responses end on a receive from end. order
// returns the requests in the order of their arrival.
func (w *world) busy() (m *mac, end chan struct{}, order func() []string) {
	end = make(chan struct{})
	var mu sync.Mutex
	var came []string
	order = func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(came)
	}
	m = w.addMac("a", func(rw http.ResponseWriter, r *http.Request) {
		mu.Lock()
		came = append(came, r.Header.Get(agentapi.HeaderRequestID))
		mu.Unlock()
		select {
		case <-end:
			say("{}")(rw, r)
		case <-r.Context().Done():
		}
	})
	w.table.SetReplica(route.Replica{UID: "replica-a", Epoch: 3, Deployment: route.Key{Namespace: "ns", Name: "m"},
		DeploymentUID: "m", Mac: "a", Ready: true, Sequences: 1})
	return m, end, order
}

// The first request of a tenant does not wait for those of another to end: the engine
// shares its sequences between them. A request for several choices has as many slots.
func TestAttackRequestsOfOneTenantOccupyAReplica(t *testing.T) {
	for name, tc := range map[string]struct {
		path, body string
		count      int
	}{
		"many requests": {path: chatPath, body: chatBody, count: 2},
		"many choices":  {path: chatPath, body: `{"model":"m","messages":[],"n":128}`, count: 1},
		"many prompts":  {path: "/v1/completions", body: `{"model":"m","prompt":["a","b"]}`, count: 1},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLocked(t, queueOf(10))
			m, end, _ := l.busy()
			grant := keys.Grant{Models: []string{"*"}}
			tokens := map[string]string{"greedy": l.key("greedy", grant), "modest": l.key("modest", grant)}
			ask := func(key, path, body string) {
				l.laterAt(t.Context(), path, body, "Authorization", "Bearer "+tokens[key])
			}
			for range tc.count {
				ask("greedy", tc.path, tc.body)
			}
			eventually(t, "the Mac has them", func() bool { return int(m.requests.Load()) == tc.count })
			ask("greedy", chatPath, chatBody)
			eventually(t, "the next one waits", func() bool { return l.gauge("vllm:num_requests_waiting") == 1 })
			ask("modest", chatPath, chatBody)
			eventually(t, "the Mac has the other tenant's", func() bool { return int(m.requests.Load()) == tc.count+1 })
			close(end)
		})
	}
}

// The replica receives one request more than it runs, and waiting requests are not served
// in the order of arrival.
func TestKeysHaveTurnsAtABusyReplica(t *testing.T) {
	l := newLocked(t, queueOf(10))
	grant := keys.Grant{Models: []string{"*"}, Tenant: "t"}
	tokens := map[string]string{"a": l.key("greedy", grant), "b": l.key("modest", grant)}
	m, end, order := l.busy()
	var all []*later
	ask := func(id string) {
		all = append(all, l.later(t.Context(), chatBody, agentapi.HeaderRequestID, id, "Authorization", "Bearer "+tokens[id[:1]]))
		eventually(t, id+" has come", func() bool { return len(order())+int(l.gauge("vllm:num_requests_waiting")) == len(all) })
	}
	for _, id := range []string{"a1", "a2", "a3", "a4", "a5", "b1", "b2"} {
		ask(id)
	}
	if running := l.gauge("vllm:num_requests_running"); running != 2 || m.requests.Load() != 2 {
		t.Errorf("%v run, the Mac saw %d, want 2", running, m.requests.Load())
	}
	for n := range all {
		end <- struct{}{}
		eventually(t, "the next has its turn", func() bool { return len(order()) == min(n+3, len(all)) })
	}
	for _, one := range all {
		one.want(t, 200, "{}")
	}
	if got := strings.Join(order(), " "); got != "a1 a2 a3 b1 a4 b2 a5" {
		t.Errorf("served in the order %s", got)
	}
	l.idle()
	if l.gauge("vllm:num_requests_running") != 0 {
		t.Error("requests are counted that have ended")
	}
}

func TestAFullQueueIsReported(t *testing.T) {
	w := newWorld(t, queueOf(1))
	w.addMac("a", say("{}"))
	w.setReady("a", false)
	ctx, hangUp := context.WithCancel(t.Context())
	defer hangUp()
	w.later(ctx, chatBody)
	w.waiting(1)
	w.wantRefusal(w.chat(), refusal{status: 503, code: openai.CodeNoEndpoint, retry: "2"})

	l := newLocked(t, queueOf(2))
	grant := keys.Grant{Models: []string{"*"}}
	greedy, modest := l.key("greedy", grant), l.key("modest", grant)
	l.addMac("a", say("{}"))
	l.setReady("a", false)
	first := l.later(t.Context(), chatBody, "Authorization", "Bearer "+greedy)
	l.waiting(1)
	second := l.later(t.Context(), chatBody, "Authorization", "Bearer "+greedy)
	l.waiting(2)
	l.wantRefusal(l.ask(greedy), refusal{status: 429, code: openai.CodeRateLimitExceeded, retry: "2"})
	third := l.later(t.Context(), chatBody, "Authorization", "Bearer "+modest)
	second.want(t, 429, "greedy") // the newest of the key with the largest share
	l.setReady("a", true)
	first.want(t, 200, "{}")
	third.want(t, 200, "{}")
}

func TestATryAndARequestAreBounded(t *testing.T) {
	w := newWorld(t, func(c *proxy.Config) { c.TryTimeout = 250 * time.Millisecond })
	w.addMac("good", say(`"good"`))
	eventually(t, "there is a connection to the good one, which may take longer than a try", func() bool { return read(t, w.chat()) == `"good"` })
	w.addMac("hangs", func(_ http.ResponseWriter, r *http.Request) { untilGone(r) })
	for range 4 {
		if got := read(t, w.chat()); got != `"good"` {
			t.Error(got)
		}
	}
	if w.counter("retries_total") == 0 || w.counter("macs_suspected_total") != 0 {
		t.Error("a try that took long says nothing of the connection")
	}
	w = newWorld(t, func(c *proxy.Config) { c.RequestTimeout = 150 * time.Millisecond })
	w.addMac("hangs", func(_ http.ResponseWriter, r *http.Request) { untilGone(r) })
	w.wantRefusal(w.chat(), refusal{status: 504, code: openai.CodeTimeout})
	w = newWorld(t)
	m := w.addMac("slow", events(untilGone, "x"))
	stream := openai.NewEventReader(w.do("POST", chatPath, chatBody, agentapi.HeaderTimeout, "0.2").Body)
	if _, err := stream.Next(); err != nil {
		t.Fatal(err)
	}
	_, err := stream.Next()
	var told *openai.Error
	if !errors.As(err, &told) || told.Code != openai.CodeTimeout {
		t.Errorf("end of stream: %v", err)
	}
	<-m.left
}

func TestAReplicaWhoseRequestsFailIsLeftAlone(t *testing.T) {
	w := newWorld(t)
	bad := w.addMac("bad", func(rw http.ResponseWriter, _ *http.Request) { _ = openai.WriteError(rw, openai.EngineFailed(nil)) })
	end := make(chan struct{})
	good := w.addMac("good", func(rw http.ResponseWriter, r *http.Request) { <-end; say(`"good"`)(rw, r) })
	for n := int64(1); n <= 40 && w.counter("replicas_ejected_total") == 0; n++ {
		at := bad.requests.Load()
		l := w.later(t.Context(), chatBody)
		eventually(t, "it is at a Mac", func() bool { return bad.requests.Load()+good.requests.Load() == n })
		if bad.requests.Load() > at {
			<-l.done
		}
	}
	close(end)
	if n := bad.requests.Load(); n != 5 {
		t.Fatalf("ejected after %d requests, want 5", n)
	}
	for range 10 {
		if got := read(t, w.chat()); got != `"good"` {
			t.Error(got)
		}
	}
	w.setReady("good", false) // the only replica is used in spite of its failures
	if resp := w.chat(); resp.StatusCode != 500 {
		t.Errorf("status %d", resp.StatusCode)
	}
}

// TestRetriesHaveABudget: a fleet that refuses everything does not get five times the load.
func TestRetriesHaveABudget(t *testing.T) {
	w := newWorld(t)
	var macs []*mac
	for i := range 6 {
		macs = append(macs, w.addMac(fmt.Sprint("m", i), refuse(notReady)))
	}
	const requests = 60
	for range requests {
		w.wantRefusal(w.chat(), refusal{status: 503, code: agentapi.CodeReplicaNotReady, retry: "3"})
	}
	tries := int64(0)
	for _, m := range macs {
		tries += m.requests.Load()
	}
	if tries < requests || tries >= 5*requests {
		t.Errorf("%d tries for %d requests", tries, requests)
	}
}

// A conversation stays unless the other Macs are less busy.
func TestOneConversationStaysWithOneMac(t *testing.T) {
	w := newWorld(t)
	for i := range 4 {
		w.addMac(fmt.Sprint("m", i), say("{}"))
	}
	homes := map[string]bool{}
	for n := range 24 {
		macs := map[string]bool{}
		turns := fmt.Sprintf(`{"role":"user","content":"question %d"}`, n)
		for range 4 {
			resp := w.do("POST", chatPath, `{"model":"m","messages":[`+turns+`]}`)
			read(t, resp)
			macs[resp.Header.Get(agentapi.HeaderMac)] = true
			homes[resp.Header.Get(agentapi.HeaderMac)] = true
			turns += `,{"role":"assistant","content":"{}"},{"role":"user","content":"and then?"}`
		}
		if len(macs) != 1 {
			t.Errorf("conversation %d was answered by %v", n, macs)
		}
	}
	if len(homes) != 4 {
		t.Errorf("all conversations are at home on %v", homes)
	}
}

// TestWithoutAQueueReplicasQueueForThemselves: the replicas may accept what the gateway
// would have to refuse.
func TestWithoutAQueueReplicasQueueForThemselves(t *testing.T) {
	w := newWorld(t)
	m, end, _ := w.busy()
	var all []*later
	for range 4 {
		all = append(all, w.later(t.Context(), chatBody))
	}
	eventually(t, "all have come", func() bool { return m.requests.Load() == 4 })
	close(end)
	for _, l := range all {
		l.want(t, 200, "{}")
	}
}

func TestARefusalThatWaitingCannotSolveIsReturnedAtOnce(t *testing.T) {
	w := newWorld(t, queueOf(10))
	m := w.addMac("a", refuse(openai.InsufficientMemory(openai.Memory{Used: 1, Needed: 2, Limit: 3})))
	w.wantRefusal(w.chat(), refusal{status: 507, code: openai.CodeInsufficientMemory})
	if m.requests.Load() != 1 || w.waits("late")+w.waits("served") != 0 {
		t.Errorf("%d tries of what cannot be", m.requests.Load())
	}

	w = newWorld(t, queueOf(10))
	loading := openai.NoRoomNow(openai.Memory{Used: 1, Needed: 2, Limit: 3}, time.Second)
	first := true
	m = w.addMac("a", func(rw http.ResponseWriter, r *http.Request) {
		if first {
			first = false
			refuse(loading)(rw, r)
			return
		}
		say(`"loaded"`)(rw, r)
	})
	if got := read(t, w.chat()); got != `"loaded"` || m.requests.Load() != 2 {
		t.Errorf("%s after %d tries", got, m.requests.Load())
	}
	if w.waits("served") != 1 || w.counter("retries_total") != 1 {
		t.Error("the second try is not counted")
	}
}

// The only engine of a model was killed before it sent anything, and is restarted; its Mac
// notices only after the next try. A request that crashes engines gets an error that names
// the cause.
func TestAnEngineThatEndsIsWaitedForOnce(t *testing.T) {
	ended := &openai.Error{Status: http.StatusBadGateway, Type: openai.TypeServer, Code: agentapi.CodeEngineLost, Message: "The engine ended."}
	w := newWorld(t, queueOf(10))
	var asked atomic.Int64
	w.addMac("a", func(rw http.ResponseWriter, r *http.Request) {
		if asked.Add(1) <= 2 {
			refuse(ended)(rw, r)
			return
		}
		say(`"again"`)(rw, r)
	})
	if got := read(t, w.chat()); got != `"again"` || asked.Load() != 3 {
		t.Errorf("%s after %d tries", got, asked.Load())
	}

	w = newWorld(t, queueOf(10))
	m := w.addMac("a", refuse(ended))
	w.wantRefusal(w.chat(), refusal{status: http.StatusBadGateway, code: agentapi.CodeEngineLost})
	if n := m.requests.Load(); n < 2 || n > 12 { // one each 250 ms, for 2 s
		t.Errorf("it was tried %d times", n)
	}
}
