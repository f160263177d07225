package intake

import (
	"fmt"
	"net"
	"runtime"
	"time"
)

const (
	// maxHandshakeBytes are read of a connection that has not authenticated. A member of the
	// fleet sends about 3 KiB; the library accepts certificates of 256 KiB, and parses them
	// for 10 ms.
	maxHandshakeBytes = 32 << 10
	// unlimited is the rest of a connection whose limit was lifted.
	unlimited = -1
)

// errTooLong is returned for a handshake that is no member's.
var errTooLong = fmt.Errorf("the handshake is longer than %d bytes", maxHandshakeBytes)

// Computing bounds how many handshakes are computed at once. One takes a hundred times as long as to
// ask for it, and all that strangers ask for would wait in the same queue for a processor as the
// requests of others.
type Computing struct{ places chan struct{} }

// NewComputing leaves half of the processors to others.
func NewComputing() *Computing {
	return &Computing{make(chan struct{}, max(1, runtime.GOMAXPROCS(0)/2))}
}

// Limited is a connection of which at most 32 KiB are read before Lift is called.
type Limited struct {
	net.Conn
	left int

	computing *Computing // nil without a limit
	until     time.Time
	has       bool // one of its places
}

// Limit wraps a connection that has not authenticated.
func Limit(c net.Conn) *Limited { return &Limited{Conn: c, left: maxHandshakeBytes} }

// Compute waits for a place to compute the handshake, which has to end before a time. The connection
// has one whenever it does not wait for the client, until End or Lift is called. The error is that of
// a connection that was closed meanwhile.
func (l *Limited) Compute(at *Computing, until time.Time) error {
	l.ComputeAfterRead(at, until)
	return l.begin()
}

// ComputeAfterRead is Compute for a handshake that the client begins: it has a place from the first
// Read on.
func (l *Limited) ComputeAfterRead(at *Computing, until time.Time) {
	l.computing, l.until = at, until
}

func (l *Limited) begin() error {
	if l.computing == nil {
		return nil
	}
	l.computing.places <- struct{}{} // others have them for milliseconds
	l.has = true
	return l.Conn.SetDeadline(l.until)
}

// End gives the place of a handshake back.
func (l *Limited) End() {
	if l.has {
		<-l.computing.places
		l.has = false
	}
}

// Lift removes the limits, also that of Listen, once the client has authenticated. No Read may be in progress.
func (l *Limited) Lift() {
	l.End()
	l.left = unlimited
	c := l.Conn
	if s, ok := c.(*Stranger); ok {
		c = s.Conn
	}
	receives(c, bodyBytes)
}

// Read implements net.Conn.
func (l *Limited) Read(b []byte) (int, error) {
	if l.left == unlimited {
		return l.Conn.Read(b)
	}
	if l.left == 0 {
		return 0, errTooLong
	}
	l.End()
	n, err := l.Conn.Read(b[:min(len(b), l.left)])
	l.left -= n
	if err == nil {
		err = l.begin()
	}
	return n, err
}
