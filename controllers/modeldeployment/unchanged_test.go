//go:build !race

package modeldeployment

import (
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// unchanged returns a reconciler and a deployment with many replicas that are as it states them,
// with an affinity of 30 KB and metadata. The replicas share it, as in the operator's cache.
func unchanged(t testing.TB, many int) (*Reconciler, *v1alpha1.ModelDeployment) {
	s := rolled(wide)
	d := s.deployment
	d.Namespace, d.Name, d.UID, d.Spec.Placement = "n", "d", "uid-d", wideAffinity()
	d.Spec.ReplicaMetadata = v1alpha1.ReplicaMetadata{Labels: values{"team": "a", "tier": "b"}, Annotations: values{"note": "c"}}
	var replicas []v1alpha1.ModelReplica
	for i := range many {
		replica, err := newReplica(s, replicaToCreate{revision: s.current.object.Name, slot: int32(i), epoch: 1})
		if err != nil {
			t.Fatal(err)
		}
		replica.UID, replica.Spec.NodeName = types.UID(fmt.Sprint("uid-", i)), fmt.Sprint("mac-", i)
		replicas = append(replicas, *replica)
	}
	return overCache(t, []v1alpha1.ModelDeployment{*d}, replicas...), d
}

// pass reads a deployment and its replicas, and updates them.
func pass(t testing.TB, r *Reconciler, d *v1alpha1.ModelDeployment) *scope {
	s, err := r.read(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(d)})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.carryOut(t.Context(), s, changes{}); err != nil {
		t.Fatal(err) // the client cannot write
	}
	return s
}

// TestAThousandUnchangedReplicasCostLittle: each report of a Mac about one of them triggers a
// pass, which must not cost as much as all of them.
func TestAThousandUnchangedReplicasCostLittle(t *testing.T) {
	const many = 1000
	r, d := unchanged(t, many)
	pass(t, r, d) // the informers of the cache start
	all, _ := allocated(func() any { return pass(t, r, d) })
	if s := pass(t, r, d); len(s.replicas) != many || s.writes != 0 {
		t.Fatalf("a pass reads %d replicas and writes %d", len(s.replicas), s.writes)
	}
	if all > 8<<20 {
		t.Errorf("a pass over %d unchanged replicas allocates %d MiB", many, all>>20)
	}
}

// BenchmarkUnchangedReplicas is a pass over 1,000 replicas that are as their deployment states them.
func BenchmarkUnchangedReplicas(b *testing.B) {
	r, d := unchanged(b, 1000)
	for b.Loop() {
		pass(b, r, d)
	}
}
