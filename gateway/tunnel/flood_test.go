package tunnel_test

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"

	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/agentapi/agentapitest"
	"metalfleet.dev/metalfleet/gateway/tunnel"
	"metalfleet.dev/metalfleet/test/patience"
)

// pipes is a listener whose clients all have one address.
type pipes struct {
	conns chan net.Conn
	done  chan struct{}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}
func (p *pipes) Close() error   { close(p.done); return nil }
func (p *pipes) Addr() net.Addr { return &net.TCPAddr{} }

func (p *pipes) dial() net.Conn {
	here, there := net.Pipe()
	select {
	case p.conns <- there:
	case <-p.done:
		_ = there.Close()
	}
	return here
}

// farConn delays what it sends.
type farConn struct {
	net.Conn
	by time.Duration
}

func (f farConn) Write(b []byte) (int, error) {
	time.Sleep(f.by)
	return f.Conn.Write(b)
}

// TestAMacAuthenticatesAmongStrangers: some load balancers give all clients one
// address. Strangers that keep opening connections lock out no Mac, which takes a round trip
// to send its certificate and another one to answer.
func TestAMacAuthenticatesAmongStrangers(t *testing.T) {
	for name, each := range map[string]time.Duration{"500 a second": 2 * time.Millisecond, "2000 a second": 500 * time.Microsecond} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := &pipes{conns: make(chan net.Conn), done: make(chan struct{})}
				w := newWorldOn(t, l)
				stop := make(chan struct{})
				defer close(stop)
				go func() {
					for {
						select {
						case <-stop:
							return
						case <-time.After(each):
						}
						c := l.dial()
						go func() {
							_ = agentapi.SayTunnel(c, "a")
							_, _ = io.Copy(io.Discard, c) // never an answer
							_ = c.Close()
						}()
					}
				}()
				time.Sleep(time.Second)
				c := farConn{l.dial(), 100 * time.Millisecond}
				if err := agentapi.SayTunnel(c, "a"); err != nil {
					t.Fatal(err)
				}
				if _, err := agentapi.HearGateway(c); err != nil {
					t.Fatal(err)
				}
				s, _ := w.serveOn(agentapi.Tunnel(c), w.ca.MacOfUID("a", agentapitest.UID("a")), func(http.ResponseWriter, *http.Request) {})
				defer s.Close()
				select {
				case <-w.changed:
				case <-time.After(10 * time.Second):
					t.Error("the Mac's tunnel did not open")
				}
			})
		})
	}
}

// TestAMacHasOneConnectionThatDoesNotAnswer: one that authenticates again and again and
// never answers a request uses no more than one place.
func TestAMacHasOneConnectionThatDoesNotAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &pipes{conns: make(chan net.Conn), done: make(chan struct{})}
		w := newWorldOn(t, l)
		var closed atomic.Int64
		for range 3 {
			raw := l.dial()
			if err := agentapi.SayTunnel(raw, "a"); err != nil {
				t.Fatal(err)
			}
			if _, err := agentapi.HearGateway(raw); err != nil {
				t.Fatal(err)
			}
			c := tls.Server(agentapi.Tunnel(raw), agentapi.ServerTLS(w.ca.Mac("a").Pair(t), w.ca.Roots()))
			if err := c.Handshake(); err != nil {
				t.Fatal(err)
			}
			go func() {
				_, _ = io.Copy(io.Discard, c)
				closed.Add(1)
			}()
			synctest.Wait()
		}
		if n := closed.Load(); n != 2 {
			t.Errorf("of three connections of one Mac, %d were closed, want 2", n)
		}
	})
}

// TestAHandshakeIsBounded: a certificate that is followed by many others is not read.
func TestAHandshakeIsBounded(t *testing.T) {
	w := newWorld(t)
	pair := w.ca.MacOfUID("a", agentapitest.UID("a")).Pair(t)
	config := agentapi.ServerTLS(func() (*tls.Certificate, error) {
		own, err := pair()
		if err != nil {
			return nil, err
		}
		long := *own
		for range 200 {
			long.Certificate = append(long.Certificate, own.Certificate[0])
		}
		return &long, nil
	}, w.ca.Roots())
	c := tls.Server(w.dial("a"), config)
	if err := c.SetDeadline(time.Now().Add(patience.Of(t))); err != nil {
		t.Fatal(err)
	}
	if err := c.Handshake(); err == nil {
		t.Error("the gateway reads 200 certificates of a stranger")
	}
}

// heldConn is a connection on which a handshake is computed: its first message takes until ready is
// closed.
type heldConn struct {
	net.Conn
	running *atomic.Int64
	ready   <-chan struct{}
}

func (h heldConn) Write(b []byte) (int, error) {
	h.running.Add(1)
	<-h.ready
	h.running.Add(-1)
	return h.Conn.Write(b)
}

// TestHandshakesOfStrangersLeaveProcessorsToOthers: however many ask for one at once.
func TestHandshakesOfStrangersLeaveProcessorsToOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var running atomic.Int64
		ready := make(chan struct{})
		l := &pipes{conns: make(chan net.Conn), done: make(chan struct{})}
		w := &world{t: t, ca: agentapitest.NewCA(t)}
		w.ids.Set(w.identity(w.ca.Gateway()))
		hub := tunnel.New(tunnel.Options{Identity: w.ids.Current, Log: logr.Discard(), Wrap: func(c net.Conn) net.Conn { return heldConn{c, &running, ready} }})
		ctx, stop := context.WithCancel(t.Context())
		served := make(chan error, 1)
		go func() { served <- hub.Serve(ctx, l) }()
		for range 4 * runtime.GOMAXPROCS(0) {
			c := l.dial()
			if err := agentapi.SayTunnel(c, "a"); err != nil {
				t.Fatal(err)
			}
			go func() { _, _ = io.Copy(io.Discard, c) }()
		}
		synctest.Wait()
		if n, most := int(running.Load()), max(1, runtime.GOMAXPROCS(0)/2); n != most {
			t.Errorf("%d handshakes are computed at once, want %d", n, most)
		}
		close(ready)
		stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
}
