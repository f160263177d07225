package pool

import (
	"fmt"
	"slices"
	"time"

	"metalfleet.dev/metalfleet/agent/journal"
	"metalfleet.dev/metalfleet/agent/memory"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// Reasons of Loaded for engines that live and do nothing.
const (
	// reasonLoadStalled: the load made no progress for Timing.LoadStall.
	reasonLoadStalled = "LoadStalled"
	// reasonEngineSilent: a loaded engine said nothing for Timing.Silence.
	reasonEngineSilent = "EngineSilent"
	// reasonLoopStalled: one iteration of a loaded engine's loop took Timing.Iteration.
	reasonLoopStalled = "LoopStalled"
	// reasonEngineDeaf: a loaded engine took no limits for Timing.Iteration.
	reasonEngineDeaf = "EngineDeaf"
	// reasonEngineUnmeasurable: the memory of an engine could not be read for unmeasurable, that of another could.
	reasonEngineUnmeasurable = "EngineUnmeasurable"
)

// unmeasurable is how long an engine may not be measured while another one is. Until then the guard acts on what it
// has reserved, if on any engine: see memory.UnmeasuredTime.
const unmeasurable = 4 * memory.UnmeasuredTime

// reasonLogOverrun: an engine wrote more to its log than any does.
const reasonLogOverrun = "LogOverrun"

// boundLogs keeps the engines' logs from filling the disk: one that was taken over writes
// gigabytes to its log until the next poll.
func (lc *lifecycle) boundLogs() {
	for _, g := range lc.running() {
		if lc.boundLog(g) <= overrunLogBytes {
			continue
		}
		var e *entry
		if lc.read(func() { e = lc.entries[g.key] }); e != nil {
			lc.giveUp(e, g, v1alpha1.ReclaimCrashed, journal.Refusal{Reason: reasonLogOverrun, Message: "the engine filled the disk with its log; it may have been taken over"})
		}
	}
}

// boundLog bounds the log of an engine, and returns the size that it had.
func (lc *lifecycle) boundLog(g *engine) int64 {
	bytes, err := boundLog(g.files.log)
	if err != nil {
		lc.Log.Error(err, "Failed to truncate an engine log")
	}
	return bytes
}

// loadMark are the figures that grow while a load makes progress: thousandths of its bytes, and
// hundredths of its limit.
type loadMark struct{ bytes, footprint int64 }

// watchdogs gives up engines whose process lives and that do nothing: loads
// without progress, loaded ones that send no status, and loaded ones that send it and
// take no limits, or whose loop hangs. Until then those that send none count as busy, and no other engine
// is evicted in their place.
func (lc *lifecycle) watchdogs(r memory.Reading) {
	type hung struct {
		e   *entry
		g   *engine
		as  v1alpha1.ReclaimReason
		why journal.Refusal
	}
	var all []hung
	another := slices.ContainsFunc(r.Engines, func(er memory.EngineReading) bool { return er.FootprintKnown && !er.Stopping && !er.Loading })
	lc.read(func() {
		for _, er := range r.Engines {
			e := lc.entries[er.Key]
			if e == nil || e.engine == nil || e.engine.leaving() {
				continue
			}
			as := v1alpha1.ReclaimCrashed
			if e.engine.state != Ready {
				as = v1alpha1.ReclaimLoadFailed
			}
			e.engine.noteMeasured(er.FootprintKnown, another, r.Now)
			if why := lc.hangs(e.engine, er, r.Now); why != nil {
				all = append(all, hung{e, e.engine, as, *why})
			}
		}
	})
	for _, h := range all {
		lc.giveUp(h.e, h.g, h.as, h.why)
	}
}

// noteMeasured counts the time in which an engine could not be measured while another could. The caller
// holds registry.mu.
func (g *engine) noteMeasured(known, another bool, now time.Time) {
	passed := now.Sub(g.watched)
	if g.watched.IsZero() {
		passed = 0
	}
	g.watched = now
	switch {
	case known:
		g.unmeasured = max(0, g.unmeasured-passed)
	case another:
		g.unmeasured += passed
	}
}

// hangs returns why an engine lives and does nothing; nil if it does something, or has
// nothing to do. The caller holds registry.mu.
func (lc *lifecycle) hangs(g *engine, r memory.EngineReading, now time.Time) *journal.Refusal {
	because := func(reason, what string, limit time.Duration) *journal.Refusal {
		return &journal.Refusal{Reason: reason, Message: fmt.Sprintf("the %s for %v although the process is alive", what, limit)}
	}
	switch t := lc.Timing; {
	case g.unmeasured >= unmeasurable:
		return because(reasonEngineUnmeasurable, "memory of the engine could not be measured", unmeasurable)
	case g.state != Ready && g.stalled(r, now) > t.LoadStall:
		return because(reasonLoadStalled, "load made no progress", t.LoadStall)
	case g.state != Ready:
	case now.Sub(g.statusAt) > t.Silence:
		return because(reasonEngineSilent, "engine sent nothing", t.Silence)
	case !g.untakenSince.IsZero() && now.Sub(g.untakenSince) > t.Iteration:
		return because(reasonEngineDeaf, "engine took no limits", t.Iteration)
	case g.status.GetActivity().GetIterationMilliseconds() > t.Iteration.Milliseconds():
		return because(reasonLoopStalled, "engine computed nothing for its requests", t.Iteration)
	}
	return nil
}
