//go:build !linux

package fleet

import "syscall"

// dieWithParent does nothing: only Linux ties a child's life to its parent's.
func dieWithParent(*syscall.SysProcAttr) {}
