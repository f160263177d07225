package proxy

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/gateway/route"
	"metalfleet.dev/metalfleet/gateway/tunnel"
)

const (
	// lookEach is how often it is looked whether a Mac that has a tunnel can be
	// reached directly again, and lookTime how long that may take.
	lookEach = 2 * time.Second
	lookTime = 3 * time.Second
)

// errNotReached says that a connection to a Mac was not opened: no request was sent.
var errNotReached = errors.New("the Mac could not be reached")

// has says that there is a way to an endpoint's Mac.
func (m *macs) has(e route.Endpoint) bool {
	return e.Reach != v1alpha1.ReachTunnel || m.tunnel(e.Mac) != nil
}

// way is how an endpoint's Mac is asked.
func (m *macs) way(e route.Endpoint) http.RoundTripper {
	if e.Reach != v1alpha1.ReachTunnel && e.Reach != v1alpha1.ReachDirectOrTunnel {
		return m.to(e)
	}
	t := m.tunnel(e.Mac)
	switch {
	case e.Reach == v1alpha1.ReachDirectOrTunnel && t == nil:
		return m.to(e)
	case t == nil:
		return noTunnel{}
	case e.Reach == v1alpha1.ReachTunnel:
		return t
	}
	direct := m.to(e)
	if direct.failed.Load() {
		m.look(direct, e)
		return t
	}
	return either{direct, t}
}

// tunnel is the one that an agent opened, or nil.
func (m *macs) tunnel(mac string) http.RoundTripper {
	if m.tunnels == nil {
		return nil
	}
	if t, ok := m.tunnels.To(mac); ok {
		return t
	}
	return nil
}

// noTunnel is the way to a Mac that has none.
type noTunnel struct{}

func (noTunnel) RoundTrip(*http.Request) (*http.Response, error) { return nil, tunnel.ErrNone }

// either goes directly, and where the Mac is not reached so, through its tunnel.
// What was sent is not sent again.
type either struct {
	direct *conn
	tunnel http.RoundTripper
}

func (w either) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := w.direct.RoundTrip(r)
	if err == nil || r.Context().Err() != nil || reasonOf(err) != reasonConnection {
		return resp, err
	}
	w.direct.failed.Store(true)
	if !errors.Is(err, errNotReached) {
		return nil, err
	}
	body, err := r.GetBody()
	if err != nil {
		return nil, err
	}
	again := r.Clone(r.Context())
	again.Body = body
	return w.tunnel.RoundTrip(again)
}

// look finds out, beside requests and not too often, whether a Mac can be reached
// directly again.
func (m *macs) look(c *conn, e route.Endpoint) {
	now, last := time.Now().UnixNano(), c.looked.Load()
	if now-last < int64(lookEach) || !c.looked.CompareAndSwap(last, now) {
		return
	}
	m.looks.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), lookTime)
		defer cancel()
		r := &http.Request{Method: http.MethodGet, Header: http.Header{}, URL: &url.URL{Scheme: "https", Host: e.Address, Path: agentapi.PathHealth}}
		if resp, err := c.RoundTrip(r.WithContext(ctx)); err == nil {
			c.failed.Store(false)
			_ = resp.Body.Close()
		}
	})
}

// newTunnels counts the tunnels.
func newTunnels(h *tunnel.Hub) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "metalfleet_gateway_tunnels", Help: "Macs that have a tunnel to this gateway."},
		func() float64 { return float64(h.Len()) })
}
