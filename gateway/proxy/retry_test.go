package proxy_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/front"
	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/gateway/proxy"
	"metalfleet.dev/metalfleet/gateway/route"
	"metalfleet.dev/metalfleet/test/patience"
)

var notReady = &openai.Error{Status: 503, Type: openai.TypeUnavailable, Code: agentapi.CodeReplicaNotReady, Message: "not ready", RetryAfter: 3 * time.Second}

func TestAnotherReplicaIsTriedWhileNothingWasSent(t *testing.T) {
	for name, bad := range map[string]http.HandlerFunc{
		"the agent says so":     refuse(notReady),
		"reset before the head": func(_ http.ResponseWriter, r *http.Request) { abort(r) },
		"reset after the head":  func(rw http.ResponseWriter, r *http.Request) { rw.(http.Flusher).Flush(); abort(r) },
		"half of an answer": func(rw http.ResponseWriter, r *http.Request) {
			say(`{"half`)(rw, r)
			rw.(http.Flusher).Flush()
			abort(r)
		},
		"a stream without any event": events(abort),
		"a stream that ends at once": func(rw http.ResponseWriter, _ *http.Request) { rw.Header().Set("Content-Type", "text/event-stream") },
		"half of a first event": func(rw http.ResponseWriter, r *http.Request) {
			rw.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(rw, "data: {")
			rw.(http.Flusher).Flush()
			abort(r)
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.addMac("bad", bad)
			w.addMac("good", say(`"good"`))
			for range 6 {
				resp := w.chat()
				if got := read(t, resp); got != `"good"` || resp.Header.Get(agentapi.HeaderMac) != "good" {
					t.Errorf("%d %s from %s", resp.StatusCode, got, resp.Header.Get(agentapi.HeaderMac))
				}
			}
			if w.counter("retries_total") == 0 {
				t.Error("no retry was counted")
			}
			w.idle()
		})
	}
}

func TestAnotherMacTakesOverAStreamOfCommentsOnly(t *testing.T) {
	w := newWorld(t)
	silent := func(rw http.ResponseWriter, r *http.Request) {
		out := openai.NewEventWriter(rw)
		_ = out.Comment(openai.KeepAlive)
		abort(r)
	}
	w.addMac("a-bad", silent)
	w.addMac("good", events(nil, "x", "[DONE]"))
	const comment = ": keep-alive\n\n"
	for range 2 { // not so often that the bad one is ejected
		if got := strings.ReplaceAll(read(t, w.chat()), comment, ""); got != "data: {\"text\":\"x\"}\n\ndata: [DONE]\n\n" {
			t.Errorf("stream %q", got)
		}
	}
	if w.counter("retries_total") == 0 {
		t.Error("no retry was counted")
	}
	// No Mac can take over, and the head was sent, so the stream contains the error.
	w.setReady("good", false)
	if got := read(t, w.chat()); !strings.HasPrefix(got, comment+"data: {\"error\":") || !strings.HasSuffix(got, `"code":"no_ready_endpoint"}}`+"\n\n") {
		t.Errorf("stream %q", got)
	}
	// The one that takes over refuses, in a way that no other may be tried.
	w.addMac("strict", func(rw http.ResponseWriter, _ *http.Request) { _ = openai.WriteError(rw, openai.Invalid("stop", "no")) })
	told := comment + `data: {"error":{"message":"no","type":"invalid_request_error","param":"stop","code":"invalid_value"}}` + "\n\n"
	var got []string
	for range 4 { // each is the first one sometimes
		got = append(got, read(t, w.chat()))
	}
	if !slices.Contains(got, told) {
		t.Errorf("streams %q, want %q among them", got, told)
	}
}

func TestEachReplicaIsTriedOnceAndTheLastRefusalReturned(t *testing.T) {
	w := newWorld(t)
	a, b := w.addMac("a", refuse(notReady)), w.addMac("b", refuse(notReady))
	w.wantRefusal(w.chat(), refusal{status: 503, code: agentapi.CodeReplicaNotReady, retry: "3"})
	if a.requests.Load() != 1 || b.requests.Load() != 1 {
		t.Errorf("tries: %d and %d, want 1 each", a.requests.Load(), b.requests.Load())
	}
}

