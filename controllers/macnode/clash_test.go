package macnode

import (
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/internal/status"
)

func TestAClashIsShownWhileTheFencedAgentReportsIt(t *testing.T) {
	now := time.Unix(1_000_000, 0).UTC()
	at := func(d time.Duration) string { return "studio/x " + now.Add(d).Format(time.RFC3339) }
	shown := status.Merge(nil, 0, now.Add(-2*clashLasts), status.True(v1alpha1.ConditionIdentityClash, v1alpha1.ReasonAgentFenced, "m"))
	for name, tc := range map[string]struct {
		report string
		seen   time.Duration // before now
		before []metav1.Condition
		want   metav1.ConditionStatus // empty: nothing is shown
		starts bool
	}{
		"never":                  {starts: false},
		"a report":               {report: at(0), want: metav1.ConditionTrue, starts: true},
		"a report again":         {report: at(-10 * time.Second), before: shown, want: metav1.ConditionTrue, starts: false},
		"an old report":          {report: at(-clashLasts), before: shown, want: metav1.ConditionFalse, starts: false},
		"a clock that is ahead":  {report: at(time.Hour), want: metav1.ConditionTrue, starts: true},
		"a clock that was ahead": {report: at(time.Hour), seen: clashLasts, before: shown, want: metav1.ConditionFalse, starts: false},
		"nonsense":               {report: "studio/x", starts: false},
	} {
		t.Run(name, func(t *testing.T) {
			lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{v1alpha1.AnnotationFenced: tc.report}}}
			c := clashOf(lease, now.Add(-tc.seen), now)
			got := c.conditions(tc.before, now, time.Time{})
			if posted := c.notices(&v1alpha1.MacNode{}, tc.before); len(posted) > 0 != tc.starts {
				t.Errorf("events %+v, want one: %v", posted, tc.starts)
			}
			if tc.want == "" {
				if len(got) > 0 {
					t.Errorf("%+v is shown", got)
				}
				return
			}
			after := status.Merge(tc.before, 0, now, got...)
			if len(after) != 1 || after[0].Status != tc.want || tc.want == metav1.ConditionTrue && !strings.Contains(after[0].Message, "studio/x") {
				t.Errorf("%+v", after)
			}
		})
	}
}
