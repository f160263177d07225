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
	"metalfleet.dev/metalfleet/gateway/unsent"
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
	// maxOpen is how many connections to one MacNode are open, also at addresses that it had
	// before. A Mac needs one; but it can refuse streams on each without an end, and then
	// net/http opens another for each request.
	maxOpen = 8
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
	// A Mac sends each header as text, as agents do: one byte could refer to a header of 4 KiB that was sent
	// before, and excess counts the bytes that come.
	MaxDecoderHeaderTableSize: 1,
}

// errNotReached means that the connection to a Mac was not opened: no request was sent.
var errNotReached = errors.New("the Mac could not be reached")

// errTurnedAway means that a Mac ends connections and processes no request on them.
var errTurnedAway = fmt.Errorf("%w: it ended %d connections without an answer", errNotReached, maxDials)

// errCrowded means that a Mac has many connections, and accepts no request on any.
var errCrowded = fmt.Errorf("%w: %d connections to it are open already", errNotReached, maxOpen)

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
	names  *names // of the MacNode, likewise
	excess *excess

	failures atomic.Uint32 // to open a connection

	failed atomic.Bool               // a connection failed, and no probe has succeeded since
	probed atomic.Pointer[time.Time] // time of the last probe; nil before the first

	running  atomic.Int64 // requests
	replaced atomic.Bool  // by another one: it closes when its last request ends
}

// newConn returns a connection that opens with its first request, each time with the
// current identity. silent is called when the Mac no longer answers pings. before is the
// connection that it replaces; nil without one.
func newConn(id *identity.Identity, e route.Endpoint, current func() *identity.Identity, silent func(), before *conn, sent *excess, shared lookups) *conn {
	c := &conn{identity: id, uid: e.MacUID, address: e.Address, opened: newOpened(), names: &names{lookups: shared}, excess: sent}
	if before != nil && before.uid == c.uid {
		c.opened, c.names = before.opened, before.names
	}
	config := http2Config
	var http2 http.Protocols
	http2.SetHTTP2(true)
	c.Transport = &http.Transport{
		MaxResponseHeaderBytes: agentapi.MaxAnswerHeaderBytes,
		DialTLSContext: func(ctx context.Context, _, address string) (net.Conn, error) {
			return c.dial(ctx, address, func() *tls.Config { return current().ClientTLS(e.Mac, c.uid) }, silent)
		},
		DisableCompression: true,
		IdleConnTimeout:    5 * time.Minute,
		Protocols:          &http2,
		HTTP2:              &config,
	}
	return c
}

// dial opens a connection. The Mac has to answer a handshake with a configuration.
func (c *conn) dial(ctx context.Context, address string, config func() *tls.Config, silent func()) (net.Conn, error) {
	if n, ok := ctx.Value(dialsKey{}).(*atomic.Int32); ok && n.Add(1) > maxDials {
		return nil, errTurnedAway
	}
	if err := c.excess.received(0); err != nil {
		return nil, fmt.Errorf("%w: %w", errNotReached, err)
	}
	if err := c.opened.await(ctx); err != nil {
		return nil, err
	}
	raw, err := c.names.dial(ctx, address, c.failures.Load())
	if err != nil {
		c.failures.Add(1)
		c.opened.leave()
		return nil, fmt.Errorf("%w: %w", errNotReached, err)
	}
	if raw, err = c.opened.track(unsent.Bound(raw)); err != nil {
		return nil, fmt.Errorf("%w: %w", errNotReached, err)
	}
	ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	watched := &watchedConn{Conn: raw, lost: func() {
		c.failed.Store(true)
		silent()
	}}
	watched.received()
	secure := tls.Client(combineWrites(watched), config())
	if err := secure.HandshakeContext(ctx); err != nil {
		c.failures.Add(1)
		return nil, fmt.Errorf("%w: %w", errNotReached, errors.Join(err, secure.Close()))
	}
	watched.count = c.excess.received
	return secure, nil
}

type dialsKey struct{}

// RoundTrip implements http.RoundTripper.
func (c *conn) RoundTrip(r *http.Request) (*http.Response, error) {
	c.running.Add(1)
	resp, err := c.Transport.RoundTrip(r.WithContext(context.WithValue(r.Context(), dialsKey{}, new(atomic.Int32))))
	if err != nil {
		c.end()
		return nil, err
	}
	resp.Body = &tunnel.CountedBody{ReadCloser: resp.Body, End: c.end}
	return resp, nil
}

// end counts a request that has ended.
func (c *conn) end() {
	if c.running.Add(-1) > 0 || !c.replaced.Load() {
		return
	}
	c.CloseIdleConnections()
	time.AfterFunc(closeTime, c.CloseIdleConnections) // of a request that was cancelled, net/http ends the stream later
}

// replace closes a connection that is not used for further requests once it is idle.
func (c *conn) replace() {
	c.replaced.Store(true)
	c.CloseIdleConnections()
}

// opened holds the open connections to one MacNode.
type opened struct {
	room chan struct{} // has an element for each that is open or being opened

	mu  sync.Mutex        // guards all
	all map[net.Conn]bool // nil once the MacNode was deleted
}

func newOpened() *opened {
	return &opened{room: make(chan struct{}, maxOpen), all: map[net.Conn]bool{}}
}

// await waits until there is room for another connection, for as long as opening one may take:
// requests that come at once open one each, and close all but the first. leave ends its use.
func (o *opened) await(ctx context.Context) error {
	enough := time.NewTimer(connectTimeout + handshakeTimeout)
	defer enough.Stop()
	select {
	case o.room <- struct{}{}:
		return nil
	case <-enough.C:
		return errCrowded
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", errNotReached, ctx.Err())
	}
}

func (o *opened) leave() { <-o.room }

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
	known := o.all != nil
	if known {
		o.all[t] = true
	}
	o.mu.Unlock()
	if !known {
		return nil, errors.Join(agentapi.ErrReplaced, t.Close())
	}
	return t, nil
}

type trackedConn struct {
	net.Conn
	of   *opened
	once sync.Once
}

// Close implements net.Conn.
func (t *trackedConn) Close() error {
	t.once.Do(func() {
		t.of.mu.Lock()
		delete(t.of.all, t)
		t.of.mu.Unlock()
		t.of.leave()
	})
	return t.Conn.Close()
}

// watchedConn records when data was last received on a connection. A live Mac answers a
// ping after each pingAfter of silence, even if no request runs. So a connection that is
// closed after pingAfter and pingTimeout without a byte was given up by net/http, which
// reports that only to the requests that run on it.
type watchedConn struct {
	net.Conn
	lost  func()
	count func(n int) error // of bytes that the Mac sent, once it has authenticated; its error ends the connection

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
		if w.count != nil {
			if over := w.count(n); over != nil {
				return 0, over
			}
		}
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