func TestTriesAreBounded(t *testing.T) {
	w := newWorld(t)
	var macs []*mac
	for i := range 8 {
		macs = append(macs, w.addMac(fmt.Sprint("m", i), refuse(notReady)))
	}
	read(t, w.chat())
	tries := int64(0)
	for _, m := range macs {
		tries += m.requests.Load()
	}
	if tries != 5 {
		t.Errorf("%d tries, want 5", tries)
	}
}

func TestADeadMacIsLeftAlone(t *testing.T) {
	w := newWorld(t)
	dead, good := w.addMac("dead", say(`"dead"`)), w.addMac("good", say(`"good"`))
	dead.kill()
	began := time.Now()
	for range 20 {
		if got := read(t, w.chat()); got != `"good"` {
			t.Fatal(got)
		}
	}
	// Once, and once more after an avoidance of at least two seconds.
	if n, most := w.counter("retries_total"), 1+int(time.Since(began)/(2*time.Second)); n < 1 || n > float64(most) {
		t.Errorf("%v retries, want 1 to %d: the dead Mac was tried again while it is suspected", n, most)
	}
	good.kill()
	w.wantRefusal(w.chat(), refusal{status: 503, code: openai.CodeNoEndpoint, retry: "2"})
}

func TestAMacThatAnswersWithAnotherNameIsNotTrusted(t *testing.T) {
	w := newWorld(t)
	m := w.addMac("a", say("{}"))
	w.table.SetMac(route.Mac{Name: "b", Address: m.server.Listener.Addr().String(), Open: true})
	w.setReady("a", false)
	w.setReady("b", true) // at the address of a
	w.wantRefusal(w.chat(), refusal{status: 503, code: openai.CodeNoEndpoint, retry: "2"})
	if m.requests.Load() != 0 {
		t.Error("a request reached the wrong Mac")
	}
}

func TestAMacThatHangsIsNoticedByPings(t *testing.T) {
	w := newWorld(t)
	w.addMac("good", say(`"good"`))
	hung := w.addMac("hung", events(untilGone, "x"))
	// The network to the Mac drops everything silently.
	freeze := newRelay(t, hung.server.Listener.Addr().String())
	w.table.SetMac(route.Mac{Name: "hung", Address: freeze.addr, Open: true})
	w.setReady("good", false)
	stream := openai.NewEventReader(w.chat().Body)
	if _, err := stream.Next(); err != nil {
		t.Fatal(err)
	}
	w.setReady("good", true)
	begun := time.Now()
	freeze.freeze()
	_, err := stream.Next()
	var told *openai.Error
	if !errors.As(err, &told) || told.Code != agentapi.CodeEngineLost {
		t.Errorf("end of stream: %v", err)
	}
	t.Logf("noticed after %s", time.Since(begun)) // without pings it would never be
	for range 4 {
		if got := read(t, w.chat()); got != `"good"` {
			t.Error(got)
		}
	}
}

// TestAMacThatFallsSilentIsLeftOutThoughNoRequestRuns: no request has to fail first.
func TestAMacThatFallsSilentIsLeftOutThoughNoRequestRuns(t *testing.T) {
	w := newWorld(t)
	hung := w.addMac("hung", say(`"hung"`))
	freeze := newRelay(t, hung.server.Listener.Addr().String())
	w.table.SetMac(route.Mac{Name: "hung", Address: freeze.addr, Open: true})
	if got := read(t, w.chat()); got != `"hung"` {
		t.Fatal(got)
	}
	freeze.freeze()
	for end := time.Now().Add(patience.Of(t)); w.counter("macs_suspected_total") == 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("a Mac that answers no pings is not suspected")
		}
	}
}

func TestNothingIsTriedAgainAfterTheFirstByte(t *testing.T) {
	w := newWorld(t)
	bad := w.addMac("bad", events(abort, "one", "two"))
	w.setReady("bad", false)
	good := w.addMac("good", events(nil, "never", "[DONE]"))
	w.setReady("good", false)
	w.setReady("bad", true)
	resp := w.chat()
	stream := openai.NewEventReader(resp.Body)
	for range 2 {
		if _, err := stream.Next(); err != nil {
			t.Fatal(err)
		}
	}
	_, err := stream.Next()
	var told *openai.Error
	if !errors.As(err, &told) || told.Code != agentapi.CodeEngineLost {
		t.Errorf("end of stream: %v, want an error event", err)
	}
	if rest, err := io.ReadAll(resp.Body); err != nil || len(rest) > 0 {
		t.Errorf("after the error: %q, %v", rest, err)
	}
	if bad.requests.Load() != 1 || good.requests.Load() != 0 {
		t.Errorf("tries: %d and %d", bad.requests.Load(), good.requests.Load())
	}
	if w.counter("answers_broken_off_total") != 1 {
		t.Error("not counted")
	}
}

