package heap

import (
	"context"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"testing"
	"time"
)

func TestPercent(t *testing.T) {
	for alive, want := range map[uint64]int{
		0: 4700, 1 << 20: 4700, 8 << 20: 500, 16 << 20: 200,
		floor / 2: 100, floor/2 + 1: 100, floor: 100, 1 << 34: 100, math.MaxUint64: 100,
	} {
		if got := percent(alive); got != want {
			t.Errorf("%d bytes alive: %d, want %d", alive, got, want)
		}
	}
}

// now returns the current GC percent.
func now() uint64 {
	sample := []metrics.Sample{{Name: "/gc/gogc:percent"}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}

// keep runs Keep until the test ends.
func keep(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(func() {
		cancel()
		runtime.GC()
		time.Sleep(10 * time.Millisecond) // a finalizer may be about to run
	})
	Keep(ctx, 0.85)
}

// collected waits for a GC percent to be set within some collections.
func collected(t *testing.T, what string, good func(uint64) bool) {
	t.Helper()
	for range 500 {
		runtime.GC()
		if good(now()) {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("%s: the percent is %d", what, now())
}

func TestKeepFollowsWhatIsAlive(t *testing.T) {
	t.Setenv("GOGC", "")
	before := debug.SetGCPercent(100)
	defer debug.SetGCPercent(before)
	keep(t)
	collected(t, "little is alive", func(p uint64) bool { return p > 200 })
	much := make([]byte, floor)
	collected(t, "more than the floor is alive", func(p uint64) bool { return p == 100 })
	runtime.KeepAlive(much)
	much = nil
	collected(t, "little is alive again", func(p uint64) bool { return p > 200 })
}

func TestQuiet(t *testing.T) {
	for name, tc := range map[string]struct {
		lately, there, left uint64
		want                bool
	}{
		"after a busy time":  {there: 40 << 20, left: 10 << 20, want: true},
		"in a busy time":     {lately: quietBytes, there: 40 << 20, left: 10 << 20, want: false},
		"nothing to be had":  {there: 10<<20 + leftBytes, left: 10 << 20, want: false},
		"just collected":     {there: 9 << 20, left: 10 << 20, want: false},
		"a little, and long": {lately: quietBytes - 1, there: 10<<20 + leftBytes + 1, left: 10 << 20, want: true},
	} {
		if got := quiet(tc.lately, tc.there, tc.left); got != tc.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

var garbage []byte

func TestWhatABusyTimeLeftIsGivenBack(t *testing.T) {
	t.Setenv("GOGC", "")
	before := debug.SetGCPercent(1000)
	defer debug.SetGCPercent(before)
	runtime.GC()
	sample := []metrics.Sample{{Name: objects}, {Name: live}}
	garbage = make([]byte, 5*leftBytes)
	garbage = nil
	keep(t)
	for range 1000 { // at most two checks are needed
		metrics.Read(sample)
		if sample[0].Value.Uint64() < sample[1].Value.Uint64()+leftBytes {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("%d bytes are there, and %d were left by the last collection", sample[0].Value.Uint64(), sample[1].Value.Uint64())
}

func TestGOGCIsObeyed(t *testing.T) {
	t.Setenv("GOGC", "150")
	before := debug.SetGCPercent(150)
	defer debug.SetGCPercent(before)
	keep(t)
	for range 30 { // the finalizer runs some time after a collection
		runtime.GC()
		time.Sleep(5 * time.Millisecond)
		if got := now(); got != 150 {
			t.Fatalf("the percent is %d, and GOGC says 150", got)
		}
	}
}

func TestTheLimitOfAContainerIsRead(t *testing.T) {
	for text, want := range map[string]int64{"1073741824\n": 912680550, "max\n": 0, "": 0, "-1": 0} {
		file := filepath.Join(t.TempDir(), "memory.max")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := limitOf(file, 0.85); got != want {
			t.Errorf("%q limits the collector to %d bytes, want %d", text, got, want)
		}
	}
	if got := limitOf(filepath.Join(t.TempDir(), "none"), 0.85); got != 0 {
		t.Errorf("without a file the limit is %d bytes", got)
	}
}
