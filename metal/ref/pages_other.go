//go:build !linux

package ref

// preferLargePages does nothing: this system has pages of one size.
func preferLargePages([]byte) {}
