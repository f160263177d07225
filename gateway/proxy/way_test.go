package proxy_test

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/demand"
	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/api/responses"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/gateway/fairqueue"
	"metalfleet.dev/metalfleet/gateway/proxy"
	"metalfleet.dev/metalfleet/gateway/route"
	"metalfleet.dev/metalfleet/test/patience"
)

// tunnelled is a gateway that takes tunnels.
type tunnelled struct {
	*world
	at string
}

func newTunnelled(t *testing.T, change ...func(*proxy.Config)) *tunnelled {
	t.Helper()
	w := newWorld(t, append(change, func(c *proxy.Config) { c.TakesTunnels = true })...)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- w.proxy.Tunnels().Serve(ctx, l) }()
	t.Cleanup(func() {
		stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return &tunnelled{world: w, at: l.Addr().String()}
}

// reach sets how a Mac is reached.
func (w *tunnelled) reach(m *mac, r v1alpha1.MacReach) {
	w.table.SetMac(route.Mac{Name: m.name, Address: m.server.Listener.Addr().String(), Open: true, Reach: r})
}

// open opens a tunnel of a Mac that is served by another handler than its port.
func (w *tunnelled) open(mac string, answer http.HandlerFunc) *http.Server {
	w.t.Helper()
	c, err := net.Dial("tcp", w.at)
	if err != nil {
		w.t.Fatal(err)
	}
	if err := agentapi.SayTunnel(c, mac); err != nil {
		w.t.Fatal(err)
	}
	if _, err := agentapi.HearGateway(c); err != nil {
		w.t.Fatal(err)
	}
	l := &one{conn: agentapi.Tunnel(c), done: make(chan struct{})}
	s := &http.Server{TLSConfig: agentapi.ServerTLS(w.ca.Mac(mac).Pair(w.t), w.ca.Roots()), Handler: http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.URL.Path != agentapi.PathHealth {
			answer(rw, r)
		}
	})}
	served := make(chan struct{})
	go func() { defer close(served); _ = s.ServeTLS(l, "", "") }()
	w.t.Cleanup(func() { _ = s.Close(); <-served })
	eventually(w.t, "the tunnel is open", func() bool { _, ok := w.proxy.Tunnels().To(mac); return ok })
	return s
}

// one is a listener of one connection.
type one struct {
	conn net.Conn
	once sync.Once
	end  sync.Once
	done chan struct{}
}

func (o *one) Accept() (c net.Conn, err error) {
	o.once.Do(func() { c = o.conn })
	if c != nil {
		return c, nil
	}
	<-o.done
	return nil, net.ErrClosed
}
func (o *one) Close() error   { o.end.Do(func() { close(o.done) }); return nil }
func (o *one) Addr() net.Addr { return o.conn.LocalAddr() }

func TestAMacBehindNATIsAskedThroughItsTunnelAlone(t *testing.T) {
	w := newTunnelled(t)
	m := w.addMac("a", say(`"direct"`))
	w.reach(m, v1alpha1.ReachTunnel)
	w.wantRefusal(w.chat(), refusal{status: 503, code: openai.CodeNoEndpoint, retry: "2"})
	s := w.open("a", say(`"tunnel"`))
	for range 3 {
		if got := read(t, w.chat()); got != `"tunnel"` {
			t.Errorf("answer %s", got)
		}
	}
	if n := w.counter("tunnels"); n != 1 {
		t.Errorf("%v tunnels are counted", n)
	}
	_ = s.Close()
	eventually(t, "the tunnel is gone", func() bool { return w.counter("tunnels") == 0 })
	w.wantRefusal(w.chat(), refusal{status: 503, code: openai.CodeNoEndpoint, retry: "2"})
	if n := m.requests.Load(); n != 0 {
		t.Errorf("%d requests went directly", n)
	}
}

