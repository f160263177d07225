package agent

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// TestMessagesFitAStatus: the API server refuses a status with more than 256 KiB of them, and
// with it all that it reports.
func TestMessagesFitAStatus(t *testing.T) {
	long := strings.Repeat("é", 512)
	status := func(assignments int) *v1alpha1.MacNodeStatus {
		s := &v1alpha1.MacNodeStatus{}
		for range assignments {
			s.Assignments = append(s.Assignments, v1alpha1.AssignmentStatus{
				LastFailure: &v1alpha1.EngineFailure{Message: long}, Conditions: []metav1.Condition{{Message: long}, {Message: long}}})
		}
		return s
	}
	few := status(2)
	fitMessages(few, maxMessageBytes)
	if got := few.Assignments[1].Conditions[1].Message; got != long {
		t.Errorf("a few messages became %q", got)
	}
	many := status(128)
	before := many.Assignments
	fitMessages(many, maxMessageBytes)
	for _, got := range []string{many.Assignments[127].LastFailure.Message, many.Assignments[127].Conditions[1].Message} {
		if got != strings.Repeat("é", shortMessage/2) {
			t.Errorf("one of many became %q", got)
		}
	}
	if before[127].LastFailure.Message != long || before[127].Conditions[1].Message != long {
		t.Error("the messages of others than the status changed")
	}
}
