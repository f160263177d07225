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

// The brake: where more than half of a fleet falls silent at once, the fault is
// more likely ours than theirs, and moving everything would be the second one.
const (
	// brakeFleet is the smallest fleet that has one.
	brakeFleet = 4
	// brakeWindow is how close together the Macs fall silent.
	brakeWindow = time.Minute
)

// Sight is one Mac as the brake sees it.
type Sight struct {
	Pulse
	// Before is its condition Ready as it is stored.
	Before *metav1.Condition
	// Announced says that its agent said it would stop.
	Announced bool
	// Leaving is why the Mac itself goes away, as its agent said; empty: it stays.
	Leaving string
	// Back says that it was heard again lately, after a silence.
	Back bool
	// Lost says that an administrator gave it up.
	Lost bool
}

// SightOf reads what a MacNode says itself.
func SightOf(mac *v1alpha1.MacNode, p Pulse, now time.Time) Sight {
	before := meta.FindStatusCondition(mac.Status.Conditions, v1alpha1.ConditionReady)
	return Sight{
		Pulse: p, Before: before, Back: back(before, p, now.Sub(mac.CreationTimestamp.Time), now),
		Leaving:   leaving(mac),
		Announced: meta.IsStatusConditionFalse(mac.Status.Conditions, v1alpha1.ConditionAccepting),
		Lost:      mac.Annotations[v1alpha1.AnnotationLost] == "true",
	}
}

// leaving reads why a Mac said that it goes away. It stands until its agent says
// that it takes orders again.
func leaving(mac *v1alpha1.MacNode) string {
	c := meta.FindStatusCondition(mac.Status.Conditions, v1alpha1.ConditionAccepting)
	if c == nil || c.Status != metav1.ConditionFalse || c.Reason != v1alpha1.ReasonMacSleeps && c.Reason != v1alpha1.ReasonMacShutsDown {
		return ""
	}
	return c.Message
}

// back says that a Mac was heard again within the window, or is at this moment
// and was not judged anew. One that has just joined was never away.
func back(before *metav1.Condition, p Pulse, age time.Duration, now time.Time) bool {
	if before == nil {
		return false
	}
	since := now.Sub(before.LastTransitionTime.Time)
	switch before.Reason {
	case v1alpha1.ReasonHeardFrom:
		return since < brakeWindow && age-since > brakeWindow
	case v1alpha1.ReasonMacSilent, v1alpha1.ReasonBrakeHeld:
		return p.Heard && p.Silence < silentAfter
	default:
		return false
	}
}

// Judge is the judgement of a Mac among all others: one that would be gone
// stays silent while the brake holds, unless it was announced or given up.
func (s Sight) Judge(b Brake) status.Condition {
	c := Judge(s.Before, s.Pulse)
	if s.Leaving != "" && c.Reason != v1alpha1.ReasonNeverHeardFrom {
		return status.False(v1alpha1.ConditionReady, v1alpha1.ReasonMacGone, s.Leaving+"; its replicas are recreated on other Macs at once")
	}
	if c.Reason != v1alpha1.ReasonMacGone || s.gone() || s.Announced || s.Lost || !b.Holds() {
		return c
	}
	return status.Unknown(v1alpha1.ConditionReady, v1alpha1.ReasonBrakeHeld, fmt.Sprintf(
		"%d of %d Macs stopped reporting within %.0f s, so no replica is moved until half of the fleet has reported for as long; check the network first. Mark a Mac that is really lost with `kubectl annotate mac NAME %s=true`, or delete it",
		b.Silent, b.Fleet, brakeWindow.Seconds(), v1alpha1.AnnotationLost))
}

// gone says that the Mac was judged to be gone before: its replicas are made
// elsewhere already.
func (s Sight) gone() bool {
	return s.Before != nil && (s.Before.Reason == v1alpha1.ReasonMacGone || s.Before.Reason == v1alpha1.ReasonNeverHeardFrom)
}

// Brake is how many Macs of a fleet fell silent together.
type Brake struct {
	Silent, Fleet int
}

// Holds says whether nothing may be moved.
func (b Brake) Holds() bool { return b.Fleet >= brakeFleet && 2*b.Silent > b.Fleet }

// Look counts. The fleet are the Macs that joined and were not gone before; one
// that was given up stays in it, so that it lets no other go. Of those that are
// silent and said nothing, the most that fell silent within the window count,
// and while there are any, those that are just back: the others come in the
// same minute, and are not to be moved in the middle of it.
func Look(macs []Sight) Brake {
	var b Brake
	var silent []time.Duration
	back := 0
	for _, m := range macs {
		if m.Renewed.IsZero() || m.gone() && !m.Lost && (!m.Heard || m.Silence >= silentAfter) {
			continue // never joined, or gone before and not by somebody's word
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
		for silent[to]-silent[from] > brakeWindow {
			from++
		}
		b.Silent = max(b.Silent, to-from+1)
	}
	if b.Silent > 0 {
		b.Silent += back
	}
	return b
}
