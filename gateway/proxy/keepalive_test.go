package proxy_test

import (
	"bufio"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/anthropic"
	"metalfleet.dev/metalfleet/api/dialect"
	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/api/responses"
	"metalfleet.dev/metalfleet/gateway/keys"
	"metalfleet.dev/metalfleet/gateway/proxy"
	"metalfleet.dev/metalfleet/test/patience"
)

func impatient(c *proxy.Config) { c.KeepAlive = 5 * time.Millisecond }

// seenEvent is an event as a client's parser sees it.
type seenEvent struct {
	name, data string
}

// eventsOf parses a stream as clients do: comments are skipped.
func eventsOf(t *testing.T, stream string) (out []seenEvent) {
	t.Helper()
	for block := range strings.SplitSeq(strings.TrimSuffix(stream, "\n\n"), "\n\n") {
		var e seenEvent
		for line := range strings.SplitSeq(block, "\n") {
			field, value, _ := strings.Cut(line, ": ")
			switch field {
			case "event":
				e.name = value
			case "data":
				e.data = value
			case "":
			default:
				t.Errorf("line %q of %q", line, block)
			}
		}
		if e.data != "" {
			out = append(out, e)
		}
	}
	return out
}

// written sends events as an agent does.
func written(rw http.ResponseWriter, all ...[]openai.NamedEvent) {
	out := openai.NewEventWriter(rw)
	for _, events := range all {
		for _, e := range events {
			_ = out.Event(e.Name, e.Data)
		}
	}
}

// A client that counts parsed events sees one per interval, in the queue and while the
// model is loaded, and accumulates only the response.
func TestEveryDialectKeepsItsStreamsOpenWithEventsOfItsOwn(t *testing.T) {
	chat := func(id string) []any {
		a := openai.ChatAnswer{ID: id, Model: "m"}
		return []any{a.Opening(), a.Text("x"), a.Finish("stop")}
	}
	text := func(id string) []any {
		a := openai.CompletionAnswer{ID: id, Model: "m"}
		return []any{a.Text("x"), a.Finish("stop")}
	}
	chunks := func(make func(id string) []any) http.HandlerFunc {
		return func(rw http.ResponseWriter, r *http.Request) {
			out := openai.NewEventWriter(rw)
			for _, c := range make(r.Header.Get(agentapi.HeaderResponseID)) {
				_ = out.Send(c)
			}
			_ = out.Done()
		}
	}
	for path, tc := range map[string]struct {
		body   string
		answer http.HandlerFunc
		keeps  string // how each keep-alive event begins
		events int    // of the response
	}{
		dialect.PathChat:        {body: `"messages":[]`, answer: chunks(chat), keeps: `{"id":"chatcmpl-`, events: 4},
		dialect.PathCompletions: {body: `"prompt":"a"`, answer: chunks(text), keeps: `{"id":"cmpl-`, events: 3},
		dialect.PathMessages: {body: `"messages":[{"role":"user","content":"a"}],"max_tokens":1`, answer: func(rw http.ResponseWriter, _ *http.Request) {
			a := anthropic.Answer{ID: "msg_1"}
			written(rw, a.Opening()[:1], a.Text("x"), a.Finish(anthropic.Stop{Reason: "end_turn"}, anthropic.Usage{}))
		}, keeps: `{"type":"ping"}`, events: 6},
	} {
		t.Run(path, func(t *testing.T) {
			w := newWorld(t, queueOf(10, impatient))
			loaded := make(chan struct{})
			w.addMac("a", func(rw http.ResponseWriter, r *http.Request) {
				<-loaded
				tc.answer(rw, r)
			})
			w.setReady("a", false)
			resp := w.do("POST", path, `{"model":"m","stream":true,`+tc.body+`}`)
			in := bufio.NewReader(resp.Body)
			var stream strings.Builder
			keepAlives := func(n int) {
				for seen := 0; seen < n; {
					line, err := in.ReadString('\n')
					if err != nil {
						t.Fatal(err)
					}
					stream.WriteString(line)
					if strings.HasPrefix(line, "data: "+tc.keeps) {
						seen++
					}
				}
			}
			keepAlives(2) // in the queue
			w.setReady("a", true)
			eventually(t, "the Mac is asked", func() bool { return w.gauge("vllm:num_requests_running") == 1 })
			keepAlives(4) // while the model is loaded
			close(loaded)
			if _, err := in.WriteTo(&stream); err != nil {
				t.Fatal(err)
			}
			all := eventsOf(t, stream.String())
			idle := slices.DeleteFunc(slices.Clone(all), func(e seenEvent) bool { return !strings.HasPrefix(e.data, tc.keeps) || !isIdle(path, e) })
			if answer := all[len(idle):]; len(idle) < 6 || len(answer) != tc.events || isIdle(path, answer[0]) {
				t.Errorf("%d keep-alive events, then %q", len(idle), answer)
			}
			wantOneID(t, all)
		})
	}
}

