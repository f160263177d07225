package upstream

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	"metalfleet.dev/metalfleet/api/agentapi/agentapitest"
	"metalfleet.dev/metalfleet/gateway/identity"
	"metalfleet.dev/metalfleet/gateway/route"
)

// noting calls a function when it is closed.
type noting struct {
	net.Conn
	closed func()
}

func (n noting) Close() error { n.closed(); return n.Conn.Close() }

// TestConnectionsCloseWithoutTheLock: one that closes may find that its Mac is lost, which asks
// the pool and the tunnels.
func TestConnectionsCloseWithoutTheLock(t *testing.T) {
	pem := agentapitest.NewCA(t).Gateway()
	id, err := identity.Parse(map[string][]byte{"tls.crt": pem.Certificate, "tls.key": pem.Key, "ca.crt": pem.CA})
	if err != nil {
		t.Fatal(err)
	}
	p := New(Options{Table: route.NewTable(), Identity: func() *identity.Identity { return id }})
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer server.Close()
	closed, unlocked := 0, 0
	idle := func() { // the pool has an idle connection
		c := p.direct(route.Endpoint{Mac: "a", Address: "old"})
		c.Transport = &http.Transport{DialContext: func(ctx context.Context, network, at string) (net.Conn, error) {
			raw, err := new(net.Dialer).DialContext(ctx, network, at)
			return noting{raw, func() {
				closed++
				if p.mu.TryLock() {
					unlocked++
					p.mu.Unlock()
				}
			}}, err
		}}
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := c.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		if err := resp.Body.Close(); err != nil {
			t.Fatal(err)
		}
	}
	idle()
	p.direct(route.Endpoint{Mac: "a", Address: "new"})
	idle()
	p.Close()
	if closed != 2 || unlocked != closed {
		t.Errorf("%d connections closed, %d of them without the lock", closed, unlocked)
	}
}
