// Package tunnel takes connections that Macs behind NAT open to this gateway,
// and lets requests be sent to them.
//
// It owns the listener for tunnels and one HTTP/2 connection for each Mac that
// has opened one. TLS is as on a direct connection, from end to end, the gateway
// its client: only the certificate of the Mac that a tunnel names is accepted, and
// only a gateway's by the Mac. It refuses what does not begin as a tunnel, and who
// cannot prove in time to be the Mac that is named. More strangers at once than there is
// room for, or more from one address than its share, replace the oldest ones. A second
// tunnel of a Mac takes over from the first, whose answers go on. The certificate must
// be of the MacNode that has the name now: when that is deleted or replaced, its tunnel
// is closed at once, with all answers.
//
// Streams share a connection as they do on a direct one: HTTP/2's windows bound
// each, so that one that is read slowly holds up no other, and a Mac takes as
// many at once as its port says.
//
// Start reading at Hub.Serve and Hub.To.
package tunnel

import (
	"container/list"
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/gateway/identity"
	"metalfleet.dev/metalfleet/gateway/intake"
)

const (
	// proveTime is how long a stranger may take to prove which Mac it is.
	proveTime = 5 * time.Second
	// askEach is how often each Mac is asked how it is: a port closes connections
	// on which nothing was asked for two minutes.
	askEach = 30 * time.Second
	askTime = 10 * time.Second
	// acceptAgain is the rest after a connection could not be taken.
	acceptAgain = 100 * time.Millisecond
)

// ErrNone says that a Mac has no tunnel to this gateway.
var ErrNone = errors.New("the Mac has no tunnel to this gateway")

// Options of a hub.
type Options struct {
	// UID of a Mac's MacNode; not ok if there is none of that name. Nil compares no
	// UIDs.
	UID func(mac string) (uid string, ok bool)
	// Identity with which Macs are met; nil until it is known.
	Identity func() *identity.Identity
	// HTTP2 of each connection: pings, windows.
	HTTP2 http.HTTP2Config
	// Wrap, if set, is put between a connection and its TLS.
	Wrap func(net.Conn) net.Conn
	// Changed, if set, is told of a Mac whose tunnel came or went.
	Changed func(mac string)
	Log     logr.Logger
}

// Hub holds the tunnels of one gateway.
type Hub struct {
	Options
	id string

	strangers strangers

	mu      sync.Mutex // guards what follows
	tunnels map[string]*line
	old     map[*line]bool // replaced, and not closed yet
	closed  bool
}

// line is one connection of a Mac.
type line struct {
	*http.ClientConn
	mac, uid string
	identity *identity.Identity
}

// New makes a hub without tunnels.
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
	return &Hub{Options: o, id: strings.ToLower(rand.Text()), tunnels: map[string]*line{}, old: map[*line]bool{}, strangers: strangers{from: map[string]*list.List{}}}
}

// Len is how many Macs have a tunnel.
func (h *Hub) Len() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.tunnels)
}

// To is the way to a Mac that has a tunnel and takes one more request there. A
// tunnel that was met under a root which is trusted no more is none; its answers
// go on.
func (h *Hub) To(mac string) (http.RoundTripper, bool) {
	l := h.current(mac)
	if l == nil {
		return nil, false
	}
	return l, l.Available() > 0 // not under the lock: a connection that closes tells gone
}

func (h *Hub) current(mac string) *line {
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

// retire takes a tunnel out of use; the lock is held. It ends when it is idle.
func (h *Hub) retire(l *line) {
	if h.tunnels[l.mac] == l {
		delete(h.tunnels, l.mac)
	}
	h.old[l] = true
	go func() { // not under the lock: it tells gone
		l.SetStateHook(func(*http.ClientConn) { l.endIdle() })
		l.endIdle()
	}()
}

func (l *line) endIdle() {
	if l.InFlight() == 0 {
		_ = l.Close() // it was given up, and says nothing new
	}
}

// Serve takes tunnels until ctx ends, and closes them all then.
func (h *Hub) Serve(ctx context.Context, l net.Listener) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	defer h.closeAll()
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	wg.Go(func() { h.askAll(ctx) })
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
		case err != nil: // too many open files: some are closed soon
			h.Log.Error(err, "Cannot accept a tunnel")
			pause(ctx, acceptAgain)
			continue
		}
		one := h.strangers.enter(c, intake.AddressOf(c.RemoteAddr().String()))
		wg.Go(func() { h.meet(ctx, one) })
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

