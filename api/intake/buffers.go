package intake

import (
	"context"
	"errors"
	"net"
	"syscall"
)

const (
	// sendBytes is the kernel's buffer for what a client has not read yet. Without a limit of
	// ours it grows to 4 MiB, which a container's memory limit counts.
	sendBytes = 64 << 10
	// receiveBytes is the buffer for what a client has sent until it is read. The kernel also
	// keeps there what follows a gap, which no program sees: single bytes take 832 each.
	receiveBytes = 16 << 10
	// bodyBytes is that buffer while a large body is read. No larger one is of use: the windows of a
	// connection that began with receiveBytes have no scale, and are at most this.
	bodyBytes = 64 << 10
	// segmentBytes is the longest segment: on the loopback interface they have 64 KiB otherwise, and
	// Linux never opens a window again that is shorter than one.
	segmentBytes = 8 << 10
	// BodyBuffer is the memory of bodyBytes: Linux takes twice the given size.
	BodyBuffer = 2 * bodyBytes
)

// buffered is a connection whose buffers in the kernel can be set, as those of TCP.
type buffered interface {
	SetReadBuffer(bytes int) error
	SetWriteBuffer(bytes int) error
}

// Listen listens for clients that may be strangers. Of each connection the kernel keeps little that
// has not been read, from the first byte on: a size that is set later would not hold for bytes that
// are there, and the client would send again after 0.2 s what no longer fits.
func Listen(address string) (net.Listener, error) {
	config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var failed error
		err := c.Control(func(fd uintptr) {
			failed = errors.Join(syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, receiveBytes),
				syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, syscall.TCP_MAXSEG, segmentBytes))
		})
		return errors.Join(err, failed)
	}}
	config.SetMultipathTCP(false) // whose memory and buffers the kernel does not report
	return config.Listen(context.Background(), "tcp", address)
}

// receives sets how much the kernel holds of the client's bytes until they are read.
func receives(c net.Conn, bytes int) {
	if b, ok := c.(buffered); ok {
		_ = b.SetReadBuffer(bytes) // it fails only if the connection is broken
		widen(c, bytes)
	}
}

// boundUnread bounds what the kernel holds of answers until the client reads them.
func (c *Conn) boundUnread() {
	if b, ok := c.Conn.(buffered); ok {
		_ = b.SetWriteBuffer(sendBytes) // as above
	}
}

// Arriving prepares the connection of a context for the body of its request, which has a length, or a
// negative one if that is unknown: a large one arrives faster. Call it for clients that may send one;
// Bodies with a ReceiveBuffer count the memory.
func Arriving(ctx context.Context, length int64) {
	if c, ok := ctx.Value(connKey{}).(*Conn); ok && large(length) && !c.raised.Swap(true) {
		receives(c.Conn, bodyBytes)
	}
}

// lower ends what Arriving began.
func (c *Conn) lower() {
	if c.raised.Swap(false) {
		receives(c.Conn, receiveBytes)
	}
}

// large reports whether the body of a length has a larger buffer in the kernel.
func large(length int64) bool { return length < 0 || length > smallBytes }
