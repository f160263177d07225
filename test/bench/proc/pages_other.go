//go:build !linux

package proc

import (
	"errors"
	"fmt"
)

// DropPages is not supported on this system.
func DropPages(...string) (int64, error) {
	return 0, fmt.Errorf("drop pages of files: %w", errors.ErrUnsupported)
}
