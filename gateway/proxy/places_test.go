package proxy

import (
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"

	"metalfleet.dev/metalfleet/api/intake"
	"metalfleet.dev/metalfleet/gateway/health"
	"metalfleet.dev/metalfleet/gateway/identity"
	"metalfleet.dev/metalfleet/gateway/route"
)

// inMemory is a listener of connections in memory.
type inMemory chan net.Conn

// Accept implements net.Listener.
func (l inMemory) Accept() (net.Conn, error) {
	if c, ok := <-l; ok {
		return c, nil
	}
	return nil, net.ErrClosed
}

// Close implements net.Listener.
func (l inMemory) Close() error { close(l); return nil }

// Addr implements net.Listener.
func (l inMemory) Addr() net.Addr { return &net.TCPAddr{} }

// TestNoMoreRequestsWaitThanConnectionsHaveAPlace: each takes memory. One whose connection gives way to
// another ends, before it may begin and although its body is unread.
func TestNoMoreRequestsWaitThanConnectionsHaveAPlace(t *testing.T) {
	const places, clients = 8, 100
	for name, parts := range map[string][]string{"a body that does not arrive": {"Content-Length: 1\r\n\r\n"}, "a part of the next request": {"\r\n", "P"}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := New(Config{Table: route.NewTable(), Identity: func() *identity.Identity { return nil }, Registry: prometheus.NewRegistry(), Log: logr.Discard()})
				defer p.Close()
				p.pace.debts = health.Debts{Most: 1, PerSecond: 1}
				p.pace.begin("192.0.2.1", false, time.Now())
				var running atomic.Int64
				counted := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					running.Add(1)
					defer running.Add(-1)
					p.ServeHTTP(w, r)
				})
				l := make(inMemory)
				s := &http.Server{Handler: intake.Guard(counted), ConnContext: intake.Context}
				ended := make(chan error, 1)
				go func() { ended <- s.Serve(&intake.Listener{Listener: l, Total: places}) }()
				for range clients {
					client, server := net.Pipe()
					l <- server
					go func() { _, _ = io.Copy(io.Discard, client) }()
					_, _ = io.WriteString(client, "POST /v1/completions HTTP/1.1\r\nHost: x\r\n")
					for _, part := range parts {
						_, _ = io.WriteString(client, part)
					}
				}
				synctest.Wait()
				if n := running.Load(); n != places {
					t.Errorf("%d requests wait, and %d connections have a place", n, places)
				}
				_ = s.Close()
				<-ended
				time.Sleep(paceLongest) // also if they wait
			})
		})
	}
}
