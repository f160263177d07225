package intake

import (
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// widen lets the window of a connection be as large as its buffer, which a smaller one of its
// listener bounds.
func widen(c net.Conn, bytes int) {
	control(c, func(fd int) { _ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_WINDOW_CLAMP, bytes) })
}

// unsent returns how many bytes the kernel holds that the other end has not acknowledged. The end of a
// connection is one.
func unsent(c net.Conn) (n int) {
	control(c, func(fd int) {
		n, _ = unix.IoctlGetInt(fd, unix.SIOCOUTQ)
		if n > 0 {
			if info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO); err == nil && info.State == unix.BPF_TCP_CLOSE {
				n = 0 // the other end has reset it
			}
		}
	})
	return n
}

// Memory returns how many bytes the kernel uses for what the other end of a connection has sent and no program has
// read, and for what it has to acknowledge. They are several times the length of many short segments. Both are 0
// for a connection that is not of TCP, or on another system than Linux.
func Memory(c net.Conn) (received, unsent int64) {
	control(c, func(fd int) {
		// SO_MEMINFO yields 32-bit numbers, of which unix.ICMPv6Filter has eight.
		info, err := unix.GetsockoptICMPv6Filter(fd, unix.SOL_SOCKET, unix.SO_MEMINFO)
		if err != nil {
			return
		}
		for _, i := range []int{unix.SK_MEMINFO_RMEM_ALLOC, unix.SK_MEMINFO_FWD_ALLOC, unix.SK_MEMINFO_BACKLOG} {
			received += int64(int32(info.Data[i])) // what is reserved may be negative for a moment
		}
		unsent = int64(info.Data[unix.SK_MEMINFO_WMEM_QUEUED])
	})
	return received, unsent
}

// control calls f with the socket of a connection, unless that is closed.
func control(c net.Conn, f func(fd int)) {
	if of, ok := c.(syscall.Conn); ok {
		if raw, err := of.SyscallConn(); err == nil {
			_ = raw.Control(func(fd uintptr) { f(int(fd)) })
		}
	}
}
