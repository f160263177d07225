package sandbox

import (
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// confinedIn makes the test program confine itself to a folder and try things.
const confinedIn = "METALFLEET_SANDBOX_TEST"

func TestMain(m *testing.M) {
	if dir := os.Getenv(confinedIn); dir != "" {
		tryAll(dir)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// attempts are what a confined process tries, and whether it may.
func attempts(dir string, l net.Listener, other string) []struct {
	what    string
	allowed bool
	try     func() error
} {
	read := func(path string) func() error {
		return func() error { _, err := os.ReadFile(path); return err }
	}
	write := func(path string) func() error {
		return func() error { return os.WriteFile(path, []byte("x"), 0o600) }
	}
	dial := func(network, address string) func() error {
		return func() error {
			c, err := net.Dial(network, address)
			if err == nil {
				c.Close()
			}
			return err
		}
	}
	return []struct {
		what    string
		allowed bool
		try     func() error
	}{
		{what: "read its weights", allowed: true, try: read(filepath.Join(dir, "weights/model"))},
		{what: "read its own memory map", allowed: true, try: read("/proc/self/smaps_rollup")},
		{what: "write to its cache", allowed: true, try: write(filepath.Join(dir, "cache/a/new"))},
		{what: "move within its cache", allowed: true, try: func() error {
			return errors.Join(os.Mkdir(filepath.Join(dir, "cache/a/sub"), 0o700), os.Rename(filepath.Join(dir, "cache/a/new"), filepath.Join(dir, "cache/a/sub/moved")))
		}},
		{what: "read another model's cache", try: read(filepath.Join(dir, "cache/b/block"))},
		{what: "write to another model's cache", try: write(filepath.Join(dir, "cache/b/new"))},
		{what: "move a block to another model's cache", try: func() error {
			return os.Rename(filepath.Join(dir, "cache/a/sub/moved"), filepath.Join(dir, "cache/b/moved"))
		}},
		{what: "move its cache away", try: func() error { return os.Rename(filepath.Join(dir, "cache/a"), filepath.Join(dir, "cache/c")) }},
		{what: "remove its cache", try: func() error { return unix.Rmdir(filepath.Join(dir, "cache/a")) }},
		{what: "list the models of the cache", try: func() error { _, err := os.ReadDir(filepath.Join(dir, "cache")); return err }},
		{what: "change its weights", try: write(filepath.Join(dir, "weights/model"))},
		{what: "read another file", try: read(filepath.Join(dir, "identity"))},
		{what: "list another folder", try: func() error { _, err := os.ReadDir(dir); return err }},
		{what: "read the memory map of its parent", try: read(fmt.Sprintf("/proc/%d/maps", os.Getppid()))},
		{what: "write outside its folders", try: write(filepath.Join(dir, "new"))},
		{what: "take the rights to another file away", try: func() error { return os.Chmod(filepath.Join(dir, "identity"), 0) }},
		{what: "empty another file", try: func() error { return os.Truncate(filepath.Join(dir, "identity"), 0) }},
		{what: "empty another file as it opens it for nothing", try: openAs(filepath.Join(dir, "identity"), unix.O_ACCMODE|unix.O_TRUNC)},
		{what: "open a file for nothing", try: openAs(filepath.Join(dir, "identity"), unix.O_ACCMODE)},
		{what: "empty its weights as it reads them", try: openAs(filepath.Join(dir, "weights/model"), unix.O_RDONLY|unix.O_TRUNC|unix.O_CLOEXEC)},
		{what: "empty its weights as newer programs do", try: func() error {
			_, err := unix.Openat2(unix.AT_FDCWD, filepath.Join(dir, "weights/model"), &unix.OpenHow{Flags: unix.O_RDONLY})
			return err
		}},
		{what: "empty a file of its cache as it opens it for writing", allowed: true, try: write(filepath.Join(dir, "cache/a/sub/moved"))},
		{what: "give others the rights to another file", try: func() error { return unix.Fchmodat(unix.AT_FDCWD, filepath.Join(dir, "identity"), 0o666, 0) }},
		{what: "give another file away", try: func() error { return os.Chown(filepath.Join(dir, "identity"), os.Getuid(), os.Getgid()) }},
		{what: "change the time of its weights", try: func() error { return os.Chtimes(filepath.Join(dir, "weights/model"), time.Unix(1, 0), time.Unix(1, 0)) }},
		{what: "change an attribute of another file", try: func() error { return unix.Setxattr(filepath.Join(dir, "identity"), "user.x", []byte("x"), 0) }},
		{what: "watch another model's cache", try: func() error {
			watch, err := unix.InotifyInit1(unix.IN_CLOEXEC)
			if err != nil {
				return err
			}
			_, err = unix.InotifyAddWatch(watch, filepath.Join(dir, "cache/b"), unix.IN_CREATE)
			return errors.Join(err, unix.Close(watch))
		}},
		{what: "connect over TCP", try: dial("tcp", "127.0.0.1:9")},
		{what: "send over UDP", try: dial("udp", "127.0.0.1:9")},
		{what: "connect to another socket", try: dial("unix", other)},
		{what: "listen", try: func() error { _, err := net.Listen("tcp", "127.0.0.1:0"); return err }},
		{what: "run a program", try: func() error { return exec.Command("/bin/true").Run() }},
		{what: "signal its parent", try: func() error { return syscall.Kill(os.Getppid(), syscall.SIGCONT) }},
		{what: "have its parent signalled about its files", try: func() error { return askSocket(unix.SYS_FCNTL, unix.F_SETOWN, uintptr(os.Getppid())) }},
		{what: "have its parent signalled as older programs do", try: func() error {
			parent := int32(os.Getppid())
			return askSocket(unix.SYS_IOCTL, unix.SIOCSPGRP, uintptr(unsafe.Pointer(&parent)))
		}},
		{what: "command a file system", try: func() error {
			cache, err := os.Open(filepath.Join(dir, "cache/a"))
			if err != nil {
				return nil
			}
			defer cache.Close()
			_, err = unix.IoctlGetInt(int(cache.Fd()), unix.FS_IOC_GETFLAGS)
			if errors.Is(err, unix.ENOTTY) {
				return nil // this file system has no such command
			}
			return err
		}},
		{what: "make the agent wait as it opens the log", try: ofFile(dir, unix.SYS_FCNTL, unix.F_SETLEASE, unix.F_WRLCK)},
		{what: "be signalled about its folders", try: func() error {
			cache, err := os.Open(filepath.Join(dir, "cache/a"))
			if err != nil {
				return nil
			}
			defer cache.Close()
			_, err = unix.FcntlInt(cache.Fd(), unix.F_NOTIFY, 4) // DN_CREATE
			return err
		}},
		{what: "lock a part of a file", try: ofFile(dir, unix.SYS_FCNTL, unix.F_SETLK, uintptr(unsafe.Pointer(&firstByte)))},
		{what: "wait for a lock of a part of a file", try: ofFile(dir, unix.SYS_FCNTL, unix.F_SETLKW, uintptr(unsafe.Pointer(&firstByte)))},
		{what: "lock a part of an open file", try: ofFile(dir, unix.SYS_FCNTL, unix.F_OFD_SETLK, uintptr(unsafe.Pointer(&firstByte)))},
		{what: "wait for a lock of a part of an open file", try: ofFile(dir, unix.SYS_FCNTL, unix.F_OFD_SETLKW, uintptr(unsafe.Pointer(&firstByte)))},
		{what: "lock a file", try: ofFile(dir, unix.SYS_FLOCK, unix.LOCK_EX, 0)},
		{what: "have a pipe hold more than is usual", try: func() error {
			_, err := unix.FcntlInt(uintptr(ownPipe[1]), unix.F_SETPIPE_SZ, 1<<17)
			return err
		}},
		{what: "make a pipe", try: refusedCall(unix.SYS_PIPE2, noFile)},
		{what: "make an event", try: refusedCall(unix.SYS_EVENTFD2, 0, noFile)},
		{what: "wait for files of a set", try: refusedCall(unix.SYS_PSELECT6, noFile)},
		{what: "wait for a file", allowed: true, try: waitFor(1)},
		{what: "wait for files", try: waitFor(2)},
		{what: "make a pipe in its cache", try: func() error { return unix.Mkfifo(filepath.Join(dir, "cache/a/pipe"), 0o600) }},
		{what: "make a device in its cache", try: func() error {
			return unix.Mknod(filepath.Join(dir, "cache/a/device"), unix.S_IFCHR|0o600, int(unix.Mkdev(1, 7)))
		}},
		{what: "read the flags of its files", allowed: true, try: func() error { return askSocket(unix.SYS_FCNTL, unix.F_GETFL, 0) }},
		{what: "signal itself", allowed: true, try: func() error { return syscall.Kill(os.Getpid(), 0) }},
		{what: "read its own limits", allowed: true, try: func() error { return syscall.Getrlimit(syscall.RLIMIT_NOFILE, new(syscall.Rlimit)) }},
		{what: "change the limits of its parent", try: func() error {
			return unix.Prlimit(os.Getppid(), unix.RLIMIT_CPU, &unix.Rlimit{Cur: math.MaxInt32, Max: math.MaxInt32}, nil)
		}},
		{what: "change the priority of its parent", try: func() error { return syscall.Setpriority(syscall.PRIO_PROCESS, os.Getppid(), 1) }},
		{what: "change the processors of its parent", try: func() error {
			var all unix.CPUSet
			return errors.Join(unix.SchedGetaffinity(0, &all), unix.SchedSetaffinity(os.Getppid(), &all))
		}},
		{what: "have the files of the largest model open", allowed: true, try: openFiles(filepath.Join(dir, "weights/model"), 1024+100)},
		{what: "have more files open than any model has", try: openFiles(filepath.Join(dir, "weights/model"), 1500)},
		{what: "start a thread", allowed: true, try: startThread},
		{what: "start a thread with descriptors of its own", try: refusedCall(unix.SYS_CLONE, unix.CLONE_THREAD|unix.CLONE_FS)},
		{what: "start a thread with a network of its own", try: refusedCall(unix.SYS_CLONE, unix.CLONE_THREAD|unix.CLONE_FILES|unix.CLONE_FS|unix.CLONE_NEWNET)},
		{what: "take descriptors of its own for a thread", try: refusedCall(unix.SYS_CLOSE_RANGE, noFile, 0, unix.CLOSE_RANGE_UNSHARE)},
		{what: "close a range of descriptors", allowed: true, try: func() error { return unix.CloseRange(math.MaxInt32, math.MaxInt32, 0) }},
		{what: "make one more epoll", try: refusedCall(unix.SYS_EPOLL_CREATE1, math.MaxUint32)},
		{what: "have a file twice", try: refusedCall(unix.SYS_DUP, noFile)},
		{what: "have a file once more", try: refusedCall(unix.SYS_DUP3, noFile)},
		{what: "have a file twice by a command", try: refusedCall(unix.SYS_FCNTL, uintptr(ownSocket), unix.F_DUPFD, noFile)},
		{what: "have a file twice as newer programs do", try: refusedCall(unix.SYS_FCNTL, uintptr(ownSocket), unix.F_DUPFD_CLOEXEC, noFile)},
		{what: "send a descriptor", try: refusedCall(unix.SYS_SENDMSG, noFile)},
		{what: "send descriptors", try: refusedCall(unix.SYS_SENDMMSG, noFile)},
		{what: "make a process", try: fork},
		{what: "make a process as the C library does", try: fork3},
		{what: "take memory that is mapped nowhere", try: func() error { _, err := unix.MemfdCreate("x", 0); return err }},
		{what: "take memory that counts only while it is mapped", try: func() error { return takeMemory(unix.MAP_SHARED) }},
		{what: "take memory of its own", allowed: true, try: func() error { return takeMemory(unix.MAP_PRIVATE) }},
		{what: "have a pipe hold its memory", try: func() error { return toPipe(unix.SYS_VMSPLICE) }},
		{what: "have a pipe hold a file", try: func() error { return toPipe(unix.SYS_SPLICE) }},
		{what: "keep the agent from measuring it", try: func() error { return unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0) }},
		{what: "have a name", allowed: true, try: func() error {
			return unix.Prctl(unix.PR_SET_NAME, uintptr(unsafe.Pointer(&[]byte("engine\x00")[0])), 0, 0, 0)
		}},
		{what: "allocate space beyond the size of a file", try: func() error {
			f, err := os.Create(filepath.Join(dir, "cache/a/empty"))
			if err != nil {
				return nil
			}
			defer f.Close()
			return unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, 1<<20)
		}},
		{what: "signal the process at the other end of a socket", try: func() error {
			// Newer systems refuse a descriptor of such a process, and all refuse this one: by another error.
			if err := unix.PidfdSendSignal(-1, 0, nil, 0); !errors.Is(err, unix.EPERM) {
				return nil
			}
			return unix.EPERM
		}},
		{what: "make rules of its own", try: refusedCall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, 1)},
		{what: "add to rules", try: refusedCall(unix.SYS_LANDLOCK_ADD_RULE, noFile)},
		{what: "confine a thread further", try: refusedCall(unix.SYS_LANDLOCK_RESTRICT_SELF, noFile)},
		{what: "have another security module confine it", try: refusedCall(unix.SYS_LSM_SET_SELF_ATTR)},
		{what: "make a filter", try: refusedCall(unix.SYS_SECCOMP, math.MaxUint32)},
		{what: "make a filter as older programs do", try: refusedCall(unix.SYS_PRCTL, unix.PR_SET_SECCOMP, math.MaxUint32)},
		{what: "have a large table of futexes", try: refusedCall(unix.SYS_PRCTL, 78, 2)}, // PR_FUTEX_HASH_GET_SLOTS
		{what: "make a timer of the kernel", try: refusedCall(unix.SYS_TIMER_CREATE, math.MaxUint32)},
		{what: "take requests to disks", try: refusedCall(unix.SYS_IO_SETUP)},
		{what: "have a pipe hold pages of a file", try: refusedCall(unix.SYS_SENDFILE, noFile, noFile)},
		{what: "lock memory", try: refusedCall(unix.SYS_MLOCK)},
		{what: "lock some memory", try: refusedCall(unix.SYS_MLOCK2)},
		{what: "lock all memory", try: refusedCall(unix.SYS_MLOCKALL, math.MaxUint32)},
		{what: "map locked memory", try: func() error { return takeMemory(unix.MAP_PRIVATE | unix.MAP_LOCKED) }},
		{what: "map huge pages", try: refusedCall(unix.SYS_MMAP, 0, 1<<21, 0, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_HUGETLB, noFile)},
		{what: "take memory that outlives it", try: func() error {
			id, err := unix.SysvShmGet(unix.IPC_PRIVATE, 4096, 0o600)
			if err == nil {
				_, err = unix.SysvShmCtl(id, unix.IPC_RMID, nil)
			}
			return err
		}},
	}
}

