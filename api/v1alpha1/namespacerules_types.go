package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// NamespaceRulesName is the name of the only NamespaceRules of a cluster.
const NamespaceRulesName = "metalfleet"

// NamespaceRules limit what the ModelDeployments of each namespace may use. A
// cluster has one, named metalfleet. Sources, names, priority classes and
// tolerations are checked by an admission policy when a deployment is written,
// so existing deployments keep what they have; memory and Macs are checked when
// a replica is placed.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,path=namespacerules,singular=namespacerules,shortName=nsrules,categories=metalfleet
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Accepted",type=string,JSONPath=`.status.conditions[?(@.type=="Accepted")].status`
// +kubebuilder:printcolumn:name="Status",type=string,JSONPath=`.status.conditions[?(@.type=="Accepted")].reason`
// +kubebuilder:printcolumn:name="Default",type=string,JSONPath=`.spec.default.memoryLimit`,description="memory that the replicas of a namespace without an own limit may reserve together"
// +kubebuilder:printcolumn:name="Reserved",type=string,JSONPath=`.status.summary.reserved`,description="memory that the replicas of all namespaces reserve"
// +kubebuilder:printcolumn:name="Fullest",type=string,JSONPath=`.status.summary.fullest`,description="the namespace that uses the largest share of its limit"
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.conditions[?(@.type=="Accepted")].message`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="self.metadata.name == 'metalfleet'",message="a cluster has one NamespaceRules, named metalfleet; add the rules of a namespace to its spec.namespaces"
type NamespaceRules struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard object metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`
	// spec holds the rules.
	// +optional
	Spec NamespaceRulesSpec `json:"spec,omitzero"`
	// status is what the operator finds wrong with the rules, and what
	// namespaces use.
	// +optional
	// +kubebuilder:default={"observedGeneration":-1}
	Status NamespaceRulesStatus `json:"status,omitzero"`
}

// NamespaceRulesSpec holds the rules of all namespaces.
type NamespaceRulesSpec struct {
	// default applies to namespaces that namespaces does not list, and to each
	// rule that an entry there leaves out.
	// +optional
	Default NamespaceRule `json:"default,omitzero"`
	// namespaces are the rules of single namespaces.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=256
	Namespaces []RulesOfNamespace `json:"namespaces,omitempty"`
	// onDemandOvercommitPercent limits the OnDemand replicas of each Mac: together
	// they may need at most this percentage of the memory that Always replicas
	// leave there, for example 400. With 100, all of them fit at once. Default: no
	// limit.
	// +optional
	// +kubebuilder:validation:Minimum=100
	// +kubebuilder:validation:Maximum=100000
	OnDemandOvercommitPercent int32 `json:"onDemandOvercommitPercent,omitempty"`
}

// RulesOfNamespace are the rules of one namespace.
type RulesOfNamespace struct {
	// name is the name of the namespace.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",message="name must be the name of a namespace: lower-case letters, digits and '-'"
	Name          string `json:"name"`
	NamespaceRule `json:",inline"`
}

// NamespaceRule limits a namespace. In the lists of strings, {namespace} stands
// for the name of the namespace, and * at the end of an entry for anything.
type NamespaceRule struct {
	// memoryLimit is the memory that the Always replicas of the namespace may
	// reserve together over all Macs, for example 256Gi. 0 allows none. Default:
	// no limit; an entry of namespaces lifts the default limit with a large one,
	// such as 1Ei.
	// +optional
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="string(self).matches('^[+]?([0-9]{1,19}([.][0-9]{0,9})?|[.][0-9]{1,9})([KMGTPE]i|[numkMGTPE]|[eE][0-9]{1,2})?$')",message="memoryLimit must not be negative, for example 256Gi; write at most 19 digits, 9 decimals and a unit such as Gi, M or e9"
	MemoryLimit *resource.Quantity `json:"memoryLimit,omitempty"`
	// prefetchLimit is the disk space that weights which spec.prefetch of
	// deployments keeps, or which are downloaded before a swap, may take together
	// over all Macs, for example 500Gi. One swap at a time may download any
	// weights. Default: 0, which allows no others.
	// +optional
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="string(self).matches('^[+]?([0-9]{1,19}([.][0-9]{0,9})?|[.][0-9]{1,9})([KMGTPE]i|[numkMGTPE]|[eE][0-9]{1,2})?$')",message="prefetchLimit must not be negative, for example 256Gi; write at most 19 digits, 9 decimals and a unit such as Gi, M or e9"
	PrefetchLimit *resource.Quantity `json:"prefetchLimit,omitempty"`
	// replicasPerMac is how many of the 64 replicas of a Mac may be of the
	// namespace, and the same share of the size of its assignments and of its disk
	// for OnDemand models. Default: 64.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=64
	ReplicasPerMac int32 `json:"replicasPerMac,omitempty"`
	// macSelector selects the Macs that may hold replicas of the namespace, by
	// their labels. Replicas that are already placed stay. Default: all Macs.
	// +optional
	MacSelector *MacSelector `json:"macSelector,omitempty"`
	// sources are the model sources that may be used, as URLs, for example
	// hf://mlx-community/* or file://{namespace}/*. An entry s3://BUCKET/* allows
	// no ?endpoint= (write s3://BUCKET/*?endpoint=https://HOST), and hf://OWNER/*
	// no pull request. * alone allows all sources. Default: none.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=512
	// +kubebuilder:validation:items:Pattern=`^[^ ]+$`
	// +kubebuilder:validation:items:XValidation:rule="self == '*' || self.contains('://')",message="a source must be * or a URL, for example hf://mlx-community/* or s3://BUCKET/*"
	// +kubebuilder:validation:items:XValidation:rule="self.contains('*?') || !self.substring(0, self.size() - 1).contains('*')",message="* may only be the last character of a source, or stand before the ?endpoint= of a bucket"
	Sources []string `json:"sources,omitzero"`
	// servedNames are the model names that may be served, for example assistant
	// or {namespace}/*. A deployment may always serve NAMESPACE/NAME. Default: no
	// others.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=320
	// +kubebuilder:validation:items:XValidation:rule="!self.substring(0, self.size() - 1).contains('*')",message="* may only be the last character of a name"
	ServedNames []string `json:"servedNames,omitzero"`
	// priorityClasses are the PriorityClasses that may be used; * allows all.
	// Default: none.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=253
	PriorityClasses []string `json:"priorityClasses,omitzero"`
	// tolerations are the keys of taints that may be tolerated, for example
	// dedicated; * allows all. Default: none.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=317
	// +kubebuilder:validation:items:XValidation:rule="!self.substring(0, self.size() - 1).contains('*')",message="* may only be the last character of the key of a taint"
	Tolerations []string `json:"tolerations,omitzero"`
	// maxEvictionPriority is the highest residency.evictionPriority that may be
	// used. Default: 0.
	// +optional
	// +kubebuilder:validation:Minimum=-1000
	// +kubebuilder:validation:Maximum=1000
	MaxEvictionPriority *int32 `json:"maxEvictionPriority,omitempty"`
}

