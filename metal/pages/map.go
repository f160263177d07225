package pages

import (
	"fmt"
	"math"
	"os"
	"syscall"
)

// Held is the resident size of a mapping of n bytes once it is touched: whole
// pages.
func Held(n int64) int64 {
	page := int64(os.Getpagesize())
	return (n + page - 1) / page * page
}

// Map allocates n zero bytes from the system; Unmap frees them at once.
func Map(n int64) ([]byte, error) {
	if n <= 0 || n > math.MaxInt {
		return nil, fmt.Errorf("map %d bytes: %w", n, syscall.EINVAL)
	}
	p, err := syscall.Mmap(-1, 0, int(n), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		return nil, fmt.Errorf("map %d bytes: %w", n, err)
	}
	return p, nil
}

// Unmap frees a whole mapping of Map.
func Unmap(p []byte) {
	if err := syscall.Munmap(p); err != nil {
		panic("pages: cannot unmap own mapping: " + err.Error())
	}
}

// Touch makes an unwritten mapping resident; it stays zero. Its first write
// then causes no page faults.
func Touch(p []byte) {
	for i := 0; i < len(p); i += os.Getpagesize() {
		p[i] = 0
	}
}
