package fleet

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// processes lists what /proc shows. A process that ends meanwhile, or has
// ended and waits for its parent, is left out.
func processes() ([]Engine, error) {
	folders, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var out []Engine
	for _, f := range folders {
		pid, err := strconv.Atoi(filepath.Base(f))
		if err != nil {
			continue
		}
		line, err := os.ReadFile(filepath.Join(f, "cmdline"))
		if err != nil || len(line) == 0 {
			continue // ended, a kernel thread, or not yet waited for
		}
		stat, err := os.ReadFile(filepath.Join(f, "stat"))
		if err != nil {
			continue
		}
		out = append(out, Engine{
			PID:     pid,
			Command: strings.Split(string(bytes.TrimRight(line, "\x00")), "\x00"),
			started: startTime(string(stat)),
		})
	}
	return out, nil
}

// startTime is field 22 of /proc/PID/stat; the name before may hold anything,
// a closing bracket included.
func startTime(stat string) string {
	const after = 22 - 3 // the field after the name is the third
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	if len(fields) <= after {
		return ""
	}
	return fields[after]
}

// Footprint reads from /proc what a process holds privately: anonymous and
// shared memory, and what of it was swapped. It shares no code with the
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
