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
	// trimPolls is how long an engine has to return pooled bytes: until the
	// request is that old, pressure does not count its pool.
	trimPolls = 5
	// settleTime is how long the footprint of an engine still falls after it
	// acknowledged a trim.
	settleTime = 500 * time.Millisecond
	// maxSpared is for how many polls, more than there are others, that is a reason to wait for
	// the next one: an engine that was taken over returns a byte before each poll.
	maxSpared = 2
	// hysteresisPermille of the ceiling under its mark a level ends at once, and
	// victims are taken down to there; after relaxPolls it ends anywhere under
	// the mark.
	hysteresisPermille = 25
	relaxPolls         = 5
	// emergencySlack over the fixed ceiling is an emergency at once; any excess
	// is one after overPolls.
	emergencySlack = 2 * footprint.GiB
	overPolls      = 2
	// A poll sooner than leastPause after the last one is extra: it acts on its
	// reading, and does not count as another poll in a row. Every end of an
	// engine causes one.
	leastPause = 500 * time.Millisecond
	// criticalPause between two steps against pressure that only the system
	// reports: no figure shows how much is missing, and the system takes seconds
	// to notice what a step freed.
	criticalPause = 10 * time.Second
	// runawayStep is by how much an engine that is over its own limit grows from
	// poll to poll if it obeys nothing any more: no request to end ends it soon.
	runawayStep = 64 * footprint.MiB
	// stopPolls, and one for each GiB of its own limit, is how long an engine that is to end may
	// be over its own limit: longer than a hurried stop takes, but not as long as a drain may.
	stopPolls = 30
	// stuckPolls of pressure in which no engine can release memory: pausing does not
	// help. After softPolls prompts are let through in any case: an engine whose
	// requests only wait is not idle either, and an answer may take hours. That is of
	// soft pressure, and of hard pressure by other programs, which may last as long.
	stuckPolls, softPolls = 10, 60
	// lenience is the weight of a poll of lenient pressure against another one: pressure with pauses
	// keeps prompts waiting in at most one poll of 11.
	lenience = 10
	// beyondPolls is how many polls an engine may be over its own limit by its pool: one that was
	// taken over returns a byte of it each time that it is asked, and has another one.
	beyondPolls = 60
	// offence is the weight of a poll over its own limit against one that is not: an engine that
	// is over it in more than a quarter of its polls does not comply.
	offence = 3
	// servePolls is how many of them in a row, or as many offences, end one that serves, even if
	// it was within its limit in between.
	servePolls = 20
	// strainPolls is for how many polls an engine whose excess over its own limit made the prompts of
	// all engines wait is ended if it does so again, and its requests were aborted: several may take turns.
	strainPolls = 300
	// maxVain is how often an engine is asked for its cache in vain before that is no
	// reason any more to spare others. An answer alone proves nothing.
	maxVain = 3
)

// UnmeasuredTime is how long one engine that cannot be measured keeps the guard, and the
// check of wired memory, from judging the others. Then what it has reserved counts.
const UnmeasuredTime = 30 * time.Second

// Enforcer decides after each poll which engines to trim, abort or evict. It is
// not safe for concurrent use, reads no clock and has no side effects.
type Enforcer struct {
	poll    int64
	counted time.Time // the last poll that was counted
	extra   bool      // the current poll is extra and not counted
	level   v1alpha1.PressureLevel
	last    Decision // of the last poll that was complete
	// Consecutive polls: under the mark of the level; over the fixed ceiling;
	// hard by the dynamic term alone; lenient although no engine can release memory.
	below, over, dip, stuck int
	soft                    int       // lenience for each poll of lenient pressure, less 1 for each other
	between                 bool      // lenient pressure in an extra poll since the last counted one
	settling                int       // polls in which footprints still fell, less the others
	gracePoll               int64     // the poll of grace of this emergency; 0: none yet
	criticalStep            time.Time // the last step against pressure that only the system reports
	engines                 map[Key]*engineState
	unmeasured              map[Key]time.Time // since when an engine could not be measured
}

