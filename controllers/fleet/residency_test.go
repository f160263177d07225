//go:build !race

package fleet

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

func TestResidencyIsResolved(t *testing.T) {
	for name, tc := range map[string]struct {
		spec v1alpha1.ResidencySpec
		want v1alpha1.Residency
	}{
		"without a word it stays":       {spec: v1alpha1.ResidencySpec{}, want: v1alpha1.Residency{Policy: v1alpha1.ResidencyAlways}},
		"Always":                        {spec: v1alpha1.ResidencySpec{Policy: v1alpha1.ResidencyAlways}, want: v1alpha1.Residency{Policy: v1alpha1.ResidencyAlways}},
		"OnDemand idles for 10 minutes": {spec: v1alpha1.ResidencySpec{Policy: v1alpha1.ResidencyOnDemand}, want: v1alpha1.Residency{Policy: v1alpha1.ResidencyOnDemand, IdleSeconds: 600}},
		"zero is never by time alone": {spec: v1alpha1.ResidencySpec{Policy: v1alpha1.ResidencyOnDemand, IdleSeconds: ptr.To[int32](0), EvictionPriority: -5},
			want: v1alpha1.Residency{Policy: v1alpha1.ResidencyOnDemand, EvictionPriority: -5}},
	} {
		t.Run(name, func(t *testing.T) {
			if d := cmp.Diff(tc.want, Residency(tc.spec)); d != "" {
				t.Error(d)
			}
		})
	}
}

func bound(name, mac string, bytes int64, policy v1alpha1.ResidencyPolicy) v1alpha1.ModelReplica {
	r := v1alpha1.ModelReplica{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}}
	r.Spec.NodeName, r.Spec.ReservedBytes, r.Spec.Residency.Policy = mac, bytes, policy
	return r
}

func TestResidencyDecidesWhatIsReserved(t *testing.T) {
	released := bound("e", "m", 100, v1alpha1.ResidencyAlways)
	released.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReleased, Status: metav1.ConditionTrue}}
	draining := bound("d", "m", 7, v1alpha1.ResidencyAlways)
	draining.DeletionTimestamp = &metav1.Time{Time: now}
	all := []v1alpha1.ModelReplica{
		bound("a", "m", 1, v1alpha1.ResidencyAlways), bound("b", "m", 2, v1alpha1.ResidencyOnDemand), bound("c", "m", 4, ""),
		draining, released, bound("f", "other", 50, v1alpha1.ResidencyAlways), bound("g", "m", 8, v1alpha1.ResidencyOnDemand),
	}
	var p Promise
	for i := range all {
		if all[i].Spec.NodeName == "m" && !Released(&all[i]) {
			p.Add(&all[i])
		}
	}
	if d := cmp.Diff(Promise{Always: 12, OnDemand: []int64{2, 8}}, p); d != "" {
		t.Error(d)
	}
	if p.OnDemandBytes() != 10 {
		t.Errorf("on demand %d bytes, want 10", p.OnDemandBytes())
	}
	for i := range all[:3] {
		p.Remove(&all[i])
	}
	if d := cmp.Diff(Promise{Always: 7, OnDemand: []int64{8}}, p); d != "" {
		t.Error(d)
	}
}

func TestARefusedOnDemandReplicaWaitsWhereItIs(t *testing.T) {
	for policy, want := range map[v1alpha1.ResidencyPolicy]bool{v1alpha1.ResidencyAlways: true, "": true, v1alpha1.ResidencyOnDemand: false} {
		r := bound("a", "m", 1, policy)
		r.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionAdmitted, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonInsufficientRoom}}
		if _, refused := Refused(&r); refused != want {
			t.Errorf("policy %q: refused %v, want %v", policy, refused, want)
		}
	}
}

func TestResidencyReachesTheMac(t *testing.T) {
	r := bound("a", "m", 1, v1alpha1.ResidencyOnDemand)
	r.Spec.Residency.IdleSeconds, r.Spec.Residency.EvictionPriority = 60, 3
	got := Assignments("m", []v1alpha1.ModelReplica{r}, nil)
	if len(got) != 1 || got[0].Residency != r.Spec.Residency {
		t.Errorf("orders %+v", got)
	}
}
