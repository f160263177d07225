package memory

import (
	"testing"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// TestAnEngineThatReturnsAByteOfItsPoolEachTimeIsEnded: the pool is the engine's own figure, and one that
// was taken over would hold more than its limit for ever.
func TestAnEngineThatReturnsAByteOfItsPoolEachTimeIsEnded(t *testing.T) {
	for name, c := range map[string]struct {
		held   float64
		pooled func(poll int64) int64
	}{
		"of a large pool":      {60, func(n int64) int64 { return 55*gib - n }},
		"and takes it again":   {60, func(n int64) int64 { return 55*gib - n%2 }},
		"of half of its limit": {14, func(n int64) int64 { return 5*gib - n%2 }},
		"and others meanwhile": {14, func(n int64) int64 { return 5*gib - n%3 }},
	} {
		p, ended := newPolls(), false
		for n := range int64(2 * beyondPolls) {
			e := with(engine("liar", c.held, 0), func(e *EngineReading) {
				e.Limit, e.Requests, e.Pooled, e.Active, e.Accounted = 10*gib, 1, c.pooled(n), 5*gib, 5*gib
			})
			for _, a := range p.see(0, e, pinned(10)).Actions {
				ended = ended || a.Step == StepUnload && a.Reason == v1alpha1.ReclaimOverLimit
			}
		}
		if !ended {
			t.Errorf("%s: it is not ended", name)
		}
	}
}

// TestAnEngineWhosePoolExceedsItsLimitNowAndThenStays: it returns the pool when it is asked.
func TestAnEngineWhosePoolExceedsItsLimitNowAndThenStays(t *testing.T) {
	p := newPolls()
	for n := range 4 * beyondPolls {
		held := 12.0
		if n%2 > 0 {
			held = 9
		}
		e := with(engine("busy", held, 0), func(e *EngineReading) {
			e.Limit, e.Requests, e.Pooled, e.Active, e.Accounted = 10*gib, 1, int64(held-9)*gib, 9*gib, 9*gib
		})
		for _, a := range p.see(0, e, pinned(10)).Actions {
			if a.Step != StepTrim {
				t.Fatalf("poll %d: %+v", n, a)
			}
		}
	}
}