// waitFor waits for files by each call that has a number of them, and returns an error only if the filter refuses all.
func waitFor(files uintptr) func() error {
	return func() (err error) {
		for _, call := range polls {
			if err = refusedCall(uintptr(call), noFile, files)(); err == nil {
				return nil
			}
		}
		return err
	}
}

// noFile is no descriptor.
const noFile = math.MaxUint64

// refusedCall makes a system call that fails. Only the filter refuses it with EPERM.
func refusedCall(call uintptr, args ...uintptr) func() error {
	return func() error {
		var a [6]uintptr
		copy(a[:], args)
		if _, _, errno := syscall.Syscall6(call, a[0], a[1], a[2], a[3], a[4], a[5]); errno == unix.EPERM {
			return errno
		}
		return nil
	}
}

// openAs opens a file by each call that has flags, and returns an error only if the filter refuses all.
func openAs(path string, flags uintptr) func() error {
	return func() error {
		name, err := unix.BytePtrFromString(path)
		if err != nil {
			return nil
		}
		for _, o := range opens {
			args := [5]uintptr{uintptr(unsafe.Pointer(name))}
			if o.flags == offsetArg2 {
				args = [5]uintptr{noFile, args[0]}
			}
			args[(o.flags-offsetArg0)/8] = flags
			if err = refusedCall(uintptr(o.call), args[:]...)(); err == nil {
				return nil
			}
		}
		runtime.KeepAlive(name)
		return err
	}
}

