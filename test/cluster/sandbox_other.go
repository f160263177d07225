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

// Relay needs Linux.
type Relay struct{}

// Relay needs Linux.
func (m *Mac) Relay(_, _ string) (*Relay, error) {
	return nil, errors.New("a Mac's network needs Linux: namespaces")
}

// Close has nothing to end.
func (*Relay) Close() error { return nil }
