package memory

import (
	"cmp"
	"fmt"
	"slices"

	"metalfleet.dev/metalfleet/agent/probe"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/metal/footprint"
)

// deeds collects what a poll leads to, one action per engine and a trim.
type deeds struct {
	actions []Action
	done    []Key // engines with an action other than a trim
	ending  []Key // those of them that end
	freed   int64 // what they give up by ending, by size
	cached  int64 // what prompt caches give up that were asked for and not dropped yet
	size    func(EngineReading) int64
}

func (d *deeds) add(g EngineReading, step Step, reason v1alpha1.ReclaimReason, because string) {
	d.actions = append(d.actions, Action{Key: g.Key, Step: step, Reason: reason, Because: because})
	if step == StepTrim {
		return
	}
	d.done = append(d.done, g.Key)
	if step != StepAbort {
		d.freed += d.size(g)
		d.ending = append(d.ending, g.Key)
	}
}

// askCache asks an engine for its prompt cache, in the request for its pool
// where there is one.
func (d *deeds) askCache(g EngineReading) {
	d.cached += g.Cached
	i := slices.IndexFunc(d.actions, func(a Action) bool { return a.Key == g.Key && a.Step == StepTrim })
	if i < 0 {
		d.add(g, StepTrim, "", fmt.Sprintf("memory is short and %s of prompts are cached", word(g.Cached)))
		i = len(d.actions) - 1
	}
	d.actions[i].Cache = true
}

// all are the actions, without trims of engines that end: what is pooled goes
// with the process, and its figure must not fall while it is taken.
func (d *deeds) all() []Action {
	return slices.DeleteFunc(d.actions, func(a Action) bool { return a.Step == StepTrim && slices.Contains(d.ending, a.Key) })
}

func (d *deeds) has(k Key) bool { return slices.Contains(d.done, k) }

// act climbs the ladder: ask first, then look, then act.
func (e *Enforcer) act(s sight) []Action {
	d := &deeds{size: e.compared}
	if e.level == v1alpha1.PressureEmergency {
		d.size = EngineReading.Gauge
	}
	e.trim(s, d)
	e.ownLimits(s, d)
	if s.unsettled {
		return d.all() // footprints still fall: look again
	}
	switch e.level {
	case v1alpha1.PressureSoft:
		e.evict(s, d, v1alpha1.ReclaimSoftPressure)
	case v1alpha1.PressureHard:
		e.evict(s, d, v1alpha1.ReclaimHardPressure)
		e.cancelWork(s, d)
	case v1alpha1.PressureEmergency:
		if e.grace(s, min(s.net, s.raw-s.pending)) {
			break
		}
		e.evict(s, d, v1alpha1.ReclaimEmergency)
		e.emergency(s, d)
	}
	if rank(e.level) < rank(v1alpha1.PressureHard) {
		e.headroom(s, d)
	}
	return d.all()
}

// trim asks for pooled bytes wherever they would help, at most every trimPolls.
func (e *Enforcer) trim(s sight, d *deeds) {
	pressed := s.raw > s.c.Soft || e.level != v1alpha1.PressureNormal || wanted(s.Engines) > max(0, s.c.Hard-s.raw)
	for _, g := range s.Engines {
		m := e.engines[g.Key]
		if !pressed && (g.Limit <= 0 || g.Gauge() <= g.Limit) {
			m.asked = 0
			continue
		}
		due := m.askedLast == 0 || e.poll-m.askedLast >= trimPolls || m.refilled(g)
		if due && g.Pooled > 0 && !g.Loading && !g.Stopping && !unsettled(g, s.Now) {
			if m.refilled(g) {
				m.asked = 0 // this pool was not asked for yet
			}
			m.askedLast, m.pooled, m.returned = e.poll, g.Pooled, false
			d.add(g, StepTrim, "", fmt.Sprintf("memory is short and %s are pooled", word(g.Pooled)))
		}
		if m.asked == 0 && m.askedLast > 0 && e.poll-m.askedLast < trimPolls {
			m.asked = m.askedLast
		}
	}
}

// shrinkCaches asks for prompt caches, the largest first, until they cover the
// deficit, and returns what is left of it. What an engine was asked for in the
// last polls counts until it has answered; in an emergency for one poll.
func (e *Enforcer) shrinkCaches(s sight, d *deeds, deficit int64) int64 {
	patience := int64(trimPolls)
	if e.level == v1alpha1.PressureEmergency {
		patience = 1
	}
	var open []EngineReading
	for _, g := range s.Engines {
		m := e.engines[g.Key]
		switch {
		case g.Cached <= 0 || g.Loading || g.Stopping || d.has(g.Key):
		case m.cache == 0 || e.poll-m.cache >= trimPolls:
			open = append(open, g)
		case e.poll-m.cache < patience && g.TrimAcknowledged.Before(m.cacheAt):
			d.cached += g.Cached
			deficit -= g.Cached
		}
	}
	slices.SortStableFunc(open, func(a, b EngineReading) int { return cmp.Compare(b.Cached, a.Cached) })
	for _, g := range open {
		if deficit <= 0 {
			break
		}
		m := e.engines[g.Key]
		m.cache, m.cacheAt = e.poll, s.Now
		d.askCache(g)
		deficit -= g.Cached
	}
	return deficit
}

