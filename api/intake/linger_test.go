//go:build linux

package intake

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/test/patience"
)

// shortSighted dials with a small buffer for what it does not read.
func shortSighted(t *testing.T, to string) *net.TCPConn {
	t.Helper()
	return shortSightedFrom(t, "127.0.0.1", to)
}

// shortSightedFrom is shortSighted from an address.
func shortSightedFrom(t *testing.T, from, to string) *net.TCPConn {
	t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}, Control: func(_, _ string, raw syscall.RawConn) (err error) {
		return raw.Control(func(fd uintptr) { err = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, 4096) })
	}}
	c, err := d.DialContext(t.Context(), "tcp", to)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c.(*net.TCPConn)
}

// serveOn serves on a listener until the test ends.
func serveOn(t *testing.T, l *Listener, respond http.HandlerFunc) {
	t.Helper()
	s := &http.Server{ConnContext: Context, Handler: Guard(respond)}
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(l) }()
	t.Cleanup(func() { _ = s.Close(); <-ended })
}

// TestAConnectionCountsUntilItsClientHasRead: the kernel would hold the end of a response for
// minutes after its connection was closed, for any number of clients that do not read.
func TestAConnectionCountsUntilItsClientHasRead(t *testing.T) {
	raw, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	const text = 32 << 10
	l := &Listener{Listener: raw, Total: 3}
	serveOn(t, l, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Connection", "close")
		_, _ = w.Write(make([]byte, text))
	})
	ask := func() *net.TCPConn {
		c := shortSighted(t, raw.Addr().String())
		fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
		return c
	}
	ask()
	ask()
	for began := time.Now(); closing(l) < 2; time.Sleep(time.Millisecond) {
		if time.Since(began) > patience.Of(t) {
			t.Fatalf("%d of 2 closed connections have a place although their clients have not read", closing(l))
		}
	}
	for range 4 { // the third has a place, and the others take those of the clients that do not read
		if got, err := io.ReadAll(ask()); err != nil || len(got) < text || !strings.HasPrefix(string(got), "HTTP/1.1 200") {
			t.Errorf("a client gets %d bytes: %v", len(got), err)
		}
	}
	for began := time.Now(); l.Count() > 0; time.Sleep(time.Millisecond) {
		if time.Since(began) > patience.Of(t) {
			t.Fatalf("%d connections never end", l.Count())
		}
	}
}

// TestClientsThatDoNotReadEndNoResponseOfAnotherAddress: with more connections that linger than
// there may be, those of the address with the most give way.
func TestClientsThatDoNotReadEndNoResponseOfAnotherAddress(t *testing.T) {
	raw, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	const text = 32 << 10
	l := &Listener{Listener: raw}
	serveOn(t, l, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Connection", "close")
		_, _ = w.Write(make([]byte, text))
	})
	ask := func(from string) *net.TCPConn {
		c := shortSightedFrom(t, from, raw.Addr().String())
		fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
		return c
	}
	await := func(what string, is func() bool) {
		t.Helper()
		for began := time.Now(); !is(); time.Sleep(time.Millisecond) {
			if time.Since(began) > patience.Of(t) {
				t.Fatalf("%s; %d connections linger", what, closing(l))
			}
		}
	}
	slow := ask("127.0.0.2")
	await("the connection of the slow client does not linger", func() bool { return closing(l) == 1 })
	for range maxLingering + 1 {
		ask("127.0.0.1")
	}
	await("no connection gave way", func() bool { return closing(l) == maxLingering && l.Count() == maxLingering })
	if got, err := io.ReadAll(slow); err != nil || len(got) < text {
		t.Errorf("the slow client gets %d bytes: %v", len(got), err)
	}
}

// TestShortResponsesThatNobodyReadsAreFew: the kernel holds a response that fits into its buffer, and
// the connection waits for the next request. A client that reads slowly keeps its own.
func TestShortResponsesThatNobodyReadsAreFew(t *testing.T) {
	raw, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := &Listener{Listener: raw, Unread: 2}
	serveOn(t, l, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(make([]byte, 48<<10))
	})
	ask := func() *net.TCPConn {
		c := shortSighted(t, raw.Addr().String())
		fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
		return c
	}
	await := func(what string, is func() bool) {
		t.Helper()
		for began := time.Now(); !is(); time.Sleep(time.Millisecond) {
			if time.Since(began) > patience.Of(t) {
				t.Fatalf("%s: %d connections, %d awaited", what, l.Count(), l.writing.Load())
			}
		}
	}
	for range 8 {
		ask()
	}
	await("clients that read nothing keep their connections", func() bool { return l.Count() == 2 })
	reads := ask()
	if _, err := io.CopyN(io.Discard, reads, 48<<10); err != nil {
		t.Errorf("one that reads: %v", err)
	}
	await("one that has read is awaited", func() bool { return l.Count() == 3 && l.writing.Load() == 2 })
}

func closing(l *Listener) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, a := range l.addresses {
		n += a.closing.Len()
	}
	return n
}

// TestAnInterruptedHeadLeavesNothingInTheKernel: its connection may have responses that its client has not
// read, and the kernel would hold them for minutes, of any number of such connections.
func TestAnInterruptedHeadLeavesNothingInTheKernel(t *testing.T) {
	raw, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := &Listener{Listener: raw, HeadBytes: 64 << 10, Bodies: &Bodies{Max: 128 << 10, Keyed: true}}
	serveOn(t, l, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, 32<<10)) })
	var all []*net.TCPConn
	for range 8 {
		c := shortSighted(t, raw.Addr().String())
		fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
		all = append(all, c)
	}
	for _, c := range all { // no end of a second head
		fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: x\r\nA: "+strings.Repeat("a", 30<<10))
	}
	for began := time.Now(); l.Count() > 4; time.Sleep(time.Millisecond) {
		if time.Since(began) > patience.Of(t) {
			t.Fatalf("%d heads of 30 KiB have room in 128", l.Count())
		}
	}
	lost := 0
	for _, c := range all {
		_ = c.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
		switch n, err := io.Copy(io.Discard, c); {
		case err == nil && n > 0 && n < 32<<10:
			t.Errorf("an interrupted connection delivers %d bytes afterwards", n)
		case err == nil, errors.Is(err, syscall.ECONNRESET): // nil: the client had received nothing yet, or all
			lost++
		}
	}
	if lost < 4 {
		t.Errorf("%d of 8 connections have ended", lost)
	}
}
