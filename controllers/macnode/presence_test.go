package macnode

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/internal/status"
)

func TestAnEventTellsWhenAMacComesOrGoes(t *testing.T) {
	const reports, silent, gone, never, held = v1alpha1.ReasonReporting, v1alpha1.ReasonMacSilent, v1alpha1.ReasonMacGone, v1alpha1.ReasonNeverReported, v1alpha1.ReasonBreakerOpen
	state := map[string]metav1.ConditionStatus{reports: metav1.ConditionTrue, silent: metav1.ConditionUnknown, held: metav1.ConditionUnknown, gone: metav1.ConditionFalse, never: metav1.ConditionFalse}
	since := metav1.NewTime(time.Unix(1_800_000_000, 0))
	for _, tc := range []struct{ before, next, want string }{
		{"", never, ""}, {"", reports, ""}, {never, reports, "MacJoined"}, {reports, reports, ""}, {reports, silent, silent}, {silent, silent, ""},
		{silent, gone, gone}, {silent, held, held}, {reports, gone, gone}, {silent, reports, "MacBack"}, {gone, reports, "MacBack"}, {held, reports, "MacBack"}, {reports, never, ""},
	} {
		var before *metav1.Condition
		if tc.before != "" {
			before = &metav1.Condition{Type: v1alpha1.ConditionReady, Status: state[tc.before], Reason: tc.before, Message: "m", LastTransitionTime: since}
		}
		next := status.Condition{Type: v1alpha1.ConditionReady, Status: state[tc.next], Reason: tc.next, Message: "m"}
		got := presence(&v1alpha1.MacNode{}, before, next)
		switch {
		case tc.want == "" && len(got) == 0:
		case len(got) != 1 || got[0].Reason != tc.want || got[0].Warning != (tc.next != reports) || got[0].Message == "":
			t.Errorf("%s to %s: %+v, want %q", tc.before, tc.next, got, tc.want)
		}
	}
	// An unstable network: one Event of each kind.
	before := &metav1.Condition{Status: metav1.ConditionTrue, Reason: reports, LastTransitionTime: since}
	next := status.Unknown(v1alpha1.ConditionReady, silent, "m")
	first := presence(&v1alpha1.MacNode{}, before, next)
	before.LastTransitionTime = metav1.NewTime(since.Add(time.Minute))
	if again := presence(&v1alpha1.MacNode{}, before, next); again[0].ID != first[0].ID {
		t.Errorf("a minute later it is another Event: %q and %q", first[0].ID, again[0].ID)
	}
}
