//go:build !linux

package fleet

import (
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
)

// processes asks ps, where there is no /proc.
func processes() ([]Engine, error) {
	out, err := exec.Command("ps", "-axww", "-o", "pid=,state=,lstart=,command=").Output()
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var all []Engine
	for line := range strings.Lines(string(out)) {
		// PID, state, five words of start time, command.
		f := strings.Fields(line)
		const words = 7
		if len(f) <= words || strings.HasPrefix(f[1], "Z") {
			continue
		}
		pid, err := strconv.Atoi(f[0])
		if err != nil {
			continue
		}
		all = append(all, Engine{PID: pid, Command: f[words:], started: strings.Join(f[2:words], " ")})
	}
	return all, nil
}

// Footprint needs /proc.
func Footprint(pid int) (int64, error) {
	return 0, fmt.Errorf("footprint of %d: %w", pid, errors.ErrUnsupported)
}
