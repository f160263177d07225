package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"metalfleet.dev/metalfleet/api/model"
)

// MacNode is one Mac: its settings, and the state that its agent reports. The
// agent can access only this object, the MacAssignment of the same name, its
// Lease and its Secret.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,shortName=mac,categories=metalfleet
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Status",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Cordoned",type=boolean,JSONPath=`.spec.unschedulable`,description="true: no new replica is placed on the Mac"
// +kubebuilder:printcolumn:name="Chip",type=string,JSONPath=`.status.chip`
// +kubebuilder:printcolumn:name="Memory",type=string,JSONPath=`.status.summary.memory`
// +kubebuilder:printcolumn:name="Ceiling",type=string,JSONPath=`.status.summary.ceiling`,description="maximum memory that all engines may use together"
// +kubebuilder:printcolumn:name="Reserved",type=string,JSONPath=`.status.summary.reserved`,description="memory reserved for replicas (an estimate)"
// +kubebuilder:printcolumn:name="Used",type=string,JSONPath=`.status.summary.used`,description="measured memory footprint of all engines"
// +kubebuilder:printcolumn:name="Freed",type=string,JSONPath=`.status.summary.freed`,description="memory measured as freed so far"
// +kubebuilder:printcolumn:name="Pressure",type=string,JSONPath=`.status.memory.pressureLevel`,description="memory pressure: Normal, Soft, Hard or Emergency",priority=1
// +kubebuilder:printcolumn:name="Agent",type=string,JSONPath=`.status.agentVersion`,description="version of the agent",priority=1
// +kubebuilder:printcolumn:name="Class",type=string,JSONPath=`.status.settings.class`,description="the MacClass whose settings the agent uses",priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 52 && self.metadata.name.matches('^[a-z0-9]([a-z0-9-]*[a-z0-9])?$')",message="metadata.name must be a DNS label of at most 52 characters: lower-case letters, digits and '-'"
type MacNode struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard object metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`
	// spec is the desired state of the Mac, written by the administrator.
	// +optional
	Spec MacNodeSpec `json:"spec,omitzero"`
	// status is the state that the Mac's agent reports. The operator writes the
	// conditions Ready, Reachable, IdentityClash, WritesSuspended, AgentCurrent
	// and ClassApplied.
	// +optional
	// +kubebuilder:default={"observedGeneration":-1}
	Status MacNodeStatus `json:"status,omitzero"`
}

// MacNodeSpec is the desired state of a Mac.
type MacNodeSpec struct {
	// unschedulable keeps new replicas away from the Mac. Replicas that it
	// already holds stay. Default: false.
	// +optional
	Unschedulable bool `json:"unschedulable,omitempty"`
	// taints keep away replicas that do not tolerate them, like the taints of a
	// Node.
	// +optional
	// +listType=map
	// +listMapKey=key
	// +listMapKey=effect
	// +kubebuilder:validation:MaxItems=16
	Taints []Taint `json:"taints,omitempty"`
	// memory limits the memory that engines may use on this Mac.
	// +optional
	Memory MacMemoryPolicy `json:"memory,omitzero"`
	// pinnedWeights are the digests of models, as status.weights lists them,
	// whose files this Mac keeps on disk even when no replica needs them.
	// Pinning does not start a download.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:Pattern=`^sha256:[0-9a-f]{64}$`
	// +kubebuilder:validation:items:MaxLength=71
	PinnedWeights []string `json:"pinnedWeights,omitempty"`
	// class is the name of the MacClass of this Mac, for example studio. While
	// there is no such class, the Mac keeps its settings. Default: the class
	// default, if there is one.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`
	Class string `json:"class,omitempty"`
	// settings are settings of this Mac's agent. An absent setting keeps the value
	// of the agent's flag, else that of the class.
	// +optional
	Settings AgentSettings `json:"settings,omitzero"`
	// clearCache requests that this Mac clears its prefix caches, once for each
	// value of request. status.cacheCleared holds the result.
	// +optional
	ClearCache *CacheClear `json:"clearCache,omitempty"`
}

// MemoryPolicy selects how much of a Mac's memory is reserved for the system
// and its user.
// +kubebuilder:validation:Enum=Safe;Balanced;Aggressive;Custom
type MemoryPolicy string

// The memory policies; metal/footprint has their constants.
const (
	MemorySafe       MemoryPolicy = "Safe"
	MemoryBalanced   MemoryPolicy = "Balanced"
	MemoryAggressive MemoryPolicy = "Aggressive"
	MemoryCustom     MemoryPolicy = "Custom"
)

// MacMemoryPolicy limits the memory of the engines on one Mac.
type MacMemoryPolicy struct {
	// policy selects how much memory is reserved for the system. Default:
	// Balanced. Valid values are:
	// - Safe: 8 GiB.
	// - Balanced: 6 GiB.
	// - Aggressive: 4 GiB.
	// - Custom: 2 GiB.
	//
	// With Safe, Balanced and Aggressive, a Mac with less than 24 GiB reserves
	// 4 GiB.
	// +optional
	Policy MemoryPolicy `json:"policy,omitempty"`
	// ceiling is the maximum memory that all engines may use together, for
	// example 96Gi. It can lower the limit that policy sets, but not raise it.
	// +optional
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="string(self).matches('^[+]?([0-9]{1,19}([.][0-9]{0,9})?|[.][0-9]{1,9})([KMGTPE]i|[numkMGTPE]|[eE][0-9]{1,2})?$') && quantity(string(self)).isGreaterThan(quantity('0'))",message="memory.ceiling must be greater than zero, for example 96Gi; write at most 19 digits, 9 decimals and a unit such as Gi, M or e9"
	Ceiling *resource.Quantity `json:"ceiling,omitempty"`
}

