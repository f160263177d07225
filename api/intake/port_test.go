package intake

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestAttackTheHealthPort: neither the connections of one address nor their headers take
// more than a little memory, and a probe from elsewhere is answered meanwhile.
func TestAttackTheHealthPort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPipes()
		s := PortServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), log.New(io.Discard, "", 0))
		ended := make(chan error, 1)
		go func() { ended <- s.Serve(Port(p)) }()
		var open, sent atomic.Int64
		for range 100 {
			c := p.dial("10.0.0.1")
			open.Add(1)
			go func() {
				n, _ := io.WriteString(c, "GET /healthz HTTP/1.1\r\nHost: x\r\nX-Bomb: "+strings.Repeat("x", 1<<20))
				sent.Add(int64(n))
			}()
			go func() {
				_, _ = io.Copy(io.Discard, c)
				open.Add(-1)
			}()
		}
		for range 20 {
			silent := p.dial("10.0.0.3")
			open.Add(1)
			go func() {
				_, _ = io.Copy(io.Discard, silent)
				open.Add(-1)
			}()
		}
		probe := p.dial("10.0.0.2")
		go func() { _, _ = io.WriteString(probe, "GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n") }()
		if got, err := io.ReadAll(probe); err != nil || !strings.HasPrefix(string(got), "HTTP/1.1 200") {
			t.Errorf("a probe gets %q, %v", got, err)
		}
		synctest.Wait()
		if n := open.Load(); n > 2*portConnectionsPerAddress {
			t.Errorf("%d connections of two addresses are open, want at most %d of each", n, portConnectionsPerAddress)
		}
		time.Sleep(portTimeout + time.Second) // fake time
		synctest.Wait()
		if n := open.Load(); n > 0 {
			t.Errorf("%d connections without a complete request are open after %s", n, portTimeout)
		}
		if n := sent.Load(); n > 100*(portHeaderBytes+16<<10) {
			t.Errorf("%d bytes of headers were read", n)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
}

// A handshake ends in time, and the strangers of a listener end with it.
func TestHandshakesEndInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPipes()
		l := Authenticate(p, &tls.Config{}, log.New(io.Discard, "", 0))
		accepted := make(chan error, 1)
		go func() {
			_, err := l.Accept()
			accepted <- err
		}()
		began := time.Now()
		if _, err := io.Copy(io.Discard, p.dial("10.0.0.1")); err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took != handshakeTimeout {
			t.Errorf("a silent stranger was kept for %s, want %s", took, handshakeTimeout)
		}
		c := p.dial("10.0.0.1")
		synctest.Wait()
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		if _, err := io.Copy(io.Discard, c); err != nil {
			t.Error(err)
		}
		if err := <-accepted; !errors.Is(err, net.ErrClosed) {
			t.Errorf("accept after close: %v", err)
		}
	})
}

// TestARedirectKeepsNoPlaceOfAProbe: a mux redirects a path that is not clean and escapes what it
// repeats; a client that reads nothing of it gives way.
func TestARedirectKeepsNoPlaceOfAProbe(t *testing.T) {
	for _, quotes := range []int{portTarget - 3, portHeaderBytes} {
		synctest.Test(t, func(t *testing.T) {
			p, mux := newPipes(), http.NewServeMux()
			mux.HandleFunc("/healthz", func(http.ResponseWriter, *http.Request) {})
			s := PortServer(mux, log.New(io.Discard, "", 0))
			ended := make(chan error, 1)
			go func() { ended <- s.Serve(Port(p)) }()
			for i := range portConnections + portConnections/keptShare {
				c := p.dial(fmt.Sprint("10.0.1.", i))
				defer func() { _ = c.Close() }()
				go func() { _, _ = io.WriteString(c, "GET //?"+strings.Repeat(`"`, quotes)+" HTTP/1.1\r\nHost: x\r\n\r\n") }()
				synctest.Wait()
			}
			probe := p.dial("10.0.0.2")
			go func() { _, _ = io.WriteString(probe, "GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n") }()
			if got, err := io.ReadAll(probe); err != nil || !strings.HasPrefix(string(got), "HTTP/1.1 200") {
				t.Errorf("%d bytes to escape: a probe gets %q, %v", quotes, got, err)
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
			if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
				t.Error(err)
			}
		})
	}
}

// TestAPortWithTLSSeesNoHeads: lines of what is encrypted mean nothing.
func TestAPortWithTLSSeesNoHeads(t *testing.T) {
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	s.Config = PortServer(s.Config.Handler, log.New(io.Discard, "", 0))
	port := TLSPort(s.Listener)
	s.Listener = port
	s.StartTLS()
	defer s.Close()
	for i := range 300 {
		resp, err := s.Client().Get(s.URL)
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("request %d: %v, %v", i, resp, err)
		}
		_ = resp.Body.Close()
	}
	if l := port.(*Listener); l.endings(longHead) > 0 {
		t.Errorf("%d connections were closed for their heads", l.endings(longHead))
	}
}
