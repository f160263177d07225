package intake_test

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"

	"metalfleet.dev/metalfleet/api/intake"
)

// received is the size of a connection's receive buffer in the kernel.
func received(t *testing.T, c net.Conn) (size int) {
	t.Helper()
	raw, err := c.(syscall.Conn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if failed := raw.Control(func(fd uintptr) { size, err = syscall.GetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF) }); failed != nil || err != nil {
		t.Fatal(failed, err)
	}
	return size
}

// given passes connections on, and to a test.
type given struct {
	net.Listener
	to chan net.Conn
}

func (g given) Accept() (net.Conn, error) {
	c, err := g.Listener.Accept()
	if err == nil {
		g.to <- c
	}
	return c, err
}

// TestTheKernelKeepsLittleForStrangers: bytes after a gap stay there until the connection ends, and no
// program sees them. Only the body of a client that may send one has a larger buffer, while it is read.
func TestTheKernelKeepsLittleForStrangers(t *testing.T) {
	const small, body = 32 << 10, 1 << 20
	raw, err := intake.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := given{raw, make(chan net.Conn, 1)}
	reads, arrives := make(chan bool), make(chan bool)
	s := &http.Server{ConnContext: intake.Context, Handler: intake.Guard(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.Body == http.NoBody {
			return
		}
		intake.Arriving(r.Context(), r.ContentLength)
		reads <- true
		<-reads
		_, _ = io.Copy(io.Discard, r.Body)
		intake.Arrived(r.Context())
		arrives <- true
		<-arrives
	}))}
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(&intake.Listener{Listener: l, Total: 8}) }()
	t.Cleanup(func() { _ = s.Close(); <-ended })
	client, err := net.Dial("tcp", raw.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close() //nolint:errcheck // a test's
	c, from := <-l.to, bufio.NewReader(client)
	size := func(when string, most int) {
		t.Helper()
		if got := received(t, c); got > most {
			t.Errorf("the buffer has %d KiB %s, want at most %d", got>>10, when, most>>10)
		}
	}
	size("before a request", small)
	for range 2 {
		if _, err := io.WriteString(client, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		if _, err := http.ReadResponse(from, nil); err != nil {
			t.Fatal(err)
		}
		size("after a response", small)
		go func() {
			_, _ = io.WriteString(client, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1048576\r\n\r\n"+strings.Repeat(" ", body))
		}()
		<-reads
		if got := received(t, c); got <= small {
			t.Errorf("the buffer has %d KiB while a body is read", got>>10)
		}
		size("while a body is read", intake.BodyBuffer)
		reads <- true
		<-arrives
		size("while a request is served", small)
		arrives <- true
		if _, err := http.ReadResponse(from, nil); err != nil {
			t.Fatal(err)
		}
		size("after a body", small)
	}
}

// TestTheKernelKeepsMoreForMembers: a connection has a larger buffer once it has authenticated.
func TestTheKernelKeepsMoreForMembers(t *testing.T) {
	l, err := intake.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close() //nolint:errcheck // a test's
	client, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close() //nolint:errcheck // a test's
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close() //nolint:errcheck // a test's
	limited := intake.Limit(c)
	if got := received(t, c); got > 32<<10 {
		t.Errorf("a stranger's buffer has %d KiB", got>>10)
	}
	if limited.Lift(); received(t, c) != intake.BodyBuffer {
		t.Errorf("a member's buffer has %d KiB", received(t, c)>>10)
	}
}

// TestBodiesCountTheKernelsBuffer: that of a large body, until it is complete.
func TestBodiesCountTheKernelsBuffer(t *testing.T) {
	for name, tc := range map[string]struct {
		length, promised int64
		want             bool
	}{"small": {length: 1000, promised: 1000}, "of unknown length": {length: 1000, promised: -1, want: true}, "large": {length: 100 << 10, promised: 100 << 10, want: true}} {
		b := &intake.Bodies{Max: 1 << 20, ReceiveBuffer: intake.BodyBuffer}
		counted := false
		from := readerFunc(func(p []byte) (int, error) {
			counted = counted || b.Held() >= intake.BodyBuffer
			return len(p), nil
		})
		_, kept, err := b.Read(io.LimitReader(from, tc.length), "tenant", tc.promised, 1<<20, func() {})
		if err != nil {
			t.Fatal(err)
		}
		if counted != tc.want {
			t.Errorf("%s: counted is %t", name, counted)
		}
		if held := b.Held(); held > tc.length+16<<10 {
			t.Errorf("%s: %d bytes are counted after it", name, held)
		}
		if kept.Release(); b.Held() != 0 {
			t.Errorf("%s: %d bytes are counted at the end", name, b.Held())
		}
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }
