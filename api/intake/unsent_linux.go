package intake

import (
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// unsent returns how many bytes the kernel holds that the other end has not acknowledged.
func unsent(c net.Conn) (n int) {
	of, ok := c.(syscall.Conn)
	if !ok {
		return 0
	}
	raw, err := of.SyscallConn()
	if err != nil {
		return 0
	}
	_ = raw.Control(func(fd uintptr) { n, _ = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ) }) // 0 of a closed one
	return n
}
