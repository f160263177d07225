package intake

import (
	"net"
	"time"
)

const (
	// lingerTime is how long a closed connection may take to deliver the end of its response.
	// maxLingering bounds what the kernel holds meanwhile.
	lingerTime = 10 * time.Second
	// lingerCheck is the first pause before it is looked at again; each is twice as long.
	lingerCheck = 5 * time.Millisecond
	// maxLingering connections are closed and not delivered.
	maxLingering = 512
)

// closer is a connection that can be closed in parts, as those of TCP.
type closer interface {
	CloseWrite() error
	SetLinger(seconds int) error
}

// part ends a connection but for what its client has yet to acknowledge: the end of a response, or that it
// is closed. Until then the kernel keeps the connection for minutes, with all that it received after a
// gap. It returns false if the client has everything, so that the connection may be closed.
func part(c net.Conn) bool {
	tcp, ok := c.(closer)
	return ok && tcp.CloseWrite() == nil && unsent(c) > 0 && c.SetDeadline(time.Unix(1, 0)) == nil // ends what reads or writes
}

// linger keeps the place of a closed connection while the kernel holds something for its client: otherwise
// it would hold that of any number of connections whose clients do not read. It returns false for one that
// has nothing, or that is given up.
func (c *Conn) linger() bool {
	if c.aborted.Load() || !part(c.Conn) {
		return false
	}
	l := c.listener
	l.mu.Lock()
	c.disown()
	c.move(&c.address.closing)
	other := l.undelivered()
	l.mu.Unlock()
	if other != nil {
		other.abort()
	}
	awaitSent(c.Conn, time.Now().Add(lingerTime), lingerCheck, c.abort)
	return true
}

// undelivered removes a connection if too many linger, and returns it to be ended: of the address with
// the most, the one that has for longest. The lock is held.
func (l *Listener) undelivered() *Conn {
	if l.linger <= maxLingering {
		return nil
	}
	out := l.lingering.first().closing.Front().Value.(*Conn)
	l.leave(out)
	return out
}

// awaitSent calls end once the client of a connection has everything, or at a time.
func awaitSent(c net.Conn, until time.Time, pause time.Duration, end func()) {
	time.AfterFunc(pause, func() {
		if unsent(c) == 0 || !time.Now().Before(until) {
			end()
			return
		}
		awaitSent(c, until, min(2*pause, stallTime), end)
	})
}

// abort closes a connection at once; what its client has not read is lost.
func (c *Conn) abort() {
	c.aborted.Store(true)
	lose(c.Conn)
	_ = c.Close()
	_ = c.end() // if it was closed before
}

// lose has the kernel keep nothing of a connection that is closed next: it is reset, unless its client has
// everything and acknowledges the end at once.
func lose(c net.Conn) {
	if tcp, ok := c.(closer); ok && (unsent(c) > 0 || tcp.CloseWrite() != nil || unsent(c) > 0) {
		_ = tcp.SetLinger(0) // it fails only if the connection is broken
	}
}
