package selftest

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// ProcessBytes is this process's memory as the system counts it: Pss_Anon +
// Pss_Shmem + SwapPss, because mapped files can be reclaimed.
func ProcessBytes() (int64, error) {
	const path = "/proc/self/smaps_rollup"
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, fmt.Errorf("read the footprint: %w", err)
	}
	var sum int64
	found := 0
	for line := range bytes.Lines(text) {
		name, rest, _ := strings.Cut(string(line), ":")
		if name != "Pss_Anon" && name != "Pss_Shmem" && name != "SwapPss" {
			continue
		}
		kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
		if err != nil {
			return 0, fmt.Errorf("read %s of %s: %w", name, path, err)
		}
		sum, found = sum+kib<<10, found+1
	}
	if found != 3 {
		return 0, fmt.Errorf("read %s: found %d of 3 figures", path, found)
	}
	return sum, nil
}

// machine is the name of the system, of the processor, and the memory.
func machine() (system, chip string, memory int64) {
	var name unix.Utsname
	if unix.Uname(&name) == nil {
		system = "Linux " + unix.ByteSliceToString(name.Release[:])
	}
	if text, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range bytes.Lines(text) {
			if key, value, ok := strings.Cut(string(line), ":"); ok && strings.TrimSpace(key) == "model name" {
				chip = strings.TrimSpace(value)
				break
			}
		}
	}
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) == nil {
		memory = int64(info.Totalram) * int64(info.Unit)
	}
	return system, chip, memory
}
