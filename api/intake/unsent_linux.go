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

// received returns how much memory the kernel uses for what the other end has sent.
func received(c net.Conn) (n int) {
	control(c, func(fd int) { n, _ = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MEMINFO) }) // the first of several
	return n
}

// control calls f with the socket of a connection, unless that is closed.
func control(c net.Conn, f func(fd int)) {
	if of, ok := c.(syscall.Conn); ok {
		if raw, err := of.SyscallConn(); err == nil {
			_ = raw.Control(func(fd uintptr) { f(int(fd)) })
		}
	}
}
