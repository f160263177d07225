package proxy_test

import (
	"io"
	"net/http"
	"runtime"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/dialect"
	"metalfleet.dev/metalfleet/gateway/keys"
)

// TestClientsWithoutKeysAreDistinguished: an agent divides its memory among them.
func TestClientsWithoutKeysAreDistinguished(t *testing.T) {
	w := newWorld(t)
	m := w.addMac("a", say("{}"))
	w.do("POST", chatPath, chatBody, agentapi.HeaderClient, "another")
	if client := (<-m.seen).Header.Get(agentapi.HeaderClient); client == "" || client == "another" {
		t.Errorf("the client is %q", client)
	}
}

// TestAnswersInTheBackgroundTakeTurns with other requests of their address: their clients may have left.
func TestAnswersInTheBackgroundTakeTurns(t *testing.T) {
	w := newWorld(t)
	m := w.addMac("a", say("{}"))
	var clients [3]string
	for i, body := range []string{`{"model":"m","input":"x"}`, backgroundBody, `{"model":"m","input":"x"}`} {
		w.do("POST", dialect.PathResponses, body)
		clients[i] = (<-m.seen).Header.Get(agentapi.HeaderClient)
	}
	if clients[0] == "" || clients[1] == "" || clients[0] == clients[1] || clients[0] != clients[2] {
		t.Errorf("the clients of the three requests are %q", clients)
	}
}

// TestAMacThatReadsNoBody: what the gateway keeps of a body counts until the Mac has read it,
// also if the response has begun, and so does the buffer from which net/http sends it.
func TestAMacThatReadsNoBody(t *testing.T) {
	const large, buffer = 4 << 20, 512 << 10
	for name, answers := range map[string]bool{"before it answers": false, "and answers": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			m, asked, end := w.addMac("a", nil), make(chan struct{}), make(chan struct{})
			m.server.Config.Handler = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
				rw.Header().Set("Content-Type", "text/event-stream")
				if answers {
					_, _ = io.WriteString(rw, "data: {}\n\n")
					_ = http.NewResponseController(rw).Flush()
				}
				close(asked)
				<-end
				_, _ = io.Copy(io.Discard, r.Body)
				_, _ = io.WriteString(rw, "data: {}\n\n")
				_ = http.NewResponseController(rw).Flush()
				<-r.Context().Done()
			})
			begun := make(chan *http.Response, 1)
			go func() {
				begun <- w.send(strings.NewReader(chatBody[:len(chatBody)-1] + `,"stream":true,"x":"` + strings.Repeat("x", large) + `"}`))
			}()
			<-asked
			var resp *http.Response
			if answers {
				resp = <-begun
				if _, err := io.ReadFull(resp.Body, make([]byte, 10)); err != nil {
					t.Fatal(err)
				}
			}
			if held := w.proxy.Bodies().Held(); held < large+buffer {
				t.Errorf("%d bytes count for a body of %d and a buffer of %d", held, large, buffer)
			}
			close(end)
			eventually(t, "the memory is free while the response is read", func() bool { return w.proxy.Bodies().Held() == 0 })
			if resp == nil {
				resp = <-begun
			}
			resp.Body.Close()
		})
	}
}

// TestBodiesOfRunningResponses: once a response has begun, its request counts no more, and nothing
// keeps it: neither the body nor what was decoded of it.
func TestBodiesOfRunningResponses(t *testing.T) {
	const size = 8 << 20
	chat, response := `{"model":"m","stream":true,"messages":[{"role":"user","content":"a"}%s]`, `{"model":"m","stream":true,"input":[{"role":"user","content":"a"}%s]`
	for name, tc := range map[string]struct {
		path, before string
		leaves       bool // the client, once the response has begun
	}{
		"white space in messages": {path: chatPath, before: chat},
		"a cache key":             {path: chatPath, before: strings.Replace(chat, "%s", "", 1) + `,"prompt_cache_key":"%s"`},
		"a response":              {path: "/v1/responses", before: response},
		"in the background":       {path: "/v1/responses", before: response + `,"background":true`},
		"without its client":      {path: "/v1/responses", before: response + `,"background":true`, leaves: true},
	} {
		t.Run(name, func(t *testing.T) {
			w, ended := newWorld(t), make(chan struct{})
			w.addMac("a", nil).server.Config.Handler = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				rw.Header().Set("Content-Type", "text/event-stream")
				_, _ = io.WriteString(rw, "event: response.output_item.added\ndata: {}\n\n")
				_ = http.NewResponseController(rw).Flush()
				<-r.Context().Done()
				close(ended)
			})
			before := heapBytes()
			begin, end, _ := strings.Cut(tc.before, "%s")
			r, err := http.NewRequestWithContext(t.Context(), "POST", w.url+tc.path, io.MultiReader(strings.NewReader(begin), io.LimitReader(blanks{}, size), strings.NewReader(end+"}")))
			if err != nil {
				t.Fatal(err)
			}
			resp, err := http.DefaultClient.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			if _, err := io.ReadFull(resp.Body, make([]byte, 10)); err != nil || resp.StatusCode != http.StatusOK {
				t.Fatal(resp.Status, err)
			}
			if tc.leaves {
				resp.Body.Close()
			}
			eventually(t, "the memory is free while the response runs", func() bool { return heapBytes()-before < size/2 })
			select {
			case <-ended:
				t.Error("the response has ended")
			default:
			}
		})
	}
}

// heapBytes returns what is in use on the heap.
func heapBytes() int64 {
	runtime.GC()
	var s runtime.MemStats
	runtime.ReadMemStats(&s)
	return int64(s.HeapAlloc)
}

// TestHeadersOfResponsesInTheBackground: they count while the client is there, and are not kept longer.
func TestHeadersOfResponsesInTheBackground(t *testing.T) {
	const n, size = 8, 900 << 10
	w := newLocked(t)
	authorization := "Bearer " + w.key("k", keys.Grant{Models: []string{"*"}})
	w.addMac("a", nil).server.Config.Handler = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if v := r.Header.Get(agentapi.HeaderProgress); v != "true" {
			t.Errorf("the client's header is %q", v)
		}
		rw.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(rw, "event: response.output_item.added\ndata: {}\n\n")
		_ = http.NewResponseController(rw).Flush()
		<-r.Context().Done()
	})
	header, before := strings.Repeat("x", size), heapBytes()
	for range n {
		resp := w.do("POST", "/v1/responses", `{"model":"m","stream":true,"background":true,"input":"a"}`, "X-Other", header, agentapi.HeaderProgress, "true", "Authorization", authorization)
		if _, err := io.ReadFull(resp.Body, make([]byte, 10)); err != nil || resp.StatusCode != http.StatusOK {
			t.Fatal(resp.Status, err)
		}
		resp.Body.Close()
	}
	eventually(t, "the memory is free while the responses run", func() bool { return heapBytes()-before < n*size/4 })
	if running := w.counter("requests_in_flight"); running != n {
		t.Errorf("%v responses run", running)
	}
}
