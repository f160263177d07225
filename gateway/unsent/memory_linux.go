package unsent

import (
	"net"

	"golang.org/x/sys/unix"
)

// memory returns how many bytes the kernel takes for what is sent on a connection.
func memory(c *net.TCPConn) (n int64) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0
	}
	_ = raw.Control(func(fd uintptr) {
		// SO_MEMINFO has 32-bit numbers, of which unix.ICMPv6Filter has eight.
		if info, err := unix.GetsockoptICMPv6Filter(int(fd), unix.SOL_SOCKET, unix.SO_MEMINFO); err == nil {
			n = int64(info.Data[unix.SK_MEMINFO_WMEM_QUEUED])
		}
	})
	return n
}
