//go:build !race

package modeldeployment

import (
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	appsv1 "k8s.io/api/apps/v1"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/fleet"
)

// TestAReportConcernsItsDeployments: only those of that source that are not accepted are judged
// again, and for no other message of the same failure.
func TestAReportConcernsItsDeployments(t *testing.T) {
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{v1alpha1.AddToScheme, appsv1.AddToScheme} {
		if err := add(s); err != nil {
			t.Fatal(err)
		}
	}
	b := fake.NewClientBuilder().WithScheme(s)
	if err := fleet.AddIndexes(t.Context(), builderIndexer{b}); err != nil {
		t.Fatal(err)
	}
	var first *v1alpha1.ModelDeployment
	for i := range 30 { // of three sources; the first of each is accepted
		d := &v1alpha1.ModelDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprint("d", i), Generation: 1}}
		d.Spec.Model.Source = fmt.Sprint("hf://org/", i/10)
		if i%10 == 0 {
			d.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionAccepted, Status: metav1.ConditionTrue, ObservedGeneration: 1}}
		}
		if i == 15 {
			d.Spec.Placement.Chips = []string{"M1"}
		}
		if i == 0 {
			first = d
		}
		b.WithObjects(d)
	}
	r := &Reconciler{Client: b.Build()}
	before := &v1alpha1.MacNode{ObjectMeta: metav1.ObjectMeta{Name: "m", UID: "m"}}
	before.Status.Inspections = []v1alpha1.InspectionStatus{{ID: fleet.InspectionID(first), State: v1alpha1.InspectionFailed, Reason: v1alpha1.ReasonSourceUnreachable, Message: "HTTP 500"}}
	for name, tc := range map[string]struct {
		change func(*v1alpha1.MacNode)
		want   int
	}{
		"another message":        {change: func(m *v1alpha1.MacNode) { m.Status.Inspections[0].Message = "HTTP 501" }},
		"another reason":         {change: func(m *v1alpha1.MacNode) { m.Status.Inspections[0].Reason = v1alpha1.ReasonSourceForbidden }, want: 9},
		"no report":              {change: func(m *v1alpha1.MacNode) { m.Status.Inspections = nil }, want: 9},
		"a chip that one names":  {change: func(m *v1alpha1.MacNode) { m.Status.Chip = "M1" }, want: 1},
		"a chip that none names": {change: func(m *v1alpha1.MacNode) { m.Status.Chip = "M2" }},
		"labels":                 {change: func(m *v1alpha1.MacNode) { m.Labels = map[string]string{"room": "lab"} }, want: 27},
	} {
		after := before.DeepCopy()
		tc.change(after)
		if got := r.inspectedBy(t.Context(), before, after); len(got) != tc.want {
			t.Errorf("%s: %d deployments are judged again, want %d", name, len(got), tc.want)
		}
	}
}
