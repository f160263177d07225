package memory

import (
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/metal/footprint"
)

// apart is how long two observations must agree before they are believed.
const apart = 10 * time.Second

// Finding is what a judge says: the parts of a condition.
type Finding struct {
	Status  metav1.ConditionStatus
	Reason  string
	Message string
	// Bytes that nobody owns; never negative.
	Bytes int64
}

// WiredReading is what the judge of stranded memory looks at.
type WiredReading struct {
	At time.Time
	// Wired of the host, read before Footprints; Known is false where the
	// probe failed.
	Wired int64
	Known bool
	// Measurable is false where this system never tells (not a Mac).
	Measurable bool
	// Footprints of all living engine processes, read after Wired.
	Footprints int64
	// Engines that have a process.
	Engines int
	// Total memory of the machine.
	Total int64
}

// Stranding judges whether wired memory is left that no process owns. Its zero
// value has seen nothing. Baseline is the least that was wired while the pool
// was empty; it may be restored if it was taken since this machine started.
type Stranding struct {
	Baseline      int64
	BaselineKnown bool

	over    time.Time // since when too much is unowned; zero: it is not
	unclean bool      // an engine ended uncleanly, and the check has not passed twice since
	passed  time.Time // when it passed first since then
	last    *Finding
}

// StrandingBound is what may be wired without an owner: max(4 GiB, 2 %) of the
// machine's memory, in bytes.
func StrandingBound(total int64) int64 { return max(4*footprint.GiB, total/50) }

// Unclean says that an engine was killed or crashed: nothing starts in its
// place until the check has passed twice.
func (s *Stranding) Unclean() { s.unclean, s.passed = true, time.Time{} }

// MayStart reports whether engines may be started: no check is due, and
// nothing looks stranded.
func (s *Stranding) MayStart() bool { return !s.unclean && s.over.IsZero() }

// Observe judges one observation; two at least 10 s apart decide. A reading
// that failed changes nothing.
func (s *Stranding) Observe(w WiredReading) Finding {
	switch {
	case !w.Measurable:
		s.unclean = false // there is no check to wait for
		return s.say(Finding{Status: metav1.ConditionUnknown, Reason: v1alpha1.ReasonNotMeasurable, Message: "this system does not report wired memory"})
	case !w.Known && s.last != nil:
		return *s.last
	case !w.Known:
		return Finding{Status: metav1.ConditionUnknown, Reason: v1alpha1.ReasonNotMeasurable, Message: "wired memory could not be measured yet"}
	}
	rest := max(0, w.Wired-w.Footprints)
	if w.Engines == 0 && (!s.BaselineKnown || rest < s.Baseline) {
		s.Baseline, s.BaselineKnown = rest, true
	}
	if !s.BaselineKnown {
		s.pass(w.At)
		return s.say(Finding{Status: metav1.ConditionUnknown, Reason: v1alpha1.ReasonNotMeasurable, Message: "engines have been running since the agent started: the system's own wired memory will be measured once none is running"})
	}
	return s.judge(w, max(0, rest-s.Baseline))
}

// judge compares what nobody owns with the bound.
func (s *Stranding) judge(w WiredReading, unowned int64) Finding {
	figures := fmt.Sprintf("%s are wired, engines hold %s, the system itself wires %s",
		v1alpha1.FormatBytes(w.Wired), v1alpha1.FormatBytes(w.Footprints), v1alpha1.FormatBytes(s.Baseline))
	if unowned <= StrandingBound(w.Total) {
		s.over = time.Time{}
		s.pass(w.At)
		return s.say(Finding{Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonNothingWired, Message: "unowned wired memory does not exceed the limit of " + v1alpha1.FormatBytes(StrandingBound(w.Total)), Bytes: unowned})
	}
	s.passed = time.Time{}
	if s.over.IsZero() {
		s.over = w.At
	}
	if w.At.Sub(s.over) < apart {
		f := Finding{Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonNothingWired, Message: "seen once, not yet confirmed: " + figures, Bytes: unowned}
		if s.last != nil && s.last.Status == metav1.ConditionTrue {
			f = *s.last
		}
		return s.say(f)
	}
	return s.say(Finding{Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonWiredUnowned, Bytes: unowned,
		Message: fmt.Sprintf("%s are wired and no living process owns them (%s): no engine is started on this Mac; reboot it to free the memory", v1alpha1.FormatBytes(unowned), figures)})
}

// pass counts a check that passed: after the second, at least 10 s later,
// engines may start again.
func (s *Stranding) pass(at time.Time) {
	switch {
	case !s.unclean:
	case s.passed.IsZero():
		s.passed = at
	case at.Sub(s.passed) >= apart:
		s.unclean, s.passed = false, time.Time{}
	}
}

func (s *Stranding) say(f Finding) Finding {
	s.last = &f
	return f
}
