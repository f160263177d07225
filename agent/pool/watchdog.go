package pool

import (
	"fmt"

	"metalfleet.dev/metalfleet/agent/journal"
	"metalfleet.dev/metalfleet/agent/memory"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// Reasons of Loaded for engines that live and do nothing.
const (
	// reasonLoadStalled: no byte was loaded for Timing.LoadStall.
	reasonLoadStalled = "LoadStalled"
	// reasonEngineSilent: a loaded engine said nothing for Timing.Silence.
	reasonEngineSilent = "EngineSilent"
)

// boundLogs keeps the engines' logs from filling the disk.
func (lc *lifecycle) boundLogs() {
	for _, g := range lc.running() {
		if err := boundLog(g.files.log); err != nil {
			lc.Log.Error(err, "Failed to truncate an engine log")
		}
	}
}

// loadMark are the figures that change while a load makes progress.
type loadMark struct{ bytes, total, footprint int64 }

// watchdogs gives up engines whose process lives and that do nothing: loads
// without progress, and loaded ones that send no status. Until then the latter
// count as busy, and no other engine is evicted in their place.
func (lc *lifecycle) watchdogs(r memory.Reading) {
	type hung struct {
		e   *entry
		g   *engine
		as  v1alpha1.ReclaimReason
		why journal.Refusal
	}
	var all []hung
	lc.read(func() {
		for _, er := range r.Engines {
			e := lc.entries[er.Key]
			if e == nil || e.engine == nil || e.engine.leaving() {
				continue
			}
			g := e.engine
			if g.state != Ready {
				if stalled := g.stalled(er, r.Now); stalled > lc.Timing.LoadStall {
					all = append(all, hung{e, g, v1alpha1.ReclaimLoadFailed, journal.Refusal{Reason: reasonLoadStalled,
						Message: fmt.Sprintf("the load made no progress for %v although the process is alive", lc.Timing.LoadStall)}})
				}
				continue
			}
			if r.Now.Sub(g.statusAt) > lc.Timing.Silence {
				all = append(all, hung{e, g, v1alpha1.ReclaimCrashed, journal.Refusal{Reason: reasonEngineSilent,
					Message: fmt.Sprintf("the engine sent nothing for %v although the process is alive", lc.Timing.Silence)}})
			}
		}
	})
	for _, h := range all {
		lc.giveUp(h.e, h.g, h.as, h.why)
	}
}
