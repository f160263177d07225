package download

import (
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync/atomic"
	"testing"
	"time"
)

// TestFewConnectionsToOtherHostsStayOpen: a server may redirect each request to hosts that it
// makes up.
func TestFewConnectionsToOtherHostsStayOpen(t *testing.T) {
	const hosts = 60
	var open, next atomic.Int64
	var ports [hosts]net.Listener
	closed := make(chan struct{}, hosts)
	host := func() string { return ports[next.Add(1)%hosts].Addr().String() }
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if hop, _ := strconv.Atoi(r.URL.Query().Get("hop")); hop < maxRedirects {
			http.Redirect(w, r, fmt.Sprintf("https://%s/?hop=%d", host(), hop+1), http.StatusFound)
		}
	}))
	srv.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		switch s {
		case http.StateNew:
			open.Add(1)
		case http.StateClosed:
			open.Add(-1)
			closed <- struct{}{}
		}
	}
	srv.StartTLS()
	t.Cleanup(srv.Close)
	for i := range ports {
		var err error
		if ports[i], err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
			t.Fatal(err)
		}
		go srv.Config.Serve(tls.NewListener(ports[i], srv.TLS)) //nolint:errcheck // it ends with the server
	}
	c := clientFor(t, srv)
	for range hosts / (maxRedirects + 1) {
		if err := get(t, c, "https://"+host()); err != nil {
			t.Fatal(err)
		}
	}
	for late := time.After(5 * time.Second); open.Load() > maxIdle; {
		select {
		case <-closed:
		case <-late:
			t.Fatalf("%d connections to %d hosts are open, want at most %d", open.Load(), hosts, maxIdle)
		}
	}
}
