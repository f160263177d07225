//go:build !linux

package cluster

import (
	"context"
	"errors"
)

// Sandbox needs Linux.
func Sandbox(context.Context, string, func(context.Context) error) error {
	return errors.New("a cluster needs Linux: namespaces and control groups")
}

// Inside needs Linux.
func Inside() bool { return false }
