package sandbox

import (
	"fmt"
	"math"
	"unsafe"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// refused are the system calls that answer EPERM from now on. An engine accepts
// connections on the socket that it has, so it needs none that makes or
// connects one; io_uring would make them past a filter.
var refused = []uint32{
	unix.SYS_SOCKET, unix.SYS_SOCKETPAIR, unix.SYS_CONNECT, unix.SYS_BIND, unix.SYS_LISTEN, unix.SYS_IO_URING_SETUP,
	unix.SYS_EXECVE, unix.SYS_EXECVEAT,
	unix.SYS_PTRACE, unix.SYS_PROCESS_VM_READV, unix.SYS_PROCESS_VM_WRITEV, unix.SYS_PIDFD_GETFD,
	unix.SYS_MOUNT, unix.SYS_UMOUNT2, unix.SYS_PIVOT_ROOT, unix.SYS_CHROOT, unix.SYS_UNSHARE, unix.SYS_SETNS,
	unix.SYS_OPEN_TREE, unix.SYS_MOVE_MOUNT, unix.SYS_FSOPEN, unix.SYS_OPEN_BY_HANDLE_AT,
	unix.SYS_BPF, unix.SYS_PERF_EVENT_OPEN, unix.SYS_USERFAULTFD,
	unix.SYS_ADD_KEY, unix.SYS_REQUEST_KEY, unix.SYS_KEYCTL,
	unix.SYS_INIT_MODULE, unix.SYS_FINIT_MODULE, unix.SYS_DELETE_MODULE, unix.SYS_KEXEC_LOAD, unix.SYS_REBOOT,
}

// Offsets in struct seccomp_data (linux/seccomp.h).
const (
	offsetCall = 0
	offsetArch = 4
)

// filterCalls installs the filter for all threads. The libraries that build
// such filters let the calls of a foreign architecture pass (32-bit calls on a
// 64-bit kernel), which would be a way around this list.
func filterCalls() error {
	program, err := bpf.Assemble(callFilter(refused))
	if err != nil {
		return fmt.Errorf("assemble: %w", err)
	}
	filters := make([]unix.SockFilter, len(program))
	for i, p := range program {
		filters[i] = unix.SockFilter{Code: p.Op, Jt: p.Jt, Jf: p.Jf, K: p.K}
	}
	if len(filters) > math.MaxUint16 {
		return fmt.Errorf("%d instructions are too many", len(filters))
	}
	list := unix.SockFprog{Len: uint16(len(filters)), Filter: &filters[0]}
	// Landlock has set no_new_privs on every thread, which a filter requires.
	thread, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&list)))
	if errno != 0 {
		return errno
	}
	if thread != 0 {
		return fmt.Errorf("thread %d cannot take the filter", thread)
	}
	return nil
}

// callFilter refuses the calls with EPERM, and ends a process that calls the
// kernel in another architecture's way.
func callFilter(calls []uint32) []bpf.Instruction {
	const denied = unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)
	program := []bpf.Instruction{
		bpf.LoadAbsolute{Off: offsetArch, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: nativeArch, SkipTrue: 1},
		bpf.RetConstant{Val: unix.SECCOMP_RET_KILL_PROCESS},
		bpf.LoadAbsolute{Off: offsetCall, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpLessThan, Val: firstForeignCall, SkipTrue: 1},
		bpf.RetConstant{Val: denied},
	}
	for _, c := range calls {
		program = append(program, bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: c, SkipTrue: 1}, bpf.RetConstant{Val: denied})
	}
	return append(program, bpf.RetConstant{Val: unix.SECCOMP_RET_ALLOW})
}
