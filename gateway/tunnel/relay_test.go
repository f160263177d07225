package tunnel_test

import (
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/test/patience"
)

// TestAStrangerRelaysNoTunnel: one who joins the tunnel port with a Mac's own port, byte for byte,
// shows the certificate of that Mac. The Mac refuses, and its own tunnel stays.
func TestAStrangerRelaysNoTunnel(t *testing.T) {
	w := newWorld(t)
	own, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{TLSConfig: agentapi.ServerTLS(w.ca.MacOfUID("a", w.certified("a")).Pair(t), w.ca.Roots()),
		Handler: http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(rw, "its own port") })}
	served := make(chan struct{})
	go func() { defer close(served); _ = s.ServeTLS(own, "", "") }()
	t.Cleanup(func() { _ = s.Close(); <-served })

	w.mac("a", func(rw http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(rw, "its own tunnel") })
	w.wantChange("a")
	gateway := w.dial("a") // which takes the name of the Mac, and nothing else
	port, err := net.Dial("tcp", own.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = io.Copy(gateway, port)
	}()
	go func() { _, _ = io.Copy(port, gateway); _ = port.Close() }()
	select {
	case <-w.changed:
		t.Error("the stranger replaces the Mac's tunnel")
	case <-ended:
	case <-time.After(patience.Of(t)):
		t.Error("the relay neither works nor ends")
	}
	_ = port.Close()
	if got, err := w.answer("a", "/x"); err != nil || got != "its own tunnel" {
		t.Errorf("the next request reaches %q, %v", got, err)
	}
}
