//go:build !linux

package proc

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// AwaitEnd is not supported on this system.
func AwaitEnd(context.Context, int) (time.Time, error) {
	return time.Time{}, fmt.Errorf("watch a process: %w", errors.ErrUnsupported)
}

// DropPages is not supported on this system.
func DropPages(...string) (int64, error) {
	return 0, fmt.Errorf("drop pages of files: %w", errors.ErrUnsupported)
}

// Pin is not supported on this system.
func Pin(...int) (func() error, error) {
	return nil, fmt.Errorf("pin this process to cores: %w", errors.ErrUnsupported)
}
