// Package guard is small, so that the runner can be shown every verdict on it.
package guard

import "errors"

// Limit is what Check refuses beyond.
const Limit = 10

// Check refuses what is too large or negative.
func Check(n int) error {
	if n > Limit {
		return errors.New("too large")
	}
	if n < 0 {
		return errors.New("negative")
	}
	return nil
}
