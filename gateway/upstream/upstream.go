// Package upstream holds the gateway's connections to Macs: one HTTP/2 connection per Mac
// in use, or the tunnel that the Mac opened if the gateway cannot reach it.
//
// It owns when a connection is opened, replaced and closed. It refuses a Mac without the
// right certificate, and one whose MacNode was deleted. It never resends a request after a
// part of it was sent, and chooses no Mac.
//
// Start reading at Pool.To; conn.go has a connection, names.go which names of Macs are looked up,
// write.go how writes are combined, close.go how responses are closed, excess.go how much else a Mac
// may send, short.go how long its errors are.
package upstream

import (
	"context"
	"errors"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"

	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/gateway/identity"
	"metalfleet.dev/metalfleet/gateway/route"
	"metalfleet.dev/metalfleet/gateway/tunnel"
)

const (
	// probeInterval is the shortest time between two probes of whether a Mac with a tunnel
	// can be reached directly again, and probeTimeout bounds one.
	probeInterval = 2 * time.Second
	probeTimeout  = 3 * time.Second
)

// errNoIdentity means nothing about the Mac.
var errNoIdentity = errors.New("the gateway's certificate has not been read yet")

// errSilent is the reason to avoid a Mac on whose connection no request failed.
var errSilent = errors.New("the Mac does not answer pings")

// Options configure a pool.
type Options struct {
	// Table knows the Macs. Connections to a Mac that is removed from it are closed.
	Table *route.Table
	// Identity authenticates the gateway to Macs; each handshake uses the current one.
	Identity func() *identity.Identity
	// Lost is called when a Mac no longer answers pings, even if no request failed there.
	Lost func(mac string, cause error)
	// TakesTunnels allows Macs to open connections, and Changed is called when one opened
	// or closed.
	TakesTunnels bool
	Changed      func()
	// Registry receives the metrics of tunnels.
	Registry prometheus.Registerer
	// Log of tunnels.
	Log logr.Logger
}

// Pool holds the connections to all Macs.
type Pool struct {
	identity func() *identity.Identity
	uid      func(mac string) (uid string, ok bool)
	lost     func(mac string, cause error)
	tunnels  *tunnel.Hub // nil accepts none
	lookups  lookups

	tasks sync.WaitGroup // probes and closings, also of responses

	mu    sync.Mutex // guards the fields after it
	conns map[string]*conn
	sent  map[string]*excess // by Mac
}

// New returns a pool without connections.
func New(o Options) *Pool {
	p := &Pool{identity: o.Identity, uid: o.Table.UID, lost: o.Lost, lookups: newLookups(), conns: map[string]*conn{}, sent: map[string]*excess{}}
	if o.TakesTunnels {
		p.tunnels = tunnel.New(tunnel.Options{UID: o.Table.UID, Identity: o.Identity, HTTP2: http2Config, Wrap: func(c net.Conn) net.Conn { return combineWrites(c) },
			Received: func(mac string, n int) error { return p.excess(mac).received(n) },
			Changed:  func(string) { o.Changed() }, Log: o.Log})
		o.Registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "metalfleet_gateway_tunnels", Help: "Macs that have a tunnel to this gateway."},
			func() float64 { return float64(p.tunnels.Len()) }))
	}
	o.Table.OnGone(p.drop)
	return p
}

// Tunnels returns the tunnels that Macs opened; nil if none are accepted.
func (p *Pool) Tunnels() *tunnel.Hub { return p.tunnels }

// CanReach reports whether requests can be sent to an endpoint.
func (p *Pool) CanReach(e route.Endpoint) bool {
	return e.Reach != v1alpha1.ReachTunnel || p.tunnel(e.Mac) != nil
}

// To returns the transport for requests to the Mac of an endpoint. Closing a response never
// waits for the Mac.
func (p *Pool) To(e route.Endpoint) http.RoundTripper {
	if p.identity() == nil {
		return failing{errNoIdentity}
	}
	return prompt{measured{p.to(e), p.excess(e.Mac)}, &p.tasks}
}

// excess counts what a Mac sends.
func (p *Pool) excess(mac string) *excess {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.excessOf(mac)
}

// excessOf is excess. The lock is held.
func (p *Pool) excessOf(mac string) *excess {
	e := p.sent[mac]
	if e == nil {
		e = &excess{lost: func(cause error) {
			if p.lost != nil {
				p.lost(mac, cause)
			}
		}}
		p.sent[mac] = e
	}
	return e
}

