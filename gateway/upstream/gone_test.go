package upstream

import (
	"errors"
	"net"
	"net/http"
	"net/url"
	"testing"

	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/agentapi/agentapitest"
	"metalfleet.dev/metalfleet/gateway/identity"
	"metalfleet.dev/metalfleet/gateway/route"
)

// TestARequestThatChoseAMacBeforeItWasDeleted opens no connection to it, which nothing would cut,
// and leaves nothing behind. That of the MacNode which has the name now stays.
func TestARequestThatChoseAMacBeforeItWasDeleted(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	pem := agentapitest.NewCA(t).Gateway()
	id, err := identity.Parse(map[string][]byte{"tls.crt": pem.Certificate, "tls.key": pem.Key, "ca.crt": pem.CA})
	if err != nil {
		t.Fatal(err)
	}
	table := route.NewTable()
	p := New(Options{Table: table, Identity: func() *identity.Identity { return id }})
	ask := func(uid string) error {
		r := &http.Request{Method: http.MethodGet, Header: http.Header{}, URL: &url.URL{Scheme: "https", Host: l.Addr().String(), Path: "/"}}
		resp, err := p.To(route.Endpoint{Mac: "a", MacUID: uid, Address: l.Addr().String()}).RoundTrip(r.WithContext(t.Context()))
		if err == nil {
			err = resp.Body.Close()
		}
		return err
	}
	table.SetMac(route.Mac{Name: "a", UID: "1", Address: l.Addr().String(), Open: true})
	table.DeleteMac("a")
	p.tasks.Wait()
	if err := ask("1"); !errors.Is(err, agentapi.ErrReplaced) || len(p.conns) != 0 {
		t.Errorf("a request to a deleted Mac: %v, and %d connections are known", err, len(p.conns))
	}
	table.SetMac(route.Mac{Name: "a", UID: "2", Address: l.Addr().String(), Open: true})
	if err := ask("1"); !errors.Is(err, agentapi.ErrReplaced) {
		t.Errorf("a request to a replaced Mac: %v", err)
	}
	current := p.direct(route.Endpoint{Mac: "a", MacUID: "2", Address: l.Addr().String()})
	if p.conns["a"] != current {
		t.Error("the connection to the Mac of that name now is not known")
	}
}
