//go:build !race

package modeldeployment

import (
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// TestAttackEditsOfADeploymentWithManyReplicas: each pass changes a few, because the deployments
// of others wait for it, and those to remove follow first.
func TestAttackEditsOfADeploymentWithManyReplicas(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	const many = 2*maxWrites + 8
	b := fake.NewClientBuilder().WithScheme(scheme)
	for i := range many {
		b.WithObjects(&v1alpha1.ModelReplica{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprint("r", i), UID: types.UID(fmt.Sprint(i))}})
	}
	r := &Reconciler{Client: b.Build()}
	pass := func(deleted bool) (s *scope, changed, left int) {
		s = &scope{deployment: &v1alpha1.ModelDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "d"}}}
		s.deployment.Spec.Rollout.DrainSeconds = new(int32(7))
		var list v1alpha1.ModelReplicaList
		if err := r.Client.List(t.Context(), &list); err != nil {
			t.Fatal(err)
		}
		s.replicas = list.Items
		if deleted {
			s.deployment.DeletionTimestamp = &metav1.Time{Time: now}
			if err := r.act(t.Context(), s); err != nil {
				t.Fatal(err)
			}
		} else if err := r.carryOut(t.Context(), s, changes{remove: all(list.Items)[:1]}); err != nil {
			t.Fatal(err)
		}
		if err := r.Client.List(t.Context(), &list); err != nil {
			t.Fatal(err)
		}
		for _, one := range list.Items {
			if one.Spec.DrainSeconds == 7 {
				changed++
			}
		}
		return s, changed, len(list.Items)
	}
	for i, want := range []int{maxWrites, 2 * maxWrites, many - 1} {
		s, changed, left := pass(false)
		if last := i == 2; changed != want || s.more == last || (s.again() == writePause) == last || left != many && !last {
			t.Errorf("pass %d: %d of %d follow, again in %v; want %d", i+1, changed, left, s.again(), want)
		}
	}
	for i, want := range []int{many - 1 - maxWrites, many - 1 - 2*maxWrites, 0} {
		if s, _, left := pass(true); left != want || s.more == (i == 2) {
			t.Errorf("pass %d of the deletion: %d are left, want %d", i+1, left, want)
		}
	}
}

// TestAResidencyThatRulesLimitIsPlacements: a replica on a Mac keeps its policy until placement has asked
// the rules and the Mac, in both directions; until there is a Mac it follows.
func TestAResidencyThatRulesLimitIsPlacements(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	always, onDemand := v1alpha1.Residency{Policy: v1alpha1.ResidencyAlways}, v1alpha1.Residency{Policy: v1alpha1.ResidencyOnDemand, IdleSeconds: 60}
	for _, c := range []struct {
		mac                string
		before, next, want v1alpha1.Residency
	}{
		{mac: "m", before: always, next: onDemand, want: always},
		{mac: "m", before: onDemand, next: always, want: onDemand},
		{before: always, next: onDemand, want: onDemand},
		{before: onDemand, next: always, want: always},
		{mac: "m", before: v1alpha1.Residency{Policy: v1alpha1.ResidencyOnDemand}, next: onDemand, want: onDemand},
	} {
		replica := v1alpha1.ModelReplica{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "r", UID: "r"}}
		replica.Spec.NodeName, replica.Spec.Residency = c.mac, c.before
		r := &Reconciler{Client: fake.NewClientBuilder().WithScheme(scheme).WithObjects(&replica).Build()}
		var list v1alpha1.ModelReplicaList
		if err := r.Client.List(t.Context(), &list); err != nil {
			t.Fatal(err)
		}
		s := &scope{deployment: &v1alpha1.ModelDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "d"}}, replicas: list.Items}
		s.deployment.Spec.Residency.Policy = c.next.Policy
		if c.next.Policy == v1alpha1.ResidencyOnDemand {
			s.deployment.Spec.Residency.IdleSeconds = &c.next.IdleSeconds
		}
		if err := r.follow(t.Context(), s, ""); err != nil || s.replicas[0].Spec.Residency != c.want {
			t.Errorf("on %q, %+v became %+v for %+v, %v", c.mac, c.before, s.replicas[0].Spec.Residency, c.next, err)
		}
	}
}
