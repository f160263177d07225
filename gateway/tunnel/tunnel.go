// Package tunnel accepts the connections that Macs behind NAT open to this gateway, and
// sends requests through them.
//
// It owns the tunnel listener and one HTTP/2 connection per Mac that has opened one. TLS is
// end to end as on a direct connection, with the gateway as the client: it accepts only the
// certificate of the Mac that the tunnel names, and the Mac accepts only a gateway's. It
// rejects connections without the tunnel preamble and Macs that do not authenticate in time.
// Beyond a limit of unauthenticated connections, in total or per address, the oldest one is
// closed. It no longer counts once the Mac's certificate was verified, after one round trip;
// then each Mac may have one connection that has not answered yet. A second tunnel of a Mac
// replaces the first, which closes when its responses have ended, or as the oldest of many. The
// certificate must belong to the current MacNode of that name: when the MacNode is deleted or
// replaced, its tunnel is closed at once, with all responses.
//
// Streams share a connection as they do on a direct one: HTTP/2's flow control windows are
// per stream, so that a slow reader blocks no other stream, and the Mac announces how many
// streams it accepts.
//
// Start reading at Hub.Serve and Hub.To; conn.go has one connection.
package tunnel

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/intake"
	"metalfleet.dev/metalfleet/gateway/identity"
	"metalfleet.dev/metalfleet/gateway/unsent"
)

const (
	// authTimeout is how long a new connection may take to authenticate.
	authTimeout = 5 * time.Second
	// keepAlive is the interval of a small request to each Mac: agents close connections
	// that had no request for two minutes.
	keepAlive   = 30 * time.Second
	pingTimeout = 10 * time.Second
	// acceptDelay is the pause after a failed accept.
	acceptDelay = 100 * time.Millisecond
	// maxStrangers connections may be authenticating at once, and half of them from one
	// address: a load balancer may hide the addresses of all clients. 500 new ones a second
	// then leave each Mac a second for the round trip in which it authenticates.
	maxStrangers = 1024
	// maxOld is how many replaced tunnels of a Mac may be open: their responses last as long as it sends.
	maxOld = 8
	// logPeriod is the period in which the lines about the tunnels of a Mac are counted, and logEach how
	// many are logged: a Mac that opens tunnels again and again does not displace the log.
	logPeriod = time.Minute
	logEach   = 10
)

// ErrNone means that a Mac has no tunnel to this gateway.
var ErrNone = errors.New("the Mac has no tunnel to this gateway")

// Options configure a hub.
type Options struct {
	// UID returns the UID of a Mac's MacNode; ok is false if there is none of that name.
	// Nil skips the comparison.
	UID func(mac string) (uid string, ok bool)
	// Identity authenticates the gateway to Macs; nil until it is known.
	Identity func() *identity.Identity
	// HTTP2 configures each connection: pings, windows.
	HTTP2 http.HTTP2Config
	// Wrap, if set, wraps the TCP connection before TLS.
	Wrap func(net.Conn) net.Conn
	// Received, if set, is called when bytes come on a connection of a Mac that has
	// authenticated. Its error closes the connection.
	Received func(mac string, n int) error
	// Changed, if set, is called when the tunnel of a Mac opened or closed.
	Changed func(mac string)
	Log     logr.Logger
}

// Hub holds the tunnels of one gateway.
type Hub struct {
	Options
	id string

	strangers intake.Strangers
	computing *intake.Computing

	mu      sync.Mutex // guards the fields after it
	tunnels map[string]*macConn
	proving map[string]*macConn   // authenticated, but not known to answer yet
	old     map[string][]*macConn // by Mac: replaced, but not closed yet, the oldest first
	closed  bool
	lines   map[string]int // logged in the period, by Mac
	since   time.Time      // start of the period
	dropped int            // lines of all Macs since the last one that was logged
}

// New returns a hub without tunnels.
func New(o Options) *Hub {
	if o.UID == nil {
		o.UID = func(string) (string, bool) { return "", true }
	}
	if o.Changed == nil {
		o.Changed = func(string) {}
	}
	if o.Wrap == nil {
		o.Wrap = func(c net.Conn) net.Conn { return c }
	}
	if o.Received == nil {
		o.Received = func(string, int) error { return nil }
	}
	return &Hub{Options: o, id: strings.ToLower(rand.Text()), strangers: intake.Strangers{Max: maxStrangers, MaxPerAddress: maxStrangers / 2},
		computing: intake.NewComputing(), tunnels: map[string]*macConn{}, proving: map[string]*macConn{}, old: map[string][]*macConn{}}
}

// Len returns the number of Macs with a tunnel.
func (h *Hub) Len() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.tunnels)
}

// To returns the tunnel of a Mac, if it accepts one more request. A tunnel that was
// authenticated under a root that is no longer trusted is not used; its running responses
// continue.
func (h *Hub) To(mac string) (http.RoundTripper, bool) {
	l := h.current(mac)
	if l == nil {
		return nil, false
	}
	return l, l.Available() > 0 // not under the lock: a connection that closes calls gone
}

