package proxy_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/agentapi/agentapitest"
	"metalfleet.dev/metalfleet/api/anthropic"
	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/gateway/proxy"
	"metalfleet.dev/metalfleet/gateway/route"
	"metalfleet.dev/metalfleet/test/patience"
)

// blanks is an endless body.
type blanks struct{}

func (blanks) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = ' '
	}
	return len(b), nil
}

// send posts a body on a connection of its own. If the gateway closes it while the body is
// being sent, there is no response.
func (w *world) send(body io.Reader) *http.Response {
	w.t.Helper()
	r, err := http.NewRequestWithContext(w.t.Context(), "POST", w.url+chatPath, body)
	if err != nil {
		w.t.Fatal(err)
	}
	c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := c.Do(r)
	if err != nil {
		return nil
	}
	w.t.Cleanup(func() { resp.Body.Close() })
	return resp
}

// TestAttackBodies: each body is bounded, regardless of its announced length, and so are
// all of them together.
func TestAttackBodies(t *testing.T) {
	w := newWorld(t)
	m := w.addMac("a", say("{}"))
	for what, body := range map[string]io.Reader{
		"without an end":          blanks{},
		"of one endless text":     io.MultiReader(strings.NewReader(`{"model":"m","x":"`), blanks{}),
		"with data after its end": io.MultiReader(strings.NewReader(chatBody), blanks{}),
	} {
		if resp := w.send(body); resp != nil && resp.StatusCode != http.StatusRequestEntityTooLarge {
			t.Errorf("a body %s: %s", what, resp.Status)
		}
	}
	if m.requests.Load() != 0 {
		t.Error("the Mac saw one of them")
	}
	if resp := w.send(strings.NewReader(chatBody)); resp == nil || resp.StatusCode != http.StatusOK {
		t.Errorf("a client that means well: %v", resp)
	}
}

// TestAttackManyBodies: endless uploads use a bounded amount of memory; meanwhile ordinary
// requests are served, and afterwards large ones too.
func TestAttackManyBodies(t *testing.T) {
	const held, one = 4 << 20, 1 << 20
	w := newWorld(t, func(c *proxy.Config) { c.MaxHeldBytes = held })
	w.addMac("a", say("{}"))
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	// Each sends 1 MiB, more than is free, and then withholds the last byte.
	refused := make(chan *http.Response, 100)
	for range 12 {
		body := io.MultiReader(bytes.NewReader(bytes.Repeat([]byte(" "), one)), until{ctx: ctx})
		go func() {
			r, err := http.NewRequestWithContext(ctx, "POST", w.url+chatPath, body)
			if err != nil {
				panic(err)
			}
			resp, err := http.DefaultTransport.RoundTrip(r)
			if err != nil {
				resp = nil
			}
			refused <- resp
		}()
	}
	told := 0
	for range 12 - held/(one-64<<10) {
		resp := <-refused
		if resp == nil {
			continue // closed while it was still writing: a client's transport may lose the response then
		}
		told++
		w.wantRefusal(resp, refusal{status: 503, code: openai.CodeOverloaded, retry: "1"})
		resp.Body.Close()
	}
	if told == 0 {
		t.Error("no client received the reason of its refusal")
	}
	if resp := w.send(strings.NewReader(chatBody)); resp == nil || resp.StatusCode != http.StatusOK {
		t.Errorf("an ordinary request meanwhile: %v", resp)
	}
	stop()
	large := chatBody[:len(chatBody)-1] + `,"x":"` + strings.Repeat("x", 2*one) + `"}`
	for began := time.Now(); ; {
		resp := w.send(strings.NewReader(large))
		if resp != nil && resp.StatusCode == http.StatusOK {
			break
		}
		if time.Since(began) > patience.Of(t) {
			t.Fatal("large requests are not taken again")
		}
		if resp == nil {
			continue
		}
		if resp.StatusCode != http.StatusServiceUnavailable {
			t.Fatalf("a large request afterwards: %s", resp.Status)
		}
	}
}

