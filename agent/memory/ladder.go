package memory

import (
	"fmt"
	"slices"

	"metalfleet.dev/metalfleet/agent/probe"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/metal/footprint"
)

// deeds collects what a poll leads to, one action per engine beside a trim.
type deeds struct {
	actions []Action
	done    []Key // engines with an action other than a trim
	ending  []Key // those of them that end
	freed   int64 // what they give up by ending, by size
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
		due := m.askedLast == 0 || e.poll-m.askedLast >= trimPolls
		if due && g.Pooled > 0 && !g.Loading && !g.Stopping {
			m.askedLast = e.poll
			d.add(g, StepTrim, "", fmt.Sprintf("memory is short and %s are pooled", word(g.Pooled)))
		}
		if m.asked == 0 && m.askedLast > 0 && e.poll-m.askedLast < trimPolls {
			m.asked = m.askedLast
		}
	}
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
// hysteresis, counting on those that are ending. Soft pressure leaves one
// OnDemand engine where it is.
func (e *Enforcer) evict(s sight, d *deeds, reason v1alpha1.ReclaimReason) {
	left := s.use
	if reason == v1alpha1.ReclaimEmergency {
		left = s.raw
	}
	deficit := left - s.pending - d.freed - aim(s.c.Soft, s.c.Bytes)
	if deficit <= 0 && e.level == v1alpha1.PressureSoft && s.use <= s.c.Soft && s.pending+d.freed == 0 && s.systemCritical() {
		deficit = 1 // no figure says how much is short: one engine, then look again
	}
	spare := len(s.Engines)
	if reason == v1alpha1.ReclaimSoftPressure {
		spare = onDemand(s.Engines) - 1
	}
	e.take(s, d, deficit, anyPriority, spare, reason, e.last.Because)
}

// take adds victims for a deficit, at most spare ones, one for each Pause.
func (e *Enforcer) take(s sight, d *deeds, deficit int64, forPriority int32, spare int, reason v1alpha1.ReclaimReason, because string, protect ...Key) {
	if paced := e.Pause > 0 && reason != v1alpha1.ReclaimEmergency; paced {
		if !e.lastVictim.IsZero() && s.Now.Sub(e.lastVictim) < e.Pause {
			return
		}
		spare = min(spare, 1)
	}
	for ; deficit > 0 && spare > 0; spare-- {
		i := victim(s.Engines, deficit, forPriority, d.size, slices.Concat(d.done, protect))
		if i < 0 {
			return
		}
		deficit -= d.size(s.Engines[i])
		d.add(s.Engines[i], StepEvict, reason, because)
		e.lastVictim = s.Now
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
	left := s.use - s.pending - d.freed
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

// emergency ends the work of the worst offender, and the engine itself only if
// the next reading is still over. One poll of grace is given where pools cover
// the excess; engines that are ending and suffice have endingPolls, and only
// what they still work on is ended at once.
func (e *Enforcer) emergency(s sight, d *deeds) {
	if s.raw <= s.c.Fixed {
		return
	}
	left := s.raw - s.pending - d.freed
	if e.graced == 0 && (s.net <= s.c.Fixed || left <= s.c.Fixed) {
		e.graced = e.poll
	}
	if e.graced == e.poll {
		return
	}
	for _, g := range s.Engines { // who is draining need not finish
		if g.Stopping && !g.idle() && e.engines[g.Key].aborted == 0 {
			e.abort(g, d, e.last.Because)
		}
	}
	if e.ending = e.inARow(e.ending, left <= s.c.Fixed); left <= s.c.Fixed && e.ending < endingPolls {
		return
	}
	g, ok := worst(s.Engines, d)
	if !ok {
		return
	}
	because := fmt.Sprintf("%s; this engine is the worst offender with %s", e.last.Because, word(g.Gauge()))
	switch {
	case g.Loading && left > s.c.Fixed:
		d.add(g, StepCancelLoad, v1alpha1.ReclaimEmergency, because)
	case g.Loading:
	case e.engines[g.Key].aborted == 0:
		e.abort(g, d, because)
	case left > s.c.Fixed && e.fresh(g):
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
