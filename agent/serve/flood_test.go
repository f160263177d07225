package serve_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"metalfleet.dev/metalfleet/agent/serve"
	"metalfleet.dev/metalfleet/agent/serve/servetest"
	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/test/patience"
)

// raw is an HTTP/2 connection of a gateway that went over to the enemy.
type raw struct {
	*http2.Framer
	conn  net.Conn
	ended chan struct{} // closed when the Mac hung up
	away  http2.ErrCode // why; read after ended
}

func (a *agent) raw(t *testing.T) *raw {
	t.Helper()
	config := agentapi.ClientTLS(a.ca.Gateway().Pair(t), a.ca.Roots(), "mac-a")
	c, err := tls.Dial("tcp", strings.TrimPrefix(a.url, "https://"), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	r := &raw{Framer: http2.NewFramer(c, c), conn: c, ended: make(chan struct{})}
	if _, err := io.WriteString(c, http2.ClientPreface); err != nil {
		t.Fatal(err)
	}
	if err := r.WriteSettings(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(r.ended)
		for {
			f, err := r.ReadFrame()
			if err != nil {
				return
			}
			if g, ok := f.(*http2.GoAwayFrame); ok {
				r.away = g.ErrCode
			}
		}
	}()
	return r
}

// request is the header block of a GET.
func request(t *testing.T, path string) []byte {
	t.Helper()
	var b bytes.Buffer
	e := hpack.NewEncoder(&b)
	for _, f := range [][2]string{{":method", "GET"}, {":scheme", "https"}, {":authority", "mac-a.mac.metalfleet.dev"}, {":path", path}} {
		if err := e.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]}); err != nil {
			t.Fatal(err)
		}
	}
	return b.Bytes()
}

// TestAttackEndlessHeaders: a header block of endless frames is bounded, and so
// is each header in it.
func TestAttackEndlessHeaders(t *testing.T) {
	const flood = 16 << 20 // of which some MB may lie in the sockets between
	for what, fragment := range map[string][]byte{
		"many headers":       bytes.Repeat([]byte("\x00\x01a\x01b"), 3000),
		"one header, no end": nil,
	} {
		t.Run(what, func(t *testing.T) {
			a := startAgent(t, servetest.Say("x"), time.Second)
			r := a.raw(t)
			block := request(t, "/v1/models")
			if fragment == nil { // a literal of 1 GiB, of which the length is said
				block = append(block, 0, 1, 'a')
				block = append(block, 0x7f, 0x81, 0xff, 0xff, 0xff, 0x03)
				fragment = bytes.Repeat([]byte("x"), 16000)
			}
			err := r.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block, EndStream: true})
			for sent := 0; err == nil && sent < flood; sent += len(fragment) + 9 {
				err = r.WriteContinuation(1, false, fragment)
			}
			if err == nil {
				t.Fatalf("the Mac took %d MiB of headers and waits for more", flood>>20)
			}
			<-r.ended
			a.answers(t)
		})
	}
}

// answers wants the Mac to serve another connection as if nothing had been.
func (a *agent) answers(t *testing.T) {
	t.Helper()
	resp, err := a.client.Get(a.url + agentapi.PathHealth)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusNoContent {
		t.Errorf("health: %s", resp.Status)
	}
}

// stuck are engines whose list of models never arrives, even after the client
// disconnected.
type stuck struct {
	*servetest.Fake
	mu    sync.Mutex
	asked int
	free  chan struct{}
}

func (s *stuck) Models() []openai.Model {
	s.mu.Lock()
	s.asked++
	s.mu.Unlock()
	<-s.free
	return nil
}

func (s *stuck) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked
}

// TestAttackRapidResets: streams that are opened and taken back at once do not
// set more to work than streams that stay.
func TestAttackRapidResets(t *testing.T) {
	const most, flood = 1000, 20_000
	engines := &stuck{Fake: servetest.New(), free: make(chan struct{})}
	a := startAgent(t, servetest.Say("x"), time.Second, func(c *serve.Config) { c.Engines, c.Log = engines, logr.Discard() })
	t.Cleanup(func() { close(engines.free) })
	r := a.raw(t)
	block := request(t, "/v1/models")
	var err error
	for n := uint32(0); err == nil && n < flood; n++ {
		err = errors.Join(
			r.WriteHeaders(http2.HeadersFrameParam{StreamID: 2*n + 1, BlockFragment: block, EndStream: true, EndHeaders: true}),
			r.WriteRSTStream(2*n+1, http2.ErrCodeCancel))
	}
	select {
	case <-r.ended:
		if r.away != http2.ErrCodeEnhanceYourCalm && r.away != http2.ErrCodeNo {
			t.Errorf("the connection ended with %v", r.away)
		}
	case <-time.After(patience.Of(t)):
		t.Errorf("after %d resets the connection stays open", flood)
	}
	if n := engines.count(); n > most {
		t.Errorf("%d requests were at work at once, want at most %d", n, most)
	}
	a.answers(t)
}

// TestAttackSlowBodies: who opens requests and sends their bodies a sign at a
// time, or never, holds each of them for a bounded time.
func TestAttackSlowBodies(t *testing.T) {
	a := startAgent(t, servetest.Say("x"), time.Second, func(c *serve.Config) { c.ReadTimeout = 100 * time.Millisecond })
	ctx, cancel := context.WithTimeout(t.Context(), patience.Of(t))
	defer cancel()
	body, never := io.Pipe()
	defer never.Close()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, a.url+"/v1/completions", body)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := a.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusBadRequest {
		t.Errorf("a body that never comes: %s", resp.Status)
	}
	a.answers(t)
}
