package served

import (
	"fmt"
	"os"
	"strconv"
	"strings"
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