// ownSocket is one that it has from before: it can make none.
var ownSocket int

// askSocket changes or asks who is signalled about its socket.
func askSocket(call, command, about uintptr) error {
	if _, _, errno := syscall.Syscall(call, uintptr(ownSocket), command, about); errno != 0 {
		return errno
	}
	return nil
}

// firstByte is the part of a file that it locks.
var firstByte = unix.Flock_t{Type: unix.F_WRLCK, Len: 1}

// ofFile asks for a lock, or the like, of a new file.
func ofFile(dir string, call, command, about uintptr) func() error {
	return func() error {
		f, err := os.CreateTemp(filepath.Join(dir, "cache/a"), "")
		if err != nil {
			return nil
		}
		defer f.Close()
		if _, _, errno := syscall.Syscall(call, f.Fd(), command, about); errno != 0 {
			return errno
		}
		return nil
	}
}

// threadsOfUser is how many threads the user of this process may have while it makes one.
func threadsOfUser() (limit unix.Rlimit) {
	if err := unix.Getrlimit(unix.RLIMIT_NPROC, &limit); err != nil {
		panic(err)
	}
	return limit
}

// openFiles opens a file that often. The user has a number of watches of epoll, a product of two
// numbers of descriptors, which an engine could take from the agent.
func openFiles(path string, times int) func() error {
	return func() (err error) {
		for range times {
			f, failed := os.Open(path)
			if failed != nil {
				err = failed
				break
			}
			defer f.Close()
		}
		return err
	}
}

