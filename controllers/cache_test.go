//go:build !race

package controllers_test

import (
	"fmt"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// Only its memory needs another revision.
func TestTheShareOfTheDiskReachesARunningReplicaWhereItIs(t *testing.T) {
	w := newWorld(t)
	w.mac("mac-1", holding(60*gib))
	diskLimit := func(size string) func(*v1alpha1.ModelDeploymentSpec) {
		return func(s *v1alpha1.ModelDeploymentSpec) {
			q := resource.MustParse(size)
			s.PrefixCache.DiskLimit = &q
		}
	}
	w.deploy("small", nil)
	bare := w.deployment("small", v1alpha1.ConditionReady, v1alpha1.ReasonReady)
	w.edit("small", diskLimit("1Gi"))
	given := func(bytes int64) v1alpha1.Assignment {
		t.Helper()
		var node v1alpha1.MacAssignmentSpec
		w.eventually(fmt.Sprintf("the Mac is assigned %d bytes", bytes), func() error {
			node = w.assigned("mac-1")
			if len(node.Assignments) != 1 || node.Assignments[0].PrefixCache.DiskBytes != bytes {
				return fmt.Errorf("orders %+v", node.Assignments)
			}
			return nil
		})
		return node.Assignments[0]
	}
	first := given(1 << 30)
	if d := w.get("small"); d.Status.UpdateRevision == bare.Status.UpdateRevision || first.PrefixCache.QueueBytes < 32<<20 ||
		first.ReservedBytes < bare.Status.ReservedBytesPerReplica+first.PrefixCache.QueueBytes {
		t.Errorf("%d bytes are promised for a queue of %d, %d without", first.ReservedBytes, first.PrefixCache.QueueBytes, bare.Status.ReservedBytesPerReplica)
	}
	before := uids(w.replicas("small"))
	w.edit("small", diskLimit("2Gi"))
	if second := given(2 << 30); second.ReplicaUID != first.ReplicaUID || second.PrefixCache.QueueBytes != first.PrefixCache.QueueBytes {
		t.Errorf("%+v became %+v", first.PrefixCache, second.PrefixCache)
	}
	if after := uids(w.replicas("small")); !slices.Equal(before, after) {
		t.Errorf("replicas %v became %v", before, after)
	}
}
