package intake

const (
	// sendBytes is the kernel's buffer for what a client has not read yet. Without a limit of
	// ours it grows to 4 MiB, which a container's memory limit counts.
	sendBytes = 64 << 10
	// servingBytes is the buffer for what a client sends while its request is served, when
	// nothing is read. Before the first request the kernel chooses the buffer, so that a
	// large body arrives fast; after it, it is receiveBytes. That is set before the end of the
	// response is sent: what does not fit is dropped, and a client sends it again after 0.2 s.
	servingBytes = 16 << 10
	receiveBytes = 128 << 10
)

// buffered is a connection whose buffers in the kernel can be set, as those of TCP. Linux
// takes twice the given size.
type buffered interface {
	SetReadBuffer(bytes int) error
	SetWriteBuffer(bytes int) error
}

// boundUnread bounds what the kernel holds of answers until the client reads them.
func (c *Conn) boundUnread() {
	if b, ok := c.Conn.(buffered); ok {
		_ = b.SetWriteBuffer(sendBytes) // it fails only if the connection is broken
	}
}

// receives bounds what the kernel holds of the client's bytes until they are read.
func (c *Conn) receives(bytes int) {
	if b, ok := c.Conn.(buffered); ok {
		_ = b.SetReadBuffer(bytes) // as above
	}
}
