package pagecache

import (
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Forget makes the kernel drop a file's pages, so that the next read comes from
// the disk. Pages that were written must reach the disk first: those the kernel
// keeps.
func Forget(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("drop pages: %w", err)
	}
	defer f.Close()
	if err := f.Sync(); err != nil {
		return fmt.Errorf("drop pages of %s: %w", path, err)
	}
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		return fmt.Errorf("drop pages of %s: %w", path, err)
	}
	return nil
}

// Resident is how many bytes of a file lie in the page cache, and its size.
func Resident(path string) (in, size int64, err error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, 0, fmt.Errorf("look for pages: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return 0, 0, fmt.Errorf("look for pages: %w", err)
	}
	size = info.Size()
	if size == 0 {
		return 0, 0, nil
	}
	memory, err := unix.Mmap(int(f.Fd()), 0, int(size), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return 0, 0, fmt.Errorf("look for pages of %s: %w", path, err)
	}
	defer func() { _ = unix.Munmap(memory) }() // nothing was written
	page := int64(os.Getpagesize())
	there := make([]byte, (size+page-1)/page)
	if _, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&memory[0])), uintptr(size), uintptr(unsafe.Pointer(&there[0]))); errno != 0 {
		return 0, 0, fmt.Errorf("look for pages of %s: %w", path, errno)
	}
	for _, b := range there {
		in += int64(b&1) * page
	}
	return min(in, size), size, nil
}
