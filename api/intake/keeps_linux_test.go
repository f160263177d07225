package intake

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"metalfleet.dev/metalfleet/test/patience"
)

// fills waits until the kernel holds more of a request's connection than a small buffer does.
func fills(t *testing.T, r *http.Request) {
	t.Helper()
	raw, err := r.Context().Value(connKey{}).(*Conn).Conn.(syscall.Conn).SyscallConn()
	if err != nil {
		t.Error(err)
		return
	}
	for n, began := 0, time.Now(); n <= 2*receiveBytes; time.Sleep(time.Millisecond) {
		if err := raw.Control(func(fd uintptr) { n, _ = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MEMINFO) }); err != nil || time.Since(began) > patience.Of(t) {
			t.Errorf("the kernel holds %d bytes: %v", n, err)
			return
		}
	}
}

// posts are requests with a large body that a client sends at once: to /more, and one to /last.
func posts(n int) string {
	const length = 200 << 10
	one := fmt.Sprintf("POST /more HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", length, strings.Repeat(" ", length))
	return strings.Repeat(one, n-1) + strings.Replace(one, "more", "last", 1)
}

// listenHere listens as the programs do.
func listenHere(t *testing.T) net.Listener {
	t.Helper()
	l, err := Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// sends opens a connection whose client sends a text.
func sends(t *testing.T, to net.Listener, text string) (net.Conn, *bufio.Reader) {
	t.Helper()
	c, err := net.Dial("tcp", to.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	go func() { _, _ = io.WriteString(c, text) }()
	return c, bufio.NewReader(c)
}

// TestWhatTheKernelHoldsAfterABodyCounts: it keeps what follows a large body, or a gap after it, until
// the connection ends or its next request is read.
func TestWhatTheKernelHoldsAfterABodyCounts(t *testing.T) {
	raw := listenHere(t)
	b := &Bodies{Max: 1 << 20, ReceiveBuffer: BodyBuffer}
	l := &Listener{Listener: raw, Bodies: b}
	counted, ends := make(chan int64, 1), make(chan bool)
	serveOn(t, l, func(_ http.ResponseWriter, r *http.Request) {
		Arriving(r.Context(), r.ContentLength)
		_, _ = io.Copy(io.Discard, r.Body)
		if r.URL.Path == "/more" {
			fills(t, r)
		}
		Arrived(r.Context())
		counted <- b.Held()
		select {
		case <-r.Context().Done():
			ends <- true
		case ends <- false:
		}
	})
	_, from := sends(t, raw, posts(3))
	for i, want := range []int64{BodyBuffer, BodyBuffer} {
		if n := <-counted; n < want {
			t.Errorf("%d bytes count while request %d is served, want %d", n, i, want)
		}
		if <-ends {
			t.Fatalf("request %d is ended although there is room", i)
		}
		if resp, err := http.ReadResponse(from, nil); err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("response %d: %v", i, err)
		}
	}
	<-counted
	<-ends
	if resp, err := http.ReadResponse(from, nil); err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("the last response: %v", err)
	}
	for began := time.Now(); b.Held() >= BodyBuffer; time.Sleep(time.Millisecond) {
		if time.Since(began) > patience.Of(t) {
			t.Fatalf("%d bytes count although the kernel holds little", b.Held())
		}
	}
	other, err := b.Hold("another", 700<<10)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Release()
	sends(t, raw, posts(2))
	<-counted
	select {
	case aborted := <-ends:
		if !aborted {
			t.Error("a connection stays although there is no memory for what the kernel holds of it")
		}
	case <-time.After(patience.Of(t)):
		t.Error("a request never ends")
	}
}

// TestARefusalArrivesDuringAnUpload: also if there is no memory for what the kernel holds of that.
func TestARefusalArrivesDuringAnUpload(t *testing.T) {
	raw := listenHere(t)
	serveOn(t, &Listener{Listener: raw, Bodies: &Bodies{Max: 1}}, func(w http.ResponseWriter, r *http.Request) {
		Arriving(r.Context(), r.ContentLength)
		fills(t, r)
		w.Header().Set("Connection", "close")
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = io.WriteString(w, "crowded")
	})
	_, from := sends(t, raw, posts(10))
	resp, err := http.ReadResponse(from, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(resp.Body); err != nil || string(got) != "crowded" {
		t.Errorf("the client reads %q: %v", got, err)
	}
}
