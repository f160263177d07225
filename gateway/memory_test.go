//go:build linux && !race

package gateway

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"

	"metalfleet.dev/metalfleet/gateway/identity"
	"metalfleet.dev/metalfleet/gateway/proxy"
	"metalfleet.dev/metalfleet/gateway/route"
	"metalfleet.dev/metalfleet/test/patience"
)

// crowd is a front with the limits of the flags' defaults, of which clients use every connection
// from several loopback addresses, as Linux has them.
type crowd struct {
	t     *testing.T
	to    string
	conns []net.Conn
}

// newCrowd serves until the test ends.
func newCrowd(t *testing.T) *crowd {
	var files syscall.Rlimit // Go has raised it to the hard limit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files); err != nil || files.Cur < 10_000 {
		t.Fatalf("this test opens 10,000 files, and at most %d are allowed (%v): raise the limit with ulimit -n", files.Cur, err)
	}
	front, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	o := Options{Log: logr.Discard(), Front: front, Connections: 4096, ConnectionsPerAddress: 2048}
	registry, table := prometheus.NewRegistry(), route.NewTable()
	table.MarkSynced()
	handler := proxy.New(proxy.Config{Table: table, Identity: func() *identity.Identity { return new(identity.Identity) }, Registry: registry, Log: logr.Discard()})
	s := newServers(o, handler, http.NotFoundHandler(), http.NotFoundHandler(), new(drainHandler), func() bool { return true })
	ended := make(chan error, 1)
	go func() { ended <- s.front.Serve(o.bounded(registry, handler.Bodies())) }()
	c := &crowd{t: t, to: front.Addr().String()}
	t.Cleanup(func() {
		for _, conn := range c.conns {
			_ = conn.Close() // the gateway may have closed it
		}
		if err := s.front.Close(); err != nil {
			t.Error(err)
		}
		if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
		handler.Close()
	})
	return c
}

// dial connects from a loopback address.
func (c *crowd) dial(from string) net.Conn {
	c.t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	conn, err := d.DialContext(c.t.Context(), "tcp", c.to)
	if err != nil {
		c.t.Fatal(err)
	}
	c.conns = append(c.conns, conn)
	if err := conn.SetDeadline(time.Now().Add(patience.Of(c.t))); err != nil {
		c.t.Fatal(err)
	}
	return conn
}

// ask returns the status of a request from a loopback address.
func (c *crowd) ask(from string) int {
	c.t.Helper()
	conn := c.dial(from)
	const body = `{"model":"m"}`
	fmt.Fprintf(conn, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nX-Session: %s\r\nContent-Length: %d\r\n\r\n%s", strings.Repeat("s", 3<<10), len(body), body)
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		c.t.Fatal(err)
	}
	defer resp.Body.Close()
	return resp.StatusCode
}

// live returns the most bytes of heap and stacks that collections leave, until what the
// clients sent was read.
func live() (most uint64) {
	last, same := uint64(0), 0
	for same < 5 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		now := m.HeapAlloc + m.StackInuse
		most, same = max(most, now), same+1
		if now > last+1<<20 || last > now+1<<20 {
			same = 0
		}
		last = now
	}
	return most
}

// TestTheMemoryOfAllConnectionsIsBounded: with every connection in use, long heads, bodies that
// never end and both take at most 320 MiB of the chart's limit of 1 GiB. The rest is for
// responses (128 MiB), the kernel's buffers, and the garbage of the collector. Another
// client is served meanwhile.
func TestTheMemoryOfAllConnectionsIsBounded(t *testing.T) {
	const most, all = 320 << 20, 4096
	const post = "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 200000\r\n"
	long := "X-Long: " + strings.Repeat("x", 62<<10)
	for name, send := range map[string]string{
		"heads":                  post + long,
		"heads and short bodies": post + long + "\r\n\r\n{",
		"heads and bodies":       post + long + "\r\n\r\n" + strings.Repeat(" ", 60_000),
		"bodies":                 post + "\r\n" + strings.Repeat(" ", 60_000),
		"header lines":           post + strings.Repeat("a:\r\n", 190) + "\r\n{",
	} {
		t.Run(name, func(t *testing.T) {
			c := newCrowd(t)
			var clients sync.WaitGroup
			for i := range all {
				conn := c.dial(fmt.Sprintf("127.0.1.%d", 1+i%4))
				clients.Go(func() { _, _ = io.WriteString(conn, send) }) // it may be refused
			}
			clients.Wait()
			took := live()
			if got := c.ask("127.0.2.1"); got != http.StatusNotFound {
				t.Errorf("another client gets %d", got)
			}
			t.Logf("%d MiB are in use", took>>20)
			if took > most {
				t.Errorf("which is more than %d MiB", most>>20)
			}
		})
	}
}