// TestAttackABodyThatStopsWhenItIsRefused: the refusal does not wait for the rest, which
// net/http would read to reuse the connection.
func TestAttackABodyThatStopsWhenItIsRefused(t *testing.T) {
	w := newWorld(t, func(c *proxy.Config) { c.MaxBodyBytes, c.ReadTimeout = 1000, time.Hour })
	conn, err := net.Dial("tcp", strings.TrimPrefix(w.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(patience.Of(t))); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n7d0\r\n%s\r\n", chatPath, strings.Repeat(" ", 2000))
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusRequestEntityTooLarge {
		t.Errorf("%s", resp.Status)
	}
}

// until blocks reads until ctx ends.
type until struct{ ctx context.Context }

func (u until) Read([]byte) (int, error) {
	<-u.ctx.Done()
	return 0, u.ctx.Err()
}

// TestAttackAnotherMacAnswers: an address at which another Mac listens, or a server with a
// certificate of another authority, receives no prompt, even if it accepts those of others.
func TestAttackAnotherMacAnswers(t *testing.T) {
	w := newWorld(t)
	w.deployment("m", "m")
	w.table.SetReplica(route.Replica{UID: "replica-a", Epoch: 3, Deployment: route.Key{Namespace: "ns", Name: "m"}, DeploymentUID: "m", Mac: "a", Ready: true})
	for who, pem := range map[string]agentapitest.PEM{
		"another Mac": w.ca.Mac("b"), "another authority's Mac": agentapitest.NewCA(t).Mac("a"), "a gateway": w.ca.Gateway(),
	} {
		pair, err := pem.Pair(t)()
		if err != nil {
			t.Fatal(err)
		}
		var asked atomic.Int64
		s := httptest.NewUnstartedServer(http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
			asked.Add(1)
			fmt.Fprint(rw, "{}")
		}))
		s.EnableHTTP2, s.TLS = true, &tls.Config{Certificates: []tls.Certificate{*pair}}
		s.Config.ErrorLog = log.New(io.Discard, "", 0)
		s.StartTLS()
		t.Cleanup(s.Close)
		w.table.SetMac(route.Mac{Name: "a", Address: s.Listener.Addr().String(), Open: true})
		w.wantRefusal(w.chat(), refusal{status: 503, code: openai.CodeNoEndpoint, retry: "2"})
		if asked.Load() != 0 {
			t.Errorf("%s got a prompt", who)
		}
	}
}

// A body is kept for another attempt only until the response begins.
func TestABodyIsReleasedWhenTheAnswerBegins(t *testing.T) {
	for name, answer := range map[string]http.HandlerFunc{
		"a stream": events(untilGone, "a"),
		"one body": func(rw http.ResponseWriter, r *http.Request) {
			_, _ = rw.Write(bytes.Repeat([]byte("x"), 2<<20))
			_ = http.NewResponseController(rw).Flush()
			untilGone(r)
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.addMac("a", func(rw http.ResponseWriter, r *http.Request) {
				if held := w.counter("body_bytes"); held < 1<<20 {
					t.Errorf("%v bytes are held before the answer", held)
				}
				answer(rw, r)
			})
			body := chatBody[:len(chatBody)-1] + `,"x":"` + strings.Repeat("x", 1<<20) + `"}`
			resp := w.do("POST", chatPath, body)
			if _, err := io.ReadFull(resp.Body, make([]byte, 1)); err != nil {
				t.Fatal(err)
			}
			if held := w.counter("body_bytes"); held != 0 {
				t.Errorf("%v bytes are held during the answer", held)
			}
		})
	}
}