// takeMemory maps a page that no file has.
func takeMemory(as int) error {
	page, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, as|unix.MAP_ANON)
	if err != nil {
		return err
	}
	return unix.Munmap(page)
}

// ownPipe is one that it has from before: it can make none.
var ownPipe [2]int

// toPipe moves nothing into a pipe, by a system call that can move pages.
func toPipe(call uintptr) error {
	if _, _, errno := syscall.Syscall6(call, uintptr(ownPipe[1]), 0, 0, 0, 0, 0); errno == unix.EPERM {
		return errno
	}
	return nil
}

// startThread locks this goroutine to its thread, so that another goroutine needs one more.
func startThread() error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	done := make(chan struct{})
	go func() {
		runtime.LockOSThread() // the thread ends with its goroutine
		close(done)
	}()
	<-done
	return nil
}

// fork makes a process that ends at once.
func fork() error {
	child, _, errno := syscall.RawSyscall6(unix.SYS_CLONE, uintptr(syscall.SIGCHLD), 0, 0, 0, 0, 0)
	return ended(child, errno)
}

// fork3 is fork by another system call.
func fork3() error {
	args := [8]uint64{4: uint64(syscall.SIGCHLD)} // struct clone_args: exit_signal is the fifth
	child, _, errno := syscall.RawSyscall(unix.SYS_CLONE3, uintptr(unsafe.Pointer(&args)), unsafe.Sizeof(args), 0)
	return ended(child, errno)
}