func isIdle(path string, e seenEvent) bool {
	text := "data: " + e.data + "\n\n"
	if e.name != "" {
		text = "event: " + e.name + "\n" + text
	}
	return dialect.Of(path).Idle([]byte(text))
}

// wantOneID: clients that accumulate a stream reject chunks with another id.
func wantOneID(t *testing.T, all []seenEvent) {
	t.Helper()
	ids := map[string]bool{}
	for _, e := range all {
		var body struct{ ID string }
		if json.Unmarshal([]byte(e.data), &body) == nil && body.ID != "" {
			ids[body.ID] = true
		}
	}
	if len(ids) > 1 {
		t.Errorf("ids %v", ids)
	}
}

// Responses that are not streamed get nothing early.
func TestOnlyStreamsAreKeptOpenByEvents(t *testing.T) {
	for path, body := range map[string]string{
		dialect.PathChat:        `{"model":"m","messages":[],"stream":false}`,
		dialect.PathCountTokens: `{"model":"m","messages":[{"role":"user","content":"a"}],"stream":true}`,
		dialect.PathEmbeddings:  `{"model":"m","input":"a","stream":true}`,
		dialect.PathRerank:      `{"model":"m","query":"q","documents":["a"],"stream":true}`,
	} {
		t.Run(path, func(t *testing.T) {
			w := newWorld(t, queueOf(10, impatient))
			w.addMac("a", func(rw http.ResponseWriter, r *http.Request) {
				time.Sleep(30 * time.Millisecond)
				say(`{"whole":true}`)(rw, r)
			})
			resp := w.do("POST", path, body)
			if got := read(t, resp); got != `{"whole":true}` || resp.Header.Get("Content-Type") != "application/json" || resp.Header.Get(agentapi.HeaderMac) != "a" {
				t.Errorf("%q %v", got, resp.Header)
			}
		})
	}
}

// agentResponse responds as an agent does, whose own events are numbered from 0.
func agentResponse(r *http.Request) *responses.Answer {
	a := responses.NewAnswer(r.Header.Get(agentapi.HeaderResponseID), 2, &responses.Request{Model: "m"})
	a.Response.Model = "m"
	return a
}

// wantOneResponse: SDKs reject a first event other than response.created, a second one with
// another id, and anything after the end; some sort by number.
func wantOneResponse(t *testing.T, all []seenEvent, last string) (id string) {
	t.Helper()
	created := 0
	for i, e := range all {
		var body struct {
			Type           string
			SequenceNumber *int `json:"sequence_number"`
			Response       struct{ ID, Model string }
		}
		if err := json.Unmarshal([]byte(e.data), &body); err != nil || body.Type != e.name || body.SequenceNumber == nil || *body.SequenceNumber != i {
			t.Errorf("event %d is %s %s, %v", i, e.name, e.data, err)
		}
		switch {
		case body.Response.ID == "":
		case id == "":
			id = body.Response.ID
		case body.Response.ID != id || body.Response.Model != "m":
			t.Errorf("event %d is of %+v, want %s", i, body.Response, id)
		}
		if e.name == "response.created" {
			created++
		}
	}
	if len(all) < 3 || created != 1 || all[0].name != "response.created" || all[1].name != "response.in_progress" || all[len(all)-1].name != last {
		t.Errorf("events %v", all)
	}
	return id
}

const responseBody = `{"model":"m","stream":true,"input":"hi"}`

// The response begins in the queue, is kept open while the model is loaded and the prompt
// processed, and continues with the agent's own events.
func TestAResponseIsOneStreamWithTheAgentsEvents(t *testing.T) {
	w := newWorld(t, queueOf(10, impatient))
	m := w.addMac("mac-a", func(rw http.ResponseWriter, r *http.Request) {
		time.Sleep(30 * time.Millisecond)
		a := agentResponse(r)
		written(rw, a.Opening(), a.KeepAlive(nil), a.Text("Par"), a.KeepAlive(nil), a.Text("is"), a.Finish(false, &responses.Usage{}, 0))
	})
	w.setReady("mac-a", false)
	resp := w.do("POST", dialect.PathResponses, responseBody)
	in := bufio.NewReader(resp.Body)
	var stream strings.Builder
	for strings.Count(stream.String(), "event: response.in_progress\n") < 3 {
		line, err := in.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		stream.WriteString(line)
	}
	w.setReady("mac-a", true)
	if _, err := in.WriteTo(&stream); err != nil {
		t.Fatal(err)
	}
	id := wantOneResponse(t, eventsOf(t, stream.String()), "response.completed")
	if !responses.IsAnywhere(id) || !strings.Contains(stream.String(), `"text":"Paris"`) {
		t.Errorf("response %s: %s", id, stream.String())
	}
	if proof := (<-m.seen).Header.Get(agentapi.HeaderResponseProof); responses.Proven(id, proof) != 1 {
		t.Errorf("the Mac cannot prove with %q that it was sent %s", proof, id)
	}
}

