//go:build !linux

package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

func available() (int64, error) {
	return 0, fmt.Errorf("free memory: %w", errors.ErrUnsupported)
}

func awaitEnd(context.Context, int) (time.Time, error) {
	return time.Time{}, fmt.Errorf("watch a process: %w", errors.ErrUnsupported)
}
