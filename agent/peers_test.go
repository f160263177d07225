package agent

import (
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"metalfleet.dev/metalfleet/agent/download"
	"metalfleet.dev/metalfleet/agent/hub/hubtest"
	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/metal/tinymodel"
)

// site is a group of peer Macs, and a hub that all of them reach.
type site struct {
	t      *testing.T
	hub    *hubtest.Hub
	record model.Record
	macs   []*mac

	mu   sync.Mutex
	hold chan struct{} // the hub gives no file until it closes; guarded by mu
}

func newSite(t *testing.T, names ...string) *site {
	t.Helper()
	s := &site{t: t, hub: &hubtest.Hub{}, hold: make(chan struct{})}
	srv := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		hold := s.hold
		s.mu.Unlock()
		select {
		case <-hold:
		case <-r.Context().Done():
		}
		s.hub.ServeHTTP(w, r)
	}))
	t.Cleanup(srv.Close)
	for _, name := range names {
		m := newMac(t, tinymodel.Default())
		m.name, m.hub = name, srv.URL
		m.sources = download.Policy{Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, Roots: rootsOf(srv)}
		if len(s.macs) > 0 {
			m.authority = s.macs[0].authority
		} else {
			s.publish(m)
		}
		if err := os.Remove(filepath.Join(m.root, "tiny.gguf")); err != nil {
			t.Fatal(err)
		}
		m.record = s.record
		m.giveIdentity()
		m.boot()
		s.macs = append(s.macs, m)
	}
	return s
}

// publish puts a Mac's model on the hub.
func (s *site) publish(m *mac) {
	s.t.Helper()
	content, err := os.ReadFile(filepath.Join(m.root, "tiny.gguf"))
	if err != nil {
		s.t.Fatal(err)
	}
	repo := hubtest.Of(map[string]hubtest.File{"tiny.gguf": {Content: content, LFS: true}})
	s.hub.Put("org/tiny", repo)
	s.record = m.record
	s.record.Source, s.record.Commit = "hf://org/tiny", repo.Refs["main"]
	s.record.Files = slices.Clone(m.record.Files)
	s.record.Files[0].Path = "tiny.gguf"
	s.record.Digest = model.DigestOf(s.record.Files)
}

// order has a Mac fetch the model, from another one first if one is named.
func (s *site) order(to *mac, near ...*mac) {
	a := to.assignment()
	a.Desired = v1alpha1.DesiredDownloaded
	for _, n := range near {
		a.Peers = append(a.Peers, v1alpha1.Peer{
			Mac: n.name, Address: n.agent.Address,
			Grant: to.authority.Grant(agentapi.Grant{Server: n.name, Client: to.name, Digest: s.record.Digest, Source: s.record.Source}),
		})
	}
	to.orders.next <- ordersOf(1, a)
}

// downloads of the model from the hub.
func (s *site) downloads() (n int) {
	for _, r := range s.hub.Requests() {
		if strings.Contains(r, "/large/") && !strings.HasSuffix(r, hubtest.FirstByte) {
			n++
		}
	}
	return n
}

// TestASiteFetchesFromTheHubOnce: of two Macs that are ordered the same weights at
// once, one is sent to the hub and the other to it. It waits, copies, verifies,
// and gives in turn.
func TestASiteFetchesFromTheHubOnce(t *testing.T) {
	s := newSite(t, "m1", "m2", "m3")
	m1, m2, m3 := s.macs[0], s.macs[1], s.macs[2]
	s.order(m2, m1) // whose own order comes later
	for _, m := range []*mac{m2, m1} {
		poll(t, func() error {
			if st := m.reports.status(); len(st.Assignments) != 1 || st.Assignments[0].Progress.Stage == "" {
				return fmt.Errorf("%s has not begun: %+v", m.name, st.Assignments)
			}
			return nil
		})
		if m == m2 {
			s.order(m1)
		}
	}
	close(s.hold)
	for _, m := range []*mac{m1, m2} {
		m.waitFor(v1alpha1.ConditionDownloaded, "True/Verified")
	}
	s.order(m3, m2)
	m3.waitFor(v1alpha1.ConditionDownloaded, "True/Verified")
	if n := s.downloads(); n != 1 {
		t.Errorf("the hub gave the model %d times: %q", n, s.hub.Requests())
	}
	for _, m := range []*mac{m2, m3} {
		if got := m.counted("metalfleet_agent_weights_fetched_bytes_total"); got != float64(s.record.Bytes()) {
			t.Errorf("%s fetched %v bytes, want %d", m.name, got, s.record.Bytes())
		}
	}
	for _, m := range []*mac{m1, m2} {
		if got := m.counted("metalfleet_agent_weights_given_bytes_total"); got != float64(s.record.Bytes()) {
			t.Errorf("%s gave %v bytes, want %d", m.name, got, s.record.Bytes())
		}
	}
}