// engineState is what the Enforcer remembers of one engine between polls, as
// numbers of polls; 0: never.
type engineState struct {
	asked     int64 // first asked for its pooled bytes, in this pressure and since it last returned them
	askedLast int64
	pooled    int64     // bytes at the last request
	returned  bool      // fewer bytes were pooled at a later poll
	cache     int64     // last asked for its prompt cache
	cacheAt   time.Time // and when
	keeps     int64     // bytes that it holds at most once half of that is dropped
	dropped   bool      // it held no more at a later poll
	vain      int       // requests before that, in a row, after which it was not dropped
	aborted   int64     // its requests were aborted, since it or the Mac is over its limit
	warned    bool      // they were, at any time
	strained  int64     // its excess over its own limit made the prompts of all engines wait
	rested    bool      // it was within it at a counted poll since
	over      int       // consecutive counted polls over its own limit
	peak      int64     // the most that it held in a poll over its own limit since the last counted one
	stopping  bool      // it was to end at the last poll
	offences  int       // offence for each poll over its own limit, less 1 for each other; 0 once it is asked to end
	beyond    int       // polls over its own limit with its pool, less those that were not
	excused   bool      // it was over its own limit while its footprint still fell, since the last counted poll
	spared    int       // counted polls of that, less the others
	gauge     int64     // at the last counted poll
	grows     bool      // by runawayStep or more since the counted poll before
}

// refilled reports whether an engine returned its pool when asked and has another
// one now: it is asked again before its pool counts as used.
func (m *engineState) refilled(g EngineReading) bool { return m.returned && g.Pooled > 0 }

// note counts a poll over the engine's own limit, or one that is not. An extra one counts with the
// next that is not extra: the engine knows of each poll, and could be over its limit in extra ones alone.
func (m *engineState) note(held int64, over, extra bool) {
	if extra {
		if over {
			m.peak = max(m.peak, held)
		}
		return
	}
	m.peak = 0
	m.offend(over)
	if m.over++; !over {
		m.over = 0
	}
}

// offend counts a poll over the engine's own limit, or one that is not.
func (m *engineState) offend(over bool) {
	if over {
		m.offences += offence
	} else {
		m.offences = max(0, m.offences-1)
	}
}

// alternates reports whether the engine is over its own limit so often that it does not count
// any more that it was within it in between.
func (m *engineState) alternates() bool { return m.offences >= offence*servePolls }

// strain notes such a poll over the engine's own limit, and reports whether the engine does so again
// after it was within it.
func (m *engineState) strain(poll int64) bool {
	again := m.rested && m.strained > 0 && poll-m.strained <= strainPolls
	m.strained, m.rested = poll, false
	return again
}

// spare notes whether the engine is over its own limit while its footprint still falls, and
// reports whether this poll passes over it for that.
func (m *engineState) spare(excused, extra bool) bool {
	m.excused = m.excused || excused
	if !extra {
		m.spared, m.excused = tally(m.spared, m.excused, maxSpared), false
	}
	return excused && m.spared <= maxSpared
}

// tally adds a poll to n, up to twice the bound, or takes one off.
func tally(n int, again bool, bound int) int {
	if again {
		return min(n+1, 2*bound)
	}
	return max(0, n-1)
}

// unanswered reports whether an engine has not answered the last request for its prompt cache.
func (m *engineState) unanswered(g EngineReading) bool {
	return m.cache > 0 && g.TrimAcknowledged.Before(m.cacheAt)
}

// NewEnforcer returns an Enforcer at PressureNormal.
func NewEnforcer() *Enforcer {
	return &Enforcer{level: v1alpha1.PressureNormal, engines: map[Key]*engineState{}}
}

// Poll decides on one reading. Callers poll every second while an engine is
// active, and begin the decision's actions before the next reading.
func (e *Enforcer) Poll(r Reading) Decision {
	r, assumed := e.assume(r)
	if why := blind(r); why != "" {
		d := e.last
		d.Level, d.Actions, d.Headroom, d.GuardInactive = e.level, nil, 0, why
		d.Because = "keeping the level: " + why
		return d
	}
	if e.extra = !e.counted.IsZero() && r.Now.Sub(e.counted) < leastPause; !e.extra {
		e.poll++
		e.counted = r.Now
	}
	e.remember(r.Engines)
	s := e.observe(r)
	because := e.judge(s)
	e.last = Decision{
		Level: e.level, Ceiling: s.c.Bytes, Term: s.c.Term, Dynamic: s.c.Dynamic,
		Headroom: max(0, s.c.Hard-s.net), Because: because, Assumed: assumed,
	}
	e.last.Actions = e.act(s)
	e.last.PausePrefill = e.pause(s)
	e.last.Follow = e.level != v1alpha1.PressureNormal || slices.ContainsFunc(r.Engines, EngineReading.overLimit)
	return e.last
}

