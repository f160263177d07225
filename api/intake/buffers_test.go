package intake_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/api/intake"
)

// serveAt serves a handler on a Listener, and returns a connection to it with small
// buffers of its own.
func serveAt(t *testing.T, h http.HandlerFunc) *net.TCPConn {
	raw, err := intake.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	s := &http.Server{Handler: intake.Guard(h), ConnContext: intake.Context, BaseContext: func(net.Listener) context.Context { return ctx }}
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(&intake.Listener{Listener: raw, Total: 8}) }()
	t.Cleanup(func() {
		stop()
		if err := errors.Join(s.Close(), <-ended); !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
	c, err := net.Dial("tcp", raw.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	tcp := c.(*net.TCPConn)
	t.Cleanup(func() { _ = tcp.Close() })
	if err := errors.Join(tcp.SetReadBuffer(128<<10), tcp.SetWriteBuffer(256<<10)); err != nil {
		t.Fatal(err)
	}
	return tcp
}

// TestTheKernelHoldsLittleOfUnreadAnswers: a client that read fast stops. The kernel's buffers, which the
// memory of a container includes, hold little of its answers.
func TestTheKernelHoldsLittleOfUnreadAnswers(t *testing.T) {
	var written atomic.Int64
	c := serveAt(t, func(w http.ResponseWriter, _ *http.Request) {
		for {
			n, err := w.Write(make([]byte, 16<<10))
			if written.Add(int64(n)); err != nil {
				return
			}
		}
	})
	if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	read, err := io.CopyN(io.Discard, c, 64<<20)
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Second)
	if held := written.Load() - read; held > 512<<10 { // 256 KiB of it at the client
		t.Errorf("%d KiB are held of an answer that its client does not read", held>>10)
	}
}

// TestTheKernelHoldsLittleOfTheNextRequest: a client that sent a large body sends more while
// its request is served. The kernel's buffers hold little of that, and the next request is
// read as ever.
func TestTheKernelHoldsLittleOfTheNextRequest(t *testing.T) {
	const body = 16 << 20
	serving, end := make(chan struct{}), make(chan struct{})
	c := serveAt(t, func(w http.ResponseWriter, r *http.Request) {
		n, err := io.Copy(io.Discard, r.Body)
		intake.Arrived(r.Context())
		if err != nil || n != body {
			t.Errorf("%d bytes arrived (%v)", n, err)
		}
		serving <- struct{}{}
		<-end
		w.WriteHeader(http.StatusNoContent)
	})
	head := fmt.Sprintf("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n", body)
	if _, err := io.WriteString(c, head+strings.Repeat(" ", body)); err != nil {
		t.Fatal(err)
	}
	<-serving
	if err := c.SetWriteDeadline(time.Now().Add(time.Second)); err != nil {
		t.Fatal(err)
	}
	next := head + strings.Repeat(" ", body)
	n, err := io.WriteString(c, next)
	if !errors.Is(err, os.ErrDeadlineExceeded) || n > 704<<10 { // 512 KiB of it at the client
		t.Errorf("%d KiB are held of the next request while one is served (%v)", n>>10, err)
	}
	close(end)
	if err := c.SetWriteDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(c, next[n:]); err != nil {
		t.Fatal(err)
	}
	<-serving
}
