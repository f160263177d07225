package fleet

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// Footprint reads from /proc what a process holds privately: anonymous and
// shared memory, and what of it was swapped. It is written apart from the
// agent's own probe, so that one checks the other.
func Footprint(pid int) (int64, error) {
	path := fmt.Sprintf("/proc/%d/smaps_rollup", pid)
	b, err := os.ReadFile(path)
	if err != nil {
		return 0, fmt.Errorf("footprint of %d: %w", pid, err)
	}
	var sum, found int64
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) != 3 || f[2] != "kB" {
			continue
		}
		switch f[0] {
		case "Pss_Anon:", "Pss_Shmem:", "SwapPss:":
			n, err := strconv.ParseInt(f[1], 10, 64)
			if err != nil {
				return 0, fmt.Errorf("%s: %q: %w", path, line, err)
			}
			sum += n << 10
			found++
		}
	}
	if found != 3 {
		return 0, fmt.Errorf("%s: %d of the 3 lines Pss_Anon, Pss_Shmem and SwapPss", path, found)
	}
	return sum, nil
}