// MacSelector selects Macs by the labels of their MacNodes.
type MacSelector struct {
	// matchLabels are labels that the MacNode must have, all of them, for example
	// team: search.
	// +required
	// +kubebuilder:validation:MinProperties=1
	// +kubebuilder:validation:MaxProperties=16
	MatchLabels map[string]string `json:"matchLabels"`
}

// NamespaceRulesStatus is what the operator finds wrong with the rules, and what
// namespaces use.
type NamespaceRulesStatus struct {
	// observedGeneration is the generation of the spec that this status
	// describes. It is -1 until the operator has evaluated it.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// conditions are the conditions of the rules. Accepted is False, with a
	// sentence, while a rule cannot have the intended effect. The others apply
	// all the same.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:XValidation:rule="self.lastTransitionTime.getFullYear() >= 0 && self.lastTransitionTime.getFullYear() < 9999",message="lastTransitionTime must be a time such as 2026-01-31T12:00:00Z"
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// namespaces is the use of each namespace that spec.namespaces lists or that
	// has placed replicas, up to 1000, by name.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=1000
	Namespaces []NamespaceUse `json:"namespaces,omitempty"`
	// summary holds rounded figures for display.
	// +optional
	Summary NamespaceRulesSummary `json:"summary,omitzero"`
}

// NamespaceUse is what the replicas of a namespace use.
type NamespaceUse struct {
	// name is the name of the namespace.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Name string `json:"name"`
	// reservedBytes is the memory that its Always replicas reserve over all Macs,
	// in bytes.
	// +optional
	// +kubebuilder:validation:Minimum=0
	ReservedBytes int64 `json:"reservedBytes"`
	// memoryLimitBytes is its memory limit, in bytes. It is absent when there is
	// none.
	// +optional
	// +kubebuilder:validation:Minimum=0
	MemoryLimitBytes *int64 `json:"memoryLimitBytes,omitempty"`
	// replicas is the number of its placed replicas.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=2147483647
	Replicas int32 `json:"replicas"`
}

// NamespaceRulesSummary holds rounded figures for display.
type NamespaceRulesSummary struct {
	// reserved is the memory that the Always replicas of all namespaces reserve,
	// for example 41.2 GiB.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	Reserved string `json:"reserved,omitempty"`
	// fullest is the namespace that uses the largest share of its limit, for
	// example team-a 87%.
	// +optional
	// +kubebuilder:validation:MaxLength=96
	Fullest string `json:"fullest,omitempty"`
}

// Matches reports whether the selector selects a Mac.
func (s MacSelector) Matches(mac *MacNode) bool {
	for k, v := range s.MatchLabels {
		if got, has := mac.Labels[k]; !has || got != v {
			return false
		}
	}
	return true
}

// Of returns the rules of a namespace: those of its entry, and the default for
// each one that the entry leaves out.
func (s *NamespaceRulesSpec) Of(namespace string) NamespaceRule {
	for i := range s.Namespaces {
		if s.Namespaces[i].Name == namespace {
			return s.Namespaces[i].NamespaceRule.or(s.Default)
		}
	}
	return s.Default
}

// or returns the rules with those of other for each one that is absent.
func (r NamespaceRule) or(other NamespaceRule) NamespaceRule {
	if r.MemoryLimit == nil {
		r.MemoryLimit = other.MemoryLimit
	}
	if r.PrefetchLimit == nil {
		r.PrefetchLimit = other.PrefetchLimit
	}
	if r.ReplicasPerMac == 0 {
		r.ReplicasPerMac = other.ReplicasPerMac
	}
	if r.MacSelector == nil {
		r.MacSelector = other.MacSelector
	}
	for _, list := range []struct{ own, other *[]string }{
		{&r.Sources, &other.Sources}, {&r.ServedNames, &other.ServedNames}, {&r.PriorityClasses, &other.PriorityClasses}, {&r.Tolerations, &other.Tolerations},
	} {
		if *list.own == nil {
			*list.own = *list.other
		}
	}
	if r.MaxEvictionPriority == nil {
		r.MaxEvictionPriority = other.MaxEvictionPriority
	}
	return r
}

// NamespaceRulesList is a list of NamespaceRules.
// +kubebuilder:object:root=true
type NamespaceRulesList struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard list metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitzero"`
	// items are the NamespaceRules of the list.
	Items []NamespaceRules `json:"items"`
}
