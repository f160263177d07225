//go:build stories

package system

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// clockOffset of a Mac whose clock is wrong.
const clockOffset = 10 * time.Minute

// An agent with a wrong clock is built from the same source with a time.Now that
// adds seconds: certificates, leases, journals and timers that compare wall clocks
// all see it, and the monotonic clock does not, as on such a Mac.
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

// skewedSource adds the offset to the library's source of time.Now.
func skewedSource(source string) (string, error) {
	if strings.Count(source, nowHas) != 1 {
		return "", errors.New("the source of time.Now of this Go is another one: adapt nowHas in test/system/clock_test.go")
	}
	return strings.Replace(source, nowHas, nowGet, 1) + skewed, nil
}

// timeSource is the library's file with time.Now.
func timeSource(t *testing.T) (file, source string) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "env", "GOROOT").Output()
	must(t, err)
	file = filepath.Join(strings.TrimSpace(string(out)), "src", "time", "time.go")
	b, err := os.ReadFile(file)
	must(t, err)
	return file, string(b)
}

// buildSkewed builds two agents: one whose clock is ahead, one whose clock is late.
func buildSkewed(t *testing.T) (programs [2]string) {
	t.Helper()
	dir := t.TempDir()
	file, source := timeSource(t)
	changed, err := skewedSource(source)
	must(t, err)
	overlay, err := json.Marshal(map[string]map[string]string{"Replace": {file: filepath.Join(dir, "time.go")}})
	must(t, err)
	must(t, os.WriteFile(filepath.Join(dir, "time.go"), []byte(changed), 0o600))
	must(t, os.WriteFile(filepath.Join(dir, "overlay.json"), overlay, 0o600))
	for i, seconds := range []float64{clockOffset.Seconds(), -clockOffset.Seconds()} {
		programs[i] = filepath.Join(dir, fmt.Sprintf("agent%+.0f", seconds))
		cmd := exec.CommandContext(t.Context(), "go", "build", "-overlay", filepath.Join(dir, "overlay.json"),
			"-ldflags", fmt.Sprintf("-X time.skew=%.0f", seconds), "-o", programs[i], "./cmd/agent")
		cmd.Dir = root
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("build an agent whose clock is off by %.0f s: %v: %s", seconds, err, out)
		}
	}
	return programs
}

func TestTheClockOfThisGoCanBeSkewed(t *testing.T) {
	_, source := timeSource(t)
	if out, err := skewedSource(source); err != nil || !strings.Contains(out, "sec += skewed()") {
		t.Error(err)
	}
	if _, err := skewedSource("package time"); err == nil {
		t.Error("another source of time.Now was accepted")
	}
}