// The responses of a Mac end with its MacNode, and one that was replaced by another of its
// name receives nothing more.
func TestAttackAMacWhoseMacNodeEnded(t *testing.T) {
	for name, end := range map[string]func(*world, route.Mac){
		"deleted": func(w *world, m route.Mac) { w.table.DeleteMac(m.Name) },
		"replaced": func(w *world, m route.Mac) {
			m.UID = "another"
			w.table.SetMac(m)
		},
		"deleted after it stated another address": func(w *world, m route.Mac) {
			m.Address = "127.0.0.1:1"
			w.table.SetMac(m)
			w.wantRefusal(w.do("POST", chatPath, chatBody), refusal{status: 503, code: openai.CodeNoEndpoint, retry: "2"})
			w.table.DeleteMac(m.Name)
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			m := w.addMac("a", events(func(r *http.Request) { <-r.Context().Done() }, "begun"))
			node := route.Mac{Name: "a", UID: agentapitest.UID("a"), Address: m.server.Listener.Addr().String(), Open: true}
			w.table.SetMac(node)
			resp := w.do("POST", chatPath, `{"model":"m","stream":true}`)
			ended := make(chan string)
			go func() {
				all, _ := io.ReadAll(resp.Body)
				ended <- string(all)
			}()
			eventually(t, "the response has begun", func() bool { return m.requests.Load() == 1 })
			end(w, node)
			select {
			case all := <-ended:
				if !strings.Contains(all, agentapi.CodeEngineLost) && strings.Contains(all, "begun") {
					t.Errorf("the response ended as if it was complete: %q", all)
				}
			case <-time.After(patience.Of(t)):
				t.Fatal("the response of the Mac does not end")
			}
			if resp := w.do("POST", chatPath, chatBody); resp.StatusCode != 503 || m.requests.Load() != 1 {
				t.Errorf("status %d; the Mac received %d requests, want 1", resp.StatusCode, m.requests.Load())
			}
		})
	}
}

// TestAttackListsOfManyModels: a namespace may serve thousands of names, and a request for
// the list costs forty bytes. No list is in memory while a client reads it.
func TestAttackListsOfManyModels(t *testing.T) {
	w := newWorld(t)
	const models, names = 20, 100
	for d := range models {
		var all []string
		for n := range names {
			all = append(all, fmt.Sprintf("team-a/%s-%d-%d", strings.Repeat("m", 100), d, n))
		}
		name := fmt.Sprint("d", d)
		w.table.SetDeployment(route.Deployment{Key: route.Key{Namespace: "team-a", Name: name}, UID: name, Names: strings.Join(all, "\n")})
	}
	version := []string{anthropic.HeaderVersion, "2023-06-01"}
	for _, c := range []struct {
		path, member string
		headers      []string
		want         int
	}{{path: "/v1/models", member: "data", want: models * names}, {path: "/api/tags", member: "models", want: models * names}, {path: "/v1/models", member: "data", headers: version, want: 1000}} {
		path, member := c.path, c.member
		resp := w.do("GET", path, "", c.headers...)
		if resp.ContentLength >= 0 {
			t.Errorf("%s was in memory as a whole: %d bytes", path, resp.ContentLength)
		}
		var got map[string]json.RawMessage
		var list []any
		if err := errors.Join(json.Unmarshal([]byte(read(t, resp)), &got), json.Unmarshal(got[member], &list)); err != nil || len(list) != c.want {
			t.Errorf("%s has %d models (%v)", path, len(list), err)
		}
	}
	const asked = 20
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range asked {
		read(t, w.do("GET", "/v1/models?limit=1", "", version...))
	}
	runtime.ReadMemStats(&after)
	if each := (after.TotalAlloc - before.TotalAlloc) / asked; each > 256<<10 {
		t.Errorf("a list of one model takes %d bytes", each)
	}
}

// TestAttackAClientWithoutAKeyThatFillsTheQueue: where no keys are required, an address has no
// more of the queue than another that asks.
func TestAttackAClientWithoutAKeyThatFillsTheQueue(t *testing.T) {
	w := newWorld(t, queueOf(2))
	w.addMac("a", say("{}"))
	w.setReady("a", false)
	first := w.later(t.Context(), chatBody)
	w.waiting(1)
	second := w.later(t.Context(), chatBody)
	w.waiting(2)
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP("127.0.0.2")}}
	client := &http.Client{Transport: &http.Transport{DialContext: d.DialContext, DisableKeepAlives: true}}
	other := make(chan error, 1)
	go func() {
		resp, err := client.Post(w.url+chatPath, "application/json", strings.NewReader(chatBody))
		if err == nil {
			_ = resp.Body.Close()
			if resp.StatusCode != http.StatusOK {
				err = fmt.Errorf("another address got %d", resp.StatusCode)
			}
		}
		other <- err
	}()
	second.want(t, 503, "no_ready_endpoint")
	w.setReady("a", true)
	if err := <-other; err != nil {
		t.Error(err)
	}
	first.want(t, 200, "{}")
}
