package memory

import (
	"fmt"
	"slices"
	"time"

	"metalfleet.dev/metalfleet/agent/probe"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/metal/footprint"
)

const (
	// trimPolls is how long a request for pooled bytes has to work: until it is
	// that old, pressure compares what engines hold without their pools.
	trimPolls = 5
	// settleTime after an engine's acknowledgement its footprint still falls.
	settleTime = 500 * time.Millisecond
	// hysteresisPermille of the ceiling below a mark a level is left at once,
	// and victims are taken down to there; after calmPolls anywhere below it.
	hysteresisPermille = 25
	calmPolls          = 5
	// emergencySlack over the fixed ceiling is an emergency at once; anything
	// over it is one after overPolls.
	emergencySlack = 2 * footprint.GiB
	overPolls      = 2
	// sooner than leastPause after the last one a poll is one between: it acts on
	// what it sees, and is not counted where polls in a row are. Every end of
	// an engine causes one.
	leastPause = 500 * time.Millisecond
	// criticalPause between two steps against pressure that only the system
	// reports: no figure shows how much is missing, and the system takes
	// seconds to notice what a step freed.
	criticalPause = 10 * time.Second
	// stuckPolls of soft pressure in which nothing can fall: pausing does not help.
	stuckPolls = 10
)

// Enforcer derives from each poll what is to be done. It is not safe for
// concurrent use, has no clock and does nothing itself.
type Enforcer struct {
	poll    int64
	counted time.Time // the last poll that was counted
	between bool      // this one is not
	level   v1alpha1.PressureLevel
	last    Decision // of the last poll that could see
	// Polls in a row: below the mark of the level; over the fixed ceiling; hard
	// by the dynamic term alone; soft although nothing can fall.
	calm, over, dip, stuck int
	graced                 int64     // the poll of grace of this emergency; 0: not had
	criticalStep           time.Time // the last step against pressure without a figure
	engines                map[Key]*memo
}

// memo is what must span polls of one engine, as numbers of polls; 0: never.
type memo struct {
	asked     int64 // first for its pooled bytes, in this pressure and since it last returned them
	askedLast int64
	pooled    int64     // bytes at the last request
	returned  bool      // fewer were pooled at some poll since then
	cache     int64     // asked last for its prompt cache
	cacheAt   time.Time // and when
	aborted   int64     // its requests, since it or the Mac is over
	over      int       // polls in a row over its own limit
}

// refilled reports whether an engine returned its pool when it was asked and
// has another one now: it is asked again before its pool counts as used.
func (m *memo) refilled(g EngineReading) bool { return m.returned && g.Pooled > 0 }

// NewEnforcer begins at PressureNormal and has asked nobody.
func NewEnforcer() *Enforcer {
	return &Enforcer{level: v1alpha1.PressureNormal, engines: map[Key]*memo{}}
}

// Poll decides on one reading. Callers poll every second while an engine is
// active, and begin what the decision says before they read again.
func (e *Enforcer) Poll(r Reading) Decision {
	if why := blind(r); why != "" {
		d := e.last
		d.Level, d.Actions, d.Headroom, d.GuardInactive = e.level, nil, 0, why
		d.Because = "keeping the level: " + why
		return d
	}
	if e.between = !e.counted.IsZero() && r.Now.Sub(e.counted) < leastPause; !e.between {
		e.poll++
		e.counted = r.Now
	}
	e.remember(r.Engines)
	s := e.look(r)
	because := e.judge(s)
	e.last = Decision{
		Level: e.level, Ceiling: s.c.Bytes, Term: s.c.Term, Dynamic: s.c.Dynamic,
		Headroom: max(0, s.c.Hard-s.net), Because: because,
	}
	e.last.Actions = e.act(s)
	e.last.PausePrefill = e.pause(s)
	e.last.Follow = e.level != v1alpha1.PressureNormal || slices.ContainsFunc(r.Engines, EngineReading.overLimit)
	return e.last
}

// blind says what keeps a reading from being acted on.
func blind(r Reading) string {
	if !r.HostKnown || r.Host.Total <= 0 {
		return "the memory of this Mac could not be measured"
	}
	for _, e := range r.Engines {
		if !e.FootprintKnown {
			return fmt.Sprintf("the memory of replica %s, epoch %d, could not be measured", e.Key.UID, e.Key.Epoch)
		}
	}
	return ""
}

// remember forgets engines that are gone, and begins anew with one that loads.
func (e *Enforcer) remember(engines []EngineReading) {
	next := make(map[Key]*memo, len(engines))
	for _, g := range engines {
		m, ok := e.engines[g.Key]
		if !ok {
			m = &memo{}
		}
		m.returned = m.returned || m.askedLast > 0 && g.Pooled < m.pooled
		next[g.Key] = m
	}
	e.engines = next
}

// sight is a reading with what follows from it.
type sight struct {
	Reading
	c Ceiling
	// raw adds up the gauges, net leaves the pools out, and use is what soft
	// and hard compare: net for an engine that may still return its pool.
	raw, net, use int64
	// pending is what engines hold that are ending and can be expected to.
	pending int64
	// unsettled: a pool was returned just now, and footprints still fall.
	unsettled bool
}

