package memory

import (
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/metal/footprint"
)

// apart is the time between two observations that must agree to be reported.
const apart = 10 * time.Second

// maxRepeats is for how long further unclean ends have the check begin again. After that one
// observation after the last of them suffices: engines of one tenant that end one after another
// would keep those of others from starting for as long as there are any.
const maxRepeats = 20 * time.Second

// Finding is a detector's result: the parts of a condition.
type Finding struct {
	Status  metav1.ConditionStatus
	Reason  string
	Message string
	// Bytes that no process owns; never negative.
	Bytes int64
}

// WiredReading is the input of Stranding.
type WiredReading struct {
	At time.Time
	// Wired of the host, read between Before and Held; Known is false where the
	// probe failed.
	Wired int64
	Known bool
	// Measurable is false if this system never reports wired memory (not a Mac).
	Measurable bool
	// Before and Held are what each living engine process held, by its id, when
	// read before and after Wired.
	Before, Held map[int]int64
	// Starting is true if an engine was being started: its process may hold
	// memory and be in neither map.
	Starting bool
	// Ends counts the engine processes that were observed to end since the agent
	// started.
	Ends int64
	// Assumed: an engine could not be measured, and what it has reserved counts. That
	// is enough to find that nothing is left, and no evidence.
	Assumed bool
	// Total memory of the machine.
	Total int64
}

// footprints adds up what living engines hold.
func (w WiredReading) footprints() (sum int64) {
	for _, held := range w.Held {
		sum += held
	}
	return sum
}

// unowned returns the least and the most that may have been wired without an
// owner when Wired was read: engines grow, shrink and end between the
// measurements.
func (w WiredReading) unowned() (least, most int64) {
	least, most = w.Wired, w.Wired
	for pid, after := range w.Held {
		least -= max(w.Before[pid], after)
		most -= min(w.Before[pid], after)
	}
	for pid, before := range w.Before {
		if _, lives := w.Held[pid]; !lives {
			least -= before
		}
	}
	return max(0, least), max(0, most)
}

// Consistent reports whether the figures show what is wired without an owner: none is
// assumed, and no engine grew, shrank, started or ended by more than a sixteenth of the bound
// while they were read.
func (w WiredReading) Consistent() bool {
	least, most := w.unowned()
	return !w.Starting && !w.Assumed && most-least <= StrandingBound(w.Total)/16
}

// Stranding detects wired memory that engines held and no process owns. Its zero
// value is ready to use.
type Stranding struct {
	evidence Evidence
	seen     bool          // an observation was evaluated since the start or Restore
	held     map[int]int64 // by each engine in the last consistent observation
	ends     int64         // until the last consistent observation
	over     time.Time     // since when too much is left; zero: it is not
	doubt    bool          // too much may be left, by observations since the last consistent one
	unclean  bool          // an engine ended uncleanly, and the check has not passed twice since
	passed   time.Time     // when it passed first since then, or since it began again
	repeats  time.Time     // when it passed first, however often it began again
	at       time.Time     // of the last observation
	last     *Finding
}

// Evidence is what Stranding learned since the machine started, in bytes: an
// agent that restarts must not lose it.
type Evidence struct {
	// Baseline is the least that was wired while the pool was empty.
	Baseline      int64
	BaselineKnown bool
	// Left stayed wired when the footprints of engines fell; Elsewhere was wired
	// beyond the baseline without such a fall, by the system or other programs
	// such as a virtual machine.
	Left, Elsewhere int64
	// Stranded: too much was left in two observations.
	Stranded bool
}

// Evidence returns what all observations so far show.
func (s *Stranding) Evidence() Evidence { return s.evidence }

// Restore takes over the evidence of an earlier agent, taken since this machine
// started.
func (s *Stranding) Restore(e Evidence) { s.evidence, s.seen, s.ends = e, false, 0 }

// StrandingBound is how much may be wired without an owner: max(4 GiB, 2 %) of
// the machine's memory, in bytes.
func StrandingBound(total int64) int64 { return max(4*footprint.GiB, total/50) }

// Unclean records that an engine was killed or crashed: no engine starts until
// the check has passed twice. One that has lasted for maxRepeats does not begin again.
func (s *Stranding) Unclean() {
	s.unclean = true
	if s.repeats.IsZero() || s.at.Sub(s.repeats) < maxRepeats {
		s.passed = time.Time{}
	}
}

// MayStart reports whether engines may be started: no check is due, and no memory
// looks stranded.
func (s *Stranding) MayStart() bool {
	return !s.unclean && !s.doubt && s.over.IsZero() && !s.evidence.Stranded
}

// Outdated reports whether some of the ends were not observed yet, so that the
// evidence does not include it.
func (s *Stranding) Outdated(ends int64) bool { return !s.seen || s.ends < ends }

// Exceeds reports whether more is wired than living processes, the system and
// other programs account for, by one measurement alone.
func (s *Stranding) Exceeds(wired, footprints, total int64) bool {
	e := &s.evidence
	return e.BaselineKnown && wired-footprints-e.Baseline-e.Elsewhere > StrandingBound(total)
}

