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
	const after = 22 - 3 // fields counted from the one behind the name, which is the third
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	if len(fields) <= after {
		return ""
	}
	return fields[after]
}
