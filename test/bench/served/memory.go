package served

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// Footprint is Pss_Anon + Pss_Shmem + SwapPss of the process, in bytes: what it
// holds alone, mapped files left out.
func (e *Engine) Footprint() (int64, error) {
	return sum(fmt.Sprintf("/proc/%d/smaps_rollup", e.PID), "Pss_Anon", "Pss_Shmem", "SwapPss")
}

// Peak is VmHWM of the process, in bytes: the most that was ever resident,
// pages of programs and libraries included.
func (e *Engine) Peak() (int64, error) {
	return sum(fmt.Sprintf("/proc/%d/status", e.PID), "VmHWM")
}

// sum adds the figures of a file of "key: n kB" lines; all must be there.
func sum(path string, keys ...string) (int64, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0, fmt.Errorf("memory of a process: %w", err)
	}
	figures := map[string]int64{}
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) != 3 || f[2] != "kB" {
			continue
		}
		kib, err := strconv.ParseInt(f[1], 10, 64)
		if err != nil {
			return 0, fmt.Errorf("memory of a process: %q: %w", line, err)
		}
		figures[strings.TrimSuffix(f[0], ":")] = kib << 10
	}
	var total int64
	for _, k := range keys {
		n, ok := figures[k]
		if !ok {
			return 0, fmt.Errorf("memory of a process: %s has no %s", path, k)
		}
		total += n
	}
	return total, nil
}

// ticks per second of the times in /proc.
const ticks = 100

// Processor is the processor time that the process took so far, of all its
// threads, in the kernel too.
func (e *Engine) Processor() (time.Duration, error) {
	path := fmt.Sprintf("/proc/%d/stat", e.PID)
	b, err := os.ReadFile(path)
	if err != nil {
		return 0, fmt.Errorf("time of a process: %w", err)
	}
	return processor(string(b))
}

// processor reads the 14th and the 15th field; the second is the program's name
// in brackets and may hold anything.
func processor(stat string) (time.Duration, error) {
	f := strings.Fields(stat[strings.LastIndex(stat, ")")+1:])
	var sum time.Duration
	for _, i := range []int{14 - 3, 15 - 3} {
		if i >= len(f) {
			return 0, fmt.Errorf("time of a process: %q is too short", stat)
		}
		n, err := strconv.ParseInt(f[i], 10, 64)
		if err != nil {
			return 0, fmt.Errorf("time of a process: %q: %w", stat, err)
		}
		sum += time.Duration(n) * time.Second / ticks
	}
	return sum, nil
}
