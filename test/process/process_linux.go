package process

import "syscall"

// dieWithParent has the kernel kill the child when the parent is gone.
func dieWithParent(a *syscall.SysProcAttr) { a.Pdeathsig = syscall.SIGKILL }
