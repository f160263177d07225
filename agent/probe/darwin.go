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
type System struct{}

// NewSystem probes this machine.
func NewSystem() System { return System{} }

// Host reads sysctl.
func (System) Host(_ context.Context, own int64) (Host, error) {
	total, err := unix.SysctlUint64("hw.memsize")
	if err != nil {
		return Host{}, fmt.Errorf("sysctl hw.memsize: %w", err)
	}
	page, err := unix.SysctlUint32("vm.pagesize")
	if err != nil {
		return Host{}, fmt.Errorf("sysctl vm.pagesize: %w", err)
	}
	free, err := pages("vm.page_free_count", "vm.page_speculative_count", "vm.page_purgeable_count")
	if err != nil {
		return Host{}, err
	}
	h := Host{Total: int64(total), Free: free * int64(page)}
	// The pageable external pages are the file cache: not logical bytes.
	if cache, err := pages("vm.page_pageable_external_count"); err == nil {
		h.Free += cache * int64(page)
	}
	h.Used = max(0, h.Total-h.Free)
	h.Foreign = max(0, h.Used-own)
	if mib, err := unix.SysctlUint32("iogpu.wired_limit_mb"); err == nil {
		h.MetalCap = int64(mib) << 20
	}
	if brand, err := unix.Sysctl("machdep.cpu.brand_string"); err == nil {
		h.Chip = strings.ReplaceAll(strings.TrimPrefix(brand, "Apple "), " ", "")
	}
	return h, nil
}

func pages(names ...string) (int64, error) {
	var sum int64
	for _, n := range names {
		v, err := unix.SysctlUint32(n)
		if err != nil {
			return 0, fmt.Errorf("sysctl %s: %w", n, err)
		}
		sum += int64(v)
	}
	return sum, nil
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
