// Package seed gives tests the seed of their random choices.
//
// A test makes the same choices each time, so that a change is never judged by
// chance; TEST_SEED explores. Only _test.go files and packages under test import it.
package seed

import (
	"os"
	"strconv"
	"testing"
	"time"
)

// variable is the environment variable that selects a seed: a number, or new for
// one from the clock.
const variable = "TEST_SEED"

// Of returns the seed of a test and logs it. It is 1 unless Variable selects
// another one; a value that is no seed fails the test.
func Of(t testing.TB) uint64 {
	t.Helper()
	seed := uint64(1)
	switch value := os.Getenv(variable); value {
	case "":
	case "new":
		seed = uint64(time.Now().UnixNano())
	default:
		n, err := strconv.ParseUint(value, 10, 64)
		if err != nil {
			t.Fatalf("%s=%q is no seed: set a number, or new", variable, value)
		}
		seed = n
	}
	t.Logf("seed %d (%s=%d repeats it)", seed, variable, seed)
	return seed
}
