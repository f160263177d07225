package sandbox

import (
	"fmt"
	"math"
	"os"
	"slices"
	"unsafe"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// refused are the system calls that answer EPERM from now on. An engine accepts
// connections on the socket that it has, so it needs none that makes or
// connects one; io_uring would make them past a filter. The agent measures what a
// process has mapped and ends processes: memory that is mapped nowhere, such as pages that
// a pipe holds, or that outlives its process, would count at no engine. Nor would space of a
// file beyond its size. Landlock bounds who reads and
// writes a file, and not who changes its rights, times and attributes, or watches
// its use: of all files of the user, which are the agent's too. A socket gives its owner a
// descriptor of the process at the other end, and Landlock before Linux 6.12 refuses no signal.
// A lock of a file is kernel memory that counts at no process, as are rules and filters that a
// process adds to its own, timers, and pages of a file that a pipe holds. Requests to disks are
// counted for the whole machine, and watches of epolls for the user, who is the agent's too. The
// listener has an epoll already, which can watch each file by all numbers that it ever had: it has
// one. A thread that waits for files of a list keeps them, and what pipes hold, when their descriptors
// are closed: all that maxDescriptors allows, for each thread. The commands of devices and file
// systems change files that Landlock lets it only read, and some make folders that their user cannot
// remove. The kernel takes no locked page of a file back. An agent that runs as root lets its engines
// make devices.
var refused = slices.Concat([]uint32{
	unix.SYS_SOCKET, unix.SYS_SOCKETPAIR, unix.SYS_CONNECT, unix.SYS_BIND, unix.SYS_LISTEN, unix.SYS_IO_URING_SETUP,
	unix.SYS_SENDMSG, unix.SYS_SENDMMSG, unix.SYS_PIPE2, unix.SYS_EVENTFD2, unix.SYS_PSELECT6, unix.SYS_EPOLL_CREATE1, unix.SYS_DUP, unix.SYS_DUP3,
	unix.SYS_EXECVE, unix.SYS_EXECVEAT,
	unix.SYS_PTRACE, unix.SYS_PROCESS_VM_READV, unix.SYS_PROCESS_VM_WRITEV, unix.SYS_PIDFD_GETFD,
	unix.SYS_MOUNT, unix.SYS_UMOUNT2, unix.SYS_PIVOT_ROOT, unix.SYS_CHROOT, unix.SYS_UNSHARE, unix.SYS_SETNS,
	unix.SYS_OPEN_TREE, unix.SYS_MOVE_MOUNT, unix.SYS_FSOPEN, unix.SYS_OPEN_BY_HANDLE_AT,
	unix.SYS_BPF, unix.SYS_PERF_EVENT_OPEN, unix.SYS_USERFAULTFD,
	unix.SYS_ADD_KEY, unix.SYS_REQUEST_KEY, unix.SYS_KEYCTL,
	unix.SYS_INIT_MODULE, unix.SYS_FINIT_MODULE, unix.SYS_DELETE_MODULE, unix.SYS_KEXEC_LOAD, unix.SYS_REBOOT,
	unix.SYS_MEMFD_CREATE, unix.SYS_MEMFD_SECRET, unix.SYS_SHMGET, unix.SYS_SEMGET, unix.SYS_MSGGET, unix.SYS_MQ_OPEN,
	unix.SYS_VMSPLICE, unix.SYS_SPLICE, unix.SYS_TEE, unix.SYS_SENDFILE, unix.SYS_FALLOCATE, unix.SYS_FLOCK, unix.SYS_MKNODAT,
	unix.SYS_LANDLOCK_CREATE_RULESET, unix.SYS_LANDLOCK_ADD_RULE, unix.SYS_LANDLOCK_RESTRICT_SELF, unix.SYS_SECCOMP, unix.SYS_LSM_SET_SELF_ATTR,
	unix.SYS_TIMER_CREATE, unix.SYS_IO_SETUP, unix.SYS_MLOCK, unix.SYS_MLOCK2, unix.SYS_MLOCKALL,
	unix.SYS_SETPRIORITY, unix.SYS_IOPRIO_SET, unix.SYS_TKILL, unix.SYS_PIDFD_OPEN, unix.SYS_PIDFD_SEND_SIGNAL,
	unix.SYS_PROCESS_MADVISE, unix.SYS_PROCESS_MRELEASE, unix.SYS_MIGRATE_PAGES, unix.SYS_MOVE_PAGES, unix.SYS_KCMP,
	unix.SYS_FCHMOD, unix.SYS_FCHMODAT, unix.SYS_FCHMODAT2, unix.SYS_FCHOWN, unix.SYS_FCHOWNAT, unix.SYS_UTIMENSAT, unix.SYS_TRUNCATE,
	unix.SYS_SETXATTR, unix.SYS_LSETXATTR, unix.SYS_FSETXATTR, unix.SYS_SETXATTRAT,
	unix.SYS_REMOVEXATTR, unix.SYS_LREMOVEXATTR, unix.SYS_FREMOVEXATTR, unix.SYS_REMOVEXATTRAT, unix.SYS_FILE_SETATTR,
	unix.SYS_INOTIFY_INIT1, unix.SYS_INOTIFY_ADD_WATCH, unix.SYS_FANOTIFY_INIT, unix.SYS_IOCTL,
}, forks, older)

// ofItself are the system calls that a process may use for itself alone: their first argument
// is a process ID. Those of one user may change and signal one another: the agent and the
// engines of other models have the same. Of what Landlock refuses, older kernels refuse nothing.
var ofItself = []uint32{
	unix.SYS_KILL, unix.SYS_TGKILL, unix.SYS_RT_SIGQUEUEINFO, unix.SYS_RT_TGSIGQUEUEINFO,
	unix.SYS_PRLIMIT64, unix.SYS_SCHED_SETAFFINITY, unix.SYS_SCHED_SETSCHEDULER, unix.SYS_SCHED_SETPARAM, unix.SYS_SCHED_SETATTR,
}

// signals are those of ofItself for which 0 is no process, but all of the group.
var signals = ofItself[:4]

// ofFiles are the commands, second arguments of these calls, that reach beyond the process. It has
// another one signalled about its files, by any signal that it may not send itself. Who opens a file
// with a lease waits for its owner, so the agent would for an engine with one of its log. Locks, and
// pipes beyond their usual size, are kernel memory that counts at no process. Files have one number.
var ofFiles = []struct {
	call     uint32
	commands []uint32
}{
	{unix.SYS_FCNTL, []uint32{
		unix.F_SETOWN, unix.F_SETOWN_EX, unix.F_SETLEASE, unix.F_NOTIFY,
		unix.F_SETLK, unix.F_SETLKW, unix.F_OFD_SETLK, unix.F_OFD_SETLKW, unix.F_SETPIPE_SZ,
		unix.F_DUPFD, unix.F_DUPFD_CLOEXEC,
	}},
}

// opens are the calls that open files, and where their flags are.
var opens = slices.Concat([]openCall{{unix.SYS_OPENAT, offsetArg2}}, olderOpens)

type openCall struct{ call, flags uint32 }

// polls wait for as many files as their second argument is: one keeps no more than a thread that reads it.
var polls = slices.Concat([]uint32{unix.SYS_PPOLL}, olderPolls)

// A thread shares all of threadShares with its process, as Go and the C libraries have it, and has
// none of threadsOwn.
const (
	threadShares = unix.CLONE_THREAD | unix.CLONE_FILES | unix.CLONE_FS
	threadsOwn   = unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC | unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNET
)

// Offsets in struct seccomp_data (linux/seccomp.h).
const (
	offsetCall = 0
	offsetArch = 4
	offsetArg0 = 16 // its lower half: both architectures are little-endian
	offsetArg1 = 24
	offsetArg2 = 32
	offsetArg3 = 40
)

// filterCalls installs the filter for all threads. The libraries that build
// such filters let the calls of a foreign architecture pass (32-bit calls on a
// 64-bit kernel), which would be a way around this list.
func filterCalls() error {
	program, err := bpf.Assemble(callFilter(uint32(os.Getpid())))
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

// callFilter refuses calls with EPERM to the process with this ID, and ends one that calls the
// kernel in another architecture's way.
func callFilter(pid uint32) []bpf.Instruction {
	program := []bpf.Instruction{
		bpf.LoadAbsolute{Off: offsetArch, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: nativeArch, SkipTrue: 1},
		bpf.RetConstant{Val: unix.SECCOMP_RET_KILL_PROCESS},
		bpf.LoadAbsolute{Off: offsetCall, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpLessThan, Val: firstForeignCall, SkipTrue: 1},
		bpf.RetConstant{Val: fails(unix.EPERM)},
	}
	for _, c := range refused {
		program = append(program, bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: c, SkipTrue: 1}, bpf.RetConstant{Val: fails(unix.EPERM)})
	}
	for _, c := range ofItself {
		is := []bpf.Instruction{bpf.JumpIf{Cond: bpf.JumpEqual, Val: pid, SkipTrue: 1}}
		if !slices.Contains(signals, c) {
			is = []bpf.Instruction{bpf.JumpIf{Cond: bpf.JumpEqual, Val: pid, SkipTrue: 2}, bpf.JumpIf{Cond: bpf.JumpEqual, Val: 0, SkipTrue: 1}}
		}
		program = appendCall(program, c, offsetArg0, append(is, bpf.RetConstant{Val: fails(unix.EPERM)}))
	}
	for _, o := range ofFiles {
		var is []bpf.Instruction
		for _, command := range o.commands {
			is = append(is, bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: command, SkipTrue: 1}, bpf.RetConstant{Val: fails(unix.EPERM)})
		}
		program = appendCall(program, o.call, offsetArg1, is)
	}
	// Names are all that an engine needs: the agent could not measure a process that is not dumpable,
	// and a filter or a table of futexes is memory that counts at no process.
	program = appendCall(program, unix.SYS_PRCTL, offsetArg0, []bpf.Instruction{
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.PR_SET_NAME, SkipTrue: 3}, bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.PR_GET_NAME, SkipTrue: 2},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.PR_SET_VMA, SkipTrue: 1}, bpf.RetConstant{Val: fails(unix.EPERM)},
	})
	// The pages of a shared mapping that no file has stay where they are when they are not mapped any
	// more. Huge pages count at no process.
	program = appendCall(program, unix.SYS_MMAP, offsetArg3, []bpf.Instruction{
		bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: unix.MAP_LOCKED | unix.MAP_HUGETLB, SkipFalse: 1}, bpf.RetConstant{Val: fails(unix.EPERM)},
		bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: unix.MAP_ANONYMOUS, SkipFalse: 2},
		bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: unix.MAP_SHARED, SkipFalse: 1}, bpf.RetConstant{Val: fails(unix.EPERM)},
	})
	// Threads are allowed, processes are not: they outlive an engine that is killed, and what
	// they share with it is measured in parts. The C library uses clone where clone3 is unknown.
	// A thread with descriptors of its own would have another maxDescriptors of them.
	program = append(program, bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.SYS_CLONE3, SkipTrue: 1}, bpf.RetConstant{Val: fails(unix.ENOSYS)})
	program = appendCall(program, unix.SYS_CLONE, offsetArg0, []bpf.Instruction{
		bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: threadShares | threadsOwn},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: threadShares, SkipTrue: 1}, bpf.RetConstant{Val: fails(unix.EPERM)},
	})
	program = appendCall(program, unix.SYS_CLOSE_RANGE, offsetArg2, []bpf.Instruction{
		bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: unix.CLOSE_RANGE_UNSHARE, SkipFalse: 1}, bpf.RetConstant{Val: fails(unix.EPERM)},
	})
	for _, o := range opens {
		program = appendCall(program, o.call, o.flags, emptiesUnseen)
	}
	for _, c := range polls {
		program = appendCall(program, c, offsetArg1, []bpf.Instruction{bpf.JumpIf{Cond: bpf.JumpLessOrEqual, Val: 1, SkipTrue: 1}, bpf.RetConstant{Val: fails(unix.EPERM)}})
	}
	// Flags in memory are no filter's to judge.
	program = append(program, bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.SYS_OPENAT2, SkipTrue: 1}, bpf.RetConstant{Val: fails(unix.ENOSYS)})
	return append(program, bpf.RetConstant{Val: unix.SECCOMP_RET_ALLOW})
}

// emptiesUnseen judges the flags of an open file. Landlock before Linux 6.2 asks for no right to empty
// a file, which O_TRUNC does to one that is opened only for reading, or for neither reading nor
// writing: that mode asks for no right at all.
var emptiesUnseen = []bpf.Instruction{
	bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: unix.O_ACCMODE | unix.O_TRUNC},
	bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.O_RDONLY | unix.O_TRUNC, SkipTrue: 2},
	bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: unix.O_ACCMODE},
	bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.O_ACCMODE, SkipTrue: 1},
	bpf.RetConstant{Val: fails(unix.EPERM)},
}

// fails is the result of a filter by which a call returns an error.
func fails(e unix.Errno) uint32 { return unix.SECCOMP_RET_ERRNO | uint32(e) }

// appendCall appends what judges an argument of a call: it returns or falls through.
// Of other calls the number stays loaded.
func appendCall(program []bpf.Instruction, call, argument uint32, judge []bpf.Instruction) []bpf.Instruction {
	program = append(program, bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: call, SkipTrue: uint8(len(judge) + 2)}, bpf.LoadAbsolute{Off: argument, Size: 4})
	return append(append(program, judge...), bpf.RetConstant{Val: unix.SECCOMP_RET_ALLOW})
}
