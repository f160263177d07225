package placement

import (
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/event"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// TestMessagesOfInspectionsStartNoPass: the server of a tenant's source writes them.
func TestMessagesOfInspectionsStartNoPass(t *testing.T) {
	before := &v1alpha1.MacNode{}
	before.Status.Inspections = []v1alpha1.InspectionStatus{
		{ID: "a", Source: "https://h/a", State: v1alpha1.InspectionFailed, Reason: v1alpha1.ReasonSourceUnreachable, Message: "HTTP 500"},
		{ID: "b", Source: "file://b", State: v1alpha1.InspectionRunning},
	}
	for name, tc := range map[string]struct {
		change func(m *v1alpha1.MacNode)
		want   bool
	}{
		"another message": {change: func(m *v1alpha1.MacNode) { m.Status.Inspections[0].Message = "HTTP 501" }},
		"a start":         {change: func(m *v1alpha1.MacNode) { m.Status.Inspections = m.Status.Inspections[:1] }},
		"another order": {change: func(m *v1alpha1.MacNode) {
			in := m.Status.Inspections
			in[0], in[1] = in[1], in[0]
		}},
		"a result":    {change: func(m *v1alpha1.MacNode) { m.Status.Inspections[1].State = v1alpha1.InspectionFailed }, want: true},
		"a chip":      {change: func(m *v1alpha1.MacNode) { m.Status.Chip = "M9" }, want: true},
		"no results":  {change: func(m *v1alpha1.MacNode) { m.Status.Inspections = nil }, want: true},
		"no change":   {change: func(*v1alpha1.MacNode) {}},
		"a heartbeat": {change: func(m *v1alpha1.MacNode) { m.ResourceVersion = "2" }},
	} {
		after := before.DeepCopy()
		tc.change(after)
		if got := macMatters().Update(event.UpdateEvent{ObjectOld: before, ObjectNew: after}); got != tc.want {
			t.Errorf("%s: a pass starts: %v, want %v", name, got, tc.want)
		}
	}
}
