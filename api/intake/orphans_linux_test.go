package intake

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"metalfleet.dev/metalfleet/test/patience"
)

// silent opens connections whose clients acknowledge nothing from then on, and sends something on each.
func silent(t *testing.T, to net.Listener, n int, send string) {
	t.Helper()
	for range n {
		c, err := net.Dial("tcp", to.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		raw, err := c.(syscall.Conn).SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		// The kernel drops segments that came over a router, as those of the loopback interface seem to.
		if failed := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MINTTL, 255) }); failed != nil || err != nil {
			t.Fatal(failed, err)
		}
		if _, err := io.WriteString(c, send); err != nil {
			t.Fatal(err)
		}
	}
}

// late accepts while open can be received from.
type late struct {
	net.Listener
	open chan bool
}

func (l late) Accept() (net.Conn, error) {
	<-l.open
	return l.Listener.Accept()
}

// orphans counts the connections of a listener that no program has, and whose end the kernel still sends.
func orphans(t *testing.T, of net.Listener) (n int) {
	t.Helper()
	all, err := os.ReadFile("/proc/net/tcp")
	if err != nil {
		t.Fatal(err)
	}
	port := fmt.Sprintf(":%04X", of.Addr().(*net.TCPAddr).Port)
	for line := range strings.Lines(string(all)) {
		f := strings.Fields(line)
		if ending := f[3] == "04" || f[3] == "09" || f[3] == "0B"; ending && strings.HasSuffix(f[1], port) && f[9] == "0" {
			n++
		}
	}
	return n
}

// until waits for a condition, during which there are no orphans.
func until(t *testing.T, of net.Listener, what string, is func() bool) {
	t.Helper()
	for began := time.Now(); !is(); time.Sleep(time.Millisecond) {
		if time.Since(began) > patience.Of(t) {
			t.Fatalf("%s: never; %d closed connections are in the kernel", what, orphans(t, of))
		}
	}
	if n := orphans(t, of); n > 0 {
		t.Errorf("%s: %d closed connections are in the kernel, of clients that acknowledge nothing", what, n)
	}
}

// TestConnectionsThatGiveWayLeaveNothingInTheKernel: it would keep them for minutes, of any number of clients
// that do not acknowledge their end, with all that they sent after a gap.
func TestConnectionsThatGiveWayLeaveNothingInTheKernel(t *testing.T) {
	raw := listenHere(t)
	l := &Listener{Listener: raw, Total: 4}
	serveOn(t, l, func(http.ResponseWriter, *http.Request) {})
	silent(t, raw, 16, "G")
	until(t, raw, "12 of 16 gave way", func() bool { return l.endings(replaced) == 12 })
}

// TestAClosedConnectionCountsUntilItsClientAcknowledges: one without a response too, but not for minutes.
func TestAClosedConnectionCountsUntilItsClientAcknowledges(t *testing.T) {
	raw := listenHere(t)
	l := &Listener{Listener: raw}
	s := &http.Server{ConnContext: Context, Handler: http.NotFoundHandler(), ReadHeaderTimeout: 50 * time.Millisecond}
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(l) }()
	defer func() { _ = s.Close(); <-ended }()
	silent(t, raw, 8, "")
	until(t, raw, "8 closed connections have a place", func() bool { return closing(l) == 8 && l.Count() == 8 })
	until(t, raw, "they end", func() bool { return l.Count() == 0 })
}

// TestAConnectionThatItsClientResetsHasNoPlace: the kernel has freed what its client had not read.
func TestAConnectionThatItsClientResetsHasNoPlace(t *testing.T) {
	raw := listenHere(t)
	l := &Listener{Listener: raw}
	serveOn(t, l, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Connection", "close")
		_, _ = w.Write(make([]byte, 32<<10))
	})
	c := shortSighted(t, raw.Addr().String())
	fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	until(t, raw, "it has a place", func() bool { return closing(l) == 1 })
	began := time.Now()
	if err := errors.Join(c.SetLinger(0), c.Close()); err != nil {
		t.Fatal(err)
	}
	until(t, raw, "it has none", func() bool { return l.Count() == 0 })
	if took := time.Since(began); took > lingerTime/2 {
		t.Errorf("it has a place for %s", took)
	}
}

// TestRefusedConnectionsAreFewInTheKernel: a client that reads gets its refusal next to many that do not.
func TestRefusedConnectionsAreFewInTheKernel(t *testing.T) {
	raw := listenHere(t)
	open := make(chan bool, 1)
	l := &Listener{Listener: late{raw, open}, Total: 1}
	serves, end := make(chan bool), make(chan bool)
	serveOn(t, l, func(http.ResponseWriter, *http.Request) { serves <- true; <-end })
	defer close(end)
	open <- true
	sends(t, raw, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	select {
	case <-serves:
	case <-time.After(patience.Of(t)):
		t.Fatal("a request is not served")
	}
	const many = 300
	silent(t, raw, many, "")
	close(open)
	until(t, raw, "300 are refused", func() bool { return l.endings(noTotal) == many })
	l.refused.mu.Lock()
	if l.refused.n != maxRefused {
		t.Errorf("%d refused connections are open, want %d", l.refused.n, maxRefused)
	}
	l.refused.mu.Unlock()
	_, from := sends(t, raw, "")
	resp, err := http.ReadResponse(from, nil)
	if err != nil {
		t.Fatalf("a client that reads gets no refusal: %v", err)
	}
	if got, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != http.StatusServiceUnavailable || len(got) == 0 {
		t.Errorf("a client that reads gets %d and %q: %v", resp.StatusCode, got, err)
	}
}

// TestStrangersLeaveNothingInTheKernel: those that fail to authenticate keep their place until they have
// read why, or give way.
func TestStrangersLeaveNothingInTheKernel(t *testing.T) {
	raw := listenHere(t)
	h := Authenticate(raw, &tls.Config{Certificates: []tls.Certificate{certificateOf(t)}, ClientAuth: tls.RequireAnyClientCert}, log.New(io.Discard, "", 0))
	accepted := make(chan bool)
	go func() {
		defer close(accepted)
		for c, err := h.Accept(); err == nil; c, err = h.Accept() {
			_ = c.Close()
		}
	}()
	defer func() { _ = h.Close(); <-accepted }()
	inside := func() int {
		h.strangers.mu.Lock()
		defer h.strangers.mu.Unlock()
		return h.strangers.n
	}
	silent(t, raw, maxStrangersPerAddress, "GET / HTTP/1.1\r\n\r\n")
	until(t, raw, "all have a place", func() bool { return inside() == maxStrangersPerAddress })
	silent(t, raw, 16, "GET / HTTP/1.1\r\n\r\n")
	c, err := tls.Dial("tcp", raw.Addr().String(), &tls.Config{InsecureSkipVerify: true})
	if err == nil {
		defer c.Close() //nolint:errcheck // a test's
		_ = c.SetDeadline(time.Now().Add(patience.Of(t)))
		_, err = c.Read(make([]byte, 1))
	}
	if failed := new(net.OpError); !errors.As(err, &failed) || failed.Op != "remote error" {
		t.Errorf("a client without a certificate gets %v, want why", err)
	}
	until(t, raw, "it has left", func() bool { return inside() <= maxStrangersPerAddress })
}
