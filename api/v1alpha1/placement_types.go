package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
)

// PlacementStrategy says how replicas are laid onto Macs that could all hold them.
// +kubebuilder:validation:Enum=Spread;BinPack
type PlacementStrategy string

const (
	// PlacementSpread prefers the Mac with the largest free share.
	PlacementSpread PlacementStrategy = "Spread"
	// PlacementBinPack prefers the fullest Mac that still has room, so that
	// large models find an empty one.
	PlacementBinPack PlacementStrategy = "BinPack"
)

// PlacementSpec says which Macs may hold a replica, and which of them are better.
type PlacementSpec struct {
	// nodeSelector are labels that the MacNode must carry.
	// +optional
	// +kubebuilder:validation:MaxProperties=16
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`
	// affinity chooses MacNodes by expressions over their labels, as that of a
	// Pod chooses nodes.
	// +optional
	Affinity *Affinity `json:"affinity,omitempty"`
	// tolerations for taints of the MacNode.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	Tolerations []corev1.Toleration `json:"tolerations,omitempty"`
	// topologySpread bounds how unevenly the replicas of a revision lie over the
	// values of a label of the MacNodes, such as a room or a power line. Two
	// replicas on one Mac are avoided without it.
	// +optional
	// +listType=map
	// +listMapKey=topologyKey
	// +kubebuilder:validation:MaxItems=4
	TopologySpread []TopologySpreadConstraint `json:"topologySpread,omitempty"`
	// chips that may be used, as the MacNode reports them ("M2Ultra"). Without any, all.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=32
	Chips []string `json:"chips,omitempty"`
	// strategy is Spread (the Mac with the largest free share) or BinPack (the
	// fullest that still has room). Default: Spread.
	// +optional
	Strategy PlacementStrategy `json:"strategy,omitempty"`
}

// Affinity has the shape that it has in a Pod.
type Affinity struct {
	// nodeAffinity over the labels of MacNodes.
	// +optional
	NodeAffinity *NodeAffinity `json:"nodeAffinity,omitempty"`
}

// NodeAffinity says which MacNodes are wanted.
type NodeAffinity struct {
	// requiredDuringSchedulingIgnoredDuringExecution must hold when a replica is
	// placed. One that has its Mac stays, whatever becomes of the labels.
	// +optional
	RequiredDuringSchedulingIgnoredDuringExecution *NodeSelector `json:"requiredDuringSchedulingIgnoredDuringExecution,omitempty"`
	// preferredDuringSchedulingIgnoredDuringExecution makes a Mac better, by the
	// weights of the terms that it matches.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	PreferredDuringSchedulingIgnoredDuringExecution []PreferredSchedulingTerm `json:"preferredDuringSchedulingIgnoredDuringExecution,omitempty"`
}

// NodeSelector holds where one of its terms does.
type NodeSelector struct {
	// nodeSelectorTerms of which one has to match.
	// +required
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	NodeSelectorTerms []NodeSelectorTerm `json:"nodeSelectorTerms"`
}

// PreferredSchedulingTerm is a term with a weight.
type PreferredSchedulingTerm struct {
	// weight of the term among the others.
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	Weight int32 `json:"weight"`
	// preference that a Mac may match.
	// +required
	Preference NodeSelectorTerm `json:"preference"`
}

// NodeSelectorTerm matches a MacNode that satisfies all its expressions.
// +kubebuilder:validation:XValidation:rule="has(self.matchExpressions) || has(self.matchFields)",message="a term needs matchExpressions (labels of the MacNode) or matchFields (metadata.name): an empty one would match nothing"
type NodeSelectorTerm struct {
	// matchExpressions over the labels of the MacNode.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	MatchExpressions []NodeSelectorRequirement `json:"matchExpressions,omitempty"`
	// matchFields over metadata.name of the MacNode.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=4
	// +kubebuilder:validation:items:XValidation:rule="self.key == 'metadata.name' && self.operator in ['In', 'NotIn'] && has(self.values) && size(self.values) == 1",message="matchFields knows metadata.name alone, with operator In or NotIn and exactly one value"
	MatchFields []NodeSelectorRequirement `json:"matchFields,omitempty"`
}

// NodeSelectorRequirement is one expression.
// +kubebuilder:validation:XValidation:rule="!(self.operator in ['In', 'NotIn']) || has(self.values)",message="operators In and NotIn need values"
// +kubebuilder:validation:XValidation:rule="!(self.operator in ['Exists', 'DoesNotExist']) || !has(self.values)",message="operators Exists and DoesNotExist take no values"
// +kubebuilder:validation:XValidation:rule="!(self.operator in ['Gt', 'Lt']) || has(self.values) && size(self.values) == 1 && self.values[0].matches('^-?[0-9]{1,18}$')",message="operators Gt and Lt need one value, a whole number"
type NodeSelectorRequirement struct {
	// key of a label, such as "metalfleet.dev/room".
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	// +kubebuilder:validation:XValidation:rule="self.matches('^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$')",message="key must be the name of a label, such as room or example.com/room"
	Key string `json:"key"`
	// operator between the label and the values.
	// +required
	// +kubebuilder:validation:Enum=In;NotIn;Exists;DoesNotExist;Gt;Lt
	Operator corev1.NodeSelectorOperator `json:"operator"`
	// values of In and NotIn; one whole number for Gt and Lt; none for the others.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=63
	// +kubebuilder:validation:items:XValidation:rule="self.matches('^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?|-[0-9]+)?$')",message="a value must be one that a label can have"
	Values []string `json:"values,omitempty"`
}

// TopologySpreadConstraint bounds how unevenly replicas lie.
type TopologySpreadConstraint struct {
	// topologyKey is the label whose values are the domains. A Mac without it
	// belongs to none.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	TopologyKey string `json:"topologyKey"`
	// maxSkew is by how many replicas a domain may be ahead of the one with the
	// fewest. Default: 1.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	MaxSkew int32 `json:"maxSkew,omitempty"`
	// whenUnsatisfiable is DoNotSchedule (the replica waits) or ScheduleAnyway
	// (the Mac is only worse). Default: DoNotSchedule.
	// +optional
	// +kubebuilder:validation:Enum=DoNotSchedule;ScheduleAnyway
	WhenUnsatisfiable corev1.UnsatisfiableConstraintAction `json:"whenUnsatisfiable,omitempty"`
}