func TestEveryBrokenStreamEndsWithOneErrorEvent(t *testing.T) {
	write := func(end func(*http.Request), text string) http.HandlerFunc {
		return func(rw http.ResponseWriter, r *http.Request) {
			rw.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(rw, text)
			rw.(http.Flusher).Flush()
			if end != nil {
				end(r)
			}
		}
	}
	const lost = `"code":"engine_lost"}}` + "\n\n"
	for name, tc := range map[string]struct {
		answer http.HandlerFunc
		begins string // the client's bytes
		ends   string
	}{
		"reset in the middle":             {answer: write(abort, "data: 1\n\n"), begins: "data: 1\n\ndata: {\"error\":", ends: lost},
		"half an event is held back":      {answer: write(abort, "data: 1\n\ndata: {\"ha"), begins: "data: 1\n\ndata: {\"error\":", ends: lost},
		"end without [DONE]":              {answer: write(nil, "data: 1\n\n"), begins: "data: 1\n\ndata: {\"error\":", ends: lost},
		"half an event after [DONE]":      {answer: write(nil, "data: 1\n\ndata: [DONE]\n\ndata: "), begins: "data: 1\n\ndata: [DONE]\n\ndata: {\"error\":", ends: lost},
		"the agent told of an error":      {answer: write(nil, "data: 1\n\ndata: {\"error\":{}}\n\n"), begins: "data: 1\n\ndata: {\"error\":{}}\n\n"},
		"a whole answer":                  {answer: write(nil, "data: 1\n\ndata: [DONE]\n\n"), begins: "data: 1\n\ndata: [DONE]\n\n"},
		"an event larger than any buffer": {answer: write(nil, "data: "+strings.Repeat("x", 100<<10)+"\n\ndata: [DONE]\n\n"), begins: "data: " + strings.Repeat("x", 100<<10) + "\n\ndata: [DONE]\n\n"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.addMac("a", tc.answer)
			got := read(t, w.chat())
			if !strings.HasPrefix(got, tc.begins) || !strings.HasSuffix(got, tc.ends) || tc.ends == "" && got != tc.begins {
				t.Errorf("stream %q", got)
			}
			if n := strings.Count(got, `"error"`); n > 1 {
				t.Errorf("%d errors", n)
			}
			w.idle()
		})
	}
}

func TestLargeAnswersAreNeverHalf(t *testing.T) {
	w := newWorld(t)
	half := func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(rw, strings.Repeat("x", 3<<20))
		rw.(http.Flusher).Flush()
		abort(r)
	}
	w.addMac("a", half)
	resp := w.chat()
	if b, err := io.ReadAll(resp.Body); err == nil {
		t.Errorf("%d bytes looked like a whole answer", len(b))
	}
	w.idle()
}

func TestHangUpReachesTheAgent(t *testing.T) {
	for name, answer := range map[string]http.HandlerFunc{
		"before the head": func(_ http.ResponseWriter, r *http.Request) { untilGone(r) },
		"in a stream":     events(untilGone, "x"),
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			m := w.addMac("a", answer)
			other := w.addMac("b", answer)
			ctx, hangUp := context.WithCancel(t.Context())
			defer hangUp()
			done := make(chan struct{})
			go func() {
				defer close(done)
				if resp, err := w.try(ctx, "POST", chatPath, `{"model":"m"}`); err == nil {
					_, _ = io.Copy(io.Discard, resp.Body)
				}
			}()
			eventually(t, "the request arrived", func() bool { return m.requests.Load()+other.requests.Load() == 1 })
			hangUp()
			<-done
			select {
			case <-m.left:
			case <-other.left:
			case <-time.After(patience.Of(t)):
				t.Error("the agent never heard of it")
			}
			w.idle()
			if n := m.requests.Load() + other.requests.Load(); n != 1 {
				t.Errorf("%d tries for a client that left", n)
			}
		})
	}
}

