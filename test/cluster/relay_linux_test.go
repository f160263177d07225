package cluster

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"metalfleet.dev/metalfleet/test/patience"
)

// network is a namespace that lasts as long as the test: a thread stays in it.
func network(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("a network of its own needs root")
	}
	over := make(chan struct{})
	type made struct {
		path string
		err  error
	}
	ready := make(chan made)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			err = exec.Command("ip", "link", "set", "lo", "up").Run()
		}
		ready <- made{fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid()), err}
		<-over
	}()
	t.Cleanup(func() { close(over) })
	m := <-ready
	if m.err != nil {
		t.Fatal(m.err)
	}
	return m.path
}

// greet answers every connection of a network's loopback with a word, and then
// waits for the other side's end.
func greet(t *testing.T, network string) string {
	t.Helper()
	var l net.Listener
	if err := within(network, func() (err error) {
		l, err = net.Listen("tcp", "127.0.0.1:0")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_, _ = io.WriteString(c, "hello")
				_, _ = io.Copy(io.Discard, c)
			}()
		}
	}()
	return l.Addr().String()
}

func TestARelayReachesALoopbackFromItsOwnNetworkAlone(t *testing.T) {
	network := network(t)
	r, err := relay(network, "127.0.0.1:0", greet(t, network))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	address := r.listener.Addr().String()
	if c, err := net.DialTimeout("tcp", address, time.Second); err == nil {
		c.Close()
		t.Fatal("the relay listens outside of its network")
	}
	var c net.Conn
	if err := within(network, func() (err error) {
		c, err = net.DialTimeout("tcp", address, patience.Of(t))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(patience.Of(t))); err != nil {
		t.Fatal(err)
	}
	word := make([]byte, 5)
	if _, err := io.ReadFull(c, word); err != nil || string(word) != "hello" {
		t.Fatalf("%q, %v", word, err)
	}
	if err := r.Close(); err != nil { // which waits for all that goes through
		t.Fatal(err)
	}
	if n, err := c.Read(word); err == nil {
		t.Errorf("after its end the relay sent %d bytes", n)
	}
	// The thread that went in came back, or is gone: we are where we were.
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if c, err := net.DialTimeout("tcp", l.Addr().String(), patience.Of(t)); err != nil {
		t.Error(err)
	} else {
		c.Close()
	}
}
