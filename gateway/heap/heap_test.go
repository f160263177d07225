package heap

import (
	"math"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"testing"
	"time"
)

func TestPercent(t *testing.T) {
	for alive, want := range map[uint64]int{
		0: 4700, 1 << 20: 4700, 8 << 20: 500, 16 << 20: 200,
		Floor / 2: 100, Floor/2 + 1: 100, Floor: 100, 1 << 34: 100, math.MaxUint64: 100,
	} {
		if got := percent(alive); got != want {
			t.Errorf("%d bytes alive: %d, want %d", alive, got, want)
		}
	}
}

// now is the percent in force.
func now() uint64 {
	sample := []metrics.Sample{{Name: "/gc/gogc:percent"}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}

// collected wants a percent after some collections.
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
	Keep()
	collected(t, "little is alive", func(p uint64) bool { return p > 200 })
	much := make([]byte, Floor)
	collected(t, "more than the floor is alive", func(p uint64) bool { return p == 100 })
	runtime.KeepAlive(much)
	much = nil
	collected(t, "little is alive again", func(p uint64) bool { return p > 200 })
}

func TestGOGCIsObeyed(t *testing.T) {
	t.Setenv("GOGC", "150")
	before := debug.SetGCPercent(150)
	defer debug.SetGCPercent(before)
	Keep()
	for range 30 { // what would set another runs some time after a collection
		runtime.GC()
		time.Sleep(5 * time.Millisecond)
		if got := now(); got != 150 {
			t.Fatalf("the percent is %d, and GOGC says 150", got)
		}
	}
}
