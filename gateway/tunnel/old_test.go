package tunnel_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync/atomic"
	"testing"
)

// deafConn hands nothing on of what comes once it is deaf, and no end.
type deafConn struct {
	net.Conn
	deaf  atomic.Bool
	ended chan struct{} // is closed when the other side has closed it
}

func (d *deafConn) Read(p []byte) (int, error) {
	for {
		n, err := d.Conn.Read(p)
		if !d.deaf.Load() {
			return n, err
		}
		if err != nil {
			close(d.ended)
			return 0, err
		}
	}
}

// TestAReplacedTunnelEndsWithItsLastRequest: net/http counts a cancelled request until the Mac
// answers a ping. The tunnel of such a Mac ends with its last request.
func TestAReplacedTunnelEndsWithItsLastRequest(t *testing.T) {
	w := newWorld(t)
	c := &deafConn{Conn: w.dial("a"), ended: make(chan struct{})}
	asked, leave := context.WithCancel(t.Context())
	w.serveOn(c, w.ca.MacOfUID("a", w.certified("a")), func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/x" {
			c.deaf.Store(true)
			leave()
			<-r.Context().Done()
		}
	})
	w.wantChange("a")
	if _, err := w.ask(asked, "a", "/x"); !errors.Is(err, context.Canceled) {
		t.Fatalf("the request ended with %v", err)
	}
	w.mac("a", nil)
	w.wantChange("a")
	w.wait("the first tunnel ends", c.ended)
}

// TestAMacHasFewReplacedTunnels: the oldest one ends, also while a response runs there.
func TestAMacHasFewReplacedTunnels(t *testing.T) {
	w := newWorld(t)
	more := make(chan struct{})
	defer close(more)
	const most = 8 // old ones
	const opened = most + 3
	var ended [opened]<-chan struct{}
	for i := range opened {
		_, ended[i] = w.mac("a", stream(more))
		w.wantChange("a")
		w.begin("a")
	}
	w.wait("the oldest tunnels end", ended[0])
	w.wait("the oldest tunnels end", ended[1])
	for i, of := range ended[2:] {
		select {
		case <-of:
			t.Errorf("tunnel %d of %d has ended", i+2, opened)
		default:
		}
	}
}
