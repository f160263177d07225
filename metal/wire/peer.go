package wire

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
)

// ErrStranger says that a process of another user is at the other end of a
// socket.
var ErrStranger = errors.New("a process of another user")

// OwnUser is l for the processes of this one's user alone: whoever else found a
// way to the socket is hung up on before a byte is read. Folder and socket keep
// them out already; this also holds where somebody opened those.
func OwnUser(l net.Listener) net.Listener { return ofUser{l, os.Geteuid()} }

// ofUser takes connections of one user.
type ofUser struct {
	net.Listener
	uid int
}

// Accept waits for the next connection of that user.
func (l ofUser) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if checkPeer(c, l.uid) == nil {
			return c, nil
		}
		_ = c.Close() // nothing was written, and nobody is owed a reason
	}
}

// checkPeer wants a process of that user at the other end, as the kernel says
// who it was when the socket was connected or listened on. What cannot be told
// is refused.
func checkPeer(c net.Conn, uid int) error {
	u, ok := c.(*net.UnixConn)
	if !ok {
		return fmt.Errorf("cannot determine the user at the other end of a %T", c)
	}
	user, _, err := peer(u)
	if err != nil {
		return fmt.Errorf("determine the user at the other end of the socket: %w", err)
	}
	if user != uid {
		return fmt.Errorf("%w (%d, want %d) is at the other end of the socket", ErrStranger, user, uid)
	}
	return nil
}

// Listener returns the process of this user that listens on the Unix socket at
// path, also if it is stopped or hangs: the kernel answers for it.
func Listener(ctx context.Context, path string) (pid int, err error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", path)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	if err := checkPeer(c, os.Geteuid()); err != nil {
		return 0, err
	}
	_, pid, err = peer(c.(*net.UnixConn)) // checkPeer refuses others
	if err != nil {
		return 0, fmt.Errorf("determine the process that listens on %s: %w", path, err)
	}
	return pid, nil
}
