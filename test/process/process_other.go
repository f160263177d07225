//go:build !linux

package process

import "syscall"

// dieWithParent does nothing: only Linux ties a child's life to its parent's.
func dieWithParent(*syscall.SysProcAttr) {}
