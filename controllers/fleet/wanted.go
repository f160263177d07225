package fleet

import (
	"slices"

	"k8s.io/utils/ptr"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// Wanted is how many replicas a deployment is to have: what its user, or
// whoever scales it, says, or what the autoscaler decided, within the bounds of
// now. Before its first decision one is wanted, so that the weights are on a Mac
// and what a start takes is known.
func Wanted(d *v1alpha1.ModelDeployment) int32 {
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

// MayRemove says whether a replica may go because there are more than are
// wanted. Where the autoscaler decides, it names those that are idle; one that
// has no Mac yet serves nobody.
func MayRemove(d *v1alpha1.ModelDeployment, r *v1alpha1.ModelReplica) bool {
	if d.Spec.Autoscaling == nil || r.Spec.NodeName == "" {
		return true
	}
	return d.Status.Autoscaling != nil && slices.Contains(d.Status.Autoscaling.Removable, string(r.UID))
}
