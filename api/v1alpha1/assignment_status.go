package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"metalfleet.dev/metalfleet/api/model"
)

// AssignmentStatus is what a Mac reports of one assignment.
type AssignmentStatus struct {
	// replicaUID of the assignment.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	ReplicaUID string `json:"replicaUID"`
	// epoch that this report is about.
	// +required
	// +kubebuilder:validation:Minimum=1
	Epoch int64 `json:"epoch"`
	// progress of the stage it is in.
	// +optional
	Progress Progress `json:"progress,omitzero"`
	// memory of its engine.
	// +optional
	Memory EngineMemory `json:"memory,omitzero"`
	// activity of its engine; absent while none runs or it has not said.
	// +optional
	Activity *EngineActivity `json:"activity,omitempty"`
	// freed is its last reclaim, and freedBytesTotal over all loads.
	// +optional
	Freed Freed `json:"freed,omitzero"`
	// restarts of its engine.
	// +optional
	Restarts int32 `json:"restarts,omitempty"`
	// lastFailure is what the last of the restarts was for; it stays when the engine serves again.
	// +optional
	LastFailure *EngineFailure `json:"lastFailure,omitempty"`
	// canary is the token that its engine generated before it took requests.
	// +optional
	Canary *Canary `json:"canary,omitempty"`
	// pid of its engine, for a person at that Mac.
	// +optional
	PID int64 `json:"pid,omitempty"`
	// conditions: Downloaded, Admitted, Loaded, Serving, Released.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=8
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// EngineActivity is what an engine works on, as it says itself.
type EngineActivity struct {
	// running requests.
	// +required
	// +kubebuilder:validation:Minimum=0
	Running int64 `json:"running"`
	// queued requests wait inside the engine.
	// +required
	// +kubebuilder:validation:Minimum=0
	Queued int64 `json:"queued"`
	// promptTokensTotal that it was given since it started.
	// +optional
	// +kubebuilder:validation:Minimum=0
	PromptTokensTotal int64 `json:"promptTokensTotal,omitempty"`
	// generatedTokensTotal since it started.
	// +optional
	// +kubebuilder:validation:Minimum=0
	GeneratedTokensTotal int64 `json:"generatedTokensTotal,omitempty"`
	// cacheBytes of memory hold what it computed of earlier prompts.
	// +optional
	// +kubebuilder:validation:Minimum=0
	CacheBytes int64 `json:"cacheBytes,omitempty"`
}

// EngineFailure is how a load failed, or an engine ended by itself.
type EngineFailure struct {
	// reason as a condition has it: CanaryFailed, LoadFailed, EngineCrashed, OverLimit and others.
	// +kubebuilder:validation:MaxLength=64
	// +required
	Reason string `json:"reason"`
	// message for people.
	// +kubebuilder:validation:MaxLength=1024
	// +required
	Message string `json:"message"`
	// time at which the Mac saw it.
	// +required
	Time metav1.Time `json:"time"`
}

// InspectionState is how far an inspection got.
// +kubebuilder:validation:Enum=Running;Resolved;Failed
type InspectionState string

// The states of an inspection.
const (
	InspectionRunning  InspectionState = "Running"
	InspectionResolved InspectionState = "Resolved"
	InspectionFailed   InspectionState = "Failed"
)

// InspectionStatus is what a Mac found behind a source.
type InspectionStatus struct {
	// id of the inspection.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	ID string `json:"id"`
	// state of it.
	// +required
	State InspectionState `json:"state"`
	// reason of a failure: SourceNotFound, DigestMismatch, InvalidModel, UnsupportedModel, SourceForbidden, SourceUnreachable.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Reason string `json:"reason,omitempty"`
	// message says it in a sentence.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
	// model found there.
	// +optional
	Model *model.Record `json:"model,omitempty"`
}

// ReclaimReason is why an engine went.
// +kubebuilder:validation:Enum=Drained;Crashed;LoadFailed;Replaced;Unassigned;Idle;MadeRoom;Headroom;SoftPressure;HardPressure;Emergency;OverLimit;LoadCancelled
type ReclaimReason string

const (
	// ReclaimDrained: the operator ordered it.
	ReclaimDrained ReclaimReason = "Drained"
	// ReclaimCrashed: the process ended by itself or was killed by others.
	ReclaimCrashed ReclaimReason = "Crashed"
	// ReclaimLoadFailed: the model could not be loaded.
	ReclaimLoadFailed ReclaimReason = "LoadFailed"
	// ReclaimReplaced: its configuration is no longer the wanted one.
	ReclaimReplaced ReclaimReason = "Replaced"
	// ReclaimUnassigned: no assignment wants it (a Mac that came back).
	ReclaimUnassigned ReclaimReason = "Unassigned"
	// ReclaimIdle: OnDemand, and no request came for its idle time.
	ReclaimIdle ReclaimReason = "Idle"
	// ReclaimMadeRoom: OnDemand, and another model was to be loaded.
	ReclaimMadeRoom ReclaimReason = "MadeRoom"
	// ReclaimHeadroom: OnDemand, and a prompt of another engine needed the memory.
	ReclaimHeadroom ReclaimReason = "Headroom"
	// ReclaimSoftPressure: OnDemand and idle, above the soft mark.
	ReclaimSoftPressure ReclaimReason = "SoftPressure"
	// ReclaimHardPressure: above the hard mark.
	ReclaimHardPressure ReclaimReason = "HardPressure"
	// ReclaimEmergency: the worst offender, above what was promised to the system.
	ReclaimEmergency ReclaimReason = "Emergency"
	// ReclaimOverLimit: this one engine was over its own limit.
	ReclaimOverLimit ReclaimReason = "OverLimit"
	// ReclaimLoadCancelled: pressure came while it loaded.
	ReclaimLoadCancelled ReclaimReason = "LoadCancelled"
)

// ExitKind is how the process ended.
// +kubebuilder:validation:Enum=Clean;Terminated;Killed;Crashed;Unknown
type ExitKind string

const (
	// ExitClean: it answered Shutdown and exited with code 0.
	ExitClean ExitKind = "Clean"
	// ExitTerminated: it ended after SIGTERM.
	ExitTerminated ExitKind = "Terminated"
	// ExitKilled: the agent's last rung, SIGKILL.
	ExitKilled ExitKind = "Killed"
	// ExitCrashed: it ended without being asked.
	ExitCrashed ExitKind = "Crashed"
	// ExitUnknown: it ended while no agent looked.
	ExitUnknown ExitKind = "Unknown"
)

// Reclaim is one engine that went, and the bytes that came back.
type Reclaim struct {
	// id is "REPLICA-UID/EPOCH/LOAD".
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	ID string `json:"id"`
	// namespace and name of the replica.
	// +required
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace"`
	// name of the replica.
	// +required
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
	// replicaUID of the replica.
	// +required
	// +kubebuilder:validation:MaxLength=64
	ReplicaUID string `json:"replicaUID"`
	// epoch of the replica.
	// +required
	Epoch int64 `json:"epoch"`
	// load counts the engines started for this epoch, from 1.
	// +required
	Load int64 `json:"load"`
	// reason why it went.
	// +required
	Reason ReclaimReason `json:"reason"`
	// exit is how the process ended.
	// +required
	Exit ExitKind `json:"exit"`
	// freedBytes is the footprint of the process just before its observed
	// exit. Absent when it could not be known; never negative.
	// +optional
	// +kubebuilder:validation:Minimum=0
	FreedBytes *int64 `json:"freedBytes,omitempty"`
	// hostCheck says whether the host's memory confirmed it.
	// +required
	HostCheck HostCheck `json:"hostCheck"`
	// durationMilliseconds from the order to the observed exit.
	// +optional
	// +kubebuilder:validation:Minimum=0
	DurationMilliseconds int64 `json:"durationMilliseconds,omitempty"`
	// time of the observed exit.
	// +required
	Time metav1.MicroTime `json:"time"`
}
