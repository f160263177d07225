package memory

import (
	"cmp"
	"fmt"
	"slices"

	"metalfleet.dev/metalfleet/agent/probe"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/metal/footprint"
)

// actions collects what a poll decides: at most one action and one trim per
// engine.
type actions struct {
	list   []Action
	done   []Key // engines with an action other than a trim
	ending []Key // engines of done that end
	freed  int64 // bytes that the ending engines free, by size
	cached int64 // bytes of prompt caches that were asked for and are not dropped yet
	size   func(EngineReading) int64
}

func (d *actions) add(g EngineReading, step Step, reason v1alpha1.ReclaimReason, because string) {
	d.list = append(d.list, Action{Key: g.Key, Step: step, Reason: reason, Because: because})
	if step == StepTrim {
		return
	}
	d.done = append(d.done, g.Key)
	if step != StepAbort {
		d.freed += d.size(g)
		d.ending = append(d.ending, g.Key)
	}
}

// askCache asks an engine for its prompt cache, together with its pool if that is
// asked for too.
func (d *actions) askCache(g EngineReading) {
	d.cached += g.Cached
	i := slices.IndexFunc(d.list, func(a Action) bool { return a.Key == g.Key && a.Step == StepTrim })
	if i < 0 {
		d.add(g, StepTrim, "", fmt.Sprintf("memory is short and %s of prompts are cached", formatBytes(g.Cached)))
		i = len(d.list) - 1
	}
	d.list[i].Cache = true
}

// all returns the actions, without trims of engines that end: the pool ends with
// the process, and its figure must not fall meanwhile.
func (d *actions) all() []Action {
	return slices.DeleteFunc(d.list, func(a Action) bool { return a.Step == StepTrim && slices.Contains(d.ending, a.Key) })
}

// kill ends an engine at once, whether or not it is ending.
func (d *actions) kill(g EngineReading, because string) {
	freed := d.freed
	d.add(g, StepKill, v1alpha1.ReclaimOverLimit, because)
	if g.Stopping {
		d.freed = freed // its bytes are expected already
	}
}

func (d *actions) has(k Key) bool { return slices.Contains(d.done, k) }