// wanted is the most that a guard asked for.
func wanted(engines []EngineReading) (n int64) {
	for _, g := range engines {
		n = max(n, g.HeadroomWanted)
	}
	return n
}

// ownLimits deals with engines over their own limit, each alone: ask for the
// pool, end the requests, end the engine, one poll after another.
func (e *Enforcer) ownLimits(s sight, d *deeds) {
	for _, g := range s.Engines {
		m := e.engines[g.Key]
		if g.Stopping || unsettled(g, s.Now) {
			continue
		}
		if g.Limit <= 0 || e.compared(g) <= g.Limit {
			if m.over = 0; s.raw <= s.c.Fixed {
				m.aborted = 0
			}
			continue
		}
		m.over = e.inARow(m.over, true)
		because := fmt.Sprintf("the engine holds %s, more than its own limit of %s", word(e.compared(g)), word(g.Limit))
		switch {
		case m.over < overPolls:
		case g.Loading:
			d.add(g, StepCancelLoad, v1alpha1.ReclaimOverLimit, because)
		case m.aborted == 0:
			e.abort(g, d, because)
		case e.fresh(g):
			d.add(g, StepUnload, v1alpha1.ReclaimOverLimit, because+", and aborting its requests did not help")
		}
	}
}

func (e *Enforcer) abort(g EngineReading, d *deeds, because string) {
	e.engines[g.Key].aborted = e.poll
	d.add(g, StepAbort, "", because)
}

// evict takes idle engines until the use is below the soft mark by the
// hysteresis, counting on those that are ending and, before any of them, on
// prompt caches. Soft pressure leaves one OnDemand engine where it is, and asks
// for caches only in place of an engine.
func (e *Enforcer) evict(s sight, d *deeds, reason v1alpha1.ReclaimReason) {
	left := s.use
	if reason == v1alpha1.ReclaimEmergency {
		left = s.raw
	}
	deficit := left - s.pending - d.freed - aim(s.c.Soft, s.c.Bytes)
	if deficit <= 0 && e.systemShort(s, d) {
		deficit = 1 // no figure shows what is short: one step, then look again
		e.criticalStep = s.Now
	}
	spare := len(s.Engines)
	if reason == v1alpha1.ReclaimSoftPressure {
		spare = onDemand(s.Engines) - 1
	}
	if deficit <= 0 || reason == v1alpha1.ReclaimSoftPressure && (spare <= 0 || victim(s.Engines, deficit, anyPriority, d.size, d.done) < 0) {
		return
	}
	e.take(s, d, e.shrinkCaches(s, d, deficit), anyPriority, spare, reason, e.last.Because)
}

// systemShort reports whether the system reports critical pressure that no
// figure explains, and what was done about it last has had time to show.
func (e *Enforcer) systemShort(s sight, d *deeds) bool {
	return e.level == v1alpha1.PressureSoft && s.use <= s.c.Soft && s.pending+d.freed == 0 && s.systemCritical() &&
		(e.criticalStep.IsZero() || s.Now.Sub(e.criticalStep) >= criticalPause)
}

// take adds victims for a deficit, at most spare ones.
func (e *Enforcer) take(s sight, d *deeds, deficit int64, forPriority int32, spare int, reason v1alpha1.ReclaimReason, because string, protect ...Key) {
	for ; deficit > 0 && spare > 0; spare-- {
		i := victim(s.Engines, deficit, forPriority, d.size, slices.Concat(d.done, protect))
		if i < 0 {
			return
		}
		deficit -= d.size(s.Engines[i])
		d.add(s.Engines[i], StepEvict, reason, because)
	}
}

// onDemand counts engines that soft pressure may choose from, now or later.
func onDemand(engines []EngineReading) (n int) {
	for _, g := range engines {
		if g.OnDemand && !g.Stopping {
			n++
		}
	}
	return n
}

func (s sight) systemCritical() bool { return s.Host.Pressure == probe.Critical }

