// Package probe measures the memory of this Mac and of its processes.
//
// It owns how a figure is read on each system: Linux from /proc, darwin from
// sysctl, proc_info, host_statistics64 and notify without cgo, a declared host (Linux playing a Mac of
// given size) from a declaration and the measured footprints of its own
// engines, and a scripted twin for tests. It refuses to guess: what cannot be
// read is an error, and a process that is gone is ErrGone and not zero bytes.
// It decides nothing. probetest holds the suite that every probe passes.
//
// Start reading at Probe.
package probe

import (
	"context"
	"errors"
)

// ErrGone means that no living process has that id. A zombie counts as gone: it
// holds no memory.
var ErrGone = errors.New("process does not exist")

// What a system says of its memory pressure and of its heat.
const (
	Normal   = "Normal"
	Warning  = "Warning"
	Critical = "Critical"
	Nominal  = "Nominal"
	Fair     = "Fair"
	Serious  = "Serious"
)

// Host are the figures of the machine, in bytes.
type Host struct {
	// Chip, such as "M2Ultra"; empty when unknown.
	Chip string
	// Total memory.
	Total int64
	// MetalCap is the most the GPU may wire; 0 means that none is known.
	MetalCap int64
	// Free is what the system could give out at once, without taking a page
	// from anybody; file pages are in Inactive and Active.
	Free int64
	// Foreign is used by what is none of our engines.
	Foreign int64
	// Used are the logical bytes in use: resident and swapped, not file cache.
	Used int64
	// Inactive and Active are pages that the system would give up, the former
	// readily, the latter in part: the dynamic ceiling counts them. 0: unknown.
	Inactive, Active int64
	// Wired cannot be paged out; WiredKnown is false if the system does not
	// report it.
	Wired      int64
	WiredKnown bool
	// Compressed is what the compressor stores: the logical bytes, not the
	// pages that it needs. On darwin it counts what it wrote to swap, too.
	Compressed int64
	// SwapUsed on disk.
	SwapUsed int64
	// Pressure is the system's own word: Normal, Warning or Critical; empty: unknown.
	Pressure string
	// Thermal state: Nominal, Fair, Serious or Critical; empty: unknown.
	Thermal string
	// Simulated is true where the machine was declared.
	Simulated bool
}

// Probe measures. It is safe for concurrent use.
type Probe interface {
	// Host reads the machine's figures; own are the footprints of our engines,
	// read just before, in bytes.
	Host(ctx context.Context, own int64) (Host, error)
	// Footprint is the memory of one process as the kernel counts it, or ErrGone.
	Footprint(pid int) (int64, error)
	// StartTime names the start of a process: together with the id it names
	// the process for ever. ErrGone when there is none.
	StartTime(pid int) (string, error)
}
