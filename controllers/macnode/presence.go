package macnode

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/internal/notice"
	"metalfleet.dev/metalfleet/controllers/internal/status"
)

// Reasons of Events without a condition.
const (
	eventMacJoined = "MacJoined"
	eventMacBack   = "MacBack"
)

// presence is the Event of a Mac that joined, fell silent, is gone or is back.
// Its ID has the time of the last transition only roughly: a Mac with an
// unstable network causes one Event of each kind within alertEvery.
func presence(mac *v1alpha1.MacNode, before *metav1.Condition, next status.Condition) []notice.Notice {
	if before == nil || before.Reason == next.Reason {
		return nil
	}
	n := notice.Notice{
		About: notice.Of("MacNode", mac), ID: fmt.Sprint(before.LastTransitionTime.Truncate(alertEvery).Unix()),
		Reason: next.Reason, Message: next.Message, Warning: next.Status != metav1.ConditionTrue,
	}
	switch {
	case next.Reason == v1alpha1.ReasonNeverReported:
		return nil
	case next.Status == metav1.ConditionTrue && before.Reason == v1alpha1.ReasonNeverReported:
		n.Reason = eventMacJoined
	case next.Status == metav1.ConditionTrue:
		n.Reason, n.Message = eventMacBack, "the Mac's agent renews its Lease again; before: "+before.Message
	}
	return []notice.Notice{n}
}