func (h *Hub) current(mac string) *macConn {
	h.mu.Lock()
	defer h.mu.Unlock()
	l := h.tunnels[mac]
	if l == nil {
		return nil
	}
	id := h.Identity()
	if id == nil || !id.Succeeds(l.identity) {
		h.retire(l)
		return nil
	}
	l.identity = id
	return l
}

// retire takes a tunnel out of use; it closes once it is idle, or as the oldest of more than maxOld
// of its Mac. The lock is held.
func (h *Hub) retire(l *macConn) {
	if h.tunnels[l.mac] == l {
		delete(h.tunnels, l.mac)
	}
	old := append(slices.Clip(h.old[l.mac]), l)
	var oldest *macConn
	if len(old) > maxOld {
		oldest = old[0]
		old = slices.Delete(old, 0, 1)
	}
	h.old[l.mac] = old
	go func() { // not under the lock: closing calls gone
		l.retire()
		if oldest != nil {
			_ = oldest.Close()
		}
	}()
}

// Serve accepts tunnels until ctx ends, and then closes them all.
func (h *Hub) Serve(ctx context.Context, l net.Listener) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	defer h.closeAll()
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	wg.Go(func() { h.pingAll(ctx) })
	for {
		c, err := l.Accept()
		switch {
		case ctx.Err() != nil:
			if err == nil {
				_ = c.Close()
			}
			return nil
		case errors.Is(err, net.ErrClosed):
			return fmt.Errorf("accept tunnels on %s: %w", l.Addr(), err)
		case err != nil: // for example too many open files: some are closed soon
			h.Log.Error(err, "Cannot accept a tunnel")
			pause(ctx, acceptDelay)
			continue
		}
		one := h.strangers.Enter(unsent.Bound(c))
		wg.Go(func() { h.admit(ctx, one) })
	}
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

// pingAll sends the keep-alive request to each Mac.
func (h *Hub) pingAll(ctx context.Context) {
	tick := time.NewTicker(keepAlive)
	defer tick.Stop()
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		h.mu.Lock()
		for _, l := range h.tunnels {
			wg.Go(func() {
				pinging, done := context.WithTimeout(ctx, pingTimeout)
				defer done()
				_ = l.ping(pinging) // HTTP/2 pings detect a dead connection
			})
		}
		h.mu.Unlock()
	}
}

func (h *Hub) closeAll() {
	h.mu.Lock()
	h.closed = true
	var all []*macConn
	for _, l := range h.tunnels {
		all = append(all, l)
	}
	for _, old := range h.old {
		all = append(all, old...)
	}
	h.mu.Unlock()
	for _, l := range all {
		_ = l.Close() // its responses have ended
	}
}

// errCrowded is why a connection was closed for a newer one.
var errCrowded = errors.New("closed for a newer connection")

// admit authenticates a connection and uses it from then on.
func (h *Hub) admit(ctx context.Context, c *intake.Stranger) {
	ctx, cancel := context.WithTimeout(ctx, authTimeout)
	defer cancel()
	from := c.RemoteAddr().String()
	l, err := h.authenticate(ctx, c)
	if err == nil && !h.strangers.Leave(c) {
		err = errors.Join(errCrowded, l.secure.Close())
	}
	if err == nil {
		err = h.start(ctx, l)
	}
	if err != nil {
		h.Log.V(1).Info("A connection to the tunnel port is not a tunnel", "client", from, "reason", err.Error())
		_ = c.Close()
		return
	}
	h.log("Tunnel of a Mac is open", l.mac, "client", from)
	h.Changed(l.mac)
	if l.Err() != nil { // it was closed before it was registered
		h.gone(l)
	}
}

// noUID is the UID of no MacNode.
const noUID = "none"

// authenticate reads the Mac's name and verifies it with TLS.
func (h *Hub) authenticate(ctx context.Context, c net.Conn) (*macConn, error) {
	id := h.Identity()
	if id == nil {
		return nil, errors.New("the gateway has no identity yet")
	}
	end, _ := ctx.Deadline()
	if err := c.SetDeadline(end); err != nil {
		return nil, err
	}
	mac, err := agentapi.HearTunnel(c)
	if err != nil {
		return nil, err
	}
	if err := agentapi.SayGateway(c, h.id); err != nil {
		return nil, err
	}
	uid, ok := h.UID(mac)
	if !ok { // the handshake fails as it does with a wrong certificate: strangers learn no names
		uid = noUID
	}
	l := &macConn{mac: mac, uid: uid, identity: id}
	limited := intake.Limit(c)
	defer limited.End()
	if err := limited.Compute(h.computing, end); err != nil {
		return nil, err
	}
	watched := &notifyingConn{Conn: limited, gone: func() { h.gone(l) }}
	config := id.ClientTLS(mac, uid)
	config.NextProtos = append(config.NextProtos, agentapi.TunnelProtocol) // not selected
	l.secure = tls.Client(h.Wrap(watched), config)
	if err := l.secure.HandshakeContext(ctx); err != nil {
		return nil, errors.Join(err, l.secure.Close())
	}
	if !ok {
		return nil, errors.Join(fmt.Errorf("there is no MacNode %s", mac), l.secure.Close())
	}
	watched.received = func(n int) error { return h.Received(mac, n) }
	limited.Lift()
	if err := c.SetDeadline(time.Time{}); err != nil {
		return nil, errors.Join(err, l.secure.Close())
	}
	return l, nil
}

