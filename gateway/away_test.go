package gateway_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"sync"
	"testing"

	"metalfleet.dev/metalfleet/gateway"
	"metalfleet.dev/metalfleet/test/testenv"
)

// If both were killed, a gateway that is back before the API server keeps waiting and logs
// that, instead of exiting.
func TestAGatewayBeginsWhileTheAPIServerIsAway(t *testing.T) {
	c := newCluster(t)
	close(c.hold)
	c.create(c.secret())
	c.serve()
	port, err := testenv.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	address := fmt.Sprintf("127.0.0.1:%d", port) // nothing listens there until relay is started
	f := c.start(0, func(o *gateway.Options) { o.REST.Host = "https://" + address })
	c.eventually("it lives, and is not ready", func() bool {
		resp, err := http.Get(f.health + "/healthz")
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.StatusCode == http.StatusOK && f.readyz() == http.StatusServiceUnavailable
	})
	select {
	case err := <-f.ended:
		t.Fatalf("it ended: %v", err)
	default:
	}
	relay(t, address, c.env.Config().Host)
	c.eventually("it is ready once an API server answers", func() bool { return f.readyz() == http.StatusOK })
	if status := f.status("m"); status != http.StatusOK {
		t.Errorf("the model is answered with %d", status)
	}
}

// relay forwards connections to an API server until the test ends.
func relay(t *testing.T, address, server string) {
	t.Helper()
	u, err := url.Parse(server)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	t.Cleanup(func() { l.Close(); all.Wait() })
	all.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", u.Host)
			if err != nil {
				in.Close()
				continue
			}
			stop := func() { in.Close(); out.Close() }
			context.AfterFunc(t.Context(), stop) // before any cleanup
			all.Go(func() { defer stop(); _, _ = io.Copy(out, in) })
			all.Go(func() { defer stop(); _, _ = io.Copy(in, out) })
		}
	})
}