func TestARequestWaitsForATunnel(t *testing.T) {
	w := newTunnelled(t, wait)
	w.reach(w.addMac("a", say(`"direct"`)), v1alpha1.ReachTunnel)
	answered := make(chan string, 1)
	go func() {
		resp, err := w.try(t.Context(), "POST", chatPath, `{"model":"m","messages":[]}`)
		if err != nil {
			answered <- err.Error()
			return
		}
		answered <- read(t, resp)
	}()
	eventually(t, "it waits", func() bool { return waits(w.world) == 1 })
	w.open("a", say(`"tunnel"`))
	select {
	case got := <-answered:
		if got != `"tunnel"` {
			t.Error(got)
		}
	case <-time.After(patience.Of(t)):
		t.Fatal("it still waits")
	}
	if n := w.counter("retries_total"); n != 0 {
		t.Errorf("%v tries where there was no way", n)
	}
}

// wait queues requests, and polls for a connection only once an hour.
func wait(c *proxy.Config) {
	c.Waiting, c.KeepAlive = fairqueue.Limits{Count: 10, Bytes: 1 << 20, Age: time.Hour}, time.Hour
}

// waits returns the number of waiting requests.
func waits(w *world) (n float64) {
	families, err := w.metrics.Gather()
	if err != nil {
		w.t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "vllm:num_requests_waiting" {
			for _, m := range f.GetMetric() {
				n += m.GetGauge().GetValue()
			}
		}
	}
	return n
}

// If a direct connection fails, the same request is sent through the tunnel, and later ones
// too, until a direct connection succeeds again.
func TestAMacWithBothWaysIsAskedDirectlyWhileThatWorks(t *testing.T) {
	w := newTunnelled(t, wait) // the connection that breaks may take a request with it
	m := w.addMac("a", say(`"direct"`))
	w.reach(m, v1alpha1.ReachDirectOrTunnel)
	if got := read(t, w.chat()); got != `"direct"` {
		t.Errorf("without a tunnel: %s", got)
	}
	w.open("a", say(`"tunnel"`))
	if got := read(t, w.chat()); got != `"direct"` {
		t.Errorf("with a tunnel: %s", got)
	}
	m.kill()
	for range 3 {
		if got := read(t, w.chat()); got != `"tunnel"` {
			t.Errorf("after the direct way died: %s", got)
		}
	}
	if n := w.counter("retries_total"); n > 1 {
		t.Errorf("%v retries", n)
	}
	again(t, m)
	eventually(t, "it is asked directly again", func() bool { return read(t, w.chat()) == `"direct"` })
}

// This gateway does not queue requests.
func TestARequestThatWasNotSentDirectlyGoesThroughTheTunnel(t *testing.T) {
	w := newTunnelled(t)
	m := w.addMac("a", say(`"direct"`))
	w.reach(m, v1alpha1.ReachDirectOrTunnel)
	m.kill()
	w.open("a", say(`"tunnel"`))
	if got := read(t, w.chat()); got != `"tunnel"` {
		t.Errorf("answer %s", got)
	}
}

// What the gateway itself asks a Mac has no body. The direct way may fail at any time, and a Mac
// can make it fail.
func TestAttackAMacWhoseDirectWayFails(t *testing.T) {
	w := newTunnelled(t)
	m := w.addMac("a", say(`"direct"`))
	w.reach(m, v1alpha1.ReachDirectOrTunnel)
	m.kill()
	w.open("a", say(`"tunnel"`))
	ctx, stop := context.WithCancel(t.Context())
	var probing sync.WaitGroup
	defer probing.Wait()
	defer stop()
	probing.Go(func() { w.proxy.Probe(ctx) })
	eventually(t, "the Mac is reached", func() bool {
		var r demand.Report
		w.proxy.Demand(&r)
		return len(r.Reached) == 1
	})
	if resp := w.do("GET", "/v1/responses/"+responses.NewAnywhere().ID(), ""); resp.StatusCode != http.StatusNotFound {
		t.Errorf("a search for a response: %s", resp.Status)
	}
}

// again restarts a Mac's port at the same address.
func again(t *testing.T, m *mac) {
	t.Helper()
	l, err := net.Listen("tcp", m.server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	s := &httptest.Server{Listener: l, Config: &http.Server{Handler: m.server.Config.Handler, TLSConfig: m.server.TLS}}
	served := make(chan struct{})
	go func() { defer close(served); _ = s.Config.ServeTLS(l, "", "") }()
	t.Cleanup(func() { _ = s.Config.Close(); <-served })
}
