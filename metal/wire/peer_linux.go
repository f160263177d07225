package wire

import (
	"errors"
	"net"

	"golang.org/x/sys/unix"
)

// peerUser is the effective user of the process at the other end.
func peerUser(c *net.UnixConn) (uid int, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	var cred *unix.Ucred
	var asked error
	err = raw.Control(func(fd uintptr) { cred, asked = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err = errors.Join(err, asked); err != nil {
		return 0, err
	}
	return int(cred.Uid), nil
}
