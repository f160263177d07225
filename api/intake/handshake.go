package intake

import (
	"context"
	"crypto/tls"
	"errors"
	"log"
	"net"
	"sync"
	"time"
)

const (
	// handshakeTimeout is how long a client may take to authenticate.
	handshakeTimeout = 5 * time.Second
	// maxCounted connections of Counted clients may be open at once, and maxCountedEach of
	// one client. At a limit, the oldest one of the client with the most is closed.
	maxCounted, maxCountedEach = 256, 8
)

// Handshakes is a listener that returns connections after their TLS handshake, so that no
// unauthenticated client uses more than a place among the strangers, and none for long. Its
// TLS configuration has to require a certificate of the client: there is no limit for
// connections that have authenticated, except those of the clients that Counted names.
type Handshakes struct {
	net.Listener
	// Counted returns the identity of a client whose connections are limited; ok is false
	// for one without a limit. nil limits none. Set it before Accept.
	Counted   func(tls.ConnectionState) (client string, ok bool)
	config    *tls.Config
	log       *log.Logger
	strangers Strangers
	computing *Computing
	counted   shared

	ready  chan net.Conn
	failed chan error
	closed chan struct{}
	begin  sync.Once
	end    sync.Once
}

// Authenticate wraps a listener. Failed handshakes are written to the log.
func Authenticate(l net.Listener, config *tls.Config, failures *log.Logger) *Handshakes {
	return &Handshakes{Listener: l, config: config, log: failures, computing: NewComputing(), ready: make(chan net.Conn), failed: make(chan error), closed: make(chan struct{})}
}

// Accept implements net.Listener. The connections are of type *tls.Conn.
func (h *Handshakes) Accept() (net.Conn, error) {
	h.begin.Do(func() { go h.acceptAll() })
	select {
	case c := <-h.ready:
		return c, nil
	case err := <-h.failed:
		return nil, err
	case <-h.closed:
		return nil, net.ErrClosed
	}
}

// acceptAll accepts strangers until the listener is closed.
func (h *Handshakes) acceptAll() {
	for {
		c, err := h.Listener.Accept()
		if err == nil {
			go h.admit(h.strangers.Enter(c))
			continue
		}
		select {
		case h.failed <- ofAccept(err): // the server pauses before it calls Accept again, or ends
			if errors.Is(err, net.ErrClosed) {
				return
			}
		case <-h.closed:
			return
		}
	}
}

// admit authenticates a client and passes its connection to Accept.
func (h *Handshakes) admit(c *Stranger) {
	limited := Limit(c)
	defer limited.End()
	conn := &countedConn{Conn: limited}
	secure := tls.Server(conn, h.config)
	until := time.Now().Add(handshakeTimeout)
	limited.ComputeAfterRead(h.computing, until)
	ctx, cancel := context.WithDeadline(context.Background(), until)
	defer cancel()
	err := secure.HandshakeContext(ctx)
	if err == nil && !h.strangers.Leave(c) {
		err = errors.New("closed for a newer connection")
	}
	if err != nil {
		h.log.Printf("TLS handshake error from %s: %v", c.RemoteAddr(), err)
		_ = c.Close()
		return
	}
	limited.Lift()
	if err := c.SetDeadline(time.Time{}); err != nil {
		_ = c.Close()
		return
	}
	if h.Counted != nil {
		if client, ok := h.Counted(secure.ConnectionState()); ok {
			conn.place = h.counted.enter(c.Conn, client, maxCounted, maxCountedEach)
		}
	}
	select {
	case h.ready <- secure:
	case <-h.closed:
		_ = secure.Close()
	}
}

// countedConn leaves its place when it is closed; place is nil if it is not counted.
type countedConn struct {
	net.Conn
	place *Stranger
}

// Close implements net.Conn.
func (c *countedConn) Close() error {
	if c.place != nil {
		return c.place.Close()
	}
	return c.Conn.Close()
}

// Close closes the listener and the connections that are authenticating.
func (h *Handshakes) Close() error {
	h.end.Do(func() { close(h.closed) })
	err := h.Listener.Close()
	h.strangers.closeAll()
	return err
}