// ended ends the new process, and waits for it in the one that made it.
//
//go:nosplit
func ended(child uintptr, errno syscall.Errno) error {
	if errno != 0 {
		return errno
	}
	if child == 0 {
		for {
			_, _, _ = syscall.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
		}
	}
	_, err := syscall.Wait4(int(child), nil, 0, nil)
	return err
}

// tryAll prints what went against the rules.
func tryAll(dir string) {
	say := func(format string, args ...any) { fmt.Printf(format+"\n", args...) }
	var hold sync.WaitGroup
	ready, goOn := make(chan struct{}), make(chan struct{})
	for range 4 { // threads that exist before
		hold.Go(func() {
			runtime.LockOSThread()
			ready <- struct{}{}
			<-goOn
			if _, err := os.ReadFile(filepath.Join(dir, "identity")); err == nil {
				say("a thread from before may read another file")
			}
			if _, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0); !errors.Is(err, syscall.EPERM) {
				say("a thread from before may make a socket: %v", err)
			}
		})
		<-ready
	}
	l, err := net.Listen("unix", filepath.Join(dir, "own.sock"))
	if err != nil {
		say("listen: %v", err)
		return
	}
	if ownSocket, err = syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM, 0); err != nil {
		say("socket: %v", err)
		return
	}
	if err = unix.Pipe2(ownPipe[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		say("pipe: %v", err)
		return
	}
	before := threadsOfUser()
	if _, err := Enter(Rules{Read: []string{filepath.Join(dir, "weights")}, Write: []string{filepath.Join(dir, "cache/a"), filepath.Join(dir, "absent"), filepath.Join(dir, "identity"), filepath.Join(dir, "link")}}); err != nil {
		say("enter: %v", err)
		return
	}
	if after := threadsOfUser(); after.Cur > min(before.Cur/8*7, 1<<12) || after.Max != after.Cur {
		say("it may have too many of the %d threads of its user: %+v", before.Cur, after)
	}
	close(goOn)
	hold.Wait()
	for _, a := range attempts(dir, l, filepath.Join(dir, "other.sock")) {
		err := a.try()
		if (err == nil) != a.allowed {
			say("%s: %v", a.what, err)
		}
	}
	say("listening")
	c, err := l.Accept()
	if err != nil {
		say("accept: %v", err)
		return
	}
	c.Close()
	say("done")
}

