package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"metalfleet.dev/metalfleet/api/model"
)

// ModelReplica is one copy of a model on one Mac. The operator creates it and
// derives its status from the reports of the Mac.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:shortName=mr,categories=metalfleet
// +kubebuilder:subresource:status
// +kubebuilder:selectablefield:JSONPath=`.spec.nodeName`
// +kubebuilder:printcolumn:name="Deployment",type=string,JSONPath=`.spec.deploymentRef.name`
// +kubebuilder:printcolumn:name="Mac",type=string,JSONPath=`.spec.nodeName`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Status",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Restarts",type=integer,JSONPath=`.status.restarts`,description="number of times that the engine was restarted on this Mac"
// +kubebuilder:printcolumn:name="Progress",type=string,JSONPath=`.status.summary.progress`
// +kubebuilder:printcolumn:name="Memory",type=string,JSONPath=`.status.summary.memory`,description="measured memory footprint of the engine"
// +kubebuilder:printcolumn:name="Reserved",type=string,JSONPath=`.status.summary.reserved`,description="memory reserved on the Mac (an estimate)",priority=1
// +kubebuilder:printcolumn:name="Freed",type=string,JSONPath=`.status.summary.freed`,description="memory measured as freed so far"
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type ModelReplica struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard object metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`
	// spec is the desired state of the replica.
	// +required
	Spec ModelReplicaSpec `json:"spec"`
	// status is the most recently observed state of the replica.
	// +optional
	// +kubebuilder:default={"observedGeneration":-1}
	Status ModelReplicaStatus `json:"status,omitzero"`
}

// DesiredState is the desired state of an assignment.
// +kubebuilder:validation:Enum=Downloaded;Running;Drained
type DesiredState string

const (
	// DesiredDownloaded keeps the weights on disk, without an engine.
	DesiredDownloaded DesiredState = "Downloaded"
	// DesiredRunning keeps an engine serving.
	DesiredRunning DesiredState = "Running"
	// DesiredDrained lets running requests finish, then stops the engine and
	// measures the freed memory.
	DesiredDrained DesiredState = "Drained"
)

// ModelReplicaSpec is the desired state of one replica.
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.nodeName) || (has(self.nodeName) && self.nodeName == oldSelf.nodeName)",message="nodeName cannot be changed once it is set; delete the replica to move it"
// +kubebuilder:validation:XValidation:rule="self.epoch == oldSelf.epoch && self.revision == oldSelf.revision && self.model == oldSelf.model && self.context == oldSelf.context && self.reservedBytes == oldSelf.reservedBytes",message="epoch, revision, model, context and reservedBytes of a replica are immutable; change the ModelDeployment, which creates new replicas"
type ModelReplicaSpec struct {
	// deploymentRef is the ModelDeployment that owns the replica.
	// +required
	DeploymentRef DeploymentReference `json:"deploymentRef"`
	// revision is the name of the ControllerRevision that the replica was
	// created from.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Revision string `json:"revision"`
	// slot is the index of the replica among the replicas of its revision, from
	// 0.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=2000
	Slot int32 `json:"slot,omitempty"`
	// epoch is the fencing token of the replica: reports of a Mac that carry
	// another epoch are ignored.
	// +required
	// +kubebuilder:validation:Minimum=1
	Epoch int64 `json:"epoch"`
	// model is the model record that the inspection of the source produced.
	// +required
	Model model.Record `json:"model"`
	// context holds the context limits that memory is reserved for.
	// +required
	Context ContextLimits `json:"context"`
	// reservedBytes is the memory reserved for the replica, in bytes:
	// memory.limit, or an estimate from the headers of the model's files.
	// +required
	// +kubebuilder:validation:Minimum=1
	ReservedBytes int64 `json:"reservedBytes"`
	// drainSeconds is how long running requests may continue, in seconds, after
	// the replica is drained.
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
	// residency controls when the model is in memory. It may change while the
	// replica runs.
	// +optional
	Residency Residency `json:"residency,omitzero"`
	// placement controls which Macs may hold the replica.
	// +optional
	Placement PlacementSpec `json:"placement,omitzero"`
	// priority orders pending replicas: those with a higher priority are placed
	// first, and may preempt replicas with a lower one when no Mac has room.
	// +optional
	Priority Priority `json:"priority,omitzero"`
	// avoid lists Macs on which a predecessor was refused or failed. Placement
	// does not choose them until the given time.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=64
	Avoid []AvoidedMac `json:"avoid,omitempty"`
	// swap allows the replica to replace one replica of another revision of its
	// deployment when no Mac has room for both.
	// +optional
	Swap bool `json:"swap,omitempty"`
	// prefetchNodeName is the MacNode that downloads or keeps the weights
	// before the replica is placed. When they are complete, a replica of
	// another revision on that Mac is drained to make room; a replica with desired
	// Downloaded is never placed. Placement sets this field.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	PrefetchNodeName string `json:"prefetchNodeName,omitempty"`
	// nodeName is the MacNode that placement chose. It cannot change once it is
	// set.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	NodeName string `json:"nodeName,omitempty"`
	// desired is the desired state of the replica. Valid values are:
	// - Downloaded: the weights are on disk; no engine runs.
	// - Running: an engine serves the model.
	// - Drained: running requests finish, then the engine stops; the operator
	//   sets it before it deletes a replica.
	// +required
	Desired DesiredState `json:"desired"`
}

// Priority is the priority of a replica, as it was in its PriorityClass when
// the operator read it.
type Priority struct {
	// className is the name of the PriorityClass. It is empty without a class.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	ClassName string `json:"className,omitempty"`
	// value is the value of the PriorityClass. Higher values are placed first.
	// It is 0 without a class.
	// +optional
	// +kubebuilder:validation:Minimum=-2147483648
	// +kubebuilder:validation:Maximum=2147483647
	Value int32 `json:"value,omitempty"`
	// preemptionPolicy controls whether the replica may preempt others.
	// Default: PreemptLowerPriority. Valid values are:
	// - PreemptLowerPriority: the replica may take the room of replicas with a
	//   lower priority.
	// - Never: the replica waits for room.
	// +optional
	// +kubebuilder:validation:Enum=Never;PreemptLowerPriority
	PreemptionPolicy corev1.PreemptionPolicy `json:"preemptionPolicy,omitempty"`
}

// Preempts reports whether a replica may take the room of replicas with a lower
// priority.
func (p Priority) Preempts() bool { return p.PreemptionPolicy != corev1.PreemptNever }

// DeploymentReference identifies the ModelDeployment that owns a replica.
type DeploymentReference struct {
	// name is the name of the ModelDeployment, in the same namespace.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Name string `json:"name"`
	// uid is the UID of the ModelDeployment.
	// +required
	// +kubebuilder:validation:MaxLength=64
	UID string `json:"uid"`
}

// AvoidedMac is a Mac that placement does not choose until a given time.
type AvoidedMac struct {
	// name is the name of the MacNode.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Name string `json:"name"`
	// until is when placement may choose the Mac again.
	// +required
	// +kubebuilder:validation:XValidation:rule="self.getFullYear() >= 0 && self.getFullYear() < 9999",message="until must be a time such as 2026-01-31T12:00:00Z"
	Until metav1.Time `json:"until"`
	// reason is why the Mac is avoided.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Reason string `json:"reason,omitempty"`
	// failure is the reason for which a predecessor was given up there; empty: it was refused.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Failure string `json:"failure,omitempty"`
}

// ContextLimits is the resolved form of ContextSpec that replicas and Macs use.
type ContextLimits struct {
	// maxTokens is the maximum length of a request, prompt and output together,
	// in tokens.
	// +required
	// +kubebuilder:validation:Minimum=1
	MaxTokens int64 `json:"maxTokens"`
	// maxConcurrentRequests is the maximum number of requests that the replica
	// runs concurrently.
	// +required
	// +kubebuilder:validation:Minimum=1
	MaxConcurrentRequests int64 `json:"maxConcurrentRequests"`
	// kvCacheTokens is the size of the KV cache that all running requests
	// share, in tokens.
	// +required
	// +kubebuilder:validation:Minimum=1
	KVCacheTokens int64 `json:"kvCacheTokens"`
}

// ModelReplicaStatus is the most recently observed state of a replica.
type ModelReplicaStatus struct {
	// observedGeneration is the generation of the spec that this status
	// describes. It is -1 until the operator has evaluated the replica.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// progress is the current stage of the replica and its progress.
	// +optional
	Progress Progress `json:"progress,omitzero"`
	// memory is the memory of the engine, as the Mac most recently reported it.
	// +optional
	Memory EngineMemory `json:"memory,omitzero"`
	// freed is the memory that the last unload freed, and the total over all
	// loads.
	// +optional
	Freed Freed `json:"freed,omitzero"`
	// restarts is the number of times that the engine was restarted on this
	// Mac.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=2147483647
	Restarts int32 `json:"restarts"`
	// lastFailure is the failure that caused the most recent restart. It stays
	// after the engine serves again.
	// +optional
	LastFailure *EngineFailure `json:"lastFailure,omitempty"`
	// canary is the test token that the engine generated before it accepted
	// requests. It is absent until then.
	// +optional
	Canary *Canary `json:"canary,omitempty"`
	// summary holds rounded figures for display.
	// +optional
	Summary ReplicaSummary `json:"summary,omitzero"`
	// conditions are the conditions of the replica: Ready, Placed, Evicting, and
	// those that the Mac reports: Downloaded, Admitted, Loaded, Serving and
	// Released.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:XValidation:rule="self.lastTransitionTime.getFullYear() >= 0 && self.lastTransitionTime.getFullYear() < 9999",message="lastTransitionTime must be a time such as 2026-01-31T12:00:00Z"
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// Stage is what a Mac is doing for an assignment. Conditions carry the state;
// the stage is the work that the progress figures count.
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

// Progress is the progress of the current stage of a replica.
type Progress struct {
	// stage is the work that the other figures count. Valid values are:
	// - Queued: the replica waits to start.
	// - Downloading: the weights are being downloaded.
	// - Verifying: the digests of the weights are being checked.
	// - Loading: the engine loads the weights.
	// - Serving: the engine accepts requests.
	// - Draining: running requests finish.
	// - Released: the engine has ended and its memory is released.
	// - Failed: the replica failed.
	// +optional
	Stage Stage `json:"stage,omitempty"`
	// bytesDone is the number of bytes that the stage has processed.
	// +optional
	// +kubebuilder:validation:Minimum=0
	BytesDone int64 `json:"bytesDone,omitempty"`
	// bytesTotal is the number of bytes that the stage has to process.
	// +optional
	// +kubebuilder:validation:Minimum=0
	BytesTotal int64 `json:"bytesTotal,omitempty"`
	// etaSeconds is the estimated time to the end of the stage, in seconds. It
	// is absent when it is unknown.
	// +optional
	// +kubebuilder:validation:Minimum=0
	ETASeconds *int64 `json:"etaSeconds,omitempty"`
}

// EngineMemory reports the memory of one engine, in bytes. Figures are measured
// unless their description calls them an estimate.
type EngineMemory struct {
	// reservedBytes is the memory that the Mac reserves for the engine, an
	// estimate.
	// +optional
	ReservedBytes int64 `json:"reservedBytes,omitempty"`
	// limitBytes is the memory limit of the engine process.
	// +optional
	LimitBytes int64 `json:"limitBytes,omitempty"`
	// footprintBytes is the memory footprint of the process, as the kernel
	// reports it.
	// +optional
	FootprintBytes int64 `json:"footprintBytes,omitempty"`
	// weightsBytes is the size of the loaded weights, as the engine counts
	// them.
	// +optional
	WeightsBytes int64 `json:"weightsBytes,omitempty"`
	// kvInUseBytes is the size of the KV cache blocks that requests use, as the
	// engine counts them.
	// +optional
	KVInUseBytes int64 `json:"kvInUseBytes,omitempty"`
	// activeBytes is the size of all live arrays, as the engine counts them.
	// +optional
	ActiveBytes int64 `json:"activeBytes,omitempty"`
	// accountedBytes is the size of loaded weights and KV cache in use, as the
	// engine counts them.
	// +optional
	AccountedBytes int64 `json:"accountedBytes,omitempty"`
	// pooledBytes is the free memory that the engine's back end keeps and has
	// not returned to the system.
	// +optional
	PooledBytes int64 `json:"pooledBytes,omitempty"`
	// measuredAt is when the footprint was measured.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self.getFullYear() >= 0 && self.getFullYear() < 9999",message="measuredAt must be a time such as 2026-01-31T12:00:00Z"
	MeasuredAt *metav1.Time `json:"measuredAt,omitempty"`
}

// HostCheck reports whether the Mac's memory figures confirm that memory was
// freed.
// +kubebuilder:validation:Enum=Verified;Indeterminate;Stranded
type HostCheck string

const (
	// HostCheckVerified: the Mac's used memory fell by the footprint of the
	// process.
	HostCheckVerified HostCheck = "Verified"
	// HostCheckIndeterminate: the change cannot be attributed, because other
	// engines were active or the Mac is gone. The figure of the process is
	// still exact.
	HostCheckIndeterminate HostCheck = "Indeterminate"
	// HostCheckStranded: memory stays in use that no process owns.
	HostCheckStranded HostCheck = "Stranded"
)

// Freed is the memory that the engines of a replica freed when they ended.
type Freed struct {
	// bytes is the memory that the last unload freed: the footprint of the
	// process just before its exit was observed. It is absent when it could not
	// be measured.
	// +optional
	Bytes *int64 `json:"bytes,omitempty"`
	// totalBytes is the memory, in bytes, freed over all loads of the replica.
	// +optional
	// +kubebuilder:validation:Minimum=0
	TotalBytes int64 `json:"totalBytes,omitempty"`
	// reason is why the last engine ended, for example Drained or Idle.
	// +optional
	Reason ReclaimReason `json:"reason,omitempty"`
	// hostCheck reports whether the Mac's memory figures confirm the last
	// unload: Verified, Indeterminate or Stranded.
	// +optional
	HostCheck HostCheck `json:"hostCheck,omitempty"`
	// time is when the last engine ended.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self.getFullYear() >= 0 && self.getFullYear() < 9999",message="time must be a time such as 2026-01-31T12:00:00Z"
	Time *metav1.Time `json:"time,omitempty"`
}

// ReplicaSummary holds rounded figures for kubectl get.
type ReplicaSummary struct {
	// progress is the current stage and its progress, for example "Downloading
	// 41% (38.2 MiB of 93.1 MiB, 4 s)".
	// +optional
	// +kubebuilder:validation:MaxLength=128
	Progress string `json:"progress,omitempty"`
	// memory is the measured memory footprint of the engine.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	Memory string `json:"memory,omitempty"`
	// reserved is the memory reserved for the replica, an estimate.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	Reserved string `json:"reserved,omitempty"`
	// freed is the memory measured as freed so far.
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
	// items are the ModelReplicas of the list.
	Items []ModelReplica `json:"items"`
}
