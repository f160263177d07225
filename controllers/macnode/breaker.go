package macnode

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/internal/status"
)

// The circuit breaker: if more than half of a fleet falls silent at once, the fault is more
// likely on our side, and moving all replicas would add a second one.
const (
	// breakerFleet is the smallest fleet with a circuit breaker.
	breakerFleet = 4
	// breakerWindow is the time within which the Macs fall silent.
	breakerWindow = time.Minute
)

// Observation is one Mac as the circuit breaker sees it.
type Observation struct {
	Pulse
	// Before is its stored condition Ready.
	Before *metav1.Condition
	// Announced: its agent announced that it would stop.
	Announced bool
	// Leaving is why the Mac itself stops, as its agent reported; empty: it stays.
	Leaving string
	// Back: it renewed its Lease recently, after a silence.
	Back bool
	// Lost: an administrator gave it up.
	Lost bool
}

// ObservationOf reads a MacNode.
func ObservationOf(mac *v1alpha1.MacNode, p Pulse, now time.Time) Observation {
	before := meta.FindStatusCondition(mac.Status.Conditions, v1alpha1.ConditionReady)
	return Observation{
		Pulse: p, Before: before, Back: back(before, p, now.Sub(mac.CreationTimestamp.Time), now),
		Leaving:   leaving(mac),
		Announced: meta.IsStatusConditionFalse(mac.Status.Conditions, v1alpha1.ConditionAccepting),
		Lost:      mac.Annotations[v1alpha1.AnnotationLost] == "true",
	}
}

// leaving returns why a Mac reported that it stops. It is valid until its agent reports
// that it accepts assignments again.
func leaving(mac *v1alpha1.MacNode) string {
	c := meta.FindStatusCondition(mac.Status.Conditions, v1alpha1.ConditionAccepting)
	if c == nil || c.Status != metav1.ConditionFalse || c.Reason != v1alpha1.ReasonMacSleeps && c.Reason != v1alpha1.ReasonMacShutsDown {
		return ""
	}
	return c.Message
}

// back reports whether a Mac's renewals resumed within the window, or just now and before
// it was judged. One that has just joined was never away, and a time in the future is of a clock
// that was ahead.
func back(before *metav1.Condition, p Pulse, age time.Duration, now time.Time) bool {
	if before == nil {
		return false
	}
	since := now.Sub(before.LastTransitionTime.Time)
	switch before.Reason {
	case v1alpha1.ReasonReporting:
		return since >= 0 && since < breakerWindow && age-since > breakerWindow
	case v1alpha1.ReasonMacSilent, v1alpha1.ReasonBreakerOpen:
		return p.Seen && p.Silence < silentAfter
	default:
		return false
	}
}

// Judge judges a Mac in the context of all others: one that would be gone stays silent
// while the circuit breaker is open, unless its stop was announced or it was given up.
func (s Observation) Judge(b Breaker) status.Condition {
	c := Judge(s.Before, s.Pulse)
	if s.Leaving != "" && c.Reason != v1alpha1.ReasonNeverReported {
		return status.False(v1alpha1.ConditionReady, v1alpha1.ReasonMacGone, s.Leaving+"; its replicas are recreated on other Macs at once")
	}
	if c.Reason != v1alpha1.ReasonMacGone || s.gone() || s.Announced || s.Lost || !b.Open() {
		return c
	}
	return status.Unknown(v1alpha1.ConditionReady, v1alpha1.ReasonBreakerOpen, fmt.Sprintf(
		"%d of %d Macs stopped reporting within %.0f s, so no replica is moved until half of the fleet has reported for as long; check the network first. Mark a Mac that is really lost with `kubectl annotate mac NAME %s=true`, or delete it",
		b.Silent, b.Fleet, breakerWindow.Seconds(), v1alpha1.AnnotationLost))
}

// gone reports whether the Mac was judged to be gone before: its replicas are created
// elsewhere already.
func (s Observation) gone() bool {
	return s.Before != nil && (s.Before.Reason == v1alpha1.ReasonMacGone || s.Before.Reason == v1alpha1.ReasonNeverReported)
}

// Breaker counts the Macs of a fleet that fell silent together.
type Breaker struct {
	Silent, Fleet int
}

// Open reports whether nothing may be moved.
func (b Breaker) Open() bool { return b.Fleet >= breakerFleet && 2*b.Silent > b.Fleet }

// Look counts. The fleet are the Macs that joined and were not gone before; one that was
// given up is included, so that it cannot make another one look gone. Of those that are
// silent without notice, it counts the most that fell silent within one window and, while
// there are any, those that are just back: the others will return in the same minute, and
// must not be moved before.
func Look(macs []Observation) Breaker {
	var b Breaker
	var silent []time.Duration
	back := 0
	for _, m := range macs {
		if m.Renewed.IsZero() && !hasJoined(m.Before) || m.gone() && !m.Lost && (!m.Seen || m.Silence >= silentAfter) {
			continue // never joined, or gone before and not given up by a person
		}
		b.Fleet++
		switch {
		case m.Silence >= silentAfter && !m.Announced:
			silent = append(silent, m.Silence)
		case m.Silence < silentAfter && m.Back:
			back++
		}
	}
	slices.SortFunc(silent, cmp.Compare)
	for from, to := 0, 0; to < len(silent); to++ {
		for silent[to]-silent[from] > breakerWindow {
			from++
		}
		b.Silent = max(b.Silent, to-from+1)
	}
	if b.Silent > 0 {
		b.Silent += back
	}
	return b
}
