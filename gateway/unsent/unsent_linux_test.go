package unsent

import (
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/api/intake"
	"metalfleet.dev/metalfleet/test/patience"
)

// pair returns both ends of a connection, of which the other one receives little that is not read.
func pair(t *testing.T) (own, other *net.TCPConn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	dialed, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	accepted, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	own, other = dialed.(*net.TCPConn), accepted.(*net.TCPConn)
	t.Cleanup(func() { _, _ = own.Close(), other.Close() })
	if err := other.SetReadBuffer(4 << 10); err != nil {
		t.Fatal(err)
	}
	return own, other
}

func unsentOf(c net.Conn) int64 {
	_, n := intake.Memory(c)
	return n
}

// fill writes until the kernel takes no more.
func fill(t *testing.T, c *conn) {
	t.Helper()
	for wrote := 1; wrote > 0 || unsentOf(c.TCPConn) < sendBytes; {
		if err := c.SetWriteDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		var err error
		if wrote, err = c.Write(make([]byte, 64<<10)); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatal(err)
		}
	}
}

// TestAMacThatReadsNothingTakesLittleMemory: a full buffer is no reason to end the connection.
func TestAMacThatReadsNothingTakesLittleMemory(t *testing.T) {
	own, _ := pair(t)
	c := Bound(own).(*conn)
	fill(t, c)
	if n := unsentOf(own); n > 3*sendBytes {
		t.Errorf("the kernel takes %d bytes", n)
	}
	if c.check(); c.heavy.Load() {
		t.Error("the connection ended")
	}
}

// TestAConnectionThatTakesTooMuchEnds, also while nothing more is written.
func TestAConnectionThatTakesTooMuchEnds(t *testing.T) {
	own, _ := pair(t)
	c := bound(own, sendBytes) // which a full buffer exceeds, as one in short segments does the usual limit
	go func() { _, _ = c.Write(make([]byte, 4<<20)) }()
	if err := c.SetReadDeadline(time.Now().Add(patience.Of(t))); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, errHeavy) {
		t.Errorf("the connection ended with %v", err)
	}
}

// TestTheKernelKeepsNothingOfAClosedConnection, which would stay for minutes if its Mac reads nothing.
func TestTheKernelKeepsNothingOfAClosedConnection(t *testing.T) {
	for name, tc := range map[string]struct {
		write func(*conn)
		want  error
	}{
		"with much that is not read": {func(c *conn) { fill(t, c) }, syscall.ECONNRESET},
		"with a few frames":          {func(c *conn) { _, _ = c.Write([]byte("bye")) }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			own, other := pair(t)
			c := Bound(own).(*conn)
			tc.write(c)
			if err := c.Close(); err != nil {
				t.Fatal(err)
			}
			if _, err := io.Copy(io.Discard, other); !errors.Is(err, tc.want) {
				t.Errorf("the other end reads until %v, want %v", err, tc.want)
			}
		})
	}
}