// askAll asks each Mac how it is, so that its port sees the connection used.
func (h *Hub) askAll(ctx context.Context) {
	tick := time.NewTicker(askEach)
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
				asking, done := context.WithTimeout(ctx, askTime)
				defer done()
				_ = l.ask(asking) // a dead one is found by pings
			})
		}
		h.mu.Unlock()
	}
}

// ask has the Mac say that it is there.
func (l *line) ask(ctx context.Context) error {
	r := &http.Request{Method: http.MethodGet, Header: http.Header{}, URL: &url.URL{Scheme: "https", Host: agentapi.MacServerName(l.mac), Path: agentapi.PathHealth}}
	resp, err := l.RoundTrip(r.WithContext(ctx))
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

func (h *Hub) closeAll() {
	h.mu.Lock()
	h.closed = true
	var all []*line
	for _, l := range h.tunnels {
		all = append(all, l)
	}
	for l := range h.old {
		all = append(all, l)
	}
	h.mu.Unlock()
	for _, l := range all {
		_ = l.Close() // answers have ended
	}
}

// meet finds out which Mac opened a connection, and uses it from then on.
func (h *Hub) meet(ctx context.Context, c *stranger) {
	ctx, cancel := context.WithTimeout(ctx, proveTime)
	defer cancel()
	from := c.RemoteAddr().String()
	l, err := h.prove(ctx, c.Conn)
	if in := h.strangers.leave(c); err == nil && (!in || !h.put(l)) {
		err = l.Close()
	}
	if err != nil {
		h.Log.V(1).Info("A connection to the tunnel port is not a tunnel", "client", from, "reason", err.Error())
		_ = c.Close()
		return
	}
	h.Log.Info("Tunnel of a Mac is open", "MacNode", l.mac, "client", from)
	h.Changed(l.mac)
	if l.Err() != nil { // it was closed before it was known
		h.gone(l)
	}
}

// prove reads the name and has TLS prove it.
func (h *Hub) prove(ctx context.Context, c net.Conn) (*line, error) {
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
	if !ok {
		return nil, fmt.Errorf("there is no MacNode %s", mac)
	}
	l := &line{mac: mac, uid: uid, identity: id}
	secure := tls.Client(h.Wrap(&told{Conn: c, gone: func() { h.gone(l) }}), id.ClientTLS(mac, uid))
	if err := secure.HandshakeContext(ctx); err != nil {
		return nil, errors.Join(err, secure.Close())
	}
	if err := c.SetDeadline(time.Time{}); err != nil {
		return nil, errors.Join(err, secure.Close())
	}
	var http2 http.Protocols
	http2.SetHTTP2(true)
	config := h.HTTP2
	over := &http.Transport{Protocols: &http2, DisableCompression: true, HTTP2: &config, MaxResponseHeaderBytes: agentapi.MaxHeaderBytes,
		DialTLSContext: func(context.Context, string, string) (net.Conn, error) { return secure, nil }}
	if l.ClientConn, err = over.NewClientConn(ctx, "https", net.JoinHostPort(agentapi.MacServerName(mac), "443")); err != nil {
		return nil, errors.Join(err, secure.Close())
	}
	if err := l.ask(ctx); err != nil { // it takes requests, and from here on there are pings
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// put has a tunnel used. The one before it ends when its answers have.
func (h *Hub) put(l *line) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if uid, ok := h.UID(l.mac); h.closed || !ok || uid != l.uid { // it may have gone meanwhile
		return false
	}
	if before := h.tunnels[l.mac]; before != nil {
		h.retire(before)
	}
	h.tunnels[l.mac] = l
	return true
}

// Drop closes the tunnels of a Mac whose MacNode is gone, with all answers.
func (h *Hub) Drop(mac string) {
	h.mu.Lock()
	var all []*line
	if l := h.tunnels[mac]; l != nil {
		all = append(all, l)
	}
	for l := range h.old {
		if l.mac == mac {
			all = append(all, l)
		}
	}
	h.mu.Unlock()
	for _, l := range all { // not under the lock: Close calls gone
		_ = l.Close()
	}
}

// gone forgets a tunnel that was closed.
func (h *Hub) gone(l *line) {
	h.mu.Lock()
	used := h.tunnels[l.mac] == l
	if used {
		delete(h.tunnels, l.mac)
	}
	delete(h.old, l)
	h.mu.Unlock()
	if used {
		h.Log.Info("Tunnel of a Mac is closed", "MacNode", l.mac)
		h.Changed(l.mac)
	}
}

// told says when it was closed, once.
type told struct {
	net.Conn
	once sync.Once
	gone func()
}

// Close closes the connection.
func (t *told) Close() error {
	err := t.Conn.Close()
	t.once.Do(t.gone)
	return err
}
