package pages

import (
	"fmt"
	"math"
	"os"
	"syscall"
)

// Held is how many bytes a mapping of n bytes takes once it is touched: whole
// pages.
func Held(n int64) int64 {
	page := int64(os.Getpagesize())
	return (n + page - 1) / page * page
}

// Map takes n bytes from the system, which are zero; Unmap gives them back at
// once, as no heap does.
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

// Unmap gives back what Map took, whole.
func Unmap(p []byte) {
	if err := syscall.Munmap(p); err != nil {
		panic("pages: cannot unmap own mapping: " + err.Error())
	}
}

// Touch makes a mapping resident that was not written yet; it stays zero. Its
// first writer then waits for no page.
func Touch(p []byte) {
	for i := 0; i < len(p); i += os.Getpagesize() {
		p[i] = 0
	}
}