// start registers an authenticated connection once the Mac answers on it.
func (h *Hub) start(ctx context.Context, l *macConn) error {
	defer h.prove(l)()
	var http2 http.Protocols
	http2.SetHTTP2(true)
	config := h.HTTP2
	over := &http.Transport{Protocols: &http2, DisableCompression: true, HTTP2: &config, MaxResponseHeaderBytes: agentapi.MaxAnswerHeaderBytes,
		DialTLSContext: func(context.Context, string, string) (net.Conn, error) { return l.secure, nil }}
	var err error
	if l.ClientConn, err = over.NewClientConn(ctx, "https", net.JoinHostPort(agentapi.MacServerName(l.mac), "443")); err != nil {
		return errors.Join(err, l.secure.Close())
	}
	if err := l.ping(ctx); err != nil { // it accepts requests, and pings run from here on
		return errors.Join(err, l.Close())
	}
	if !h.put(l) {
		return errors.Join(errReplaced, l.Close())
	}
	return nil
}

// errReplaced is why a connection of a Mac was closed before it was used.
var errReplaced = errors.New("its MacNode was deleted or replaced, or the gateway stops")

// prove registers a connection of a Mac until done is called. The previous one of that Mac
// that has not answered yet is closed.
func (h *Hub) prove(l *macConn) (done func()) {
	h.mu.Lock()
	before := h.proving[l.mac]
	h.proving[l.mac] = l
	h.mu.Unlock()
	if before != nil { // not under the lock: Close calls gone
		_ = before.secure.NetConn().Close()
	}
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.proving[l.mac] == l {
			delete(h.proving, l.mac)
		}
	}
}

// put registers a tunnel. The previous one is closed after its responses have ended.
func (h *Hub) put(l *macConn) bool {
	if !h.belongs(l) {
		return false
	}
	h.mu.Lock()
	if h.closed {
		h.mu.Unlock()
		return false
	}
	if before := h.tunnels[l.mac]; before != nil {
		h.retire(before)
	}
	h.tunnels[l.mac] = l
	h.mu.Unlock()
	if h.belongs(l) {
		return true
	}
	h.gone(l) // Drop may have been called before it was registered
	return false
}

// belongs reports whether a tunnel is of the current MacNode of its name. The lock is not held:
// UID waits for what waits for connections that close.
func (h *Hub) belongs(l *macConn) bool {
	uid, ok := h.UID(l.mac)
	return ok && uid == l.uid
}

// Drop closes the tunnels of a Mac whose MacNode was deleted, with all responses.
func (h *Hub) Drop(mac string) {
	h.mu.Lock()
	var all []*macConn
	if l := h.tunnels[mac]; l != nil {
		all = append(all, l)
	}
	all = append(all, h.old[mac]...)
	h.mu.Unlock()
	for _, l := range all { // not under the lock: Close calls gone
		_ = l.Close()
	}
}

// gone removes a tunnel that was closed.
func (h *Hub) gone(l *macConn) {
	h.mu.Lock()
	used := h.tunnels[l.mac] == l
	if used {
		delete(h.tunnels, l.mac)
	}
	if old := slices.DeleteFunc(slices.Clone(h.old[l.mac]), func(o *macConn) bool { return o == l }); len(old) > 0 {
		h.old[l.mac] = old
	} else {
		delete(h.old, l.mac)
	}
	h.mu.Unlock()
	if used {
		h.log("Tunnel of a Mac is closed", l.mac)
		h.Changed(l.mac)
	}
}

// log logs a line about the tunnels of a Mac that has authenticated, unless it had many.
func (h *Hub) log(text, mac string, values ...any) {
	h.mu.Lock()
	if now := time.Now(); h.lines == nil || now.Sub(h.since) >= logPeriod {
		h.lines, h.since = map[string]int{}, now
	}
	full, dropped := h.lines[mac] == logEach, h.dropped
	if full {
		h.dropped++
	} else {
		h.lines[mac]++
		h.dropped = 0
	}
	h.mu.Unlock()
	if full {
		return
	}
	if dropped > 0 {
		values = append(values, "dropped", dropped)
	}
	h.Log.Info(text, append([]any{"MacNode", mac}, values...)...)
}

// notifyingConn calls a function once when it is closed, and another one with what is read.
type notifyingConn struct {
	net.Conn
	once     sync.Once
	gone     func()
	received func(n int) error // nil before the Mac has authenticated
}

// Read implements net.Conn.
func (t *notifyingConn) Read(p []byte) (int, error) {
	n, err := t.Conn.Read(p)
	if n > 0 && t.received != nil {
		if over := t.received(n); over != nil {
			return 0, over
		}
	}
	return n, err
}

// Close implements net.Conn.
func (t *notifyingConn) Close() error {
	err := t.Conn.Close()
	t.once.Do(t.gone)
	return err
}
