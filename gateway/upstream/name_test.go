package upstream

import (
	"net"
	"net/http"
	"net/url"
	"testing"

	"metalfleet.dev/metalfleet/api/agentapi/agentapitest"
	"metalfleet.dev/metalfleet/gateway/route"
)

// TestAttackANameOfTheGateways: the admission policy sees the name only.
func TestAttackANameOfTheGateways(t *testing.T) {
	p, address := poolOf(t, func(net.Conn) { t.Error("a connection was opened") })
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	named := net.JoinHostPort("localhost", port)
	r := &http.Request{Method: http.MethodGet, Header: http.Header{}, URL: &url.URL{Scheme: "https", Host: named, Path: "/"}}
	resp, err := p.To(route.Endpoint{Mac: "a", MacUID: agentapitest.UID("a"), Address: named}).RoundTrip(r.WithContext(t.Context()))
	if err == nil {
		_ = resp.Body.Close()
	}
	if !NotReached(err) {
		t.Errorf("the request ended with %v", err)
	}
}
