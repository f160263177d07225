package selftest

import (
	"encoding/binary"
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The system call of proc_pid_rusage, and the offset of the value
// (sys/proc_info.h and sys/resource.h, struct rusage_info_v0).
const (
	callPIDRusage      = 9
	rusageFlavor0      = 0
	rusageBytes        = 96
	physFootprintField = 72
)

// ProcessBytes is this process's memory as the system counts it:
// phys_footprint, the figure of Activity Monitor.
func ProcessBytes() (int64, error) {
	var buffer [rusageBytes]byte
	_, _, errno := unix.Syscall6(unix.SYS_PROC_INFO, callPIDRusage, uintptr(os.Getpid()), rusageFlavor0, 0, uintptr(unsafe.Pointer(&buffer)), 0)
	runtime.KeepAlive(&buffer)
	if errno != 0 {
		return 0, fmt.Errorf("read the footprint: proc_info: %w", errno)
	}
	return int64(binary.LittleEndian.Uint64(buffer[physFootprintField:])), nil
}

// machine is the name of the system, of the processor, and the memory.
func machine() (system, chip string, memory int64) {
	system, chip = "macOS", ""
	if v, err := unix.Sysctl("kern.osproductversion"); err == nil {
		system += " " + v
	}
	if v, err := unix.Sysctl("machdep.cpu.brand_string"); err == nil {
		chip = v
	}
	if v, err := unix.SysctlUint64("hw.memsize"); err == nil {
		memory = int64(v)
	}
	return system, chip, memory
}