// Assignment assigns one replica to this Mac.
type Assignment struct {
	// replicaUID is the UID of the ModelReplica.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	ReplicaUID string `json:"replicaUID"`
	// epoch is the epoch of the ModelReplica.
	// +required
	// +kubebuilder:validation:Minimum=1
	Epoch int64 `json:"epoch"`
	// namespace is the namespace of the ModelReplica.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace"`
	// name is the name of the ModelReplica.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
	// servedNames are the model names that clients may use for the replica.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=153
	// +kubebuilder:validation:items:MaxLength=384
	ServedNames []string `json:"servedNames,omitempty"`
	// model is the model to serve.
	// +required
	Model model.Record `json:"model"`
	// tokenRef identifies the entry of this Mac's Secret that holds the
	// credentials for the model source. The credentials themselves are never
	// stored here.
	// +optional
	// +kubebuilder:validation:Pattern=`^[0-9a-f]{64}$`
	// +kubebuilder:validation:MaxLength=64
	TokenRef string `json:"tokenRef,omitempty"`
	// neighbours are Macs of the same site from which this Mac may copy the
	// weights, in order of preference, before it downloads them from the
	// source. If a peer is still downloading the weights, this Mac waits for
	// it.
	// +optional
	// +listType=map
	// +listMapKey=mac
	// +kubebuilder:validation:MaxItems=4
	Peers []Peer `json:"neighbours,omitempty"`
	// context holds the context limits of the engine.
	// +required
	Context ContextLimits `json:"context"`
	// reservedBytes is the memory reserved for the engine, in bytes.
	// +required
	// +kubebuilder:validation:Minimum=1
	ReservedBytes int64 `json:"reservedBytes"`
	// drainSeconds is how long running requests may continue, in seconds, after
	// the assignment is drained.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=86400
	DrainSeconds int32 `json:"drainSeconds,omitempty"`
	// prefixCache limits the prefix cache on disk.
	// +optional
	PrefixCache PrefixCacheLimits `json:"prefixCache,omitzero"`
	// sharedPrefixes are beginnings of prompts whose cache all tenants share.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=4
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=4096
	SharedPrefixes []string `json:"sharedPrefixes,omitempty"`
	// sampling sets defaults for requests and limits them.
	// +optional
	Sampling SamplingSpec `json:"sampling,omitzero"`
	// chatTemplate replaces the chat templates of the model.
	// +optional
	// +kubebuilder:validation:MaxLength=16384
	ChatTemplate string `json:"chatTemplate,omitempty"`
	// residency controls when the model is in memory.
	// +optional
	Residency Residency `json:"residency,omitzero"`
	// desired is the desired state of the assignment. Valid values are:
	// - Downloaded: the weights are on disk; no engine runs.
	// - Running: an engine serves the model.
	// - Drained: running requests finish, then the engine stops and the freed
	//   memory is measured.
	// +required
	Desired DesiredState `json:"desired"`
}

// Peer is a Mac of the same site from which weights may be copied.
type Peer struct {
	// mac is the name of the peer's MacNode.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=52
	Mac string `json:"mac"`
	// address is where the peer's agent accepts requests.
	// +required
	Address MacAddress `json:"address"`
	// grant is a token, signed by the operator and valid for two hours, that
	// allows this Mac, and no other, to read these weights from the peer.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=2048
	Grant string `json:"grant"`
}

// Inspection requests that a Mac reads a model source and reports what it
// contains.
type Inspection struct {
	// id identifies the inspection. It is derived from the other fields.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	ID string `json:"id"`
	// namespace is the namespace of the ModelDeployment that needs the
	// inspection. A Mac that has more inspections than it can run at once
	// divides them fairly among namespaces.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace,omitempty"`
	// source is the model source to inspect.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	Source string `json:"source"`
	// sha256 is the expected SHA-256 digest of the file, in lower-case hex.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	SHA256 string `json:"sha256,omitempty"`
	// revision is the branch, tag or commit of a Hugging Face repository.
	// Default: main.
	// +optional
	// +kubebuilder:validation:MaxLength=255
	Revision string `json:"revision,omitempty"`
	// files are the patterns that select the model's files in the source.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=256
	Files []string `json:"files,omitempty"`
	// tokenRef identifies the entry of this Mac's Secret that holds the
	// credentials for the model source. The credentials themselves are never
	// stored here.
	// +optional
	// +kubebuilder:validation:Pattern=`^[0-9a-f]{64}$`
	// +kubebuilder:validation:MaxLength=64
	TokenRef string `json:"tokenRef,omitempty"`
	// adapters are the adapters to inspect with the model.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	Adapters []AdapterSpec `json:"adapters,omitempty"`
}

// MacNodeList is a list of MacNodes.
// +kubebuilder:object:root=true
type MacNodeList struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard list metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitzero"`
	// items are the MacNodes of the list.
	Items []MacNode `json:"items"`
}
