//go:build !race

// Package race reports whether a test runs under the race detector, which makes
// arithmetic some fifty times slower. Such a test uses fewer or smaller inputs
// then; what it shares among goroutines stays the same.
//
// Start reading at Enabled.
package race

// Enabled reports that the race detector is off.
const Enabled = false
