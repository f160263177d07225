//go:build !linux

package testenv

import "syscall"

// dieWithParent does nothing: only Linux ties a child's life to its parent's.
// Elsewhere a control plane whose starter was killed has to be ended by hand.
func dieWithParent(*syscall.SysProcAttr) {}
