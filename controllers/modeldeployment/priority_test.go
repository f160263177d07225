//go:build !race

package modeldeployment

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/fleet/fleettest"
)

func TestAPriorityClassIsResolvedOrRefused(t *testing.T) {
	r := rehearsed()
	record := fleettest.Model("file://m.gguf", "seed", 98_000_000)
	r.Record = &record
	r.Deployment.Spec.PriorityClassName = "high"
	o, err := r.Accept()
	if err != nil || o.Engine != nil || o.Reason != v1alpha1.ReasonPriorityClassNotFound || !strings.Contains(o.Message, "PriorityClass high does not exist") {
		t.Fatalf("without the class: %+v, %v", o, err)
	}
	// Existing replicas keep theirs.
	s := &scope{deployment: r.Deployment}
	if had := (v1alpha1.Priority{ClassName: "high", Value: 7}); s.priority(had) != had {
		t.Errorf("a class that went made %+v of %+v", s.priority(had), had)
	}
	for name, tc := range map[string]struct {
		policy *corev1.PreemptionPolicy
		want   v1alpha1.Priority
	}{
		"by default it preempts": {want: v1alpha1.Priority{ClassName: "high", Value: 7}},
		"as it says":             {policy: ptr.To(corev1.PreemptLowerPriority), want: v1alpha1.Priority{ClassName: "high", Value: 7}},
		"never":                  {policy: ptr.To(corev1.PreemptNever), want: v1alpha1.Priority{ClassName: "high", Value: 7, PreemptionPolicy: corev1.PreemptNever}},
	} {
		r.Class = &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: "high"}, Value: 7, PreemptionPolicy: tc.policy}
		o, err := r.Accept()
		if err != nil || o.Engine == nil {
			t.Fatalf("%s: %+v, %v", name, o, err)
		}
		step, err := r.Step(o, nil)
		create := step.Create
		if err != nil || len(create) != 2 || create[0].Spec.Priority != tc.want || tc.want.Preempts() != (tc.want.PreemptionPolicy == "") {
			t.Errorf("%s: %+v, %v", name, create, err)
		}
	}
}
