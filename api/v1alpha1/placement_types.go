package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
)

// PlacementStrategy selects among the Macs that can hold a replica.
// +kubebuilder:validation:Enum=Spread;BinPack
type PlacementStrategy string

const (
	// PlacementSpread prefers the Mac with the largest share of free memory.
	PlacementSpread PlacementStrategy = "Spread"
	// PlacementBinPack prefers the Mac with the least free memory that still
	// has room, so that large models find an empty one.
	PlacementBinPack PlacementStrategy = "BinPack"
)

// PlacementSpec controls which Macs may hold a replica, and which are
// preferred.
type PlacementSpec struct {
	// nodeSelector are labels that the MacNode must have, for example room:
	// lab-2.
	// +optional
	// +kubebuilder:validation:MaxProperties=16
	// +kubebuilder:validation:XValidation:rule="self.all(k, size(k) <= 317 && size(self[k]) <= 63)",message="a key of placement.nodeSelector has at most 317 characters, and a value at most 63, like the labels of a MacNode"
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`
	// affinity selects MacNodes by expressions over their labels, like the
	// affinity of a Pod.
	// +optional
	Affinity *Affinity `json:"affinity,omitempty"`
	// tolerations allow placement on MacNodes with matching taints.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	Tolerations []Toleration `json:"tolerations,omitempty"`
	// topologySpreadConstraints limits how unevenly the replicas of a revision
	// are spread over the values of a MacNode label, such as a room or a power
	// circuit. Placement always avoids two replicas of a deployment on one Mac
	// where it can.
	// +optional
	// +listType=map
	// +listMapKey=topologyKey
	// +kubebuilder:validation:MaxItems=4
	TopologySpreadConstraints []TopologySpreadConstraint `json:"topologySpreadConstraints,omitempty"`
	// chips are the chips that may be used, as status.chip of the MacNode
	// reports them, for example M2Ultra. Default: all.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=32
	Chips []string `json:"chips,omitempty"`
	// strategy selects among the Macs that have room. Default: Spread. Valid
	// values are:
	// - Spread: prefer the Mac with the largest share of free memory.
	// - BinPack: prefer the Mac with the least free memory that still has room.
	// +optional
	// +kubebuilder:default=Spread
	Strategy PlacementStrategy `json:"strategy,omitempty"`
}

// Affinity has the structure of a Pod's affinity.
type Affinity struct {
	// nodeAffinity selects MacNodes by their labels.
	// +optional
	NodeAffinity *NodeAffinity `json:"nodeAffinity,omitempty"`
}

// NodeAffinity selects MacNodes by required and preferred terms.
type NodeAffinity struct {
	// requiredDuringSchedulingIgnoredDuringExecution must match when a replica
	// is placed. A placed replica stays on its Mac when labels change.
	// +optional
	RequiredDuringSchedulingIgnoredDuringExecution *NodeSelector `json:"requiredDuringSchedulingIgnoredDuringExecution,omitempty"`
	// preferredDuringSchedulingIgnoredDuringExecution prefers MacNodes by the
	// sum of the weights of the terms that they match.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	PreferredDuringSchedulingIgnoredDuringExecution []PreferredSchedulingTerm `json:"preferredDuringSchedulingIgnoredDuringExecution,omitempty"`
}

// NodeSelector matches a MacNode when at least one of its terms matches.
type NodeSelector struct {
	// nodeSelectorTerms are the terms, of which at least one must match.
	// +required
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	NodeSelectorTerms []NodeSelectorTerm `json:"nodeSelectorTerms"`
}

// PreferredSchedulingTerm is a term with a weight.
type PreferredSchedulingTerm struct {
	// weight is added to the score of a matching MacNode, from 1 to 100.
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	Weight int32 `json:"weight"`
	// preference is the term that a MacNode should match.
	// +required
	Preference NodeSelectorTerm `json:"preference"`
}

// NodeSelectorTerm matches a MacNode that satisfies all of its expressions.
// +kubebuilder:validation:XValidation:rule="has(self.matchExpressions) || has(self.matchFields)",message="a term must have matchExpressions (labels of the MacNode) or matchFields (metadata.name); an empty term matches nothing"
type NodeSelectorTerm struct {
	// matchExpressions are requirements on the labels of the MacNode.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	MatchExpressions []NodeSelectorRequirement `json:"matchExpressions,omitempty"`
	// matchFields are requirements on metadata.name of the MacNode.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=4
	// +kubebuilder:validation:items:XValidation:rule="self.key == 'metadata.name' && self.operator in ['In', 'NotIn'] && has(self.values) && size(self.values) == 1",message="matchFields supports only the key metadata.name, with operator In or NotIn and exactly one value"
	MatchFields []NodeSelectorRequirement `json:"matchFields,omitempty"`
}

// NodeSelectorRequirement compares a label or a field with values.
// +kubebuilder:validation:XValidation:rule="!(self.operator in ['In', 'NotIn']) || has(self.values)",message="operators In and NotIn require values"
// +kubebuilder:validation:XValidation:rule="!(self.operator in ['In', 'NotIn']) || !has(self.values) || self.values.all(v, !v.startsWith('-'))",message="operators In and NotIn compare with label values, which do not begin with a dash"
// +kubebuilder:validation:XValidation:rule="!(self.operator in ['Exists', 'DoesNotExist']) || !has(self.values)",message="operators Exists and DoesNotExist take no values"
// +kubebuilder:validation:XValidation:rule="!(self.operator in ['Gt', 'Lt']) || has(self.values) && size(self.values) == 1 && self.values[0].matches('^-?[0-9]{1,18}$')",message="operators Gt and Lt require exactly one value, an integer"
type NodeSelectorRequirement struct {
	// key is the name of a label, for example example.com/room. A prefix is a
	// DNS name of at most 253 characters.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	// +kubebuilder:validation:XValidation:rule="self.matches('^(([a-z0-9]([-a-z0-9]*[a-z0-9])?)([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$') && self.indexOf('/') <= 253",message="key must be a label name, for example room or example.com/room, with a prefix of at most 253 characters"
	Key string `json:"key"`
	// operator compares the label with values. Valid values are:
	// - In: the label has one of the values.
	// - NotIn: the label has none of the values.
	// - Exists: the label exists.
	// - DoesNotExist: the label does not exist.
	// - Gt: the label is an integer greater than the value.
	// - Lt: the label is an integer less than the value.
	// +required
	// +kubebuilder:validation:Enum=In;NotIn;Exists;DoesNotExist;Gt;Lt
	Operator corev1.NodeSelectorOperator `json:"operator"`
	// values are the values to compare with: at least one for In and NotIn, one
	// integer, which may be negative, for Gt and Lt, none for Exists and
	// DoesNotExist.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=63
	// +kubebuilder:validation:items:XValidation:rule="self.matches('^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?|-[0-9]+)?$')",message="a value must be a valid label value"
	Values []string `json:"values,omitempty"`
}

// TopologySpreadConstraint limits how unevenly replicas are spread.
type TopologySpreadConstraint struct {
	// topologyKey is the MacNode label whose values are the domains. A Mac
	// without the label belongs to no domain.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	TopologyKey string `json:"topologyKey"`
	// maxSkew is the maximum difference between the number of replicas in a
	// domain and in the domain with the fewest. Default: 1.
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	MaxSkew int32 `json:"maxSkew,omitempty"`
	// whenUnsatisfiable selects what happens when no Mac satisfies the
	// constraint. Default: DoNotSchedule. Valid values are:
	// - DoNotSchedule: the replica waits.
	// - ScheduleAnyway: the replica is placed, with a preference for Macs that
	//   satisfy the constraint.
	// +optional
	// +kubebuilder:default=DoNotSchedule
	// +kubebuilder:validation:Enum=DoNotSchedule;ScheduleAnyway
	WhenUnsatisfiable corev1.UnsatisfiableConstraintAction `json:"whenUnsatisfiable,omitempty"`
}
