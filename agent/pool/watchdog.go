package pool

import (
	"fmt"
	"time"

	"metalfleet.dev/metalfleet/agent/journal"
	"metalfleet.dev/metalfleet/agent/memory"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// Reasons of Loaded for engines that live and do nothing.
const (
	// ReasonLoadStalled: no byte was loaded for Timing.LoadStall.
	ReasonLoadStalled = "LoadStalled"
	// ReasonEngineSilent: a loaded engine said nothing for Timing.Silence.
	ReasonEngineSilent = "EngineSilent"
)

// loadMark is what moves while a load goes on.
type loadMark struct{ bytes, total, footprint int64 }

// watchdogs give up engines whose process lives and which do nothing: loads
// without progress, and loaded ones that do not answer. Until then the latter
// count as busy, and nobody is evicted in their place.
func (p *Pool) watchdogs(r memory.Reading) {
	type hung struct {
		e   *entry
		g   *engine
		as  v1alpha1.ReclaimReason
		why journal.Refusal
	}
	var all []hung
	p.read(func() {
		for _, er := range r.Engines {
			e := p.entries[er.Key]
			if e == nil || e.engine == nil || e.engine.stop != nil {
				continue
			}
			g := e.engine
			if !g.ready {
				if stalled := g.stalled(er, r.Now); stalled > p.Timing.LoadStall {
					all = append(all, hung{e, g, v1alpha1.ReclaimLoadFailed, journal.Refusal{Reason: ReasonLoadStalled,
						Message: fmt.Sprintf("the load made no progress for %v although the process is alive", p.Timing.LoadStall)}})
				}
				continue
			}
			if r.Now.Sub(g.heardAt) > p.Timing.Silence {
				all = append(all, hung{e, g, v1alpha1.ReclaimCrashed, journal.Refusal{Reason: ReasonEngineSilent,
					Message: fmt.Sprintf("the engine sent nothing for %v although the process is alive", p.Timing.Silence)}})
			}
		}
	})
	for _, h := range all {
		p.giveUp(h.e, h.g, h.as, h.why)
	}
}

// stalled is for how long the load has not moved; the caller holds Pool.mu.
func (g *engine) stalled(r memory.EngineReading, now time.Time) time.Duration {
	mark := loadMark{bytes: g.status.GetLoad().GetBytesDone(), total: g.status.GetLoad().GetBytesTotal(), footprint: r.Footprint}
	if mark != g.progress {
		g.progress, g.progressAt = mark, now
	}
	return now.Sub(g.progressAt)
}
