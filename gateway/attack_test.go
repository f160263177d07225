package gateway

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
)

// pipes is a listener of in-memory connections, so that synctest controls their time.
type pipes struct {
	conns chan net.Conn
	once  sync.Once
	shut  chan struct{}
}

func newPipes() *pipes { return &pipes{conns: make(chan net.Conn), shut: make(chan struct{})} }

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.shut:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { p.once.Do(func() { close(p.shut) }); return nil }
func (p *pipes) Addr() net.Addr { return &net.IPAddr{} }

func (p *pipes) dial() net.Conn {
	client, server := net.Pipe()
	p.conns <- server
	return client
}

// edge tests against the client-facing server, with its real settings.
func edge(t *testing.T, test func(t *testing.T, dial func() net.Conn)) {
	synctest.Test(t, func(t *testing.T) {
		handler := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "in") })
		p := newPipes()
		o := Options{Log: logr.Discard(), Front: p}
		s := newServers(o, handler, http.NotFoundHandler(), http.NotFoundHandler(), new(drainHandler), func() bool { return true })
		ended := make(chan error, 1)
		go func() { ended <- s.front.Serve(o.bounded(prometheus.NewRegistry(), nil)) }()
		test(t, p.dial)
		if err := s.front.Close(); err != nil {
			t.Error(err)
		}
		if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
}

// TestAttackSlowHeaders: a client that sends a byte now and then has 10 seconds for its
// headers, and a silent one 2 minutes.
func TestAttackSlowHeaders(t *testing.T) {
	for name, tc := range map[string]struct {
		first string
		bound time.Duration
	}{
		"a byte a second":            {first: "GET / HTTP/1.1\r\nHost: x\r\nX-Slow: ", bound: 10 * time.Second},
		"a request line without end": {first: "GET /", bound: 10 * time.Second},
		"nothing at all":             {bound: 10 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			edge(t, func(t *testing.T, dial func() net.Conn) {
				c := dial()
				began := time.Now()
				var drips sync.WaitGroup
				drips.Go(func() { drip(c, tc.first) })
				if _, err := io.Copy(io.Discard, c); err != nil {
					t.Error(err)
				}
				took := time.Since(began)
				drips.Wait()
				if took > tc.bound {
					t.Errorf("the connection was held for %s", took)
				}
			})
		})
	}
}

// drip sends a text, and then a byte per second until the other side closes the connection.
func drip(c net.Conn, text string) {
	second := time.NewTicker(time.Second) // fake time
	defer second.Stop()
	for text != "" {
		if _, err := io.WriteString(c, text); err != nil {
			return
		}
		text = "a"
		<-second.C
	}
}

// TestAttackIdleConnections: a used connection is not kept open for ever.
func TestAttackIdleConnections(t *testing.T) {
	edge(t, func(t *testing.T, dial func() net.Conn) {
		c := dial()
		go func() { _, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n") }()
		began := time.Now()
		if _, err := io.Copy(io.Discard, c); err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took > 2*time.Minute {
			t.Errorf("the connection was held for %s", took)
		}
	})
}

// TestAttackHeaderBombs: more than about 64 KiB of headers, or 200, is refused before it is
// read completely, as one header or many.
func TestAttackHeaderBombs(t *testing.T) {
	for name, headers := range map[string]string{
		"one of 1 MiB":      "X-Bomb: " + strings.Repeat("x", 1<<20) + "\r\n",
		"100,000 small":     strings.Repeat("X-A: b\r\n", 100_000),
		"300 small":         strings.Repeat("X-A: b\r\n", 300),
		"one without end":   "X-Bomb: " + strings.Repeat("x", 8<<20),
		"a key of 128 KiB":  "Authorization: Bearer mf_a_" + strings.Repeat("A", 128<<10) + "\r\n",
		"a path of 256 KiB": "",
	} {
		t.Run(name, func(t *testing.T) {
			edge(t, func(t *testing.T, dial func() net.Conn) {
				c := dial()
				path := "/"
				if headers == "" {
					path += strings.Repeat("x", 256<<10)
				}
				sent := make(chan int, 1)
				go func() {
					n, _ := io.WriteString(c, "GET "+path+" HTTP/1.1\r\nHost: x\r\n"+headers+"\r\n")
					sent <- n
				}()
				resp, err := http.ReadResponse(bufio.NewReader(c), nil)
				if err != nil {
					t.Fatal(err)
				}
				if resp.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
					t.Errorf("status %d", resp.StatusCode)
				}
				_, err = io.Copy(io.Discard, resp.Body) // the server closes after a moment
				if err := errors.Join(err, resp.Body.Close(), c.Close()); err != nil {
					t.Error(err)
				}
				if n := <-sent; n > 136<<10 { // of which the last 64 KiB are not kept
					t.Errorf("%d bytes of it were read", n)
				}
			})
		})
	}
}

// TestAttackHTTP2OnTheFront: clients get HTTP/1.1, so that attacks with streams, resets and
// frames are impossible.
func TestAttackHTTP2OnTheFront(t *testing.T) {
	edge(t, func(t *testing.T, dial func() net.Conn) {
		c := dial()
		go func() { // the server may close before it has read everything
			_, _ = io.WriteString(c, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")
		}()
		b, err := io.ReadAll(c)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(string(b), "HTTP/1.1 ") || !strings.Contains(string(b), "Connection: close") {
			t.Errorf("the preface of HTTP/2 is answered with %q", b)
		}
		c = dial()
		go func() {
			_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, HTTP2-Settings, close\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n\r\n")
		}()
		if b, err = io.ReadAll(c); err != nil || !strings.HasPrefix(string(b), "HTTP/1.1 200") {
			t.Errorf("an upgrade to HTTP/2 is answered with %q, %v", b, err)
		}
	})
}
