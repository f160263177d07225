package guard

import (
	"log/slog"
	"runtime/debug"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"metalfleet.dev/metalfleet/metal/footprint"
	"metalfleet.dev/metalfleet/metal/tensor"
)

// empty is a back end that holds nothing.
type empty struct{ tensor.Backend }

func (empty) Memory() tensor.Memory { return tensor.Memory{} }

func (empty) SetLimits(int64, int64) {}

// A prompt that does not fit because of garbage, which nothing else may collect for minutes, has it
// collected, at most once in a pause, and may be sent again.
func TestGarbageGivesWayToPrompts(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	synctest.Test(t, func(t *testing.T) {
		g := New(Options{Backend: empty{}, Cached: func() int64 { return 0 }, Unread: func() int64 { return 0 }, Log: slog.New(slog.DiscardHandler)})
		g.SetModel(Model{Overhead: 20, Estimator: fixed(50)})
		published := int64(0)
		for _, c := range []struct {
			name             string
			footprint, limit int64
			after            time.Duration
			abort            bool
			collected, retry bool
		}{
			{name: "too long for the limit", footprint: 90, limit: 60},
			{name: "garbage is in the way", footprint: 90, limit: 100, collected: true, retry: true},
			{name: "again within the pause", footprint: 90, limit: 100, retry: true},
			{name: "after the pause", footprint: 90, limit: 100, after: garbagePause, collected: true, retry: true},
			{name: "a prompt that had begun", footprint: 90, limit: 100, after: garbagePause, abort: true, collected: true, retry: true},
			{name: "no more than the process takes", footprint: 20, limit: 69, after: garbagePause},
		} {
			time.Sleep(c.after)
			published++
			g.SetLimits(Limits{Memory: c.limit, Footprint: c.footprint, Sequence: published})
			garbage := weak.Make(new([1 << 20]byte))
			refuse := func() *Exceeded {
				_, exceeded := g.Check(t.Context(), footprint.Prefill{New: 1}, false)
				return exceeded
			}
			if c.abort {
				refuse = func() *Exceeded { return g.Abort(50, g.Room()) }
			}
			exceeded := refuse()
			if exceeded == nil || (garbage.Value() == nil) != c.collected || (exceeded.RetryAfter > 0) != c.retry {
				t.Errorf("%s: garbage was collected: %v, refusal %+v", c.name, garbage.Value() == nil, exceeded)
			}
		}
	})
}