// cancelWork is the rest of the hard ladder, where idle engines and those that
// are ending do not bring the use below the hard mark: the requests of the
// busiest engine over its limit, else a load. A dip of the dynamic term ends
// no request, and a load only if it lasts.
func (e *Enforcer) cancelWork(s sight, d *deeds) {
	left := s.use - s.pending - d.freed - d.cached
	fixed := left > footprint.HardMark(s.c.Fixed)
	if left <= s.c.Hard {
		return
	}
	if fixed {
		if g, ok := busiestOverLimit(s.Engines); ok {
			if !d.has(g.Key) && e.engines[g.Key].aborted == 0 {
				e.abort(g, d, e.last.Because)
			}
			return
		}
	}
	if fixed || e.dip >= overPolls {
		if g, ok := loadToCancel(s.Engines); ok && !d.has(g.Key) {
			d.add(g, StepCancelLoad, v1alpha1.ReclaimLoadCancelled, e.last.Because)
		}
	}
}

func busiestOverLimit(engines []EngineReading) (best EngineReading, ok bool) {
	for _, g := range engines {
		if g.Stopping || g.Loading || g.Limit <= 0 || g.Gauge() <= g.Limit || g.Requests+g.Holds == 0 {
			continue
		}
		if !ok || g.Requests > best.Requests || g.Requests == best.Requests && g.Gauge()-g.Limit > best.Gauge()-best.Limit {
			best, ok = g, true
		}
	}
	return best, ok
}

// loadToCancel is the least important load, then the largest.
func loadToCancel(engines []EngineReading) (best EngineReading, ok bool) {
	for _, g := range engines {
		if !g.Loading || g.Stopping {
			continue
		}
		if !ok || g.Priority < best.Priority || g.Priority == best.Priority && max(g.Reserved, g.Gauge()) > max(best.Reserved, best.Gauge()) {
			best, ok = g, true
		}
	}
	return best, ok
}

// grace gives an emergency one poll in which nothing is taken, where what
// engines return or give up anyway leaves no more than the fixed ceiling.
func (e *Enforcer) grace(s sight, left int64) bool {
	if s.raw > s.c.Fixed && e.graced == 0 && left <= s.c.Fixed {
		e.graced = e.poll
	}
	return e.graced == e.poll
}

// emergency ends the work of the worst offender, and the engine itself only if
// the next reading is still over. Where engines that are ending suffice, only
// what they still work on is ended: the others are untouched until one of them
// turns out to be stuck.
func (e *Enforcer) emergency(s sight, d *deeds) {
	left := s.raw - s.pending - d.freed
	if s.raw <= s.c.Fixed || e.grace(s, left-d.cached) {
		return
	}
	for _, g := range s.Engines { // who is draining need not finish
		if g.Stopping && !g.idle() && e.engines[g.Key].aborted == 0 {
			e.abort(g, d, e.last.Because)
		}
	}
	if left <= s.c.Fixed {
		return
	}
	g, ok := worst(s.Engines, d)
	if !ok {
		return
	}
	because := fmt.Sprintf("%s; this engine is the worst offender with %s", e.last.Because, word(g.Gauge()))
	switch {
	case g.Loading:
		d.add(g, StepCancelLoad, v1alpha1.ReclaimEmergency, because)
	case e.engines[g.Key].aborted == 0:
		e.abort(g, d, because)
	case e.fresh(g):
		d.add(g, StepUnload, v1alpha1.ReclaimEmergency, because)
	}
}

// worst is the engine furthest over its limit; where none is over, OnDemand
// before Always, lower priorities before higher, then the largest.
func worst(engines []EngineReading, d *deeds) (best EngineReading, ok bool) {
	for _, g := range engines {
		if g.Stopping || d.has(g.Key) {
			continue
		}
		if !ok || worse(g, best) {
			best, ok = g, true
		}
	}
	return best, ok
}

func worse(a, b EngineReading) bool {
	overA, overB := a.excess(), b.excess()
	switch {
	case overA != overB:
		return overA > overB
	case a.OnDemand != b.OnDemand:
		return a.OnDemand
	case a.Priority != b.Priority:
		return a.Priority < b.Priority
	}
	return a.Gauge() > b.Gauge()
}

// excess is by how much it is over its own limit; 0 where it is not.
func (e EngineReading) excess() int64 {
	if e.Limit <= 0 {
		return 0
	}
	return max(0, e.Gauge()-e.Limit)
}

// headroom makes room for prompts whose guard asked, from idle engines of no
// higher priority, never from the one that asks.
func (e *Enforcer) headroom(s sight, d *deeds) {
	for _, g := range s.Engines {
		if g.HeadroomWanted <= 0 || g.Stopping {
			continue
		}
		left := s.c.Hard - s.net + s.pending + d.freed
		e.take(s, d, g.HeadroomWanted-max(0, left), g.Priority, len(s.Engines), v1alpha1.ReclaimHeadroom,
			fmt.Sprintf("a prompt of replica %s needs %s more", g.Key.UID, word(g.HeadroomWanted)), g.Key)
	}
}
