package fleet

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// Eligibility is the fixed part of a placement, parsed once for many Macs: labels, taints
// and chip. Whether a Mac is alive or has room is checked elsewhere.
type Eligibility struct {
	spec      v1alpha1.PlacementSpec
	required  *nodeaffinity.NodeSelector
	preferred *nodeaffinity.PreferredSchedulingTerms
	weights   int64 // the sum over all preferred terms
	err       error // of an affinity that cannot be parsed
	// tolerations that let new replicas in.
	tolerations []corev1.Toleration
}

// NewEligibility parses a placement. An invalid affinity matches no Mac.
func NewEligibility(p v1alpha1.PlacementSpec) *Eligibility {
	e := &Eligibility{spec: p, tolerations: admitting(p.Tolerations)}
	if p.Affinity == nil || p.Affinity.NodeAffinity == nil {
		return e
	}
	a := p.Affinity.NodeAffinity
	if required := a.RequiredDuringSchedulingIgnoredDuringExecution; required != nil {
		var terms []corev1.NodeSelectorTerm
		for _, t := range required.NodeSelectorTerms {
			terms = append(terms, term(t))
		}
		e.required, e.err = nodeaffinity.NewNodeSelector(&corev1.NodeSelector{NodeSelectorTerms: terms})
		if e.err != nil {
			return e
		}
	}
	var preferred []corev1.PreferredSchedulingTerm
	for _, t := range a.PreferredDuringSchedulingIgnoredDuringExecution {
		preferred = append(preferred, corev1.PreferredSchedulingTerm{Weight: t.Weight, Preference: term(t.Preference)})
		e.weights += int64(t.Weight)
	}
	e.preferred, e.err = nodeaffinity.NewPreferredSchedulingTerms(preferred)
	return e
}

func term(t v1alpha1.NodeSelectorTerm) corev1.NodeSelectorTerm {
	requirements := func(in []v1alpha1.NodeSelectorRequirement) []corev1.NodeSelectorRequirement {
		var out []corev1.NodeSelectorRequirement
		for _, r := range in {
			out = append(out, corev1.NodeSelectorRequirement{Key: r.Key, Operator: r.Operator, Values: r.Values})
		}
		return out
	}
	return corev1.NodeSelectorTerm{MatchExpressions: requirements(t.MatchExpressions), MatchFields: requirements(t.MatchFields)}
}

// node returns a Mac as a Node for the scheduler's helpers.
func node(mac *v1alpha1.MacNode) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: mac.Name, Labels: mac.Labels}}
}

// Of reports whether a Mac satisfies the placement, or why not.
func (e *Eligibility) Of(mac *v1alpha1.MacNode) (rejection string, ok bool) {
	if e.err != nil {
		return "not checked, because the affinity is invalid: " + e.err.Error(), false
	}
	for k, v := range e.spec.NodeSelector {
		if got, has := mac.Labels[k]; !has || got != v {
			return "not matching the node selector", false
		}
	}
	if e.required != nil && !e.required.Match(node(mac)) {
		return "not matching the affinity", false
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
	if e.err != nil || e.weights == 0 {
		return 0
	}
	return float64(e.preferred.Score(node(mac))) / float64(e.weights)
}

// Eligible reports whether a Mac satisfies the fixed part of a placement.
func Eligible(mac *v1alpha1.MacNode, p v1alpha1.PlacementSpec) (rejection string, ok bool) {
	return NewEligibility(p).Of(mac)
}

// Usable returns the Macs that the rules let a namespace use; nil rules allow all. No other Mac
// gets a source or a credential of the namespace.
func Usable(rules *v1alpha1.NamespaceRules, namespace string, macs []v1alpha1.MacNode) []v1alpha1.MacNode {
	if rules == nil {
		return macs
	}
	selector := rules.Spec.Of(namespace).MacSelector
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
