package intake

import (
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// widen lets the window of a connection be as large as its buffer, which a smaller one of its
// listener bounds.
func widen(c net.Conn, bytes int) {
	of, ok := c.(syscall.Conn)
	if !ok {
		return
	}
	if raw, err := of.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_WINDOW_CLAMP, bytes) })
	}
}

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
