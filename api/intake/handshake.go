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

// handshakeTimeout is how long a client may take to authenticate.
const handshakeTimeout = 5 * time.Second

// Handshakes is a listener that returns connections after their TLS handshake, so that no
// unauthenticated client uses more than a place among the strangers, and none for long. Its
// TLS configuration has to require a certificate of the client: there is no limit for
// connections that have authenticated.
type Handshakes struct {
	net.Listener
	config    *tls.Config
	log       *log.Logger
	strangers Strangers

	ready  chan net.Conn
	failed chan error
	closed chan struct{}
	begin  sync.Once
	end    sync.Once
}

// Authenticate wraps a listener. Failed handshakes are written to the log.
func Authenticate(l net.Listener, config *tls.Config, failures *log.Logger) *Handshakes {
	return &Handshakes{Listener: l, config: config, log: failures, ready: make(chan net.Conn), failed: make(chan error), closed: make(chan struct{})}
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
		case h.failed <- err: // the server pauses before it calls Accept again
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
	secure := tls.Server(c.Conn, h.config)
	ctx, cancel := context.WithTimeout(context.Background(), handshakeTimeout)
	defer cancel()
	err := secure.HandshakeContext(ctx)
	if in := h.strangers.Leave(c); err == nil && !in {
		err = errors.New("closed for a newer connection")
	}
	if err != nil {
		h.log.Printf("TLS handshake error from %s: %v", c.RemoteAddr(), err)
		_ = c.Conn.Close()
		return
	}
	select {
	case h.ready <- secure:
	case <-h.closed:
		_ = secure.Close()
	}
}

// Close closes the listener and the connections that are authenticating.
func (h *Handshakes) Close() error {
	h.end.Do(func() { close(h.closed) })
	err := h.Listener.Close()
	h.strangers.closeAll()
	return err
}
