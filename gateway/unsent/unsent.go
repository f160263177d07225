// Package unsent bounds the memory that the kernel takes for what is sent to a Mac, until the Mac has
// acknowledged it.
//
// It owns the connections' send buffers, and looks at what they really take: no length bounds that, because
// a Mac chooses how long the segments are in which it receives and acknowledges, and one of a few
// bytes takes a thousand. It refuses what is much more than the buffer, and leaves nothing in the kernel of a
// connection that was closed.
//
// Start reading at Bound.
package unsent

import (
	"errors"
	"net"
	"sync/atomic"
	"time"

	"metalfleet.dev/metalfleet/api/intake"
)

const (
	// sendBytes is the send buffer, of which Linux makes twice as many bytes; without a size of ours it
	// grows to 4 MiB. At 20 ms to a Mac that is about 20 MB/s.
	sendBytes = 256 << 10
	// maxBytes may be taken by one connection. A full buffer takes 0.6 MiB, and 0.8 if all of it is lost.
	maxBytes = 4 * sendBytes
	// restBytes may be left to the kernel when a connection is closed: the end of TLS and a few frames.
	restBytes = 4 << 10
	// every is how often the memory of a connection is looked at while it is more than restBytes.
	every = 250 * time.Millisecond
)

// errHeavy is why a connection was closed.
var errHeavy = errors.New("the Mac acknowledges so little at a time that this takes too much memory; if it was not compromised, look at the network between")

// conn is a connection to a Mac.
type conn struct {
	*net.TCPConn
	most    int64
	looking atomic.Bool
	heavy   atomic.Bool
}

// Bound returns a connection that ends when it takes too much. One that is not of TCP is returned as it is.
func Bound(c net.Conn) net.Conn {
	if tcp, ok := c.(*net.TCPConn); ok {
		return bound(tcp, maxBytes)
	}
	return c
}

func bound(c *net.TCPConn, most int64) *conn {
	_ = c.SetWriteBuffer(sendBytes) // it fails only if the connection is broken
	return &conn{TCPConn: c, most: most}
}

// Write implements net.Conn.
func (c *conn) Write(p []byte) (int, error) {
	c.look() // also if the write waits
	defer c.look()
	return c.TCPConn.Write(p)
}

// look looks at the memory soon.
func (c *conn) look() {
	if c.looking.CompareAndSwap(false, true) {
		time.AfterFunc(every, c.check)
	}
}

// check ends a connection that takes too much, and looks again while one takes more than restBytes.
func (c *conn) check() {
	c.looking.Store(false)
	switch _, n := intake.Memory(c.TCPConn); {
	case n > c.most:
		c.heavy.Store(true)
		_ = c.Close()
	case n > restBytes:
		c.look()
	}
}

// Read implements net.Conn.
func (c *conn) Read(p []byte) (int, error) {
	n, err := c.TCPConn.Read(p)
	if err != nil && c.heavy.Load() {
		err = errHeavy
	}
	return n, err
}

// Close implements net.Conn. What the Mac has not acknowledged is lost: the kernel would keep it for
// minutes, and no limit of connections counts it.
func (c *conn) Close() error {
	if _, n := intake.Memory(c.TCPConn); n > restBytes {
		_ = c.SetLinger(0) // as above
	}
	return c.TCPConn.Close()
}