func TestConfinedProcessReachesOnlyItsOwn(t *testing.T) {
	dir := t.TempDir()
	for _, d := range []string{"weights", "cache/a/coverage", "cache/b"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range []string{"weights/model", "identity", "cache/b/block"} {
		if err := os.WriteFile(filepath.Join(dir, f), []byte("secret"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(filepath.Join(dir, "cache/b"), filepath.Join(dir, "link")); err != nil { // by an engine that ran before
		t.Fatal(err)
	}
	other, err := net.Listen("unix", filepath.Join(dir, "other.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), confinedIn+"="+dir, "GOCOVERDIR="+filepath.Join(dir, "cache/a/coverage")) // with -cover it writes there as it ends
	out := &strings.Builder{}
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = write, write
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	write.Close()
	buffer := make([]byte, 1<<12)
	for dialled := false; ; {
		n, err := read.Read(buffer)
		out.Write(buffer[:n])
		if !dialled && strings.Contains(out.String(), "listening\n") {
			dialled = true
			if c, err := net.Dial("unix", filepath.Join(dir, "own.sock")); err != nil {
				t.Error(err)
			} else {
				c.Close()
			}
		}
		if err != nil {
			break
		}
	}
	if err := cmd.Wait(); err != nil || out.String() != "listening\ndone\n" {
		t.Errorf("%v\n%s", err, out)
	}
}
