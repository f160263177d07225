//go:build !linux

package netns

import (
	"context"
	"errors"
)

// Address is of no use here.
const Address = ""

var errLinux = errors.New("it needs the network namespaces of Linux")

// Sandboxed refuses.
func Sandboxed(context.Context, func(context.Context) error) error { return errLinux }

// Inside changes nothing.
func Inside(_, program string, args ...string) (string, []string) { return program, args }

// Run refuses.
func Run(context.Context, string, ...string) error { return errLinux }
