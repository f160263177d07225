package probe

import (
	"encoding/binary"
	"fmt"
)

// How macOS says its figures: pure readers of the bytes that darwin.go gets,
// so that every system can test them.

// vmStatisticsBytes is sizeof(struct vm_statistics64), revision 1, of
// mach/vm_statistics.h: 38 words of 4 bytes (HOST_VM_INFO64_REV1_COUNT).
const vmStatisticsBytes = 152

// Offsets in struct vm_statistics64 of mach/vm_statistics.h: four natural_t of
// 4 bytes, nine uint64_t, two natural_t, four uint64_t, four natural_t, one
// uint64_t. They count pages.
const (
	vmFree       = 0   // free_count, speculative pages included
	vmActive     = 4   // active_count
	vmInactive   = 8   // inactive_count
	vmWired      = 12  // wire_count
	vmInternal   = 140 // internal_page_count: resident anonymous, not wired
	vmCompressed = 144 // total_uncompressed_pages_in_compressor, uint64_t
)

// readVMStatistics fills a host's figures from vm_statistics64. Used are the
// logical bytes: wired, resident anonymous, and compressed. The kernel's count of
// the last (c_segment_pages_compressed of vm_compressor.c) falls when a page is
// read back or freed, and not when its segment is written to swap, so it includes
// swap, which is not added again.
func readVMStatistics(h *Host, b []byte, page int64) error {
	if len(b) < vmStatisticsBytes {
		return fmt.Errorf("vm_statistics64 has %d bytes, want %d: this macOS is too old", len(b), vmStatisticsBytes)
	}
	pages := func(offset int) int64 { return int64(binary.LittleEndian.Uint32(b[offset:])) * page }
	stored := binary.LittleEndian.Uint64(b[vmCompressed:])
	if page <= 0 || stored > 1<<40 {
		return fmt.Errorf("vm_statistics64 reports %d pages of %d bytes in the compressor, which is impossible", stored, page)
	}
	h.Free, h.Active, h.Inactive = pages(vmFree), pages(vmActive), pages(vmInactive)
	h.Wired, h.WiredKnown = pages(vmWired), true
	h.Compressed = int64(stored) * page
	h.Used = h.Wired + pages(vmInternal) + h.Compressed
	return nil
}

// readSwapUsage reads struct xsw_usage of sys/sysctl.h: total, available and
// used as uint64_t, the page size and a flag; it returns the bytes used.
func readSwapUsage(b []byte) (int64, error) {
	if len(b) < 24 {
		return 0, fmt.Errorf("xsw_usage has %d bytes, want at least 24", len(b))
	}
	used := binary.LittleEndian.Uint64(b[16:])
	if used > 1<<50 {
		return 0, fmt.Errorf("xsw_usage reports %d bytes of swap in use, which is impossible", used)
	}
	return int64(used), nil
}

// pressureWord names kern.memorystatus_vm_pressure_level, whose values are
// those of DISPATCH_MEMORYPRESSURE in dispatch/source.h; others are unknown.
func pressureWord(level uint32) string {
	switch level {
	case 1:
		return Normal
	case 2:
		return Warning
	case 4:
		return Critical
	}
	return ""
}

// thermalWord names OSThermalPressureLevel of libkern/OSThermalNotification.h
// (macOS: nominal, moderate, heavy, trapping, sleeping) with the words of
// ProcessInfo.thermalState, which has moderate and heavy as one.
func thermalWord(level uint64) string {
	switch level {
	case 0:
		return Nominal
	case 1, 2:
		return Fair
	case 3:
		return Serious
	case 4:
		return Critical
	}
	return ""
}
