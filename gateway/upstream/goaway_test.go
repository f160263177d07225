package upstream

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/agentapi/agentapitest"
	"metalfleet.dev/metalfleet/gateway/identity"
	"metalfleet.dev/metalfleet/gateway/route"
)

// TestAttackAMacThatEndsEachConnection: a request opens few connections to it, and then another
// Mac is tried.
func TestAttackAMacThatEndsEachConnection(t *testing.T) {
	ca := agentapitest.NewCA(t)
	pem := ca.Gateway()
	id, err := identity.Parse(map[string][]byte{"tls.crt": pem.Certificate, "tls.key": pem.Key, "ca.crt": pem.CA})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	config := agentapi.ServerTLS(ca.Mac("a").Pair(t), ca.Roots())
	var opened atomic.Int64
	var served sync.WaitGroup
	served.Go(func() {
		for {
			raw, err := l.Accept()
			if err != nil {
				return
			}
			opened.Add(1)
			served.Go(func() {
				c := tls.Server(raw, config)
				defer func() { _ = c.Close() }()
				const settings, goAway = "\x00\x00\x00\x04\x00\x00\x00\x00\x00", "\x00\x00\x08\x07\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"
				if _, err := io.WriteString(c, settings+goAway); err == nil {
					_, _ = io.Copy(io.Discard, c)
				}
			})
		}
	})
	p := New(Options{Table: tableWith("a"), Identity: func() *identity.Identity { return id }})
	t.Cleanup(func() {
		p.drop("a")
		p.Close()
		_ = l.Close()
		served.Wait()
	})
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	r := &http.Request{Method: http.MethodGet, Header: http.Header{}, URL: &url.URL{Scheme: "https", Host: l.Addr().String(), Path: "/"}}
	_, err = p.To(route.Endpoint{Mac: "a", MacUID: agentapitest.UID("a"), Address: l.Addr().String()}).RoundTrip(r.WithContext(ctx))
	if !NotReached(err) {
		t.Errorf("the request ended with %v", err)
	}
	if n := opened.Load(); n != maxDials {
		t.Errorf("it opened %d connections, want %d", n, maxDials)
	}
}
