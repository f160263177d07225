//go:build race

package ref

// spins are few under the race detector, where a look costs as much as a wake-up
// and processors have other tests to run.
const spins = 64
