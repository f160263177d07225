package upstream

import (
	"net"
	"net/http"
	"net/url"
	"testing"

	"metalfleet.dev/metalfleet/api/agentapi/agentapitest"
	"metalfleet.dev/metalfleet/gateway/identity"
	"metalfleet.dev/metalfleet/gateway/route"
)

// TestAMacIsAskedBeforeTheIdentityIsKnown: the first probes may come before the gateway's Secret
// was read, or there is none. No connection is made, and later ones use the identity.
func TestAMacIsAskedBeforeTheIdentityIsKnown(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var id *identity.Identity
	p := New(Options{Table: route.NewTable(), Identity: func() *identity.Identity { return id }})
	mac := route.Endpoint{Mac: "a", Address: l.Addr().String()}
	for range 2 {
		r := &http.Request{Method: http.MethodGet, Header: http.Header{}, URL: &url.URL{Scheme: "https", Host: mac.Address, Path: "/"}}
		resp, err := p.To(mac).RoundTrip(r.WithContext(t.Context()))
		if err == nil {
			t.Fatal(resp.Body.Close())
		}
		if NotReached(err) {
			t.Errorf("the Mac is reported as unreachable: %v", err)
		}
	}
	pem := agentapitest.NewCA(t).Gateway()
	if id, err = identity.Parse(map[string][]byte{"tls.crt": pem.Certificate, "tls.key": pem.Key, "ca.crt": pem.CA}); err != nil {
		t.Fatal(err)
	}
	if p.direct(mac).identity != id {
		t.Error("the connection does not use the identity")
	}
}
