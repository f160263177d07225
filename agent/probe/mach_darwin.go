package probe

import (
	"fmt"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Functions of libSystem, called as golang.org/x/sys/unix calls sysctl: the
// linker binds the name, a trampoline in mach_darwin.s jumps to it, and
// syscall.syscall6 runs it on a system stack. No cgo and no other runtime.
//
//go:cgo_import_dynamic libc_mach_host_self mach_host_self "/usr/lib/libSystem.B.dylib"
//go:cgo_import_dynamic libc_host_statistics64 host_statistics64 "/usr/lib/libSystem.B.dylib"
//go:cgo_import_dynamic libc_notify_register_check notify_register_check "/usr/lib/libSystem.B.dylib"
//go:cgo_import_dynamic libc_notify_get_state notify_get_state "/usr/lib/libSystem.B.dylib"

// The addresses of the trampolines: constants that only mach_darwin.s can write.
var (
	machHostSelfAddress        uintptr
	hostStatistics64Address    uintptr
	notifyRegisterCheckAddress uintptr
	notifyGetStateAddress      uintptr
)

//go:linkname syscall6 syscall.syscall6
func syscall6(fn, a1, a2, a3, a4, a5, a6 uintptr) (r1, r2 uintptr, err syscall.Errno)

// machHostSelf is the port of this host. Each call takes a reference of it:
// call it once.
func machHostSelf() uint32 {
	port, _, _ := syscall6(machHostSelfAddress, 0, 0, 0, 0, 0, 0)
	return uint32(port)
}

const hostVMInfo64 = 4 // HOST_VM_INFO64 of mach/host_info.h

// hostStatistics reads vm_statistics64, of revision 1, which every macOS has
// since 10.9 and which newer kernels still answer to a buffer of its size.
func hostStatistics(host uint32) ([]byte, error) {
	buffer := new([vmStatisticsBytes]byte)
	count := new(uint32) // in units of 4 bytes: what there is room for, then what was filled
	*count = vmStatisticsBytes / 4
	code, _, _ := syscall6(hostStatistics64Address, uintptr(host), hostVMInfo64,
		uintptr(unsafe.Pointer(buffer)), uintptr(unsafe.Pointer(count)), 0, 0)
	runtime.KeepAlive(buffer)
	runtime.KeepAlive(count)
	if int32(code) != 0 { // KERN_SUCCESS of mach/kern_return.h
		return nil, fmt.Errorf("host_statistics64: kern_return_t %d", int32(code))
	}
	return buffer[:min(int(*count)*4, len(buffer))], nil
}

// thermalName is kOSThermalNotificationPressureLevelName of libkern/OSThermalNotification.h.
const thermalName = "com.apple.system.thermalpressurelevel"

// registerThermal asks notifyd for the thermal level, once; ok is false where
// it does not answer.
func registerThermal() (token int32, ok bool) {
	name, err := unix.BytePtrFromString(thermalName)
	if err != nil {
		return 0, false
	}
	out := new(int32)
	status, _, _ := syscall6(notifyRegisterCheckAddress, uintptr(unsafe.Pointer(name)), uintptr(unsafe.Pointer(out)), 0, 0, 0, 0)
	runtime.KeepAlive(name)
	runtime.KeepAlive(out)
	return *out, uint32(status) == 0 // NOTIFY_STATUS_OK of notify.h
}

// thermalLevel reads the level; ok is false where it cannot be read.
func thermalLevel(token int32) (level uint64, ok bool) {
	out := new(uint64)
	status, _, _ := syscall6(notifyGetStateAddress, uintptr(uint32(token)), uintptr(unsafe.Pointer(out)), 0, 0, 0, 0)
	runtime.KeepAlive(out)
	return *out, uint32(status) == 0
}
