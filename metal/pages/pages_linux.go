package pages

import (
	"math"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	large = 2 << 20
	// least is the smallest memory that is worth asking for.
	least = large
)

// PreferLarge asks for large pages for the part of p that consists of whole
// ones. p must be untouched and may begin anywhere.
func PreferLarge(p []byte) {
	if len(p) < least {
		return
	}
	page := uintptr(os.Getpagesize())
	skip := int(-uintptr(unsafe.Pointer(unsafe.SliceData(p))) % page)
	_ = unix.Madvise(p[skip:], unix.MADV_HUGEPAGE) // a kernel without them says no, and that is fine
}

// Mapping is the length of the mapping for n bytes: whole large pages, because
// Linux only aligns a mapping to large pages if it is as long as some of them.
// The bytes after n cost nothing unless they are touched.
func Mapping(n int64) int64 {
	if n < least || n > math.MaxInt64-large {
		return n
	}
	return (n + large - 1) / large * large
}
