package fleet

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// Field indexes of the operator's cache.
const (
	// IndexNode finds replicas by the Mac that they are assigned to.
	IndexNode = "orderedOn"
	// IndexOwner finds replicas and revisions by the UID of their deployment, and revisions without an owner by "".
	IndexOwner = "ownerUID"
	// IndexInspection finds deployments by the id of their inspection.
	IndexInspection = "inspectionID"
	// IndexTokenRef finds deployments by their credential reference.
	IndexTokenRef = "tokenRef"
	// IndexAsked finds MacAssignments by the ids of their inspections.
	IndexAsked = "asked"
	// IndexClaim finds deployments by the ClaimGroups of the names that they claim.
	IndexClaim = "claim"
	// IndexHolder finds deployments by the HolderKeys of the names that they have or hold:
	// usually one, also if many claim a name.
	IndexHolder = "holder"
)

// AddIndexes registers the indexes; call it once, before the cache starts.
func AddIndexes(ctx context.Context, indexer client.FieldIndexer) error {
	for _, x := range []struct {
		object  client.Object
		field   string
		extract client.IndexerFunc
	}{
		{&v1alpha1.ModelReplica{}, IndexNode, func(o client.Object) []string {
			return nonEmpty(OrderedOn(o.(*v1alpha1.ModelReplica)))
		}},
		{&v1alpha1.ModelReplica{}, IndexOwner, func(o client.Object) []string {
			return nonEmpty(o.(*v1alpha1.ModelReplica).Spec.DeploymentRef.UID)
		}},
		{&appsv1.ControllerRevision{}, IndexOwner, func(o client.Object) []string {
			if owner := metav1.GetControllerOf(o); owner != nil {
				return []string{string(owner.UID)}
			}
			return []string{""}
		}},
		{&v1alpha1.ModelDeployment{}, IndexInspection, func(o client.Object) []string {
			return []string{InspectionID(o.(*v1alpha1.ModelDeployment))}
		}},
		{&v1alpha1.MacAssignment{}, IndexAsked, func(o client.Object) (ids []string) {
			for _, in := range o.(*v1alpha1.MacAssignment).Spec.Inspections {
				ids = append(ids, in.ID)
			}
			return ids
		}},
		{&v1alpha1.ModelDeployment{}, IndexTokenRef, func(o client.Object) []string {
			return nonEmpty(TokenRef(o.(*v1alpha1.ModelDeployment)))
		}},
		{&v1alpha1.ModelDeployment{}, IndexClaim, func(o client.Object) []string {
			return ClaimGroups(Claims(o.(*v1alpha1.ModelDeployment)))
		}},
		{&v1alpha1.ModelDeployment{}, IndexHolder, func(o client.Object) []string {
			return heldUnder(o.(*v1alpha1.ModelDeployment))
		}},
	} {
		if err := indexer.IndexField(ctx, x.object, x.field, x.extract); err != nil {
			return fmt.Errorf("index %T by %s: %w", x.object, x.field, err)
		}
	}
	return nil
}

func nonEmpty(s string) []string {
	if s == "" {
		return nil
	}
	return []string{s}
}
