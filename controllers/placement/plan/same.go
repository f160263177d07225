package plan

import (
	"slices"

	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/fleet"
)

// sameClass reports whether two replicas have the same requirements. It runs for each open replica
// in each pass: what differs most often and costs least comes first.
func sameClass(a, b *v1alpha1.ModelReplica) bool {
	return a == b || a.Spec.ReservedBytes == b.Spec.ReservedBytes && a.Spec.Residency == b.Spec.Residency &&
		a.Spec.Model.Source == b.Spec.Model.Source && a.Spec.Model.Digest == b.Spec.Model.Digest &&
		slices.EqualFunc(a.Spec.Model.Adapters, b.Spec.Model.Adapters, model.Adapter.SameFiles) &&
		slices.Equal(a.Spec.Model.VouchedBy, b.Spec.Model.VouchedBy) && slices.Equal(a.Spec.Avoid, b.Spec.Avoid) && fleet.SamePlacement(&a.Spec.Placement, &b.Spec.Placement)
}
