package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"metalfleet.dev/metalfleet/api/model"
)

// ModelReplica is one copy of a model on one Mac. The operator makes it; its
// status is derived from what the Mac reports.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:shortName=mr,categories=metalfleet
// +kubebuilder:subresource:status
// +kubebuilder:selectablefield:JSONPath=`.spec.nodeName`
// +kubebuilder:printcolumn:name="Deployment",type=string,JSONPath=`.spec.deploymentRef.name`
// +kubebuilder:printcolumn:name="Mac",type=string,JSONPath=`.spec.nodeName`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Status",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Progress",type=string,JSONPath=`.status.summary.progress`
// +kubebuilder:printcolumn:name="Memory",type=string,JSONPath=`.status.summary.memory`,description="measured footprint of its engine"
// +kubebuilder:printcolumn:name="Reserved",type=integer,JSONPath=`.status.memory.reservedBytes`,description="promised by its Mac's ledger, in bytes (an estimate)",priority=1
// +kubebuilder:printcolumn:name="Freed",type=string,JSONPath=`.status.summary.freed`,description="measured as freed so far"
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type ModelReplica struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard object metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`
	// spec is the order.
	// +required
	Spec ModelReplicaSpec `json:"spec"`
	// status is what the Mac reports of it.
	// +optional
	Status ModelReplicaStatus `json:"status,omitzero"`
}

// DesiredState is what an assignment is to become.
// +kubebuilder:validation:Enum=Downloaded;Running;Drained
type DesiredState string

const (
	// DesiredDownloaded keeps the weights on disk, with no engine.
	DesiredDownloaded DesiredState = "Downloaded"
	// DesiredRunning keeps an engine serving.
	DesiredRunning DesiredState = "Running"
	// DesiredDrained finishes running requests, stops the engine and measures what was freed.
	DesiredDrained DesiredState = "Drained"
)

// ModelReplicaSpec is the order for one replica.
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.nodeName) || (has(self.nodeName) && self.nodeName == oldSelf.nodeName)",message="nodeName is bound once; delete the replica to move it"
// +kubebuilder:validation:XValidation:rule="self.epoch == oldSelf.epoch && self.revision == oldSelf.revision && self.model == oldSelf.model && self.context == oldSelf.context && self.reservedBytes == oldSelf.reservedBytes",message="a replica's epoch, revision, model, context and reservation never change; its deployment makes a new replica instead"
type ModelReplicaSpec struct {
	// deploymentRef is the deployment it belongs to.
	// +required
	DeploymentRef DeploymentReference `json:"deploymentRef"`
	// revision is the name of the ControllerRevision it was made from.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Revision string `json:"revision"`
	// slot is its place among the wanted replicas of the revision.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=2000
	Slot int32 `json:"slot,omitempty"`
	// epoch fences it: what a Mac reports of another epoch is not about this replica.
	// +required
	// +kubebuilder:validation:Minimum=1
	Epoch int64 `json:"epoch"`
	// model is the record that the inspection brought back.
	// +required
	Model model.Record `json:"model"`
	// context that memory is reserved for.
	// +required
	Context ContextLimits `json:"context"`
	// reservedBytes is the memory promised to it: an estimate from the file headers, or memory.limit.
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
	// residency says when its engine is in memory. It may change under a running replica.
	// +optional
	Residency Residency `json:"residency,omitzero"`
	// placement says which Macs may hold it.
	// +optional
	Placement PlacementSpec `json:"placement,omitzero"`
	// priority among all replicas: those without a Mac are placed in its order,
	// and one without room may take that of a lower one.
	// +optional
	Priority Priority `json:"priority,omitzero"`
	// avoid lists Macs that refused or failed its predecessor, until a time.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=64
	Avoid []AvoidedMac `json:"avoid,omitempty"`
	// swap: where no Mac has room for it, it may take that of one replica of
	// another revision of its deployment.
	// +optional
	Swap bool `json:"swap,omitempty"`
	// prefetchNodeName is the MacNode that fetches its weights, or keeps them,
	// while it has none of its own: there a replica of another revision gives it
	// its room once they lie there. Placement sets it.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	PrefetchNodeName string `json:"prefetchNodeName,omitempty"`
	// nodeName is the MacNode that placement chose. Bound once.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	NodeName string `json:"nodeName,omitempty"`
	// desired is Running, or Drained before a replica goes.
	// +required
	Desired DesiredState `json:"desired"`
}

// Priority is what a PriorityClass says, as it was when it was read.
type Priority struct {
	// className of the PriorityClass; empty for none.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	ClassName string `json:"className,omitempty"`
	// value of it, higher before lower; 0 without a class.
	// +optional
	Value int32 `json:"value,omitempty"`
	// preemptionPolicy Never waits for room and takes nobody's.
	// +optional
	// +kubebuilder:validation:Enum=Never;PreemptLowerPriority
	PreemptionPolicy corev1.PreemptionPolicy `json:"preemptionPolicy,omitempty"`
}

// Preempts says whether a replica may take the room of one with a lower priority.
func (p Priority) Preempts() bool { return p.PreemptionPolicy != corev1.PreemptNever }

// DeploymentReference names the owning deployment.
type DeploymentReference struct {
	// name of the ModelDeployment, in the same namespace.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Name string `json:"name"`
	// uid of the ModelDeployment.
	// +required
	// +kubebuilder:validation:MaxLength=64
	UID string `json:"uid"`
}

// AvoidedMac is a Mac not to be chosen before a time.
type AvoidedMac struct {
	// name of the MacNode.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Name string `json:"name"`
	// until when.
	// +required
	Until metav1.Time `json:"until"`
	// reason of the refusal.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Reason string `json:"reason,omitempty"`
}

// ContextLimits are the resolved bounds of a replica; see ContextSpec.
type ContextLimits struct {
	// tokens of the longest request, prompt and answer together.
	// +required
	// +kubebuilder:validation:Minimum=1
	Tokens int64 `json:"tokens"`
	// sequences that run at once at most.
	// +required
	// +kubebuilder:validation:Minimum=1
	Sequences int64 `json:"sequences"`
	// cacheTokens that all running requests share.
	// +required
	// +kubebuilder:validation:Minimum=1
	CacheTokens int64 `json:"cacheTokens"`
}

// ModelReplicaStatus is what is known of a replica.
type ModelReplicaStatus struct {
	// observedGeneration is the generation that this status describes.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// progress of the stage it is in.
	// +optional
	Progress Progress `json:"progress,omitzero"`
	// memory as the Mac last reported it.
	// +optional
	Memory EngineMemory `json:"memory,omitzero"`
	// freed is the last reclaim, and the total over all loads.
	// +optional
	Freed Freed `json:"freed,omitzero"`
	// restarts of the engine on this Mac.
	// +optional
	Restarts int32 `json:"restarts,omitempty"`
	// lastFailure is what the last of the restarts was for; it stays when the engine serves again.
	// +optional
	LastFailure *EngineFailure `json:"lastFailure,omitempty"`
	// canary is the token that its engine generated before it took requests;
	// absent until then. It is of spec.revision, which never changes.
	// +optional
	Canary *Canary `json:"canary,omitempty"`
	// summary holds rounded figures for people.
	// +optional
	Summary ReplicaSummary `json:"summary,omitzero"`
	// conditions: Ready, Placed, and what the Mac reports: Downloaded, Admitted, Loaded, Serving, Released.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=16
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// Stage is what a Mac is doing for an assignment. Conditions carry the state;
// a stage says which work the progress figures count.
// +kubebuilder:validation:Enum=Queued;Downloading;Verifying;Loading;Serving;Draining;Released;Failed
type Stage string

// The stages of an assignment.
const (
	StageQueued      Stage = "Queued"
	StageDownloading Stage = "Downloading"
	StageVerifying   Stage = "Verifying"
	StageLoading     Stage = "Loading"
	StageServing     Stage = "Serving"
	StageDraining    Stage = "Draining"
	StageReleased    Stage = "Released"
	StageFailed      Stage = "Failed"
)

// Progress of a stage.
type Progress struct {
	// stage that the figures count.
	// +optional
	Stage Stage `json:"stage,omitempty"`
	// bytesDone of bytesTotal.
	// +optional
	// +kubebuilder:validation:Minimum=0
	BytesDone int64 `json:"bytesDone,omitempty"`
	// bytesTotal of the stage.
	// +optional
	// +kubebuilder:validation:Minimum=0
	BytesTotal int64 `json:"bytesTotal,omitempty"`
	// etaSeconds to its end, an estimate from the rate so far; absent when unknown.
	// +optional
	// +kubebuilder:validation:Minimum=0
	ETASeconds *int64 `json:"etaSeconds,omitempty"`
}

// EngineMemory is the memory of one engine, measured where not said otherwise.
type EngineMemory struct {
	// reservedBytes promised by the Mac's ledger, an estimate.
	// +optional
	ReservedBytes int64 `json:"reservedBytes,omitempty"`
	// limitBytes is the process's ceiling.
	// +optional
	LimitBytes int64 `json:"limitBytes,omitempty"`
	// footprintBytes is the kernel's figure for the process.
	// +optional
	FootprintBytes int64 `json:"footprintBytes,omitempty"`
	// weightsBytes as the engine counts them.
	// +optional
	WeightsBytes int64 `json:"weightsBytes,omitempty"`
	// kvInUseBytes are KV blocks held by requests, as the engine counts them.
	// +optional
	KVInUseBytes int64 `json:"kvInUseBytes,omitempty"`
	// activeBytes are all live arrays, as the engine counts them.
	// +optional
	ActiveBytes int64 `json:"activeBytes,omitempty"`
	// accountedBytes are loaded weights and KV in use, as the engine counts them.
	// +optional
	AccountedBytes int64 `json:"accountedBytes,omitempty"`
	// pooledBytes are free inside the back end and not yet returned.
	// +optional
	PooledBytes int64 `json:"pooledBytes,omitempty"`
	// measuredAt is when the footprint was read.
	// +optional
	MeasuredAt *metav1.Time `json:"measuredAt,omitempty"`
}

// HostCheck says how far the host's memory confirmed a reclaim.
// +kubebuilder:validation:Enum=Verified;Indeterminate;Stranded
type HostCheck string

const (
	// HostCheckVerified: the host's memory fell by what the process held.
	HostCheckVerified HostCheck = "Verified"
	// HostCheckIndeterminate: the host's memory cannot be attributed (other
	// engines work, or the Mac is gone). The figure of the process stays exact.
	HostCheckIndeterminate HostCheck = "Indeterminate"
	// HostCheckStranded: memory remains that no process owns.
	HostCheckStranded HostCheck = "Stranded"
)

// Freed is what was measured when engines of this replica went.
type Freed struct {
	// bytes of the last reclaim: the footprint of the process just before its
	// observed exit. Absent when it could not be known.
	// +optional
	Bytes *int64 `json:"bytes,omitempty"`
	// totalBytes over all loads of this replica.
	// +optional
	// +kubebuilder:validation:Minimum=0
	TotalBytes int64 `json:"totalBytes,omitempty"`
	// reason of the last reclaim.
	// +optional
	Reason ReclaimReason `json:"reason,omitempty"`
	// hostCheck of the last reclaim.
	// +optional
	HostCheck HostCheck `json:"hostCheck,omitempty"`
	// time of the last reclaim.
	// +optional
	Time *metav1.Time `json:"time,omitempty"`
}

// ReplicaSummary holds rounded figures for kubectl get.
type ReplicaSummary struct {
	// progress such as "Downloading 41% (38.2 MiB of 93.1 MiB, 4 s)".
	// +optional
	// +kubebuilder:validation:MaxLength=128
	Progress string `json:"progress,omitempty"`
	// memory is the measured footprint.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	Memory string `json:"memory,omitempty"`
	// freed so far.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	Freed string `json:"freed,omitempty"`
}

// ModelReplicaList is a list of ModelReplicas.
// +kubebuilder:object:root=true
type ModelReplicaList struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard list metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitzero"`
	// items of the list.
	Items []ModelReplica `json:"items"`
}
