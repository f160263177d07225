package macnode

import (
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/internal/notice"
	"metalfleet.dev/metalfleet/controllers/internal/status"
)

// clashLasts is how long the report of a fenced agent is valid; it repeats it every ten
// seconds.
const clashLasts = time.Minute

// clash is a fenced agent, as its Mac's Lease reports it.
type clash struct {
	holder string
	until  time.Time
}

// sighting is the last report of a fenced agent, and when it was first seen.
type sighting struct {
	report string
	at     time.Time
}

// firstSeen returns when this process first saw the report in a Mac's Lease.
func (h *Heartbeat) firstSeen(mac string, lease *coordinationv1.Lease) time.Time {
	report, now := lease.Annotations[v1alpha1.AnnotationFenced], h.Clock.Now()
	last, _ := h.sightings.known(mac)
	if report == "" || last.report == report {
		return last.at
	}
	h.sightings.remember(mac, sighting{report, now})
	return now
}

// clashOf parses the report, which was first seen then; nil if there is no valid one.
func clashOf(lease *coordinationv1.Lease, seen, now time.Time) *clash {
	holder, at, ok := strings.Cut(lease.Annotations[v1alpha1.AnnotationFenced], " ")
	reported, err := time.Parse(time.RFC3339, at)
	until := reported.Add(clashLasts)
	if most := seen.Add(clashLasts); until.After(most) { // the Mac's clock is ahead
		until = most
	}
	if !ok || err != nil || !now.Before(until) {
		return nil
	}
	return &clash{holder: holder, until: until}
}

// conditions returns the Mac's conditions about clashes: none if there never was one. A Mac may
// report a clash, or another one, with each write of its Lease: what is shown stays for clashLasts.
// named is when the second machine was last written.
func (c *clash) conditions(before []metav1.Condition, now, named time.Time) []status.Condition {
	shown := meta.FindStatusCondition(before, v1alpha1.ConditionIdentityClash)
	switch {
	case shown != nil && shown.Status == metav1.ConditionTrue && (c == nil && recent(shown.LastTransitionTime.Time, now) || c != nil && recent(named, now)):
		return []status.Condition{status.True(v1alpha1.ConditionIdentityClash, shown.Reason, shown.Message)}
	case c != nil:
		return []status.Condition{status.True(v1alpha1.ConditionIdentityClash, v1alpha1.ReasonAgentFenced, c.message())}
	case shown != nil:
		return []status.Condition{status.False(v1alpha1.ConditionIdentityClash, v1alpha1.ReasonOneAgent, "one machine runs an agent with the identity of this Mac")}
	}
	return nil
}

// recent reports whether less than clashLasts has passed.
func recent(then, now time.Time) bool {
	age := now.Sub(then)
	return age >= 0 && age < clashLasts
}

// again returns when to look again: when the report is old, or what is shown may change; 0 if
// neither is awaited.
func (c *clash) again(after []metav1.Condition, now time.Time) time.Duration {
	until := time.Time{}
	shown := meta.FindStatusCondition(after, v1alpha1.ConditionIdentityClash)
	switch {
	case c != nil:
		until = c.until
	case shown != nil && shown.Status == metav1.ConditionTrue:
		until = shown.LastTransitionTime.Add(clashLasts)
	default:
		return 0
	}
	return min(max(until.Sub(now), time.Second), clashLasts)
}

func (c *clash) message() string {
	return "a second machine runs an agent (" + c.holder + ") with the identity of this Mac and was stopped: its state folder was copied, for example with the disk; " +
		"give that machine a MacNode and a join token of its own, and if you do not know it, delete this MacNode and join under another name"
}

// notices returns the Event of a clash that the Mac does not show yet.
func (c *clash) notices(mac *v1alpha1.MacNode, before []metav1.Condition) []notice.Notice {
	if c == nil || meta.IsStatusConditionTrue(before, v1alpha1.ConditionIdentityClash) {
		return nil
	}
	return []notice.Notice{{About: notice.Of("MacNode", mac), ID: c.holder, Reason: v1alpha1.ReasonAgentFenced, Message: c.message(), Warning: true}}
}
