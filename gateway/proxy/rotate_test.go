package proxy_test

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"

	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/agentapi/agentapitest"
	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/gateway/identity"
	"metalfleet.dev/metalfleet/gateway/proxy"
)

// rotating is a gateway and a Mac whose authority moves from one root to the next, with a
// stream that runs all the time.
type rotating struct {
	*world
	mac       *mac
	old, next *agentapitest.CA
	speak     chan string
	stream    *bufio.Reader
	spoken    int
}

func startRotating(t *testing.T) *rotating {
	t.Helper()
	r := &rotating{world: newWorld(t), speak: make(chan string)}
	r.old, r.next = r.ca, agentapitest.NewCA(t)
	r.mac = r.addMac("a", func(w http.ResponseWriter, q *http.Request) {
		if q.Header.Get(agentapi.HeaderRequestID) != "long" {
			say("{}")(w, q)
			return
		}
		out := openai.NewEventWriter(w)
		_ = out.Send(map[string]string{"text": "begun"})
		for {
			select {
			case text, ok := <-r.speak:
				if !ok {
					_ = out.Done()
					return
				}
				_ = out.Send(map[string]string{"text": text})
			case <-q.Context().Done():
				return
			}
		}
	})
	r.setMac(r.old, r.old)
	resp := r.do("POST", chatPath, `{"model":"m","messages":[],"stream":true}`, agentapi.HeaderRequestID, "long")
	r.stream = bufio.NewReader(resp.Body)
	r.hear("begun")
	return r
}

// bundle returns a bundle of the given authorities.
func bundle(cas ...*agentapitest.CA) (out []byte) {
	for _, c := range cas {
		out = append(out, c.PEM()...)
	}
	return out
}

// setMac sets the Mac's certificate and roots from its next handshake on.
func (r *rotating) setMac(of *agentapitest.CA, trusts ...*agentapitest.CA) {
	r.t.Helper()
	roots, _, err := agentapi.Roots(bundle(trusts...))
	if err != nil {
		r.t.Fatal(err)
	}
	r.mac.tls.Store(agentapi.ServerTLS(of.Mac("a").Pair(r.t), roots))
}

func (r *rotating) setGateway(of *agentapitest.CA, trusts ...*agentapitest.CA) {
	r.t.Helper()
	pem := of.Gateway()
	id, err := identity.Parse(map[string][]byte{"tls.crt": pem.Certificate, "tls.key": pem.Key, "ca.crt": bundle(trusts...)})
	if err != nil {
		r.t.Fatal(err)
	}
	r.ids.Set(id)
}

// check requires a response on the kept connection, one on a new connection, and another
// event of the stream. It returns how many connections the Mac has accepted from the
// gateway that keeps one.
func (r *rotating) check(what string) int64 {
	r.t.Helper()
	before := r.mac.conns.Load()
	if got := read(r.t, r.chat()); got != "{}" {
		r.t.Errorf("%s: the kept connection answers %q", what, got)
	}
	kept := r.mac.conns.Load() - before
	r.fresh(what)
	r.spoken++
	text := fmt.Sprintf("%s, event %d", what, r.spoken)
	r.speak <- text
	r.hear(text)
	return kept
}

// hear requires the stream to send a text next.
func (r *rotating) hear(text string) {
	r.t.Helper()
	for {
		line, err := r.stream.ReadString('\n')
		if err != nil {
			r.t.Fatalf("the stream was cut before %q: %v", text, err)
		}
		if data, ok := strings.CutPrefix(line, "data: "); ok {
			if !strings.Contains(data, text) {
				r.t.Errorf("the stream says %q, want %q", data, text)
			}
			return
		}
	}
}

