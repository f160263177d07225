package proxy

import (
	"net"
	"net/http"
	"sync"
	"time"

	"metalfleet.dev/metalfleet/gateway/identity"
	"metalfleet.dev/metalfleet/gateway/route"
)

const (
	connectTimeout   = time.Second
	handshakeTimeout = 2 * time.Second
	// pingAfter of silence, and pingTimeout without an answer: a dead Mac is
	// noticed within 2 s.
	pingAfter   = time.Second
	pingTimeout = time.Second
	// streamWindow is how much of an answer a Mac may send ahead of a client
	// that reads slowly.
	streamWindow = 128 << 10
)

// macs holds one HTTP/2 connection for each Mac that is used.
type macs struct {
	mu    sync.Mutex // guards conns
	conns map[string]*conn
}

// conn is the connection to one Mac at one address under one identity.
type conn struct {
	identity *identity.Identity
	address  string
	*http.Transport
}

// to is the connection to an endpoint's Mac. When address or identity changed,
// requests that run on the old connection end there.
func (m *macs) to(e route.Endpoint, id *identity.Identity) *http.Transport {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.conns[e.Mac]
	if c != nil && c.identity == id && c.address == e.Address {
		return c.Transport
	}
	if c != nil {
		c.CloseIdleConnections()
	}
	c = &conn{identity: id, address: e.Address, Transport: newTransport(id, e.Mac)}
	if m.conns == nil {
		m.conns = map[string]*conn{}
	}
	m.conns[e.Mac] = c
	return c.Transport
}

// close ends the connections that nothing runs on.
func (m *macs) close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range m.conns {
		c.CloseIdleConnections()
	}
}

func newTransport(id *identity.Identity, mac string) *http.Transport {
	var http2 http.Protocols
	http2.SetHTTP2(true)
	return &http.Transport{
		DialContext:         (&net.Dialer{Timeout: connectTimeout, KeepAlive: -1}).DialContext, // the pings below do more
		TLSClientConfig:     id.ClientTLS(mac),
		TLSHandshakeTimeout: handshakeTimeout,
		DisableCompression:  true,
		IdleConnTimeout:     5 * time.Minute,
		Protocols:           &http2,
		HTTP2: &http.HTTP2Config{
			SendPingTimeout:           pingAfter,
			PingTimeout:               pingTimeout,
			MaxReceiveBufferPerStream: streamWindow,
		},
	}
}
