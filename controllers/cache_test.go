package controllers_test

import (
	"fmt"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// Only its memory needs another revision.
func TestTheShareOfTheDiskReachesARunningReplicaWhereItIs(t *testing.T) {
	w := newWorld(t)
	w.mac("mac-1", holding(60*gib))
	ssd := func(size string) func(*v1alpha1.ModelDeploymentSpec) {
		return func(s *v1alpha1.ModelDeploymentSpec) {
			q := resource.MustParse(size)
			s.Cache.SSD = &q
		}
	}
	w.deploy("small", nil)
	bare := w.deployment("small", v1alpha1.ConditionReady, v1alpha1.ReasonReady)
	w.edit("small", ssd("1Gi"))
	given := func(bytes int64) v1alpha1.Assignment {
		t.Helper()
		var node v1alpha1.MacNode
		w.eventually(fmt.Sprintf("the Mac is assigned %d bytes", bytes), func() error {
			w.must(w.c.Get(w.ctx, client.ObjectKey{Name: "mac-1"}, &node))
			if len(node.Spec.Assignments) != 1 || node.Spec.Assignments[0].Cache.SSDBytes != bytes {
				return fmt.Errorf("orders %+v", node.Spec.Assignments)
			}
			return nil
		})
		return node.Spec.Assignments[0]
	}
	first := given(1 << 30)
	if d := w.get("small"); d.Status.UpdateRevision == bare.Status.UpdateRevision || first.Cache.QueueBytes < 32<<20 ||
		first.ReservedBytes < bare.Status.ReservedBytesPerReplica+first.Cache.QueueBytes {
		t.Errorf("%d bytes are promised for a queue of %d, %d without", first.ReservedBytes, first.Cache.QueueBytes, bare.Status.ReservedBytesPerReplica)
	}
	before := uids(w.replicas("small"))
	w.edit("small", ssd("2Gi"))
	if second := given(2 << 30); second.ReplicaUID != first.ReplicaUID || second.Cache.QueueBytes != first.Cache.QueueBytes {
		t.Errorf("%+v became %+v", first.Cache, second.Cache)
	}
	if after := uids(w.replicas("small")); !slices.Equal(before, after) {
		t.Errorf("replicas %v became %v", before, after)
	}
}
