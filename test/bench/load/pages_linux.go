package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// available is how much memory programs may still take, in bytes.
func available() (int64, error) {
	const key = "MemAvailable:"
	b, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, fmt.Errorf("ask for free memory: %w", err)
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == key {
			kib, err := strconv.ParseInt(f[1], 10, 64)
			if err != nil {
				return 0, fmt.Errorf("ask for free memory: %q: %w", line, err)
			}
			return kib << 10, nil
		}
	}
	return 0, fmt.Errorf("ask for free memory: /proc/meminfo has no %s", key)
}
