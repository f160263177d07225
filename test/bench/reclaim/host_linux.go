package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// available is how much memory programs could get without swapping.
func available() (int64, error) {
	b, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, fmt.Errorf("free memory: %w", err)
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == "MemAvailable:" {
			kib, err := strconv.ParseInt(f[1], 10, 64)
			return kib << 10, err
		}
	}
	return 0, errors.New("free memory: /proc/meminfo has no MemAvailable")
}

// awaitEnd returns when a process was seen to end, by the kernel's own word: a
// process need not be our child to have its end told.
func awaitEnd(ctx context.Context, pid int) (time.Time, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return time.Time{}, fmt.Errorf("watch process %d: %w", pid, err)
	}
	defer unix.Close(fd)
	const look = 100 // ms between two looks at ctx
	for ctx.Err() == nil {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, look)
		at := time.Now()
		switch {
		case err != nil && !errors.Is(err, unix.EINTR):
			return at, fmt.Errorf("watch process %d: %w", pid, err)
		case n > 0:
			return at, nil
		}
	}
	return time.Time{}, context.Cause(ctx)
}