func (p *Pool) to(e route.Endpoint) http.RoundTripper {
	if e.Reach != v1alpha1.ReachTunnel && e.Reach != v1alpha1.ReachDirectOrTunnel {
		return p.direct(e)
	}
	t := p.tunnel(e.Mac)
	switch {
	case e.Reach == v1alpha1.ReachDirectOrTunnel && t == nil:
		return p.direct(e)
	case t == nil:
		return failing{tunnel.ErrNone}
	case e.Reach == v1alpha1.ReachTunnel:
		return t
	}
	direct := p.direct(e)
	if direct.failed.Load() {
		p.probe(direct, e)
		return t
	}
	return either{direct, t}
}

// tunnel returns the tunnel that an agent opened, or nil.
func (p *Pool) tunnel(mac string) http.RoundTripper {
	if p.tunnels == nil {
		return nil
	}
	if t, ok := p.tunnels.To(mac); ok {
		return t
	}
	return nil
}

// direct returns the connection to an endpoint's Mac. It survives a renewed certificate and
// an additional root. When the address changes, or a root is no longer trusted, the next
// request opens another connection, and running requests finish on the old one.
func (p *Pool) direct(e route.Endpoint) *conn {
	c, before, made := p.current(e)
	if before != nil { // not under the lock: connections that close call lost
		before.replace()
	}
	if made && !p.belongs(e) {
		p.forget(e.Mac, c)
	}
	return c
}

// belongs reports whether an endpoint is of the current MacNode of its Mac, which may have been
// deleted since a request chose it.
func (p *Pool) belongs(e route.Endpoint) bool {
	uid, ok := p.uid(e.Mac)
	return e.MacUID == "" || ok && uid == e.MacUID
}

// forget opens no connection for a conn, and drops it.
func (p *Pool) forget(mac string, c *conn) {
	c.opened.cut()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.conns[mac] == c {
		delete(p.conns, mac)
	}
}

// current is direct. It also returns the connection that was replaced, if any, and whether it
// made one.
func (p *Pool) current(e route.Endpoint) (c, before *conn, made bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	id := p.identity() // under the lock, so that the identity never gets older
	c = p.conns[e.Mac]
	if c != nil && id.Succeeds(c.identity) && c.address == e.Address && c.uid == e.MacUID {
		c.identity = id
		return c, nil, false
	}
	before = c
	c = newConn(id, e, p.identity, func() {
		if p.lost != nil && p.tunnel(e.Mac) == nil { // a tunnel has its own pings
			p.lost(e.Mac, errSilent)
		}
	}, before, p.excessOf(e.Mac), p.lookups)
	p.conns[e.Mac] = c
	return c, before, true
}

// failing fails all requests.
type failing struct{ err error }

// RoundTrip implements http.RoundTripper.
func (f failing) RoundTrip(*http.Request) (*http.Response, error) { return nil, f.err }

// either sends a request directly, or through the tunnel if the Mac cannot be reached that
// way. It sends no request twice.
type either struct {
	direct *conn
	tunnel http.RoundTripper
}

func (w either) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := w.direct.RoundTrip(r)
	if err == nil || r.Context().Err() != nil || IsReset(err) {
		return resp, err
	}
	w.direct.failed.Store(true)
	if !errors.Is(err, errNotReached) {
		return nil, err
	}
	again := r.Clone(r.Context())
	if r.GetBody != nil { // those of the gateway itself have no body
		if again.Body, err = r.GetBody(); err != nil {
			return nil, err
		}
	}
	return w.tunnel.RoundTrip(again)
}

// probe checks in the background, with a minimum interval, whether a Mac can be reached
// directly again.
func (p *Pool) probe(c *conn, e route.Endpoint) {
	now, last := time.Now(), c.probed.Load()
	if last != nil && now.Sub(*last) < probeInterval || !c.probed.CompareAndSwap(last, &now) {
		return
	}
	p.tasks.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), probeTimeout)
		defer cancel()
		r := &http.Request{Method: http.MethodGet, Header: http.Header{}, URL: &url.URL{Scheme: "https", Host: e.Address, Path: agentapi.PathHealth}}
		if resp, err := c.RoundTrip(r.WithContext(ctx)); err == nil {
			c.failed.Store(false)
			_ = resp.Body.Close()
		}
	})
}

// drop closes all connections to a Mac whose MacNode was deleted: the machine is no
// longer part of the fleet.
func (p *Pool) drop(mac string) {
	p.mu.Lock()
	c := p.conns[mac]
	delete(p.conns, mac)
	delete(p.sent, mac)
	p.mu.Unlock()
	p.tasks.Go(func() { // the table waits for this function, and closing connections calls others
		if c != nil {
			c.opened.cut()
		}
		if p.tunnels != nil {
			p.tunnels.Drop(mac)
		}
	})
}

// Close closes idle connections.
func (p *Pool) Close() {
	p.tasks.Wait()
	p.mu.Lock()
	all := slices.Collect(maps.Values(p.conns))
	p.mu.Unlock()
	for _, c := range all {
		c.CloseIdleConnections()
	}
}
