//go:build !linux

package pages

// PreferLarge does nothing: this system has pages of one size.
func PreferLarge([]byte) {}

// Mapping is the length of the mapping for n bytes.
func Mapping(n int64) int64 { return n }