// If it is known which Mac will store the response, its id names that Mac.
func TestAResponseThatIsLoadedForNamesItsMac(t *testing.T) {
	w := newWorld(t, queueOf(10, impatient))
	w.addMac("mac-a", func(rw http.ResponseWriter, r *http.Request) {
		time.Sleep(30 * time.Millisecond)
		a := agentResponse(r)
		written(rw, a.Opening(), a.Text("x"), a.Finish(false, &responses.Usage{}, 0))
	})
	id := wantOneResponse(t, eventsOf(t, read(t, w.do("POST", dialect.PathResponses, responseBody))), "response.completed")
	if mac, _ := responses.MacOf(id); mac != "mac-a" {
		t.Errorf("response %s names %q", id, mac)
	}
}

// A request that continues a stored response waits for the Mac that stores it.
func TestAContinuedResponseNamesItsMacFromTheQueue(t *testing.T) {
	w := newWorld(t, queueOf(10, impatient))
	m, end, _ := w.busy()
	for range 2 { // as many as are sent there at once
		w.later(t.Context(), chatBody)
		<-m.seen
	}
	resp := w.do("POST", dialect.PathResponses, `{"model":"m","stream":true,"input":"hi","previous_response_id":"`+responses.NewID("a")+`"}`)
	in := bufio.NewReader(resp.Body)
	var line string
	for !strings.HasPrefix(line, "data: ") {
		var err error
		if line, err = in.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
	}
	var created struct{ Response struct{ ID string } }
	if err := json.Unmarshal([]byte(strings.TrimPrefix(line, "data: ")), &created); err != nil {
		t.Fatal(err)
	}
	if mac, _ := responses.MacOf(created.Response.ID); mac != "a" {
		t.Errorf("response %s names %q", created.Response.ID, mac)
	}
	close(end)
}

// A Mac that refused does not store the response that waits for another attempt. The client
// must not have its id yet, so a run in which the refusal took too long is repeated.
func TestAResponseThatWasRefusedOnceNamesNoMac(t *testing.T) {
	const keepAlive = time.Second // less than the wait for another attempt
	w := newWorld(t, queueOf(10, func(c *proxy.Config) { c.KeepAlive = keepAlive }))
	var tries atomic.Int64
	var refused atomic.Pointer[time.Time]
	w.addMac("mac-a", func(rw http.ResponseWriter, r *http.Request) {
		if tries.Add(1)%2 == 1 {
			refuse(notReady)(rw, r)
			now := time.Now()
			refused.Store(&now)
			return
		}
		a := agentResponse(r)
		written(rw, a.Opening(), a.Text("x"), a.Finish(false, &responses.Usage{}, 0))
	})
	for deadline := time.Now().Add(patience.Of(t)); ; {
		sent := time.Now()
		id := wantOneResponse(t, eventsOf(t, read(t, w.do("POST", dialect.PathResponses, responseBody))), "response.completed")
		if refused.Load().Sub(sent) < keepAlive/2 {
			if !responses.IsAnywhere(id) {
				t.Errorf("response %s", id)
			}
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("no refusal came in time")
		}
	}
}

// Another Mac takes over a response of which only the beginning was sent, and the client
// sees one response.
func TestAnotherMacTakesOverAResponseThatHasOnlyBegun(t *testing.T) {
	w := newWorld(t)
	var turn atomic.Int64
	answer := func(rw http.ResponseWriter, r *http.Request) {
		a := agentResponse(r)
		written(rw, a.Opening(), a.KeepAlive(nil))
		if turn.Add(1) == 1 {
			abort(r)
		}
		written(rw, a.Text("x"), a.Finish(false, &responses.Usage{}, 0))
	}
	w.addMac("mac-a", answer)
	w.addMac("mac-b", answer)
	all := eventsOf(t, read(t, w.do("POST", dialect.PathResponses, responseBody)))
	wantOneResponse(t, all, "response.completed")
	if turn.Load() != 2 {
		t.Errorf("%d tries", turn.Load())
	}
}

