package tunnel_test

import (
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/test/patience"
)

// silent opens a connection whose client sends no handshake, and acknowledges nothing from then on.
func (w *world) silent() {
	w.t.Helper()
	c, err := net.Dial("tcp", w.address)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = c.Close() })
	if err := agentapi.SayTunnel(c, "a"); err != nil {
		w.t.Fatal(err)
	}
	if _, err := agentapi.HearGateway(c); err != nil {
		w.t.Fatal(err)
	}
	raw, err := c.(syscall.Conn).SyscallConn()
	if err != nil {
		w.t.Fatal(err)
	}
	// The kernel drops segments that came over a router, as those of the loopback interface seem to.
	if failed := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MINTTL, 255) }); failed != nil || err != nil {
		w.t.Fatal(failed, err)
	}
	if _, err := io.WriteString(c, "no handshake, which fails\r\n"); err != nil {
		w.t.Fatal(err)
	}
}

// sockets counts the hub's connections that a program has and does not send any more, and those that no
// program has and whose end the kernel still sends.
func (w *world) sockets() (closing, orphans int) {
	w.t.Helper()
	all, err := os.ReadFile("/proc/net/tcp")
	if err != nil {
		w.t.Fatal(err)
	}
	_, port, err := net.SplitHostPort(w.address)
	if err != nil {
		w.t.Fatal(err)
	}
	for line := range strings.Lines(string(all)) {
		f := strings.Fields(line)
		var at int
		if _, err := fmt.Sscanf(f[1], "0100007F:%X", &at); err != nil || fmt.Sprint(at) != port || f[3] != "04" {
			continue
		}
		if f[9] == "0" {
			orphans++
		} else {
			closing++
		}
	}
	return closing, orphans
}

// TestAFailedHandshakeLeavesNothingInTheKernel: it would keep the connections for minutes, of any number of
// clients that do not acknowledge their end. They keep their places, of which they have half.
func TestAFailedHandshakeLeavesNothingInTheKernel(t *testing.T) {
	w := newWorld(t)
	const places, more = 512, 16
	for range places + more {
		w.silent()
	}
	closing, orphans := w.sockets()
	for began := time.Now(); closing != places || orphans > 0; time.Sleep(10 * time.Millisecond) {
		if time.Since(began) > patience.Of(t) {
			t.Fatalf("%d closed connections have a place, and the kernel has %d besides; want %d, and none", closing, orphans, places)
		}
		closing, orphans = w.sockets()
	}
}
