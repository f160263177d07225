package proc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// AwaitEnd returns when the kernel reported the end of a process, which need not
// be a child of this one.
func AwaitEnd(ctx context.Context, pid int) (time.Time, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return time.Time{}, fmt.Errorf("watch process %d: %w", pid, err)
	}
	defer unix.Close(fd)
	const interval = 100 // ms between two looks at ctx
	for ctx.Err() == nil {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, interval)
		at := time.Now()
		switch {
		case err != nil && !errors.Is(err, unix.EINTR):
			return at, fmt.Errorf("watch process %d: %w", pid, err)
		case n > 0:
			return at, nil
		}
	}
	return time.Time{}, context.Cause(ctx)
}

// mostCached is the share of files that may stay in the page cache: reading them
// still counts as reading from the disk.
const mostCached = 0.01

// DropPages removes files from the page cache and returns their size. It is an
// error if they stay there, for example because another program has them mapped.
func DropPages(paths ...string) (size int64, err error) {
	if len(paths) == 0 {
		return 0, errors.New("drop pages: no files")
	}
	var cached int64
	for _, path := range paths {
		c, n, err := dropPages(path)
		if err != nil {
			return 0, fmt.Errorf("drop pages of %s: %w", path, err)
		}
		cached, size = cached+c, size+n
	}
	if float64(cached) > mostCached*float64(size) {
		return 0, fmt.Errorf("%d of %d bytes of %s stay in the page cache: does another program have them mapped?", cached, size, paths[0])
	}
	return size, nil
}

func dropPages(path string) (cached, size int64, err error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, 0, err
	}
	defer f.Close()
	// The kernel keeps pages that have not reached the disk.
	if err := f.Sync(); err != nil {
		return 0, 0, err
	}
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		return 0, 0, err
	}
	return resident(f)
}

// resident returns how many bytes of a file are in the page cache, and its size.
func resident(f *os.File) (cached, size int64, err error) {
	info, err := f.Stat()
	if err != nil || info.Size() == 0 {
		return 0, 0, err
	}
	size = info.Size()
	memory, err := unix.Mmap(int(f.Fd()), 0, int(size), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return 0, 0, err
	}
	defer func() { _ = unix.Munmap(memory) }() // nothing was written
	page := int64(os.Getpagesize())
	pages := make([]byte, (size+page-1)/page)
	if _, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&memory[0])), uintptr(size), uintptr(unsafe.Pointer(&pages[0]))); errno != 0 {
		return 0, 0, errno
	}
	for _, p := range pages {
		cached += int64(p&1) * page
	}
	return min(cached, size), size, nil
}

// Pin restricts the threads of this process to some cores, and with them the
// programs that it starts from then on. undo lifts the restriction.
func Pin(cores ...int) (undo func() error, err error) {
	var before, set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &before); err != nil {
		return nil, fmt.Errorf("cores of this process: %w", err)
	}
	for _, c := range cores {
		set.Set(c)
	}
	threads := runtime.GOMAXPROCS(len(cores))
	undo = func() error {
		runtime.GOMAXPROCS(threads)
		return pinThreads(&before)
	}
	if err := pinThreads(&set); err != nil {
		return nil, errors.Join(err, undo())
	}
	return undo, nil
}

func pinThreads(set *unix.CPUSet) error {
	for range 2 { // a thread may start another one before it is pinned itself
		tasks, err := os.ReadDir("/proc/self/task")
		if err != nil {
			return fmt.Errorf("threads of this process: %w", err)
		}
		for _, t := range tasks {
			id, err := strconv.Atoi(t.Name())
			if err == nil {
				err = unix.SchedSetaffinity(id, set)
			}
			if err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("pin thread %s: %w", t.Name(), err)
			}
		}
	}
	return nil
}
