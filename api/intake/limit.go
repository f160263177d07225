package intake

import (
	"fmt"
	"net"
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

// Limited is a connection of which at most 32 KiB are read before Lift is called.
type Limited struct {
	net.Conn
	left int
}

// Limit wraps a connection that has not authenticated.
func Limit(c net.Conn) *Limited { return &Limited{Conn: c, left: maxHandshakeBytes} }

// Lift removes the limit, once the client has authenticated. No Read may be in progress.
func (l *Limited) Lift() { l.left = unlimited }

// Read implements net.Conn.
func (l *Limited) Read(b []byte) (int, error) {
	if l.left == unlimited {
		return l.Conn.Read(b)
	}
	if l.left == 0 {
		return 0, errTooLong
	}
	n, err := l.Conn.Read(b[:min(len(b), l.left)])
	l.left -= n
	return n, err
}