// counted sums a counter of the agent.
func (m *mac) counted(name string) (sum float64) {
	m.t.Helper()
	families, err := m.agent.metrics.registry.Gather()
	if err != nil {
		m.t.Fatal(err)
	}
	for _, f := range families {
		for _, x := range f.GetMetric() {
			if f.GetName() == name {
				sum += x.GetCounter().GetValue()
			}
		}
	}
	return sum
}

// TestAttackAMacAsAGateway: over a Mac's own connection there are weights and
// nothing else, and no weights over a gateway's.
func TestAttackAMacAsAGateway(t *testing.T) {
	s := newSite(t, "m1")
	close(s.hold)
	m := s.macs[0]
	s.order(m)
	m.waitFor(v1alpha1.ConditionDownloaded, "True/Verified")
	weights := agentapi.WeightsPath(s.record.Digest, s.record.Files[0].SHA256)
	grant := m.authority.Grant(agentapi.Grant{Server: "m1", Client: "m2", Digest: s.record.Digest, Source: s.record.Source})
	mac, gateway := m.authority.Mac("m2").Pair(t), m.authority.Gateway().Pair(t)
	for what, v := range map[string]struct {
		pair     func() (*tls.Certificate, error)
		protocol string
		path     string
		want     int // 0: no connection
	}{
		"a Mac asks for weights":                 {pair: mac, protocol: agentapi.ProtoWeights, path: weights, want: http.StatusOK},
		"a Mac asks for models":                  {pair: mac, protocol: agentapi.ProtoWeights, path: "/v1/models", want: http.StatusForbidden},
		"a Mac asks for health":                  {pair: mac, protocol: agentapi.ProtoWeights, path: agentapi.PathHealth, want: http.StatusForbidden},
		"a Mac comes as a gateway does":          {pair: mac, protocol: "h2", path: "/v1/models", want: 0},
		"a Mac comes over HTTP/1.1":              {pair: mac, protocol: "http/1.1", path: weights, want: 0},
		"a gateway asks for weights":             {pair: gateway, protocol: "h2", path: weights, want: http.StatusNotFound},
		"a gateway comes as a Mac does":          {pair: gateway, protocol: agentapi.ProtoWeights, path: weights, want: 0},
		"a gateway asks for what gateways serve": {pair: gateway, protocol: "h2", path: "/v1/models", want: http.StatusOK},
	} {
		config := agentapi.ClientTLS(v.pair, m.authority.Roots(), "m1")
		if config.NextProtos = []string{v.protocol}; v.protocol == agentapi.ProtoWeights {
			config.NextProtos = append(config.NextProtos, "http/1.1")
		}
		c := &http.Client{Transport: &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: v.protocol == "h2", DisableKeepAlives: true}}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+m.agent.Listener.Addr().String()+v.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set(agentapi.HeaderGrant, grant)
		got := 0
		if resp, err := c.Do(req); err == nil {
			got = resp.StatusCode
			resp.Body.Close()
		}
		if got != v.want {
			t.Errorf("%s: HTTP %d, want %d", what, got, v.want)
		}
	}
}

// TestPeerThatSendsWrongBytesCostsNoModel: its copy is thrown away, and the hub is asked.
func TestPeerThatSendsWrongBytesCostsNoModel(t *testing.T) {
	s := newSite(t, "m2")
	close(s.hold)
	m := s.macs[0]
	liar := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(make([]byte, s.record.Bytes()))
	}))
	liar.TLS = agentapi.WeightsServerTLS(m.authority.Mac("m1").Pair(t), m.authority.Roots())
	liar.StartTLS()
	t.Cleanup(liar.Close)
	a := m.assignment()
	a.Desired = v1alpha1.DesiredDownloaded
	port := int32(liar.Listener.Addr().(*net.TCPAddr).Port)
	a.Peers = []v1alpha1.Peer{
		{Mac: "m0", Address: v1alpha1.MacAddress{Host: "127.0.0.1", Port: 1}, Grant: "gone"},
		{Mac: "m1", Address: v1alpha1.MacAddress{Host: "127.0.0.1", Port: port}, Grant: "any"},
	}
	m.orders.next <- ordersOf(1, a)
	m.waitFor(v1alpha1.ConditionDownloaded, "True/Verified")
	if n := s.downloads(); n != 1 {
		t.Errorf("the hub gave the model %d times", n)
	}
	if got := m.counted("metalfleet_agent_neighbour_failures_total"); got != 2 {
		t.Errorf("%v failures, want that of a Mac that is gone and that of one that lies", got)
	}
}