// Observe evaluates one observation; two at least 10 s apart decide. A failed
// reading changes nothing. An inconsistent one neither finds nor clears stranded
// memory, because growth of a living engine looks as if ended ones had left less;
// the next consistent one evaluates the change.
func (s *Stranding) Observe(w WiredReading) Finding {
	s.at = w.At
	switch {
	case !w.Measurable:
		s.unclean = false // there is no check to wait for
		s.seen, s.held, s.ends = true, w.Held, w.Ends
		return s.keep(Finding{Status: metav1.ConditionUnknown, Reason: v1alpha1.ReasonNotMeasurable, Message: "this system does not report wired memory"})
	case !w.Known && s.last != nil:
		return *s.last
	case !w.Known:
		return Finding{Status: metav1.ConditionUnknown, Reason: v1alpha1.ReasonNotMeasurable, Message: "wired memory could not be measured yet"}
	}
	if !w.Consistent() {
		return s.suspect(w)
	}
	e, rest := &s.evidence, s.rest(w)
	if len(w.Held) == 0 && (!e.BaselineKnown || rest < e.Baseline) {
		e.Baseline, e.BaselineKnown = rest, true
	}
	if e.BaselineKnown {
		s.attribute(w, max(0, rest-e.Baseline))
	}
	s.seen, s.held, s.ends, s.doubt = true, w.Held, w.Ends, false
	if !e.BaselineKnown {
		s.pass(w.At)
		return s.keep(noBaseline)
	}
	return s.judge(w)
}

var noBaseline = Finding{Status: metav1.ConditionUnknown, Reason: v1alpha1.ReasonNotMeasurable,
	Message: "engines have been running since the agent started: the system's own wired memory will be measured once none is running"}

// rest returns the bytes that are wired without an owner: the last result,
// unless a consistent observation changes it.
func (s *Stranding) rest(w WiredReading) int64 {
	least, most := w.unowned()
	e := &s.evidence
	return min(max(e.Baseline+e.Elsewhere+e.Left, least), most)
}

// suspect evaluates an inconsistent observation. If engines ended or shrank
// and more than the bound may be left, no engine starts before another
// observation shows less; otherwise the check after an unclean end has passed.
func (s *Stranding) suspect(w WiredReading) Finding {
	e := &s.evidence
	_, most := w.unowned()
	over := e.BaselineKnown && most-e.Baseline-e.Elsewhere > StrandingBound(w.Total)
	switch {
	case over && (s.doubt || s.ended(w) || s.fell(w) > 0):
		s.doubt = true
		s.fail()
	case s.over.IsZero(): // engines left no more than is known
		s.doubt = false
		s.pass(w.At)
	}
	switch {
	case s.last != nil:
		return *s.last
	case !e.BaselineKnown:
		return noBaseline
	}
	return Finding{Status: metav1.ConditionUnknown, Reason: v1alpha1.ReasonNotMeasurable, Message: "wired memory could not be measured yet: engines grew or shrank meanwhile"}
}

// attribute divides the bytes that are wired without an owner between engines
// and other programs. Engines left what stayed when one of them ended, or when
// their footprints fell by as much. While engines run the figure is too low by
// what they hold unwired, so only an empty pool shows that other programs wire
// less.
func (s *Stranding) attribute(w WiredReading, unowned int64) {
	e := &s.evidence
	if len(w.Held) == 0 {
		others := unowned
		if e.Stranded {
			others = max(0, unowned-e.Left) // memory that other programs return was not left by engines
		}
		e.Elsewhere = min(e.Elsewhere, others)
	}
	left := max(0, unowned-e.Elsewhere)
	if grown := left - e.Left; grown > 0 && !s.ended(w) {
		theirs := min(grown, s.fell(w))
		e.Elsewhere += grown - theirs
		left = e.Left + theirs
	}
	e.Left = left
}

// ended reports whether an engine has ended since the last observation, or may
// have ended before the first.
func (s *Stranding) ended(w WiredReading) bool {
	return w.Ends != s.ends || !s.seen && s.unclean
}

// fell returns by how much the engines' footprints fell since the last
// observation.
func (s *Stranding) fell(w WiredReading) (sum int64) {
	for pid, held := range s.held {
		sum += max(0, held-w.Held[pid])
	}
	return sum
}

// judge compares the bytes that engines left with the bound.
func (s *Stranding) judge(w WiredReading) Finding {
	e, bound := &s.evidence, StrandingBound(w.Total)
	figures := fmt.Sprintf("%s are wired, engines hold %s, the system itself wires %s",
		formatBytes(w.Wired), formatBytes(w.footprints()), formatBytes(e.Baseline))
	if e.Elsewhere > bound {
		figures += fmt.Sprintf(", other programs %s", formatBytes(e.Elsewhere))
	}
	if e.Left <= bound {
		s.over, e.Stranded = time.Time{}, false
		s.pass(w.At)
		f := Finding{Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonNothingWired, Bytes: e.Left,
			Message: "wired memory that engines left does not exceed the limit of " + formatBytes(bound)}
		if e.Elsewhere > bound {
			f.Message += fmt.Sprintf("; other programs wire %s, such as a virtual machine: engines start in what they leave free", formatBytes(e.Elsewhere))
		}
		return s.keep(f)
	}
	s.fail()
	if s.over.IsZero() {
		s.over = w.At
	}
	if !e.Stranded && w.At.Sub(s.over) < apart {
		return s.keep(Finding{Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonNothingWired, Message: "seen once, not yet confirmed: " + figures, Bytes: e.Left})
	}
	e.Stranded = true
	return s.keep(Finding{Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonWiredUnowned, Bytes: e.Left,
		Message: fmt.Sprintf("%s stayed wired when engines ended, and no living process owns them (%s): no engine is started on this Mac; reboot it to free the memory", formatBytes(e.Left), figures)})
}

// pass counts a passed check: after the second, at least 10 s later, engines
// may start again.
func (s *Stranding) pass(at time.Time) {
	switch {
	case !s.unclean:
	case s.passed.IsZero():
		s.passed = at
		if s.repeats.IsZero() {
			s.repeats = at
		}
	case at.Sub(s.passed) >= apart:
		s.unclean = false
		s.fail()
	}
}

// fail has the check begin from its start.
func (s *Stranding) fail() { s.passed, s.repeats = time.Time{}, time.Time{} }

func (s *Stranding) keep(f Finding) Finding {
	s.last = &f
	return f
}
