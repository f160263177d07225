package upstream

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
	// pingAfter without data a ping is sent, and after pingTimeout without a response the
	// connection is closed: a dead Mac is detected in under 2 s, even on busy machines.
	pingAfter   = 500 * time.Millisecond
	pingTimeout = time.Second
	// maxDials is how many connections are opened for one request: net/http opens another one
	// for each that the Mac ends without an answer, without a limit.
	maxDials = 3
	// streamWindow bounds how much of a response a Mac may send ahead of a client that
	// reads slowly.
	streamWindow = 128 << 10
)

// http2Config applies to every connection to a Mac, regardless of which side opened it.
var http2Config = http.HTTP2Config{
	SendPingTimeout:           pingAfter,
	PingTimeout:               pingTimeout,
	MaxReceiveBufferPerStream: streamWindow,
	// Request IDs differ each time: adding them to the header compression table costs more
	// than it saves.
	MaxEncoderHeaderTableSize: 1,
}

// errNotReached means that the connection to a Mac was not opened: no request was sent.
var errNotReached = errors.New("the Mac could not be reached")

// errTurnedAway means that a Mac ends connections and processes no request on them.
var errTurnedAway = fmt.Errorf("%w: it ended %d connections without an answer", errNotReached, maxDials)

// NotReached reports whether a request failed because no connection to the Mac could be
// opened.
func NotReached(err error) bool {
	return errors.Is(err, errNotReached) || errors.Is(err, tunnel.ErrNone)
}

// streamError has the fields of net/http's unexported error for a reset stream, so that
// errors.As can copy it.
type streamError struct {
	StreamID uint32
	Code     uint32
	Cause    error
}

func (e streamError) Error() string { return fmt.Sprintf("stream reset with code %d", e.Code) }

// IsReset reports whether a request failed because its stream was reset. Other errors are
// those of the connection, and concern the Mac.
func IsReset(err error) bool {
	var reset streamError
	return errors.As(err, &reset)
}

// conn is the connection to one Mac at one address. Its handshakes used identity, or a
// version that identity succeeds.
type conn struct {
	identity     *identity.Identity
	uid, address string // uid of the MacNode
	*http.Transport
	// opened are the connections to the MacNode, also those of a conn that this one replaced.
	opened *opened

	failed atomic.Bool  // a connection failed, and no probe has succeeded since
	probed atomic.Int64 // time of the last probe, in Unix nanoseconds
}

// newConn returns a connection that opens with its first request, each time with the
// current identity. silent is called when the Mac no longer answers pings. before is the
// connection that it replaces; nil without one.
func newConn(id *identity.Identity, e route.Endpoint, current func() *identity.Identity, silent func(), before *conn) *conn {
	c := &conn{identity: id, uid: e.MacUID, address: e.Address, opened: &opened{all: map[net.Conn]bool{}}}
	if before != nil && before.uid == c.uid {
		c.opened = before.opened
	}
	config := http2Config
	var http2 http.Protocols
	http2.SetHTTP2(true)
	dialer := &net.Dialer{Timeout: connectTimeout, KeepAlive: -1} // HTTP/2 pings replace it
	c.Transport = &http.Transport{
		MaxResponseHeaderBytes: agentapi.MaxHeaderBytes,
		DialTLSContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			if n, ok := ctx.Value(dialsKey{}).(*atomic.Int32); ok && n.Add(1) > maxDials {
				return nil, errTurnedAway
			}
			raw, err := dialer.DialContext(ctx, network, address)
			if err != nil {
				return nil, fmt.Errorf("%w: %w", errNotReached, err)
			}
			if raw, err = c.opened.track(raw); err != nil {
				return nil, fmt.Errorf("%w: %w", errNotReached, err)
			}
			ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
			defer cancel()
			watched := &watchedConn{Conn: raw, lost: func() {
				c.failed.Store(true)
				silent()
			}}
			watched.received()
			secure := tls.Client(combineWrites(watched), current().ClientTLS(e.Mac, c.uid))
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
	return c
}

type dialsKey struct{}

// RoundTrip implements http.RoundTripper.
func (c *conn) RoundTrip(r *http.Request) (*http.Response, error) {
	return c.Transport.RoundTrip(r.WithContext(context.WithValue(r.Context(), dialsKey{}, new(atomic.Int32))))
}

// opened holds the open connections to one MacNode.
type opened struct {
	mu  sync.Mutex        // guards all
	all map[net.Conn]bool // nil once the MacNode was deleted
}

// cut closes all open connections, and each one that is opened later.
func (o *opened) cut() {
	o.mu.Lock()
	all := o.all
	o.all = nil
	o.mu.Unlock()
	for raw := range all {
		_ = raw.Close()
	}
}

// track remembers a connection until it is closed.
func (o *opened) track(raw net.Conn) (net.Conn, error) {
	t := &trackedConn{Conn: raw, of: o}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.all == nil {
		return nil, errors.Join(agentapi.ErrReplaced, raw.Close())
	}
	o.all[t] = true
	return t, nil
}

type trackedConn struct {
	net.Conn
	of *opened
}

// Close implements net.Conn.
func (t *trackedConn) Close() error {
	t.of.mu.Lock()
	delete(t.of.all, t)
	t.of.mu.Unlock()
	return t.Conn.Close()
}

// watchedConn records when data was last received on a connection. A live Mac answers a
// ping after each pingAfter of silence, even if no request runs. So a connection that is
// closed after pingAfter and pingTimeout without a byte was given up by net/http, which
// reports that only to the requests that run on it.
type watchedConn struct {
	net.Conn
	lost func()

	last   atomic.Pointer[time.Time]
	closed atomic.Bool
}

func (w *watchedConn) received() {
	now := time.Now()
	w.last.Store(&now)
}

// Read implements net.Conn.
func (w *watchedConn) Read(p []byte) (int, error) {
	n, err := w.Conn.Read(p)
	if n > 0 {
		w.received()
	}
	return n, err
}

// Close implements net.Conn.
func (w *watchedConn) Close() error {
	if w.closed.CompareAndSwap(false, true) && time.Since(*w.last.Load()) >= pingAfter+pingTimeout {
		w.lost()
	}
	return w.Conn.Close()
}
