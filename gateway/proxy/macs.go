package proxy

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/gateway/identity"
	"metalfleet.dev/metalfleet/gateway/route"
	"metalfleet.dev/metalfleet/gateway/tunnel"
)

const (
	connectTimeout   = time.Second
	handshakeTimeout = 2 * time.Second
	// pingAfter of silence, and pingTimeout without an answer: a dead Mac is
	// noticed in under 2 s, also where machines are busy.
	pingAfter   = 500 * time.Millisecond
	pingTimeout = time.Second
	// streamWindow is how much of an answer a Mac may send ahead of a client
	// that reads slowly.
	streamWindow = 128 << 10
)

// watched is how every connection to a Mac is, whoever opened it.
var watched = http.HTTP2Config{
	SendPingTimeout:           pingAfter,
	PingTimeout:               pingTimeout,
	MaxReceiveBufferPerStream: streamWindow,
	// Ids are others in each request: to remember them for the compression of
	// later heads costs more than it saves.
	MaxEncoderHeaderTableSize: 1,
}

// macs holds one HTTP/2 connection for each Mac that is used.
type macs struct {
	// identity with which Macs are dialled, at each handshake the one of then.
	identity func() *identity.Identity
	// lost, if set, is told of a Mac whose connection fell silent, also where no
	// request runs that would fail.
	lost func(mac string)
	// tunnels are the connections that Macs opened; nil takes none.
	tunnels *tunnel.Hub

	looks sync.WaitGroup // for what works again

	mu    sync.Mutex // guards conns
	conns map[string]*conn
}

// conn is the connection to one Mac at one address. Its handshakes were made
// under identity, or under ones that identity succeeds.
type conn struct {
	identity     *identity.Identity
	uid, address string // uid of the MacNode
	*http.Transport

	mu   sync.Mutex        // guards open
	open map[net.Conn]bool // nil when the MacNode is gone

	failed atomic.Bool  // it did, and was not seen to work since
	looked atomic.Int64 // when that was last looked for, in Unix nanoseconds
}

// drop cuts all connections to a Mac whose MacNode is gone: who has them is no Mac of
// the fleet any more.
func (m *macs) drop(mac string) {
	m.mu.Lock()
	c := m.conns[mac]
	delete(m.conns, mac)
	m.mu.Unlock()
	m.looks.Go(func() { // the table waits for its caller, and closing notifies others
		if c != nil {
			c.cut()
		}
		if m.tunnels != nil {
			m.tunnels.Drop(mac)
		}
	})
}

// cut closes all open connections, and each that is opened later.
func (c *conn) cut() {
	c.mu.Lock()
	open := c.open
	c.open = nil
	c.mu.Unlock()
	for raw := range open {
		_ = raw.Close()
	}
}

// track remembers a connection until it is closed.
func (c *conn) track(raw net.Conn) (net.Conn, error) {
	t := &tracked{Conn: raw, of: c}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open == nil {
		return nil, errors.Join(agentapi.ErrReplaced, raw.Close())
	}
	c.open[t] = true
	return t, nil
}

type tracked struct {
	net.Conn
	of *conn
}

// Close implements net.Conn.
func (t *tracked) Close() error {
	t.of.mu.Lock()
	delete(t.of.open, t)
	t.of.mu.Unlock()
	return t.Conn.Close()
}

// to is the connection to an endpoint's Mac. It outlives a certificate that is
// renewed and a root that comes to be trusted. When the address changed, or a
// root is trusted no more, the next request opens another one, and those that
// run end on the old one.
func (m *macs) to(e route.Endpoint) *conn {
	m.mu.Lock()
	defer m.mu.Unlock()
	id, c := m.identity(), m.conns[e.Mac] // under the lock: never an older one than before
	if c != nil && id.Succeeds(c.identity) && c.address == e.Address && c.uid == e.MacUID {
		c.identity = id
		return c
	}
	if c != nil {
		c.CloseIdleConnections()
	}
	c = &conn{identity: id, uid: e.MacUID, address: e.Address, open: map[net.Conn]bool{}}
	c.Transport = m.newTransport(c, e.Mac)
	if m.conns == nil {
		m.conns = map[string]*conn{}
	}
	m.conns[e.Mac] = c
	return c
}

// close ends the connections that nothing runs on.
func (m *macs) close() {
	m.looks.Wait()
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range m.conns {
		c.CloseIdleConnections()
	}
}

func (m *macs) newTransport(c *conn, mac string) *http.Transport {
	config := watched
	var http2 http.Protocols
	http2.SetHTTP2(true)
	dialer := &net.Dialer{Timeout: connectTimeout, KeepAlive: -1} // the pings below do more
	return &http.Transport{
		DialTLSContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			raw, err := dialer.DialContext(ctx, network, address)
			if err != nil {
				return nil, fmt.Errorf("%w: %w", errNotReached, err)
			}
			if raw, err = c.track(raw); err != nil {
				return nil, fmt.Errorf("%w: %w", errNotReached, err)
			}
			ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
			defer cancel()
			heard := &heard{Conn: raw, lost: func() {
				c.failed.Store(true)
				if m.lost != nil && m.tunnel(mac) == nil { // a tunnel has pings of its own
					m.lost(mac)
				}
			}}
			heard.note()
			secure := tls.Client(gather(heard), m.identity().ClientTLS(mac, c.uid))
			if err := secure.HandshakeContext(ctx); err != nil {
				return nil, fmt.Errorf("%w: %w", errNotReached, errors.Join(err, secure.Close()))
			}
			return secure, nil
		},
		DisableCompression: true,
		IdleConnTimeout:    5 * time.Minute,
		Protocols:          &http2,
		HTTP2:              &config,
	}
}