// If the client has the beginning of a response, a failure ends it with the API's failure
// event.
func TestAResponseThatBeganAndIsRefusedFails(t *testing.T) {
	w := newWorld(t, impatient)
	w.addMac("mac-a", func(rw http.ResponseWriter, _ *http.Request) {
		time.Sleep(20 * time.Millisecond)
		_ = openai.WriteError(rw, openai.PrefillMemoryExceeded(openai.Memory{}))
	})
	got := read(t, w.do("POST", dialect.PathResponses, responseBody))
	wantOneResponse(t, eventsOf(t, got), "response.failed")
	if !strings.Contains(got, `"error":{"code":"invalid_prompt","message":"The prompt needs`) {
		t.Errorf("stream %s", got)
	}
	// A request that no agent will accept gets comments until it is refused.
	got = read(t, w.do("POST", dialect.PathResponses, `{"model":"m","stream":true,"input":7}`))
	if !strings.HasPrefix(got, ": keep-alive\n\n") || !strings.Contains(got, "event: error\n") || strings.Contains(got, "response.created") {
		t.Errorf("stream %s", got)
	}
}

// A response whose id was sent before its Mac was known is found on any Mac.
func TestAResponseWhoseIDNamesNoMacIsFound(t *testing.T) {
	l := newLocked(t, queueOf(10))
	stored := responses.NewAnywhere()
	id, proof := stored.ID(), stored.Proof()
	keeper := func(rw http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == dialect.PathResponses:
			_, _ = io.WriteString(rw, `"continued"`)
		case r.URL.Path != dialect.PathResponses+"/"+id || r.Header.Get(agentapi.HeaderTenant) != "key/team/":
			_ = openai.WriteError(rw, responses.NotFound(id))
		default:
			rw.Header().Set(agentapi.HeaderResponseProof, proof)
			_, _ = io.WriteString(rw, `"stored"`)
		}
	}
	for _, name := range []string{"mac-a", "mac-c", "mac-d"} {
		l.addMac(name, func(rw http.ResponseWriter, _ *http.Request) { _ = openai.WriteError(rw, responses.NotFound(id)) })
	}
	b := l.addMac("mac-b", keeper)
	token, other := l.key("team", keys.Grant{Models: []string{"*"}}), l.key("other", keys.Grant{Models: []string{"*"}})
	resp := l.with(token, "GET", dialect.PathResponses+"/"+id, "")
	if got := read(t, resp); resp.StatusCode != 200 || got != `"stored"` || resp.Header.Get(agentapi.HeaderMac) != "mac-b" {
		t.Errorf("%d %s", resp.StatusCode, got)
	}
	resp = l.with(token, "POST", dialect.PathResponses, `{"model":"m","input":"hi","previous_response_id":"`+id+`"}`)
	if got := read(t, resp); resp.StatusCode != 200 || got != `"continued"` || resp.Header.Get(agentapi.HeaderMac) != "mac-b" {
		t.Errorf("%d %s", resp.StatusCode, got)
	}
	if resp := l.with(other, "GET", dialect.PathResponses+"/"+id, ""); resp.StatusCode != 404 {
		t.Errorf("another key's: %d", resp.StatusCode)
	}
	if resp := l.with(token, "GET", dialect.PathResponses+"/"+responses.NewAnywhere().ID(), ""); resp.StatusCode != 404 {
		t.Errorf("one that no Mac stores: %d", resp.StatusCode)
	}
	b.kill()
	if resp := l.with(token, "GET", dialect.PathResponses+"/"+id, ""); resp.StatusCode != 503 {
		t.Errorf("its Mac cannot be reached: %d", resp.StatusCode)
	}
}

// Clients cannot set headers that are between gateway and agent.
func TestClientsDoNotChooseTheIDOfAResponse(t *testing.T) {
	w := newWorld(t)
	m := w.addMac("a", events(nil, "x", "[DONE]"))
	for path, prefix := range map[string]string{dialect.PathChat: "chatcmpl-", dialect.PathCompletions: "cmpl-", dialect.PathResponses: "resp_", dialect.PathMessages: ""} {
		read(t, w.do("POST", path, `{"model":"m","stream":true}`, agentapi.HeaderResponseID, "mine"))
		got := (<-m.seen).Header.Get(agentapi.HeaderResponseID)
		if got == "mine" || !strings.HasPrefix(got, prefix) || (prefix == "") != (got == "") {
			t.Errorf("%s: %q", path, got)
		}
		read(t, w.do("POST", path, `{"model":"m"}`, agentapi.HeaderResponseID, "mine"))
		if got := (<-m.seen).Header.Get(agentapi.HeaderResponseID); got != "" {
			t.Errorf("%s without a stream: %q", path, got)
		}
	}
}