func TestClientThatNeverReadsIsBounded(t *testing.T) {
	w := newWorld(t, func(c *proxy.Config) { c.WriteTimeout = 500 * time.Millisecond })
	m := w.addMac("a", func(rw http.ResponseWriter, _ *http.Request) {
		out := openai.NewEventWriter(rw)
		for out.Send(strings.Repeat("x", 32<<10)) == nil {
		}
	})
	if resp := w.chat(); resp.StatusCode != 200 {
		t.Fatal(resp.Status)
	}
	select {
	case <-m.left:
	case <-time.After(patience.Of(t)):
		t.Error("the agent still writes")
	}
	w.idle()
}

func TestShutdownTellsTheClient(t *testing.T) {
	w := newWorld(t)
	w.addMac("a", events(untilGone, "x"))
	stream := openai.NewEventReader(w.chat().Body)
	if _, err := stream.Next(); err != nil {
		t.Fatal(err)
	}
	w.stop(front.ErrShuttingDown)
	_, err := stream.Next()
	var told *openai.Error
	if !errors.As(err, &told) || told.Code != "shutting_down" {
		t.Errorf("end of stream: %v", err)
	}
}

// relay forwards bytes to an address until it is frozen: then it forwards none and closes
// nothing, like a pulled cable.
type relay struct {
	addr   string
	frozen chan struct{}
}

func newRelay(t *testing.T, to string) *relay {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{addr: l.Addr().String(), frozen: make(chan struct{})}
	t.Cleanup(func() { _ = l.Close() })
	go func() { // ends with the listener
		for {
			from, err := l.Accept()
			if err != nil {
				return
			}
			on, err := net.Dial("tcp", to)
			if err != nil {
				_ = from.Close()
				continue
			}
			t.Cleanup(func() { _ = from.Close(); _ = on.Close() })
			go r.carry(from, on)
			go r.carry(on, from)
		}
	}()
	return r
}

func (r *relay) freeze() { close(r.frozen) }

func (r *relay) carry(to io.Writer, from io.Reader) {
	b := make([]byte, 4096)
	for {
		n, err := from.Read(b)
		select {
		case <-r.frozen:
			return
		default:
		}
		if n > 0 {
			if _, err := to.Write(b[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// If no Mac has room, the client gets the figures, and Retry-After if waiting
// helps on any.
func TestNoRoomIsRetriedOnAnotherMac(t *testing.T) {
	never := openai.InsufficientMemory(openai.Memory{Used: 1, Needed: 2, Limit: 3})
	later := openai.NoRoomNow(openai.Memory{Used: 1, Needed: 2, Limit: 3}, 5*time.Second)
	aborted := openai.Aborted("short of memory", 5*time.Second)
	for name, e := range map[string]*openai.Error{"never": never, "later": later, "aborted": aborted} {
		w := newWorld(t)
		full := w.addMac("full", refuse(e))
		w.addMac("roomy", say(`"good"`))
		for range 4 {
			if got := read(t, w.chat()); got != `"good"` {
				t.Errorf("%s: %s", name, got)
			}
		}
		if full.requests.Load() == 0 {
			t.Errorf("%s: the full Mac was never asked", name)
		}
	}
	w := newWorld(t)
	alone := w.addMac("a", refuse(never))
	w.wantRefusal(w.chat(), refusal{status: 507, code: openai.CodeInsufficientMemory})
	if n := alone.requests.Load(); n != 1 {
		t.Errorf("the only Mac was asked %d times", n)
	}
	w.addMac("b", refuse(later))
	for range 4 { // whichever is asked last
		w.wantRefusal(w.chat(), refusal{status: 503, code: openai.CodeInsufficientMemory, retry: "5"})
	}
}

// TestAColdLoadIsWaitedFor for longer than it takes to detect a dead Mac: an agent may take
// any time before it responds.
func TestAColdLoadIsWaitedFor(t *testing.T) {
	w := newWorld(t)
	w.addMac("cold", func(rw http.ResponseWriter, r *http.Request) {
		load := time.NewTimer(3 * time.Second) // a ping after 1 s, and its answer within 1 s
		defer load.Stop()
		select {
		case <-load.C:
			say(`"warm"`)(rw, r)
		case <-r.Context().Done():
		}
	})
	if got := read(t, w.chat()); got != `"warm"` {
		t.Errorf("after a cold load: %s", got)
	}
	if w.counter("retries_total") != 0 || w.counter("macs_suspected_total") != 0 {
		t.Error("the wait was taken for a failure")
	}
	// The connection carried only pings for long: closing it is no failure.
	w.proxy.Close()
	if w.counter("macs_suspected_total") != 0 {
		t.Error("a connection that was closed was taken for a lost Mac")
	}
}
