package wire

import (
	"errors"
	"net"

	"golang.org/x/sys/unix"
)

// peer is the effective user and the process at the other end; on the side that
// dialled, the process that listens.
func peer(c *net.UnixConn) (uid, pid int, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, 0, err
	}
	var cred *unix.Ucred
	var asked error
	err = raw.Control(func(fd uintptr) { cred, asked = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err = errors.Join(err, asked); err != nil {
		return 0, 0, err
	}
	return int(cred.Uid), int(cred.Pid), nil
}