// act escalates from requests for memory to evictions and aborts.
func (e *Enforcer) act(s observation) []Action {
	d := &actions{size: e.counts}
	if e.level == v1alpha1.PressureEmergency {
		d.size = EngineReading.counted
	}
	e.trim(s, d)
	e.ownLimits(s, d)
	if s.unsettled && e.settling <= maxSpared {
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

// trim asks for pooled bytes where they would help, at most every trimPolls.
func (e *Enforcer) trim(s observation, d *actions) {
	pressed := s.raw > s.c.Soft || e.level != v1alpha1.PressureNormal || wanted(s.Engines) > max(0, s.c.Hard-s.raw)
	for _, g := range s.Engines {
		m := e.engines[g.Key]
		if !pressed && (g.Limit <= 0 || g.Gauge() <= g.Limit) {
			m.asked = 0
			continue
		}
		due := m.askedLast == 0 || e.poll-m.askedLast >= trimPolls || m.refilled(g)
		if due && g.Pooled > 0 && g.returnsPool() && !unsettled(g, s.Now) {
			if m.refilled(g) {
				m.asked = 0 // this pool was not asked for yet
			}
			m.askedLast, m.pooled, m.returned = e.poll, g.Pooled, false
			d.add(g, StepTrim, "", fmt.Sprintf("memory is short and %s are pooled", formatBytes(g.Pooled)))
		}
		if m.asked == 0 && m.askedLast > 0 && e.poll-m.askedLast < trimPolls {
			m.asked = m.askedLast
		}
	}
}

// shrinkCaches asks for prompt caches, the largest first, until they cover the
// deficit, and returns the rest of it. A request of the last polls counts until
// the engine has answered; in an emergency for one poll. One that never drops it is
// asked, and not counted on: it may have been taken over.
func (e *Enforcer) shrinkCaches(s observation, d *actions, deficit int64) int64 {
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
		case e.poll-m.cache < patience && m.unanswered(g) && m.vain < maxVain:
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
		if m.vain++; m.cache == 0 || m.dropped {
			m.vain = 0
		}
		m.cache, m.cacheAt, m.keeps, m.dropped = e.poll, s.Now, g.settled()-g.Cached/2, false
		if d.askCache(g); m.vain >= maxVain {
			d.cached -= g.Cached
		} else {
			deficit -= g.Cached
		}
	}
	return deficit
}

// wanted returns the most that an engine's guard asked for.
func wanted(engines []EngineReading) (n int64) {
	for _, g := range engines {
		n = max(n, g.HeadroomWanted)
	}
	return n
}

// ownLimits handles engines over their own limit, each alone: it asks for the
// pool, aborts the requests, and ends the engine, one step per poll. One that is over
// it while it ends is ended sooner; one that grows in an emergency is killed as soon as
// an abort did not stop it.
func (e *Enforcer) ownLimits(s observation, d *actions) {
	for _, g := range s.Engines {
		m := e.engines[g.Key]
		held := e.compared(g)
		if !e.extra {
			held = max(held, m.peak)
		}
		over := g.Limit > 0 && held > g.Limit
		if m.spare(over && unsettled(g, s.Now), e.extra) {
			continue
		}
		m.note(held, over, e.extra)
		if !over {
			m.rested = m.rested || !e.extra
			if !e.extra && !g.Stopping && s.raw <= s.c.Fixed && !m.alternates() {
				m.aborted = 0
			}
			continue
		}
		because := fmt.Sprintf("the engine holds %s, more than its own limit of %s", formatBytes(held), formatBytes(g.Limit))
		again := e.strains(s, d, g) && m.strain(e.poll)
		switch {
		case g.Stopping:
			e.endSooner(g, d, because)
		case e.level == v1alpha1.PressureEmergency && m.grows && m.aborted > 0 && e.poll > m.aborted:
			d.kill(g, because+", and grows although it is to end")
		case m.over < overPolls && !m.alternates() && !again:
		case g.Loading:
			d.add(g, StepCancelLoad, v1alpha1.ReclaimOverLimit, because)
		case again && m.warned:
			d.add(g, StepUnload, v1alpha1.ReclaimOverLimit, because+", again, and prompts of all engines wait for that")
		case m.aborted == 0:
			e.abort(g, d, because)
		case e.fresh(g):
			d.add(g, StepUnload, v1alpha1.ReclaimOverLimit, because+", and aborting its requests did not help")
		}
	}
}

// strains reports whether prompts of all engines wait for what the engine and others hold beyond
// their own limits.
func (e *Enforcer) strains(s observation, d *actions, g EngineReading) bool {
	return rank(e.level) >= rank(v1alpha1.PressureHard) && !e.lenient(s) && g.excess() > 0 &&
		s.use-e.offenders(s, d) <= footprint.HardMark(s.c.Fixed)
}

// endSooner handles an engine that is to end and over its own limit: its requests are aborted,
// and it is killed as soon as it grows, or after stopPolls; after overPolls where the Mac has no
// memory left and the engine more than twice its own.
func (e *Enforcer) endSooner(g EngineReading, d *actions, because string) {
	switch m := e.engines[g.Key]; {
	case g.Stuck:
	case m.grows:
		d.kill(g, because+", and grows although it is to end")
	case m.offences >= offence*(stopPolls+int(min(g.Footprint, g.Limit)/footprint.GiB)):
		d.kill(g, because+", and does not end")
	case m.offences >= offence*overPolls && m.aborted == 0 && !g.idle():
		e.abort(g, d, because)
	case m.offences >= offence*overPolls && e.level == v1alpha1.PressureEmergency && g.Footprint > 2*g.Limit:
		d.kill(g, because+", and the Mac's memory is used up")
	}
}

func (e *Enforcer) abort(g EngineReading, d *actions, because string) {
	m := e.engines[g.Key]
	m.aborted, m.warned = e.poll, true
	d.add(g, StepAbort, "", because)
}

// evict takes idle engines until the use is below the soft mark by the
// hysteresis. Engines that end soon count first, then prompt caches. Soft
// pressure keeps one OnDemand engine, and asks for caches only in place of an
// engine.
func (e *Enforcer) evict(s observation, d *actions, reason v1alpha1.ReclaimReason) {
	left := s.use - s.soon
	if reason == v1alpha1.ReclaimEmergency {
		left = s.raw - s.pending
	}
	deficit := left - d.freed - e.offenders(s, d) - aim(s.c.Soft, s.c.Bytes)
	if deficit <= 0 && e.systemShort(s, d) {
		deficit = 1 // no figure shows how much is missing: take one step and look again
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

// offenders adds up what engines hold beyond their own limits. Those end within a
// few polls if they keep it, so that no other is evicted for it.
func (e *Enforcer) offenders(s observation, d *actions) (sum int64) {
	for _, g := range s.Engines {
		if g.Limit > 0 && !g.Stopping && !slices.Contains(d.ending, g.Key) {
			sum += max(0, d.size(g)-g.Limit)
		}
	}
	return sum
}

// systemShort reports whether the system reports critical pressure that no figure
// explains, and the last step against it has had time to show.
func (e *Enforcer) systemShort(s observation, d *actions) bool {
	return e.level == v1alpha1.PressureSoft && s.use <= s.c.Soft && s.soon+d.freed == 0 && s.systemCritical() &&
		(e.criticalStep.IsZero() || s.Now.Sub(e.criticalStep) >= criticalPause)
}

// take adds victims for a deficit, at most spare ones.
func (e *Enforcer) take(s observation, d *actions, deficit int64, forPriority int32, spare int, reason v1alpha1.ReclaimReason, because string, protect ...Key) {
	for ; deficit > 0 && spare > 0; spare-- {
		i := victim(s.Engines, deficit, forPriority, d.size, slices.Concat(d.done, protect))
		if i < 0 {
			return
		}
		deficit -= d.size(s.Engines[i])
		d.add(s.Engines[i], StepEvict, reason, because)
	}
}

// onDemand counts engines that soft pressure may evict, now or later.
func onDemand(engines []EngineReading) (n int) {
	for _, g := range engines {
		if g.OnDemand && !g.Stopping {
			n++
		}
	}
	return n
}

func (s observation) systemCritical() bool { return s.Host.Pressure == probe.Critical }

// cancelWork is the last step under hard pressure, if evictions do not bring the
// use below the hard mark: it aborts the requests of the busiest engine over its
// limit, or else cancels a load. A dip of the dynamic term aborts no request, and
// cancels a load only if it lasts.
func (e *Enforcer) cancelWork(s observation, d *actions) {
	left := s.use - s.soon - d.freed - d.cached
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
		if g.Stopping || g.Loading || g.excess() == 0 || g.Requests+g.Holds == 0 {
			continue
		}
		if !ok || g.Requests > best.Requests || g.Requests == best.Requests && g.excess() > best.excess() {
			best, ok = g, true
		}
	}
	return best, ok
}

// loadToCancel returns the load of the lowest priority, of these the largest.
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

// grace gives an emergency one poll without evictions, if pools and ending
// engines cover the excess over the fixed ceiling.
func (e *Enforcer) grace(s observation, left int64) bool {
	if s.raw > s.c.Fixed && e.gracePoll == 0 && left <= s.c.Fixed {
		e.gracePoll = e.poll
	}
	return e.gracePoll == e.poll
}

// emergency aborts the requests of the worst offender, and ends the engine if the
// next reading is still over. If engines that are ending suffice, it aborts only
// their requests; the others are untouched until one of them is stuck.
func (e *Enforcer) emergency(s observation, d *actions) {
	left := s.raw - s.pending - d.freed
	if s.raw <= s.c.Fixed || e.grace(s, left-d.cached) {
		return
	}
	drains := s.raw-d.freed-e.offenders(s, d) > s.c.Fixed // else engines over their own limits suffice
	for _, g := range s.Engines {                         // a draining engine need not finish its requests
		if drains && g.Stopping && !g.idle() && !d.has(g.Key) && e.engines[g.Key].aborted == 0 {
			e.abort(g, d, e.last.Because)
		}
	}
	if left <= s.c.Fixed {
		return
	}
	g, ok := worst(s.Engines, d)
	if !ok || d.has(g.Key) {
		return // its requests are aborted already: look again before another engine's are
	}
	because := fmt.Sprintf("%s; this engine is the worst offender with %s", e.last.Because, formatBytes(g.counted()))
	switch {
	case g.Loading:
		d.add(g, StepCancelLoad, v1alpha1.ReclaimEmergency, because)
	case e.engines[g.Key].aborted == 0:
		e.abort(g, d, because)
	case e.fresh(g):
		d.add(g, StepUnload, v1alpha1.ReclaimEmergency, because)
	}
}

// worst returns the engine furthest over its limit; if none is over, OnDemand
// before Always, lower priorities before higher, then the largest.
func worst(engines []EngineReading, d *actions) (best EngineReading, ok bool) {
	for _, g := range engines {
		if g.Stopping || slices.Contains(d.ending, g.Key) {
			continue
		}
		if !ok || worse(g, best) {
			best, ok = g, true
		}
	}
	return best, ok
}

// worse reports whether a is removed before b. The limits of many engines may be more together than there
// is, so one within its reservation is the last.
func worse(a, b EngineReading) bool {
	overA, overB := a.excess(), b.excess()
	withinA, withinB := a.counted() <= a.Reserved, b.counted() <= b.Reserved
	switch {
	case overA != overB:
		return overA > overB
	case withinA != withinB:
		return withinB
	case a.OnDemand != b.OnDemand:
		return a.OnDemand
	case a.Priority != b.Priority:
		return a.Priority < b.Priority
	}
	return a.counted() > b.counted()
}

// excess returns by how much the engine is over its own limit, as far as it counts, or 0.
func (e EngineReading) excess() int64 {
	if e.Limit <= 0 {
		return 0
	}
	return max(0, e.counted()-e.Limit)
}

// headroom evicts idle engines for prompts whose guard asked for memory: engines
// of no higher priority, and never the one that asks.
func (e *Enforcer) headroom(s observation, d *actions) {
	for _, g := range s.Engines {
		if g.HeadroomWanted <= 0 || g.Stopping {
			continue
		}
		left := s.c.Hard - s.net + s.soon + d.freed
		e.take(s, d, g.HeadroomWanted-max(0, left), g.Priority, len(s.Engines), v1alpha1.ReclaimHeadroom,
			fmt.Sprintf("a prompt of replica %s needs %s more", g.Key.UID, formatBytes(g.HeadroomWanted)), g.Key)
	}
}
