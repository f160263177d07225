package macnode

import (
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/internal/status"
)

// A Mac that announces a stop is gone at once, and back when its agent accepts assignments again.
// Each change has placements, inspections and orders of the whole fleet looked at again, and as
// the emptiest Mac it attracts replicas, which the next stop interrupts. So one that repeats its
// stops stays gone ever longer after each.
const (
	// repeatWithin is how long after a stop another one is a repetition.
	repeatWithin = 10 * time.Minute
	// firstStay and longestStay bound how long a Mac is gone from a repeated stop on.
	firstStay, longestStay = time.Minute, 16 * time.Minute
)

// stop is the last stop that a Mac announced.
type stop struct {
	at time.Time
	// stays is how long the Mac is gone from then on, at least.
	stays time.Duration
}

// next returns a stop that follows now.
func (s stop) next(now time.Time) stop {
	if s.at.IsZero() || now.Sub(s.at) >= s.stays+repeatWithin {
		return stop{at: now}
	}
	return stop{at: now, stays: min(max(2*s.stays, firstStay), longestStay)}
}

// delay returns the condition Ready of a Mac that is back too soon after repeated stops, and
// otherwise the judgement unchanged.
func (s stop) delay(c status.Condition, now time.Time) status.Condition {
	if c.Status != metav1.ConditionTrue || !now.Before(s.at.Add(s.stays)) {
		return c
	}
	return status.False(v1alpha1.ConditionReady, v1alpha1.ReasonMacGone,
		fmt.Sprintf("the Mac announced several stops within minutes; it is used again %.0f min after the last one", s.stays.Minutes()))
}

// startsStop reports whether a judgement is the first one of an announced stop.
func startsStop(mac *v1alpha1.MacNode, before *metav1.Condition, next status.Condition) bool {
	return leaving(mac) != "" && next.Reason == v1alpha1.ReasonMacGone && (before == nil || before.Reason != v1alpha1.ReasonMacGone)
}
