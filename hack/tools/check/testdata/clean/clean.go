// Package clean has no fault.
package clean

// One is 1.
func One() int { return 1 }
