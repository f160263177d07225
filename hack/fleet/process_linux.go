package fleet

import "syscall"

// dieWithParent has the kernel kill the child when the parent is gone. Engines
// are not our children and live on; Sweep ends them at the next start.
func dieWithParent(a *syscall.SysProcAttr) { a.Pdeathsig = syscall.SIGKILL }
