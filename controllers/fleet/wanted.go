package fleet

import (
	"slices"

	"k8s.io/utils/ptr"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// Wanted returns how many replicas a deployment should have: none while it is suspended,
// else spec.replicas, or the autoscaler's decision within the current bounds. Before its
// first decision it is one, so that the weights are on a Mac and the duration of a start is
// known.
func Wanted(d *v1alpha1.ModelDeployment) int32 {
	if d.Spec.Suspend {
		return 0
	}
	a := d.Spec.Autoscaling
	if a == nil {
		return ptr.Deref(d.Spec.Replicas, 1)
	}
	least := ptr.Deref(a.MinReplicas, 1)
	if d.Status.Autoscaling == nil {
		return max(least, 1)
	}
	return min(max(d.Status.Autoscaling.DesiredReplicas, least), a.MaxReplicas)
}

// MayRemove reports whether a replica may be removed if there are too many. With
// autoscaling, the autoscaler names the idle ones; a replica without a Mac serves no
// requests.
func MayRemove(d *v1alpha1.ModelDeployment, r *v1alpha1.ModelReplica) bool {
	if d.Spec.Autoscaling == nil || d.Spec.Suspend || r.Spec.NodeName == "" {
		return true
	}
	return d.Status.Autoscaling != nil && slices.Contains(d.Status.Autoscaling.Removable, string(r.UID))
}

// Concurrency returns the number of requests that a replica runs concurrently: that of the
// current revision, or, before there is one, the one that the spec states; 0 if it states none.
func Concurrency(d *v1alpha1.ModelDeployment) int64 {
	if c := d.Status.Context; c != nil {
		return c.MaxConcurrentRequests
	}
	return d.Spec.Context.MaxConcurrentRequests
}
