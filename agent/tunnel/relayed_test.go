package tunnel_test

import (
	"crypto/tls"
	"io"
	"log"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"

	"metalfleet.dev/metalfleet/agent/tunnel"
	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/agentapi/agentapitest"
	"metalfleet.dev/metalfleet/api/intake"
	"metalfleet.dev/metalfleet/test/patience"
)

// TestOnlyTunnelsOfThisMacAreTunnels: what a gateway takes for a tunnel is served only if this Mac has
// opened it. Either end may be of the version before.
func TestOnlyTunnelsOfThisMacAreTunnels(t *testing.T) {
	ca := agentapitest.NewCA(t)
	pair := ca.Mac("a").Pair(t)
	config := agentapi.ServerTLS(pair, ca.Roots())
	before := config.Clone()
	before.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return pair() }
	for name, tc := range map[string]struct {
		mac             *tls.Config
		tunnel, offered bool // opened by the Mac, and what the gateway takes it for
		ok              bool
	}{
		"a direct connection":                      {mac: config, ok: true},
		"a tunnel":                                 {mac: config, tunnel: true, offered: true, ok: true},
		"a tunnel that another one has joined":     {mac: config, offered: true},
		"a tunnel to a gateway of before":          {mac: config, tunnel: true, ok: true},
		"a tunnel of a Mac of before":              {mac: before, tunnel: true, offered: true, ok: true},
		"a direct connection to a Mac of before":   {mac: before, ok: true},
		"a joined tunnel, if the Mac is of before": {mac: before, offered: true, ok: true},
	} {
		t.Run(name, func(t *testing.T) {
			g := newGateways(t, "g1")
			own, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			l := tunnel.Listen(own, tunnel.Options{Mac: "a", Gateways: []string{g.address}, Log: logr.Discard()})
			port := intake.Authenticate(l, tc.mac, log.New(io.Discard, "", 0))
			var all sync.WaitGroup
			all.Go(func() {
				for c, err := port.Accept(); err == nil; c, err = port.Accept() {
					_, _ = io.WriteString(c, "x")
				}
			})
			t.Cleanup(func() { _ = port.Close(); all.Wait() })
			var c net.Conn
			if tc.tunnel {
				all.Go(func() { l.Run(t.Context()) })
				c = take(t, "tunnel", g.came)
			} else if c, err = net.Dial("tcp", own.Addr().String()); err != nil {
				t.Fatal(err)
			}
			defer c.Close() //nolint:errcheck // read
			gateway := agentapi.ClientTLS(ca.Gateway().Pair(t), ca.Roots(), "a")
			if tc.offered {
				gateway.NextProtos = append(gateway.NextProtos, agentapi.TunnelProtocol)
			}
			secure := tls.Client(c, gateway)
			if err := secure.SetDeadline(time.Now().Add(patience.Of(t))); err != nil {
				t.Fatal(err)
			}
			_, err = secure.Read(make([]byte, 1))
			if got := secure.ConnectionState().NegotiatedProtocol; (err == nil) != tc.ok || tc.ok && got != "h2" {
				t.Errorf("protocol %q, %v, want ok=%v", got, err, tc.ok)
			}
		})
	}
}
