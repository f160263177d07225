// Package patience bounds how long a test waits for a condition.
//
// It owns that one bound. A wait costs nothing where things work, so it is far
// more than a machine needs that runs all other tests at once; and it always ends
// before the test program is ended, so that the test can report what it waited for.
// It refuses to be a measure of speed: benchmarks are. Only _test.go files and
// programs under hack may import it.
//
// Start reading at Of.
package patience

import "time"

// Most is the longest wait.
const Most = 2 * time.Minute

// Of bounds one wait of a test: Most, or a quarter of the time that the test
// program still has, so that several waits of one test fit.
func Of(t interface{ Deadline() (time.Time, bool) }) time.Duration {
	end, limited := t.Deadline()
	if !limited {
		return Most
	}
	return min(Most, max(time.Second, time.Until(end)/4))
}
