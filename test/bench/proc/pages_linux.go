package proc

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

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
