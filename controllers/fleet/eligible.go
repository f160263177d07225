package fleet

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// Eligibility is the fixed part of a placement, checked once for many Macs: labels, taints
// and chip. Whether a Mac is alive or has room is checked elsewhere.
type Eligibility struct {
	spec v1alpha1.PlacementSpec
	// affinity is nil if there is none.
	affinity *v1alpha1.NodeAffinity
	weights  int64 // the sum over all preferred terms
	// invalid is why the affinity can match nothing; empty if it can.
	invalid string
	// tolerations that let new replicas in.
	tolerations []corev1.Toleration
}

// NewEligibility checks a placement, which must not change afterwards. An invalid affinity
// matches no Mac.
func NewEligibility(p v1alpha1.PlacementSpec) *Eligibility {
	e := &Eligibility{spec: p, tolerations: admitting(p.Tolerations)}
	if p.Affinity == nil || p.Affinity.NodeAffinity == nil {
		return e
	}
	e.affinity = p.Affinity.NodeAffinity
	if why := invalidAffinity(e.affinity); why != "" {
		e.invalid = "not checked, because the affinity is invalid: " + why
	}
	for _, t := range e.affinity.PreferredDuringSchedulingIgnoredDuringExecution {
		e.weights += int64(t.Weight)
	}
	return e
}

// InvalidPlacement rejects a placement that no Mac can ever match, although the schema once
// accepted it; nil if there is none.
func InvalidPlacement(p *v1alpha1.PlacementSpec) *Refusal {
	if p.Affinity == nil || p.Affinity.NodeAffinity == nil {
		return nil
	}
	if why := invalidAffinity(p.Affinity.NodeAffinity); why != "" {
		return &Refusal{v1alpha1.ReasonInvalidAffinity, "spec.placement.affinity.nodeAffinity." + why + "; correct it, or remove the expression"}
	}
	return nil
}

// Of reports whether a Mac satisfies the placement, or why not.
func (e *Eligibility) Of(mac *v1alpha1.MacNode) (rejection string, ok bool) {
	if e.invalid != "" {
		return e.invalid, false
	}
	for k, v := range e.spec.NodeSelector {
		if got, has := mac.Labels[k]; !has || got != v {
			return "not matching the node selector", false
		}
	}
	if e.affinity != nil {
		if required := e.affinity.RequiredDuringSchedulingIgnoredDuringExecution; required != nil && !anyTerm(required.NodeSelectorTerms, mac) {
			return "not matching the affinity", false
		}
	}
	if len(e.spec.Chips) > 0 && !slices.Contains(e.spec.Chips, mac.Status.Chip) {
		return "with another chip", false
	}
	for i := range mac.Spec.Taints {
		if t := coreTaint(mac.Spec.Taints[i]); keepsAway(&t) && !tolerates(e.tolerations, &t) {
			return "tainted", false
		}
	}
	return "", true
}

// Untolerated counts the untolerated PreferNoSchedule taints of a Mac.
func (e *Eligibility) Untolerated(mac *v1alpha1.MacNode) int {
	n := 0
	for i := range mac.Spec.Taints {
		if t := coreTaint(mac.Spec.Taints[i]); !keepsAway(&t) && !tolerates(e.tolerations, &t) {
			n++
		}
	}
	return n
}

// Preferred returns the share, 0 to 1, of the weights of the preferred affinity that a Mac
// matches.
func (e *Eligibility) Preferred(mac *v1alpha1.MacNode) float64 {
	if e.invalid != "" || e.weights == 0 {
		return 0
	}
	var score int64
	for i := range e.affinity.PreferredDuringSchedulingIgnoredDuringExecution {
		if t := &e.affinity.PreferredDuringSchedulingIgnoredDuringExecution[i]; matchesTerm(&t.Preference, mac) {
			score += int64(t.Weight)
		}
	}
	return float64(score) / float64(e.weights)
}

// SameStanding reports whether a change of a Mac leaves all that decides for which sources it may
// be asked.
func SameStanding(before, now *v1alpha1.MacNode) bool {
	return before.UID == now.UID && before.Status.Chip == now.Status.Chip && sameBesidesChip(before, now)
}

func sameBesidesChip(before, now *v1alpha1.MacNode) bool {
	return StateOf(before) == StateOf(now) && before.DeletionTimestamp.IsZero() == now.DeletionTimestamp.IsZero() && maps.Equal(before.Labels, now.Labels) && equalTaints(before.Spec.Taints, now.Spec.Taints)
}

// Concerns reports whether a change of a Mac's standing may change who is asked for a
// deployment's source. A Mac's agent reports its chip, as often as it likes: another one matters
// only to a placement that names one of both.
func Concerns(before, now *v1alpha1.MacNode, d *v1alpha1.ModelDeployment) bool {
	chips := d.Spec.Placement.Chips
	return !sameBesidesChip(before, now) || slices.Contains(chips, before.Status.Chip) != slices.Contains(chips, now.Status.Chip)
}

// Eligible reports whether a Mac satisfies the fixed part of a placement.
func Eligible(mac *v1alpha1.MacNode, p v1alpha1.PlacementSpec) (rejection string, ok bool) {
	return NewEligibility(p).Of(mac)
}

// Usable returns the Macs that the rules let a namespace use; nil rules allow all. No other Mac
// gets a source or a credential of the namespace.
func Usable(rules *v1alpha1.NamespaceRules, namespace string, macs []v1alpha1.MacNode) []v1alpha1.MacNode {
	selector := selectorOf(rules, namespace)
	if selector == nil {
		return macs
	}
	var out []v1alpha1.MacNode
	for i := range macs {
		if selector.Matches(&macs[i]) {
			out = append(out, macs[i])
		}
	}
	return out
}

// candidatesFor is Usable for numbered Macs.
func candidatesFor(rules *v1alpha1.NamespaceRules, namespace string, all []candidate) []candidate {
	selector := selectorOf(rules, namespace)
	if selector == nil {
		return all
	}
	var out []candidate
	for _, c := range all {
		if selector.Matches(c.mac) {
			out = append(out, c)
		}
	}
	return out
}

// selectorOf returns which Macs a namespace may use; nil means all.
func selectorOf(rules *v1alpha1.NamespaceRules, namespace string) *v1alpha1.MacSelector {
	if rules == nil {
		return nil
	}
	return rules.Spec.Of(namespace).MacSelector
}