// fresh sends a request through a new gateway without connections.
func (r *rotating) fresh(what string) {
	r.t.Helper()
	before := r.mac.conns.Load()
	p := proxy.New(proxy.Config{Table: r.table, Identity: r.ids.Current, Registry: prometheus.NewRegistry(), Log: logr.Discard()})
	defer p.Close()
	s := httptest.NewServer(p)
	defer s.Close()
	resp, err := s.Client().Post(s.URL+chatPath, "application/json", strings.NewReader(`{"model":"m","messages":[]}`))
	if err != nil {
		r.t.Fatal(err)
	}
	defer resp.Body.Close()
	if b, err := io.ReadAll(resp.Body); err != nil || string(b) != "{}" {
		r.t.Errorf("%s: a new connection answers %q, %v", what, b, err)
	}
	if r.mac.conns.Load() == before {
		r.t.Errorf("%s: there was no new connection", what)
	}
}

// TestARotationCutsNoStream: gateway and Mac receive each step one after the other, in
// either order, and nothing fails at any time.
func TestARotationCutsNoStream(t *testing.T) {
	for name, macFirst := range map[string]bool{"the Mac learns first": true, "the gateway learns first": false} {
		t.Run(name, func(t *testing.T) {
			r := startRotating(t)
			old, next := r.old, r.next
			turn := func(what string, mac, gateway func()) (opened int64) {
				turns := []func(){gateway, mac}
				if macFirst {
					slices.Reverse(turns)
				}
				for _, f := range turns {
					f()
					opened += r.check(what)
				}
				return opened
			}
			r.check("before")
			opened := turn("both roots are trusted", func() { r.setMac(old, old, next) }, func() { r.setGateway(old, old, next) })
			opened += turn("certificates are of the next root", func() { r.setMac(next, old, next) }, func() { r.setGateway(next, old, next) })
			opened += turn("and are renewed", func() { r.setMac(next, old, next) }, func() { r.setGateway(next, old, next) })
			if opened != 0 {
				t.Errorf("%d connections were given up while their root was trusted", opened)
			}
			if opened = turn("the old root is trusted no more", func() { r.setMac(next, next) }, func() { r.setGateway(next, next) }); opened != 1 {
				t.Errorf("%d connections after a root left, want one", opened)
			}
			close(r.speak)
			if rest, err := io.ReadAll(r.stream); err != nil || !strings.Contains(string(rest), "[DONE]") {
				t.Errorf("the stream ends with %q, %v", rest, err)
			}
		})
	}
}

// The connection must not use the identity of the first connection to the Mac.
func TestALostConnectionIsDialledWithTheIdentityOfThen(t *testing.T) {
	r := startRotating(t)
	close(r.speak)
	if _, err := io.ReadAll(r.stream); err != nil {
		t.Fatal(err)
	}
	r.setGateway(r.next, r.old, r.next)
	read(t, r.chat())
	r.setMac(r.next, r.next)
	r.mac.server.CloseClientConnections()
	eventually(t, "an answer on another connection", func() bool {
		resp, err := r.try(t.Context(), "POST", chatPath, `{"model":"m","messages":[]}`)
		return err == nil && resp.StatusCode == http.StatusOK
	})
}

// TestARemovedRootIsNotTrusted: neither a Mac nor a gateway of it.
func TestARemovedRootIsNotTrusted(t *testing.T) {
	r := startRotating(t)
	close(r.speak)
	for name, set := range map[string]func(){
		"a Mac of the old root":     func() { r.setMac(r.old, r.old, r.next); r.setGateway(r.next, r.next) },
		"a gateway of the old root": func() { r.setMac(r.next, r.next); r.setGateway(r.old, r.old, r.next) },
	} {
		set()
		p := proxy.New(proxy.Config{Table: r.table, Identity: r.ids.Current, Registry: prometheus.NewRegistry(), Log: logr.Discard()})
		s := httptest.NewServer(p)
		resp, err := s.Client().Post(s.URL+chatPath, "application/json", strings.NewReader(`{"model":"m","messages":[]}`))
		if err != nil {
			t.Fatal(err)
		}
		if resp.StatusCode == http.StatusOK {
			t.Errorf("%s gets on", name)
		}
		_ = resp.Body.Close()
		s.Close()
		p.Close()
	}
}