// assume counts, for an engine that could not be measured for UnmeasuredTime while
// another one could, what it has reserved: it must not keep the guard from the
// others. It explains that in a sentence, empty where nothing is assumed.
func (e *Enforcer) assume(r Reading) (Reading, string) {
	since, assumed := map[Key]time.Time{}, ""
	one := slices.ContainsFunc(r.Engines, func(g EngineReading) bool { return g.FootprintKnown && !g.Stopping })
	engines := slices.Clone(r.Engines)
	for i, g := range engines {
		if g.FootprintKnown {
			continue
		}
		first, known := e.unmeasured[g.Key]
		if !known {
			first = r.Now
		}
		since[g.Key] = first
		if one && r.Now.Sub(first) >= UnmeasuredTime {
			engines[i].Footprint, engines[i].FootprintKnown = g.Reserved, true
			assumed = unmeasured(g) + ": what it has reserved counts"
		}
	}
	e.unmeasured, r.Engines = since, engines
	return r, assumed
}

func unmeasured(g EngineReading) string {
	return fmt.Sprintf("the memory of replica %s, epoch %d, could not be measured", g.Key.UID, g.Key.Epoch)
}

// blind returns why a reading cannot be acted on; empty if it can.
func blind(r Reading) string {
	if !r.HostKnown || r.Host.Total <= 0 {
		return "the memory of this Mac could not be measured"
	}
	for _, e := range r.Engines {
		if !e.FootprintKnown {
			return unmeasured(e)
		}
	}
	return ""
}

// remember drops engines that are gone and starts a new state for one that loads.
func (e *Enforcer) remember(engines []EngineReading) {
	next := make(map[Key]*engineState, len(engines))
	for _, g := range engines {
		m, ok := e.engines[g.Key]
		if !ok {
			m = &engineState{}
		}
		m.dropped = m.dropped || m.cache > 0 && g.settled() <= m.keeps
		m.returned = m.returned || m.askedLast > 0 && g.Pooled < m.pooled
		if !e.extra {
			m.grows = ok && g.Gauge()-m.gauge >= runawayStep
			m.gauge = g.Gauge()
			if m.stopping != g.Stopping {
				m.stopping, m.offences = g.Stopping, 0
			}
			m.beyond = tally(m.beyond, g.overLimit(), beyondPolls)
		}
		next[g.Key] = m
	}
	e.engines = next
}

// observation is a reading with the figures derived from it.
type observation struct {
	Reading
	c Ceiling
	// raw is the sum of the gauges, net leaves the pools out, and use is what
	// soft and hard compare: without the pool for an engine that may still return
	// it.
	raw, net, use int64
	// pending is held by engines that are ending and not stuck, and soon by those of
	// them whose drain does not last. An emergency ends every drain.
	pending, soon int64
	// unsettled: a pool was returned just now, and footprints still fall.
	unsettled bool
}

// observe derives the sums of a reading.
func (e *Enforcer) observe(r Reading) observation {
	s := observation{Reading: r, c: CeilingOf(r), raw: use(r.Engines)}
	for _, g := range r.Engines {
		s.net += g.believed(g.settled())
		s.use += e.counts(g)
		if g.Stopping && !g.Stuck {
			s.pending += g.counted()
			if !g.Lasting {
				s.soon += g.counted()
			}
		}
		s.unsettled = s.unsettled || unsettled(g, r.Now)
	}
	return s
}

// counts returns the bytes that soft and hard pressure count for an engine.
func (e *Enforcer) counts(g EngineReading) int64 { return g.believed(e.compared(g)) }

// compared returns the bytes that are compared with an engine's own limit.
func (e *Enforcer) compared(g EngineReading) int64 {
	m := e.engines[g.Key]
	if m.asked > 0 && e.poll-m.asked >= trimPolls && !m.refilled(g) || m.beyond >= beyondPolls {
		return g.Gauge()
	}
	return g.settled()
}

// fresh reports whether the figures of an engine show that its requests were
// aborted.
func (e *Enforcer) fresh(g EngineReading) bool {
	since := e.poll - e.engines[g.Key].aborted
	return since > 1 || since == 1 && g.BusyKnown && g.Requests == 0
}

// unsettled reports whether the engine acknowledged a trim less than settleTime
// ago.
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

