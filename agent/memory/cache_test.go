package memory

import (
	"slices"
	"testing"
	"time"
)

// TestACacheThatIsNeverDroppedCoversNoDeficit: an engine that was taken over reports a cache and does
// not drop it, also if it answers. No other engine would be evicted, and the prompts of all would
// wait for ever.
func TestACacheThatIsNeverDroppedCoversNoDeficit(t *testing.T) {
	for name, tc := range map[string]struct {
		answers int  // polls after the request
		hides   bool // it reports no cache then, and holds as much
	}{
		"it does not answer":              {answers: 31 * trimPolls, hides: false},
		"it answers at once":              {answers: 0, hides: false},
		"it answers before the next one":  {answers: trimPolls - 1, hides: false},
		"it reports a cache now and then": {answers: trimPolls - 1, hides: true},
	} {
		p, evicted, paused, asked := newPolls(), 0, 0, -31*trimPolls
		var answered time.Time
		for n := range 30 * trimPolls {
			hoarder := with(engine("hoarder", 5, 0), func(e *EngineReading) {
				e.Limit, e.Requests, e.Accounted, e.Cached, e.TrimAcknowledged = 20*gib, 1, 20*gib, 15*gib, answered
				if tc.hides && n == asked+tc.answers {
					e.Cached = 0
				}
			})
			d := p.see(0, hoarder, pinned(30), engine("idle", 27, 99), engine("other", 20, 50))
			if slices.ContainsFunc(d.Actions, func(a Action) bool { return a.Step == StepEvict }) {
				evicted++
			}
			if slices.ContainsFunc(d.Actions, func(a Action) bool { return a.Cache }) {
				asked = n
			}
			if n == asked+tc.answers {
				answered = p.now.Add(300 * time.Millisecond)
			}
			if d.PausePrefill {
				paused++
			}
		}
		if evicted < 26*trimPolls {
			t.Errorf("%s: idle engines are evicted in %d polls, and prompts wait in %d of %d", name, evicted, paused, 30*trimPolls)
		}
	}
}
