//go:build !linux

package pagecache

import "errors"

var errLinux = errors.New("pages of files are dropped from the kernel's cache and looked for: that needs Linux")

// Forget drops a file's pages.
func Forget(string) error { return errLinux }

// Resident is how many bytes of a file lie in the page cache, and its size.
func Resident(string) (in, size int64, err error) { return 0, 0, errLinux }