// judge sets the level and explains it.
func (e *Enforcer) judge(s observation) string {
	e.count(s)
	want, because := e.levelOf(s)
	if rank(want) >= rank(e.level) {
		e.level, e.below = want, 0
		return because
	}
	if e.below = e.inARow(e.below, true); e.below >= relaxPolls {
		e.level, e.below = want, 0
		return because
	}
	for rank(e.level) > rank(want) && e.clear(s) {
		e.level = lower(e.level)
	}
	if e.level == want {
		e.below = 0
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

// clear reports whether the use is under the mark of the level by the hysteresis.
func (e *Enforcer) clear(s observation) bool {
	switch e.level {
	case v1alpha1.PressureEmergency:
		return s.raw <= aim(s.c.Fixed, s.c.Fixed)
	case v1alpha1.PressureHard:
		return s.use <= aim(s.c.Hard, s.c.Bytes)
	}
	return s.use <= aim(s.c.Soft, s.c.Bytes)
}

// aim is a mark less the hysteresis.
func aim(mark, ceiling int64) int64 { return max(0, mark-ceiling/1000*hysteresisPermille) }

// count updates the counts of consecutive polls.
func (e *Enforcer) count(s observation) {
	e.over = e.inARow(e.over, s.raw > s.c.Fixed)
	e.dip = e.inARow(e.dip, s.use > s.c.Hard && s.use <= footprint.HardMark(s.c.Fixed))
	if s.raw <= s.c.Fixed {
		e.gracePoll = 0
	}
	if !e.extra {
		e.settling = tally(e.settling, s.unsettled, maxSpared)
	}
}

func (e *Enforcer) inARow(n int, again bool) int {
	switch {
	case !again:
		return 0
	case e.extra:
		return max(1, n)
	}
	return n + 1
}

// levelOf returns the level by this reading alone, apart from "over for two
// polls".
func (e *Enforcer) levelOf(s observation) (v1alpha1.PressureLevel, string) {
	holds := fmt.Sprintf("engines hold %s of a ceiling of %s, bound by %s", formatBytes(s.use), formatBytes(s.c.Bytes), s.c.Term)
	switch {
	case s.raw > s.c.Fixed+emergencySlack, e.over >= overPolls:
		return v1alpha1.PressureEmergency, fmt.Sprintf("engines hold %s, more than the fixed ceiling of %s", formatBytes(s.raw), formatBytes(s.c.Fixed))
	case s.use > s.c.Hard:
		return v1alpha1.PressureHard, fmt.Sprintf("%s: over the hard mark of %s", holds, formatBytes(s.c.Hard))
	case s.use > s.c.Soft:
		return v1alpha1.PressureSoft, fmt.Sprintf("%s: over the soft mark of %s", holds, formatBytes(s.c.Soft))
	case s.Host.Pressure == probe.Critical:
		return v1alpha1.PressureSoft, fmt.Sprintf("%s, and the system reports critical memory pressure (%s of swap in use)", holds, formatBytes(s.Host.SwapUsed))
	}
	return v1alpha1.PressureNormal, holds
}

// lenient reports whether the pressure is soft, or hard only by what other programs use.
func (e *Enforcer) lenient(s observation) bool {
	return e.level == v1alpha1.PressureSoft || e.level == v1alpha1.PressureHard && s.use <= footprint.HardMark(s.c.Fixed)
}

// pause reports whether new prompts wait: under any pressure, unless lenient pressure
// lasts, for less long if no engine can release memory; they would wait forever. An engine
// within its limit may end it for a poll, or cause it between polls, as often as it likes. The
// guard of an engine still runs none for which the Mac has no room.
func (e *Enforcer) pause(s observation) bool {
	lenient := e.lenient(s)
	e.between = e.between || lenient
	if !e.extra {
		if e.between {
			e.soft = min(e.soft+lenience, 2*lenience*softPolls)
		} else {
			e.soft = max(0, e.soft-1)
		}
		e.between = false
	}
	switch {
	case !lenient:
		e.stuck = 0
		return e.level != v1alpha1.PressureNormal
	case e.stuck < stuckPolls: // else until it is no longer lenient
		e.stuck = e.inARow(e.stuck, !e.canFall(s))
	}
	return e.stuck < stuckPolls && e.soft < lenience*softPolls
}

// canFall reports whether an engine runs, ends, loads or was just acted on.
func (e *Enforcer) canFall(s observation) bool {
	for _, g := range s.Engines {
		if !g.Idle() {
			return true
		}
	}
	return len(e.last.Actions) > 0
}