// look adds up; what is compared of each engine is compared(g).
func (e *Enforcer) look(r Reading) sight {
	s := sight{Reading: r, c: CeilingOf(r), raw: use(r.Engines)}
	for _, g := range r.Engines {
		s.net += g.settled()
		s.use += e.compared(g)
		if g.Stopping && !g.Stuck {
			s.pending += g.Gauge()
		}
		s.unsettled = s.unsettled || unsettled(g, r.Now)
	}
	return s
}

// compared is what soft and hard pressure count of an engine.
func (e *Enforcer) compared(g EngineReading) int64 {
	if m := e.engines[g.Key]; m.asked > 0 && e.poll-m.asked >= trimPolls && !m.refilled(g) {
		return g.Gauge()
	}
	return g.settled()
}

// fresh: the end of its requests has shown in what it holds, or had time to.
func (e *Enforcer) fresh(g EngineReading) bool {
	since := e.poll - e.engines[g.Key].aborted
	return since > 1 || since == 1 && g.BusyKnown && g.Requests == 0
}

// unsettled: the engine said less than settleTime ago that it returned its pool.
func unsettled(g EngineReading, now time.Time) bool {
	return !g.TrimAcknowledged.IsZero() && now.Sub(g.TrimAcknowledged) < settleTime
}

// rank orders the levels.
func rank(l v1alpha1.PressureLevel) int {
	switch l {
	case v1alpha1.PressureSoft:
		return 1
	case v1alpha1.PressureHard:
		return 2
	case v1alpha1.PressureEmergency:
		return 3
	}
	return 0
}

// judge sets the level and says why.
func (e *Enforcer) judge(s sight) string {
	e.count(s)
	want, because := e.want(s)
	if rank(want) >= rank(e.level) {
		e.level, e.calm = want, 0
		return because
	}
	if e.calm = e.inARow(e.calm, true); e.calm >= calmPolls {
		e.level, e.calm = want, 0
		return because
	}
	for rank(e.level) > rank(want) && e.clear(s) {
		e.level = lower(e.level)
	}
	if e.level == want {
		e.calm = 0
		return because
	}
	return fmt.Sprintf("%s; level %s ends if this lasts", because, e.level)
}

func lower(l v1alpha1.PressureLevel) v1alpha1.PressureLevel {
	switch l {
	case v1alpha1.PressureEmergency:
		return v1alpha1.PressureHard
	case v1alpha1.PressureHard:
		return v1alpha1.PressureSoft
	}
	return v1alpha1.PressureNormal
}

// clear: well below the mark of the level.
func (e *Enforcer) clear(s sight) bool {
	switch e.level {
	case v1alpha1.PressureEmergency:
		return s.raw <= aim(s.c.Fixed, s.c.Fixed)
	case v1alpha1.PressureHard:
		return s.use <= aim(s.c.Hard, s.c.Bytes)
	}
	return s.use <= aim(s.c.Soft, s.c.Bytes)
}

// aim is the hysteresis below a mark.
func aim(mark, ceiling int64) int64 { return max(0, mark-ceiling/1000*hysteresisPermille) }

// count keeps the polls in a row.
func (e *Enforcer) count(s sight) {
	e.over = e.inARow(e.over, s.raw > s.c.Fixed)
	e.dip = e.inARow(e.dip, s.use > s.c.Hard && s.use <= footprint.HardMark(s.c.Fixed))
	if s.raw <= s.c.Fixed {
		e.graced = 0
	}
}

func (e *Enforcer) inARow(n int, again bool) int {
	switch {
	case !again:
		return 0
	case e.between:
		return max(1, n)
	}
	return n + 1
}

// want is the level by this reading alone, apart from "over for two polls".
func (e *Enforcer) want(s sight) (v1alpha1.PressureLevel, string) {
	holds := fmt.Sprintf("engines hold %s of a ceiling of %s, bound by %s", word(s.use), word(s.c.Bytes), s.c.Term)
	switch {
	case s.raw > s.c.Fixed+emergencySlack, e.over >= overPolls:
		return v1alpha1.PressureEmergency, fmt.Sprintf("engines hold %s, more than the fixed ceiling of %s", word(s.raw), word(s.c.Fixed))
	case s.use > s.c.Hard:
		return v1alpha1.PressureHard, fmt.Sprintf("%s: over the hard mark of %s", holds, word(s.c.Hard))
	case s.use > s.c.Soft:
		return v1alpha1.PressureSoft, fmt.Sprintf("%s: over the soft mark of %s", holds, word(s.c.Soft))
	case s.Host.Pressure == probe.Critical:
		return v1alpha1.PressureSoft, fmt.Sprintf("%s, and the system reports critical memory pressure (%s of swap in use)", holds, word(s.Host.SwapUsed))
	}
	return v1alpha1.PressureNormal, holds
}

// pause holds new prompts back under any pressure, unless soft pressure lasts
// and nothing that runs or idles could end it: waiting would be for ever.
func (e *Enforcer) pause(s sight) bool {
	if e.level != v1alpha1.PressureSoft {
		e.stuck = 0
		return e.level != v1alpha1.PressureNormal
	}
	if e.stuck >= stuckPolls {
		return false // until the level changes
	}
	e.stuck = e.inARow(e.stuck, !e.canFall(s))
	return e.stuck < stuckPolls
}

// canFall: something runs, ends, loads or was just acted on.
func (e *Enforcer) canFall(s sight) bool {
	for _, g := range s.Engines {
		if !g.Idle() {
			return true
		}
	}
	return len(e.last.Actions) > 0
}
