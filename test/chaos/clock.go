package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// offset of the clock of a Mac that is wrong.
const offset = 10 * time.Minute

// The agent with a wrong clock is the agent of the same source over a time.Now
// that adds seconds: certificates, leases, journals, timers that compare wall
// clocks, all see it, and the monotonic clock does not, as on such a Mac.
const (
	nowHas = "	sec, nsec, mono := runtimeNow()\n	if mono == 0 {\n"
	nowGet = "	sec, nsec, mono := runtimeNow()\n	sec += skewed()\n	if mono == 0 {\n"
	skewed = `
// skew is set by the linker, in seconds.
var skew string

func skewed() int64 {
	n, sign := int64(0), int64(1)
	for i := 0; i < len(skew); i++ {
		if skew[i] == '-' {
			sign = -1
		} else {
			n = 10*n + int64(skew[i]-'0')
		}
	}
	return sign * n
}
`
)

// skewedSource is the library's own file with the addition.
func skewedSource(source string) (string, error) {
	if strings.Count(source, nowHas) != 1 {
		return "", fmt.Errorf("time.Now of this Go is not as it is known here: look at nowHas in test/chaos/clock.go")
	}
	return strings.Replace(source, nowHas, nowGet, 1) + skewed, nil
}

// timeSource is the file of the library that has time.Now.
func timeSource(ctx context.Context) (file, source string, err error) {
	out, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output()
	if err != nil {
		return "", "", fmt.Errorf("go env GOROOT: %w", err)
	}
	file = filepath.Join(strings.TrimSpace(string(out)), "src", "time", "time.go")
	b, err := os.ReadFile(file)
	return file, string(b), err
}

// buildSkewed makes two agents in dir: one whose clock is ahead, one behind.
func buildSkewed(ctx context.Context, root, dir string) (programs [2]string, err error) {
	file, source, err := timeSource(ctx)
	if err != nil {
		return programs, err
	}
	changed, err := skewedSource(source)
	if err != nil {
		return programs, err
	}
	overlay, err := json.Marshal(map[string]map[string]string{"Replace": {file: filepath.Join(dir, "time.go")}})
	if err != nil {
		return programs, err
	}
	for name, b := range map[string][]byte{"time.go": []byte(changed), "overlay.json": overlay} {
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
			return programs, err
		}
	}
	for i, seconds := range []float64{offset.Seconds(), -offset.Seconds()} {
		programs[i] = filepath.Join(dir, fmt.Sprintf("agent%+.0f", seconds))
		cmd := exec.CommandContext(ctx, "go", "build", "-overlay", filepath.Join(dir, "overlay.json"),
			"-ldflags", fmt.Sprintf("-X time.skew=%.0f", seconds), "-o", programs[i], "./cmd/agent")
		cmd.Dir = root
		if out, err := cmd.CombinedOutput(); err != nil {
			return programs, fmt.Errorf("build an agent whose clock is off by %.0f s: %w: %s", seconds, err, out)
		}
	}
	return programs, nil
}
