//go:build !linux && !darwin

package sandbox

// Prepare does nothing.
func Prepare(Rules) error { return nil }

// Enter returns ErrUnavailable.
func Enter(Rules) (string, error) { return "", ErrUnavailable }
