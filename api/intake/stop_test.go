package intake

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestARequestEndsWithItsConnection: also one that waits while its body is unread, if its connection or the
// memory of its head is for others.
func TestARequestEndsWithItsConnection(t *testing.T) {
	const places, clients = 4, 12
	for name, tc := range map[string]struct {
		head  string
		total int
	}{
		"short bodies": {head: "Content-Length: 1\r\n", total: places},
		"long bodies":  {head: "Content-Length: 1000000\r\n", total: places},
		"large heads":  {head: "Content-Length: 1\r\nX: " + strings.Repeat("x", 8<<10) + "\r\n"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				raw := newPipes()
				l := &Listener{Listener: raw, Total: tc.total, Bodies: &Bodies{Max: 2 * places * headFactor * 8 << 10}}
				var open atomic.Int64
				end := make(chan struct{})
				s := &http.Server{ConnContext: Context,
					Handler: Guard(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
						select {
						case <-r.Context().Done():
						case <-end:
						}
					})),
					ConnState: func(_ net.Conn, state http.ConnState) {
						switch state {
						case http.StateNew:
							open.Add(1)
						case http.StateClosed:
							open.Add(-1)
						}
					}}
				ended := make(chan error, 1)
				go func() { ended <- s.Serve(l) }()
				for range clients {
					c := raw.dial("192.0.2.1")
					go func() { _, _ = io.Copy(io.Discard, c) }()
					_, _ = fmt.Fprintf(c, "POST / HTTP/1.1\r\nHost: x\r\n%s\r\n", tc.head)
					synctest.Wait()
				}
				if n := open.Load(); n != int64(l.Count()) || n == 0 || n > 2*places {
					t.Errorf("%d of %d connections are served, and %d have a place", n, clients, l.Count())
				}
				close(end)
				_ = s.Close()
				<-ended
				time.Sleep(time.Second) // that net/http waits for long bodies
			})
		})
	}
}
