//go:build !linux

package fleet

import (
	"errors"
	"fmt"
)

// Footprint needs /proc.
func Footprint(pid int) (int64, error) {
	return 0, fmt.Errorf("footprint of %d: %w", pid, errors.ErrUnsupported)
}
