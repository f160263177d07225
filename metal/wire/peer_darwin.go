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
	var cred *unix.Xucred
	var noUser, noProcess error
	err = raw.Control(func(fd uintptr) {
		cred, noUser = unix.GetsockoptXucred(int(fd), unix.SOL_LOCAL, unix.LOCAL_PEERCRED)
		pid, noProcess = unix.GetsockoptInt(int(fd), unix.SOL_LOCAL, unix.LOCAL_PEERPID)
	})
	if err = errors.Join(err, noUser, noProcess); err != nil {
		return 0, 0, err
	}
	return int(cred.Uid), pid, nil
}
