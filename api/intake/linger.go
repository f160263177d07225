package intake

import "time"

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

// linger keeps the place of a closed connection while the kernel holds unread bytes of its
// response: otherwise it would hold them for minutes, of any number of connections whose clients
// do not read. It returns false for one that has none, or that is given up.
func (c *Conn) linger() bool {
	if c.aborted.Load() || unsent(c.Conn) == 0 {
		return false
	}
	tcp, ok := c.Conn.(closer)
	if !ok || tcp.CloseWrite() != nil || c.Conn.SetDeadline(time.Unix(1, 0)) != nil { // ends what reads or writes
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
	c.awaitSent(time.Now().Add(lingerTime), lingerCheck)
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

// awaitSent ends a connection once its client has everything, or at a time.
func (c *Conn) awaitSent(until time.Time, pause time.Duration) {
	time.AfterFunc(pause, func() {
		switch {
		case unsent(c.Conn) == 0:
			_ = c.end()
		case !time.Now().Before(until):
			c.abort()
		default:
			c.awaitSent(until, min(2*pause, stallTime))
		}
	})
}

// abort closes a connection at once; what its client has not read is lost.
func (c *Conn) abort() {
	c.aborted.Store(true)
	c.lose()
	_ = c.Close()
	_ = c.end() // if it was closed before
}

// lose has the kernel keep nothing of a connection that is closed next.
func (c *Conn) lose() {
	if tcp, ok := c.Conn.(closer); ok && unsent(c.Conn) > 0 {
		_ = tcp.SetLinger(0) // it fails only if the connection is broken
	}
}
