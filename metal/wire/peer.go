package wire

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
)

// errStranger means that a process of another user is at the other end of a
// socket.
var errStranger = errors.New("a process of another user")

// OwnUser returns a listener that only accepts processes of this process's user
// and closes other connections before it reads a byte. The permissions of
// folder and socket keep them out already; this also holds if someone changed
// those.
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
		_ = c.Close() // nothing was written, and the stranger gets no reason
	}
}

// checkPeer checks that the process at the other end has this user id, as the
// kernel recorded it when the socket was connected or listened on. It refuses
// if the kernel does not report it.
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
		return fmt.Errorf("%w (%d, want %d) is at the other end of the socket", errStranger, user, uid)
	}
	return nil
}

// checkProcess checks that the process at the other end listens as the one whose id pid returns;
// nil allows any.
func checkProcess(c net.Conn, pid func() int) error {
	u, ok := c.(*net.UnixConn)
	if !ok || pid == nil {
		return nil // checkPeer refuses what is no Unix socket
	}
	_, got, err := peer(u)
	if err != nil {
		return fmt.Errorf("determine the process at the other end of the socket: %w", err)
	}
	if want := pid(); got != want {
		return fmt.Errorf("process %d is at the other end of the socket, want %d", got, want)
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
