package pool

import (
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/metal/excerpt"
)

func named(c metav1.Condition, kind string) metav1.Condition {
	c.Type = kind
	return c
}

func condition(kind string, status metav1.ConditionStatus, reason, format string, args ...any) metav1.Condition {
	return metav1.Condition{Type: kind, Status: status, Reason: reason, Message: fmt.Sprintf(format, args...)}
}

// asReason returns an engine's or a store's reason in a form that the API
// accepts.
func asReason(s string) string {
	if isReason(s) {
		return s
	}
	return v1alpha1.ReasonLoadFailed
}

// maxReason bounds a reason, in bytes.
const maxReason = 64

// isReason reports whether the API accepts s as a reason: any other value would
// make it refuse the whole report. It is called for every condition of every
// snapshot, so it uses no regular expression:
// ^[A-Za-z]([A-Za-z0-9_]{0,62}[A-Za-z0-9])?$
func isReason(s string) bool {
	for i := range len(s) {
		c := s[i]
		letter := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
		inner := '0' <= c && c <= '9' || c == '_' && i < len(s)-1
		if !letter && (i == 0 || !inner) {
			return false
		}
	}
	return 1 <= len(s) && len(s) <= maxReason
}

// transition keeps the time of the last change of each condition's status.
func transition(old, next []metav1.Condition, now time.Time) []metav1.Condition {
	for i := range next {
		c := &next[i]
		c.LastTransitionTime = metav1.NewTime(now)
		if j := slices.IndexFunc(old, func(o metav1.Condition) bool { return o.Type == c.Type }); j >= 0 && old[j].Status == c.Status {
			c.LastTransitionTime = old[j].LastTransitionTime
		}
		c.Message = excerpt.Message(c.Message)
		c.Reason = asReason(c.Reason)
	}
	return next
}
