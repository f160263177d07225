package plan

import (
	"maps"
	"slices"

	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// sameClass reports whether two replicas have the same requirements. It runs for each open replica
// in each pass: what differs most often and costs least comes first.
func sameClass(a, b *v1alpha1.ModelReplica) bool {
	return a == b || a.Spec.ReservedBytes == b.Spec.ReservedBytes && a.Spec.Residency == b.Spec.Residency &&
		a.Spec.Model.Source == b.Spec.Model.Source && a.Spec.Model.Digest == b.Spec.Model.Digest &&
		slices.EqualFunc(a.Spec.Model.Adapters, b.Spec.Model.Adapters, model.Adapter.SameFiles) &&
		slices.Equal(a.Spec.Model.VouchedBy, b.Spec.Model.VouchedBy) && slices.Equal(a.Spec.Avoid, b.Spec.Avoid) && samePlacement(&a.Spec.Placement, &b.Spec.Placement)
}

// samePlacement compares without reflection, which takes forty times as long for a large
// affinity. An absent list or map is the same as an empty one.
func samePlacement(a, b *v1alpha1.PlacementSpec) bool {
	return a.Strategy == b.Strategy && slices.Equal(a.Chips, b.Chips) && slices.Equal(a.TopologySpreadConstraints, b.TopologySpreadConstraints) &&
		slices.EqualFunc(a.Tolerations, b.Tolerations, sameToleration) && maps.Equal(a.NodeSelector, b.NodeSelector) &&
		samePointed(a.Affinity, b.Affinity, sameAffinity)
}

func samePointed[T any](a, b *T, same func(a, b *T) bool) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a == b || same(a, b)
}

func sameToleration(a, b v1alpha1.Toleration) bool {
	return a.Key == b.Key && a.Operator == b.Operator && a.Value == b.Value && a.Effect == b.Effect &&
		samePointed(a.TolerationSeconds, b.TolerationSeconds, func(a, b *int64) bool { return *a == *b })
}

func sameAffinity(a, b *v1alpha1.Affinity) bool {
	return samePointed(a.NodeAffinity, b.NodeAffinity, func(a, b *v1alpha1.NodeAffinity) bool {
		return samePointed(a.RequiredDuringSchedulingIgnoredDuringExecution, b.RequiredDuringSchedulingIgnoredDuringExecution, func(a, b *v1alpha1.NodeSelector) bool {
			return slices.EqualFunc(a.NodeSelectorTerms, b.NodeSelectorTerms, sameTerm)
		}) && slices.EqualFunc(a.PreferredDuringSchedulingIgnoredDuringExecution, b.PreferredDuringSchedulingIgnoredDuringExecution, func(a, b v1alpha1.PreferredSchedulingTerm) bool {
			return a.Weight == b.Weight && sameTerm(a.Preference, b.Preference)
		})
	})
}

func sameTerm(a, b v1alpha1.NodeSelectorTerm) bool {
	same := func(a, b v1alpha1.NodeSelectorRequirement) bool {
		return a.Key == b.Key && a.Operator == b.Operator && slices.Equal(a.Values, b.Values)
	}
	return slices.EqualFunc(a.MatchExpressions, b.MatchExpressions, same) && slices.EqualFunc(a.MatchFields, b.MatchFields, same)
}
