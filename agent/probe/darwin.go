//go:build darwin

package probe

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// System reads the machine this program runs on.
type System struct {
	host       uint32 // the port of this host
	thermal    int32  // notifyd's token for the thermal level
	hasThermal bool
}

// NewSystem probes this machine.
func NewSystem() System {
	s := System{host: machHostSelf()}
	s.thermal, s.hasThermal = registerThermal()
	return s
}

// Host reads sysctl and host_statistics64. Figures that some machines lack or do
// not report stay unknown; an error in reading any other is returned.
func (s System) Host(_ context.Context, own int64) (Host, error) {
	total, err := unix.SysctlUint64("hw.memsize")
	if err != nil {
		return Host{}, fmt.Errorf("sysctl hw.memsize: %w", err)
	}
	page, err := unix.SysctlUint32("vm.pagesize")
	if err != nil {
		return Host{}, fmt.Errorf("sysctl vm.pagesize: %w", err)
	}
	statistics, err := hostStatistics(s.host)
	if err != nil {
		return Host{}, err
	}
	h := Host{Total: int64(total)}
	if err := readVMStatistics(&h, statistics, int64(page)); err != nil {
		return Host{}, err
	}
	h.Foreign = max(0, h.Used-own)
	s.optional(&h)
	return h, nil
}

// optional fills what may be unknown.
func (s System) optional(h *Host) {
	if raw, err := unix.SysctlRaw("vm.swapusage"); err == nil {
		if used, err := readSwapUsage(raw); err == nil {
			h.SwapUsed = used
		}
	}
	if level, err := unix.SysctlUint32("kern.memorystatus_vm_pressure_level"); err == nil {
		h.Pressure = pressureWord(level)
	}
	if s.hasThermal {
		if level, ok := thermalLevel(s.thermal); ok {
			h.Thermal = thermalWord(level)
		}
	}
	// 0 is the system's own limit, which Metal reports and sysctl does not.
	h.MetalCap = metalShare(h.Total)
	if mib, err := unix.SysctlUint32("iogpu.wired_limit_mb"); err == nil && mib > 0 {
		h.MetalCap = int64(mib) << 20
	}
	if brand, err := unix.Sysctl("machdep.cpu.brand_string"); err == nil {
		h.Chip = strings.ReplaceAll(strings.TrimPrefix(brand, "Apple "), " ", "")
	}
}

const (
	callPIDRusage      = 9  // PROC_INFO_CALL_PIDRUSAGE of sys/proc_info.h
	rusageFlavor0      = 0  // RUSAGE_INFO_V0
	rusageBytes        = 96 // sizeof(struct rusage_info_v0)
	physFootprintField = 72 // offsetof(struct rusage_info_v0, ri_phys_footprint)
	zombie             = 5  // SZOMB of sys/proc.h
)

// Footprint is phys_footprint, the figure that Activity Monitor shows.
func (s System) Footprint(pid int) (int64, error) {
	if _, err := s.StartTime(pid); err != nil {
		return 0, err
	}
	var buffer [rusageBytes]byte
	_, _, errno := unix.Syscall6(unix.SYS_PROC_INFO, callPIDRusage, uintptr(pid), rusageFlavor0, 0, uintptr(unsafe.Pointer(&buffer)), 0)
	runtime.KeepAlive(&buffer)
	if errno == unix.ESRCH {
		return 0, fmt.Errorf("process %d: %w", pid, ErrGone)
	}
	if errno != 0 {
		return 0, fmt.Errorf("proc_info of process %d: %w", pid, errno)
	}
	return int64(binary.LittleEndian.Uint64(buffer[physFootprintField:])), nil
}

// StartTime is the wall clock at the start.
func (System) StartTime(pid int) (string, error) {
	k, err := unix.SysctlKinfoProc("kern.proc.pid", pid)
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EIO) { // EIO: the answer was empty
		return "", fmt.Errorf("process %d: %w", pid, ErrGone)
	}
	if err != nil {
		return "", fmt.Errorf("sysctl kern.proc.pid.%d: %w", pid, err)
	}
	if k.Proc.P_stat == zombie {
		return "", fmt.Errorf("process %d: %w", pid, ErrGone)
	}
	return fmt.Sprintf("%d.%06d", k.Proc.P_starttime.Sec, k.Proc.P_starttime.Usec), nil
}
