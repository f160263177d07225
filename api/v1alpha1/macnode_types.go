package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"metalfleet.dev/metalfleet/api/model"
)

// MacNode is one Mac: its figures, its orders and what it reports of them. It
// is the only object, with its Lease and its Secret, that the Mac's agent sees.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,shortName=mac,categories=metalfleet
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Chip",type=string,JSONPath=`.status.chip`
// +kubebuilder:printcolumn:name="Memory",type=string,JSONPath=`.status.summary.memory`
// +kubebuilder:printcolumn:name="Ceiling",type=string,JSONPath=`.status.summary.ceiling`,description="the most that engines may use"
// +kubebuilder:printcolumn:name="Reserved",type=string,JSONPath=`.status.summary.reserved`,description="promised to replicas (an estimate)"
// +kubebuilder:printcolumn:name="Used",type=string,JSONPath=`.status.summary.used`,description="measured footprint of all engines"
// +kubebuilder:printcolumn:name="Freed",type=string,JSONPath=`.status.summary.freed`,description="measured as freed so far"
// +kubebuilder:printcolumn:name="Pressure",type=string,JSONPath=`.status.memory.pressureLevel`,description="what the agent acts on: Normal, Soft, Hard or Emergency",priority=1
// +kubebuilder:printcolumn:name="Agent",type=string,JSONPath=`.status.agentVersion`,description="version of the agent",priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 52 && self.metadata.name.matches('^[a-z0-9]([a-z0-9-]*[a-z0-9])?$')",message="a MacNode's name is a DNS label of at most 52 characters: lower-case letters, digits and '-'"
type MacNode struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard object metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`
	// spec is what the administrator and the operator want of this Mac.
	// +optional
	Spec MacNodeSpec `json:"spec,omitzero"`
	// status is what the Mac's agent reports; the condition Ready is the operator's.
	// +optional
	Status MacNodeStatus `json:"status,omitzero"`
}

// MacNodeSpec is what is wanted of a Mac.
type MacNodeSpec struct {
	// unschedulable keeps new replicas away; those here stay.
	// +optional
	Unschedulable bool `json:"unschedulable,omitempty"`
	// taints keep away replicas that do not tolerate them.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	Taints []corev1.Taint `json:"taints,omitempty"`
	// memory says how much of this Mac engines may use.
	// +optional
	Memory MacMemoryPolicy `json:"memory,omitzero"`
	// pinnedWeights are digests of models whose files stay on this Mac's disk once
	// they are there, as status.weights names them, whether or not a replica
	// needs them.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:Pattern=`^sha256:[0-9a-f]{64}$`
	// +kubebuilder:validation:items:MaxLength=71
	PinnedWeights []string `json:"pinnedWeights,omitempty"`
	// settings of the agent that change while it runs. What is absent is as the
	// agent was started.
	// +optional
	Settings AgentSettings `json:"settings,omitzero"`
	// clearCache has this Mac give back what its caches hold, once for each value
	// of request.
	// +optional
	ClearCache *CacheClear `json:"clearCache,omitempty"`
	// assignments are the replicas this Mac is to hold. Written by the operator.
	// +optional
	// +listType=map
	// +listMapKey=replicaUID
	// +kubebuilder:validation:MaxItems=64
	Assignments []Assignment `json:"assignments,omitempty"`
	// inspections are sources this Mac is to look at. Written by the operator.
	// +optional
	// +listType=map
	// +listMapKey=id
	// +kubebuilder:validation:MaxItems=64
	Inspections []Inspection `json:"inspections,omitempty"`
	// agent is the version of the agent that this Mac is to run; absent, it stays
	// with what it runs. Written by the operator.
	// +optional
	Agent *AgentOrder `json:"agent,omitempty"`
}

// MemoryPolicy is how much of a Mac's memory is left to the system and its user.
// +kubebuilder:validation:Enum=Safe;Balanced;Aggressive;Custom
type MemoryPolicy string

// The policies; metal/footprint has their constants.
const (
	MemorySafe       MemoryPolicy = "Safe"
	MemoryBalanced   MemoryPolicy = "Balanced"
	MemoryAggressive MemoryPolicy = "Aggressive"
	MemoryCustom     MemoryPolicy = "Custom"
)

// MacMemoryPolicy bounds the engines of one Mac.
type MacMemoryPolicy struct {
	// policy leaves 8 (Safe), 6 (Balanced), 4 (Aggressive) or 2 GiB (Custom) to
	// the system, and 4 GiB on Macs with less than 24 GiB. Default: Balanced.
	// +optional
	Policy MemoryPolicy `json:"policy,omitempty"`
	// ceiling is a hard promise: engines together never use more. It only ever
	// tightens what the policy allows.
	// +optional
	// +kubebuilder:validation:XValidation:rule="quantity(string(self)).isGreaterThan(quantity('0'))",message="memory.ceiling must be more than zero, such as 96Gi"
	Ceiling *resource.Quantity `json:"ceiling,omitempty"`
}

// Assignment is the order to hold one replica.
type Assignment struct {
	// replicaUID is the UID of the ModelReplica.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	ReplicaUID string `json:"replicaUID"`
	// epoch of the replica.
	// +required
	// +kubebuilder:validation:Minimum=1
	Epoch int64 `json:"epoch"`
	// namespace of the replica.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace"`
	// name of the replica.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
	// servedNames that clients may use for it.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=9
	// +kubebuilder:validation:items:MaxLength=320
	ServedNames []string `json:"servedNames,omitempty"`
	// model to serve.
	// +required
	Model model.Record `json:"model"`
	// tokenRef names the hub token, among those in this Mac's Secret, that the
	// source is read with; the token itself is never here.
	// +optional
	// +kubebuilder:validation:Pattern=`^[0-9a-f]{64}$`
	// +kubebuilder:validation:MaxLength=64
	TokenRef string `json:"tokenRef,omitempty"`
	// neighbours are Macs of the same site that the weights may be copied from,
	// the best first, before their source is asked. Those that are being fetched
	// there are waited for.
	// +optional
	// +listType=map
	// +listMapKey=mac
	// +kubebuilder:validation:MaxItems=4
	Neighbours []Neighbour `json:"neighbours,omitempty"`
	// context to serve it with.
	// +required
	Context ContextLimits `json:"context"`
	// reservedBytes is the memory promised to it.
	// +required
	// +kubebuilder:validation:Minimum=1
	ReservedBytes int64 `json:"reservedBytes"`
	// drainSeconds is how long running requests may go on after the order to drain.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=86400
	DrainSeconds int32 `json:"drainSeconds,omitempty"`
	// cache of what was computed of earlier prompts, on disk.
	// +optional
	Cache CacheLimits `json:"cache,omitzero"`
	// residency says when its engine is in memory.
	// +optional
	Residency Residency `json:"residency,omitzero"`
	// desired state.
	// +required
	Desired DesiredState `json:"desired"`
}

