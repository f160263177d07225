package report

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// TestMessagesAreCutToWhatIsAdmitted: a report that the API server refuses would make the Mac
// look silent.
func TestMessagesAreCutToWhatIsAdmitted(t *testing.T) {
	s := &v1alpha1.MacNodeStatus{Conditions: []metav1.Condition{{Message: "short"}}}
	for range 128 {
		a := v1alpha1.AssignmentStatus{LastFailure: &v1alpha1.EngineFailure{Message: strings.Repeat("<", 1024)}}
		for range 5 {
			a.Conditions = append(a.Conditions, metav1.Condition{Message: strings.Repeat("x", 1024)})
		}
		s.Assignments = append(s.Assignments, a)
	}
	cut := within(s, MaxTextBytes)
	if n := textBytes(cut); n > MaxTextBytes || n < MaxTextBytes/4 {
		t.Errorf("the messages take %d bytes", n)
	}
	a := cut.Assignments[127]
	if m := a.Conditions[4].Message; !strings.HasPrefix(m, "xxx") || !strings.HasSuffix(m, "...") || len(a.LastFailure.Message) != len(m) {
		t.Errorf("messages of %q and %d bytes", m, len(a.LastFailure.Message))
	}
	if cut.Conditions[0].Message != "short" || len(s.Assignments[0].LastFailure.Message) != 1024 {
		t.Error("a short message or the original was changed")
	}
	if few := (&v1alpha1.MacNodeStatus{Conditions: s.Conditions}); within(few, MaxTextBytes) != few {
		t.Error("a small status was copied")
	}
}
