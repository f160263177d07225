package intake

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
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

// readsNothing opens a connection from an address of this machine whose client asks for something and reads none of it.
func readsNothing(t *testing.T, to net.Listener, from, path string) {
	t.Helper()
	small := func(_, _ string, raw syscall.RawConn) (err error) {
		failed := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, 4<<10) })
		return errors.Join(failed, err)
	}
	c, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}, Control: small}).Dial("tcp", to.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if _, err := io.WriteString(c, "GET "+path+" HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
}

// TestTheKernelsMemoryIsBounded: of connections beyond it, those of clients without a key end, and of these
// the ones of the address with the most.
func TestTheKernelsMemoryIsBounded(t *testing.T) {
	raw := listenHere(t)
	l := &Listener{Listener: raw, Bodies: &Bodies{Max: 1 << 20, Keyed: true}}
	ended := make(chan string, 16)
	serveOn(t, l, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/known" {
			Know(r.Context())
		}
		_, _ = w.Write(make([]byte, 4<<20)) // until the client is cut off
		ended <- AddressOf(r.RemoteAddr) + r.URL.Path
	})
	each := func() int64 { all, total := l.weights(); return total / max(1, int64(len(all))) }
	readsNothing(t, raw, "127.0.0.1", "/known")
	readsNothing(t, raw, "127.0.0.1", "/known")
	for range 4 {
		readsNothing(t, raw, "127.0.0.2", "/")
	}
	readsNothing(t, raw, "127.0.0.3", "/")
	const full = 2 * sendBytes // Linux takes twice the given size
	for began := time.Now(); each() < full*19/20; time.Sleep(time.Millisecond) {
		if time.Since(began) > patience.Of(t) {
			t.Fatalf("the kernel uses %d bytes for a client that reads nothing, want %d", each(), full)
		}
	}
	l.Kernel = full * 9 / 2 // four and a half of seven
	l.weigh()
	for range 3 {
		select {
		case got := <-ended:
			if got != "127.0.0.2/" {
				t.Errorf("the connection of %s is cut off", got)
			}
		case <-time.After(patience.Of(t)):
			t.Fatal("no connection is cut off")
		}
	}
	if _, now := l.weights(); now > l.Kernel || l.endings(heavy) != 3 {
		t.Errorf("the kernel uses %d bytes of %d, %d connections were cut off, want 3", now, l.Kernel, l.endings(heavy))
	}
	select {
	case got := <-ended:
		t.Errorf("the connection of %s is cut off too", got)
	default:
	}
}

// TestConnectionsAreOfPlainTCP: what the kernel uses for the parts of one of Multipath TCP is not known.
func TestConnectionsAreOfPlainTCP(t *testing.T) {
	raw, err := listenHere(t).(syscall.Conn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	protocol := 0
	if failed := raw.Control(func(fd uintptr) { protocol, err = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PROTOCOL) }); failed != nil || err != nil || protocol != unix.IPPROTO_TCP {
		t.Errorf("the protocol is %d, want %d (%v, %v)", protocol, unix.IPPROTO_TCP, failed, err)
	}
}

// TestWhatFollowsABodyIsWeighed: the kernel keeps what follows a large body, or a gap after it.
func TestWhatFollowsABodyIsWeighed(t *testing.T) {
	raw := listenHere(t)
	l := &Listener{Listener: raw, Kernel: 2 * receiveBytes}
	cut := make(chan bool)
	serveOn(t, l, func(_ http.ResponseWriter, r *http.Request) {
		Arriving(r.Context(), r.ContentLength)
		_, _ = io.Copy(io.Discard, r.Body)
		fills(t, r)
		Arrived(r.Context())
		<-r.Context().Done()
		cut <- true
	})
	sends(t, raw, posts(2))
	select {
	case <-cut:
	case <-time.After(patience.Of(t)):
		t.Error("a connection stays for which the kernel uses more memory than it may")
	}
}

// TestARefusalArrivesDuringAnUpload: the kernel holds more of that then.
func TestARefusalArrivesDuringAnUpload(t *testing.T) {
	raw := listenHere(t)
	serveOn(t, &Listener{Listener: raw}, func(w http.ResponseWriter, r *http.Request) {
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