// Neighbour is a Mac that another one may copy weights from.
type Neighbour struct {
	// mac is its name.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=52
	Mac string `json:"mac"`
	// address of its agent's port.
	// +required
	Address MacAddress `json:"address"`
	// grant is the operator's signed word that this Mac may read these weights
	// there, for some hours. It is of no use to another Mac.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=2048
	Grant string `json:"grant"`
}

// Inspection is the order to look at a source and report what it holds.
type Inspection struct {
	// id is made from all below.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	ID string `json:"id"`
	// source to look at.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	Source string `json:"source"`
	// sha256 that the file must have, if one was given.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	SHA256 string `json:"sha256,omitempty"`
	// revision of a hub's repository; empty means main.
	// +optional
	// +kubebuilder:validation:MaxLength=255
	Revision string `json:"revision,omitempty"`
	// files are the patterns that choose the weights of a hub's repository.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=256
	Files []string `json:"files,omitempty"`
	// tokenRef names the hub token, among those in this Mac's Secret, that the
	// source is read with; the token itself is never here.
	// +optional
	// +kubebuilder:validation:Pattern=`^[0-9a-f]{64}$`
	// +kubebuilder:validation:MaxLength=64
	TokenRef string `json:"tokenRef,omitempty"`
}

// MacNodeList is a list of MacNodes.
// +kubebuilder:object:root=true
type MacNodeList struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard list metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitzero"`
	// items of the list.
	Items []MacNode `json:"items"`
}
