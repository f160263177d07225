package memory

import (
	"slices"
	"testing"
)

// TestACacheThatIsNeverDroppedCoversNoDeficit: an engine that was taken over reports a cache and does
// not drop it. No other engine would be evicted, and the prompts of all would wait for ever.
func TestACacheThatIsNeverDroppedCoversNoDeficit(t *testing.T) {
	p := newPolls()
	hoarder := func() EngineReading {
		return with(engine("hoarder", 5, 0), func(e *EngineReading) {
			e.Limit, e.Requests, e.Accounted, e.Cached = 20*gib, 1, 20*gib, 15*gib
		})
	}
	var evicted, paused int
	for range 30 * trimPolls {
		d := p.see(0, hoarder(), pinned(30), engine("idle", 27, 99), engine("other", 20, 50))
		if slices.ContainsFunc(d.Actions, func(a Action) bool { return a.Step == StepEvict }) {
			evicted++
		}
		if d.PausePrefill {
			paused++
		}
	}
	if evicted == 0 {
		t.Errorf("no idle engine is evicted, and prompts wait in %d of %d polls", paused, 30*trimPolls)
	}
}
