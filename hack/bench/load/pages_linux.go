package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// forget makes the kernel drop a file's pages, so that the next read comes from
// the disk. Pages that were written must reach the disk first: those the kernel
// keeps.
func forget(path string) error {
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

// resident is how many bytes of a file lie in the page cache, and its size.
func resident(path string) (in, size int64, err error) {
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

// available is how much memory programs may still take, in bytes.
func available() (int64, error) {
	const key = "MemAvailable:"
	b, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, fmt.Errorf("ask for free memory: %w", err)
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == key {
			kib, err := strconv.ParseInt(f[1], 10, 64)
			if err != nil {
				return 0, fmt.Errorf("ask for free memory: %q: %w", line, err)
			}
			return kib << 10, nil
		}
	}
	return 0, fmt.Errorf("ask for free memory: /proc/meminfo has no %s", key)
}
