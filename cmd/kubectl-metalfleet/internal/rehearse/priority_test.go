//go:build !race

package rehearse

import (
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/placement/plan"
)

// TestWhatAPriorityWouldTake: a plan has the room that others would give, says
// who they are, and keeps to what an administrator allows.
func TestWhatAPriorityWouldTake(t *testing.T) {
	d, other := deployment("m", 1), deployment("other", 1)
	d.Spec.PriorityClassName = "high"
	w := World{Now: now, Macs: []v1alpha1.MacNode{mac("a", 15*gib)}, Replicas: []v1alpha1.ModelReplica{serves(other, 0, "other-1", "a")},
		Revisions: []appsv1.ControllerRevision{revision(t, d, "m-1")}}
	ask := func() Answer {
		t.Helper()
		a, err := Ask(w, Question{Deployment: d})
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	if a := ask(); a.Verdict != DoesNotFit || a.Reason != v1alpha1.ReasonPriorityClassNotFound {
		t.Errorf("without the class: %+v", a)
	}
	w.Class = &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: "high"}, Value: 9}
	a := ask()
	if brief(a) != "Fits: a" || strings.Join(a.Preempted, " ") != "ns/other-0" || !strings.Contains(strings.Join(a.Notes, "\n"), "would be preempted: ns/other-0") {
		t.Errorf("with a class: %s, preempted %v, %q", brief(a), a.Preempted, a.Notes)
	}
	w.Replicas[0].DeletionTimestamp = &metav1.Time{Time: now}
	if a := ask(); brief(a) != "Fits: a" || len(a.Preempted) != 0 {
		t.Errorf("the other drains already: %s, preempted %v", brief(a), a.Preempted)
	}
	limit := resource.MustParse("1Ki")
	w.Rules = plan.NewRules(&v1alpha1.NamespaceRules{Spec: v1alpha1.NamespaceRulesSpec{Default: v1alpha1.NamespaceRule{MemoryLimit: &limit}}}, false)
	if a := ask(); brief(a) != "DoesNotFit: nowhere (OverQuota)" {
		t.Errorf("with rules: %s", brief(a))
	}
	w.NoRules = "you may not read the rules"
	if a := ask(); !strings.Contains(strings.Join(a.Notes, "\n"), w.NoRules) {
		t.Errorf("notes %q", a.Notes)
	}
}
