package sandbox

import "golang.org/x/sys/unix"

const (
	nativeArch = unix.AUDIT_ARCH_X86_64
	// firstForeignCall is the bit that marks a call of the x32 ABI.
	firstForeignCall = 0x40000000
)

// forks are the system calls that always make a process; clone may make a thread.
var forks = []uint32{unix.SYS_FORK, unix.SYS_VFORK}

// older are earlier forms of system calls that are refused.
var older = []uint32{unix.SYS_CHMOD, unix.SYS_CHOWN, unix.SYS_LCHOWN, unix.SYS_UTIME, unix.SYS_UTIMES, unix.SYS_FUTIMESAT, unix.SYS_INOTIFY_INIT, unix.SYS_MKNOD, unix.SYS_EPOLL_CREATE, unix.SYS_DUP2, unix.SYS_PIPE, unix.SYS_EVENTFD, unix.SYS_SELECT}

// olderOpens are earlier forms of openat. creat opens for writing, which Landlock judges.
var olderOpens = []openCall{{unix.SYS_OPEN, offsetArg1}}

// olderPolls are earlier forms of ppoll.
var olderPolls = []uint32{unix.SYS_POLL}
