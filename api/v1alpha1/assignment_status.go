package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"metalfleet.dev/metalfleet/api/model"
)

// AssignmentStatus is the state of one assignment, as the Mac reports it.
type AssignmentStatus struct {
	// replicaUID is the UID of the ModelReplica that is assigned to this Mac.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	ReplicaUID string `json:"replicaUID"`
	// epoch is the epoch of the assignment that this report describes.
	// +required
	// +kubebuilder:validation:Minimum=1
	Epoch int64 `json:"epoch"`
	// progress is the current stage of the assignment and its progress.
	// +optional
	Progress Progress `json:"progress,omitzero"`
	// memory is the memory of the engine that serves the replica.
	// +optional
	Memory EngineMemory `json:"memory,omitzero"`
	// activity is the current work of the engine. It is absent while no engine
	// runs, and until the engine has reported it.
	// +optional
	Activity *EngineActivity `json:"activity,omitempty"`
	// freed is the memory that the last unload freed, and the total over all
	// loads.
	// +optional
	Freed Freed `json:"freed,omitzero"`
	// restarts is the number of times that the engine was restarted.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=2147483647
	Restarts int32 `json:"restarts,omitempty"`
	// lastFailure is the failure that caused the most recent restart. It stays
	// after the engine serves again.
	// +optional
	LastFailure *EngineFailure `json:"lastFailure,omitempty"`
	// canary is the test token that the engine generated before it accepted
	// requests.
	// +optional
	Canary *Canary `json:"canary,omitempty"`
	// pid is the process ID of the engine, for debugging on that Mac.
	// +optional
	PID int64 `json:"pid,omitempty"`
	// conditions are the conditions of the assignment: Downloaded, Admitted,
	// Loaded, Serving and Released.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:XValidation:rule="self.lastTransitionTime.getFullYear() >= 0 && self.lastTransitionTime.getFullYear() < 9999",message="lastTransitionTime must be a time such as 2026-01-31T12:00:00Z"
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// EngineActivity is the current work of an engine, as the engine reports it.
type EngineActivity struct {
	// running is the number of requests that the engine is computing.
	// +required
	// +kubebuilder:validation:Minimum=0
	Running int64 `json:"running"`
	// queued is the number of requests that wait inside the engine.
	// +required
	// +kubebuilder:validation:Minimum=0
	Queued int64 `json:"queued"`
	// promptTokensTotal is the number of prompt tokens that the engine has
	// received since it started.
	// +optional
	// +kubebuilder:validation:Minimum=0
	PromptTokensTotal int64 `json:"promptTokensTotal,omitempty"`
	// generatedTokensTotal is the number of tokens that the engine has
	// generated since it started.
	// +optional
	// +kubebuilder:validation:Minimum=0
	GeneratedTokensTotal int64 `json:"generatedTokensTotal,omitempty"`
	// cacheBytes is the memory, in bytes, that the engine's prefix cache uses.
	// +optional
	// +kubebuilder:validation:Minimum=0
	CacheBytes int64 `json:"cacheBytes,omitempty"`
}

// EngineFailure describes a failed load or an unexpected exit of an engine.
type EngineFailure struct {
	// reason is the reason in CamelCase, as in a condition, for example
	// CanaryFailed, LoadFailed, EngineCrashed or OverLimit.
	// +kubebuilder:validation:MaxLength=64
	// +required
	Reason string `json:"reason"`
	// message describes the failure.
	// +kubebuilder:validation:MaxLength=1024
	// +required
	Message string `json:"message"`
	// time is when the Mac observed the failure.
	// +required
	// +kubebuilder:validation:XValidation:rule="self.getFullYear() >= 0 && self.getFullYear() < 9999",message="time must be a time such as 2026-01-31T12:00:00Z"
	Time metav1.Time `json:"time"`
}

// InspectionState is the state of an inspection.
// +kubebuilder:validation:Enum=Running;Resolved;Failed
type InspectionState string

// The states of an inspection.
const (
	InspectionRunning  InspectionState = "Running"
	InspectionResolved InspectionState = "Resolved"
	InspectionFailed   InspectionState = "Failed"
)

// InspectionStatus is the result of inspecting a model source on a Mac.
type InspectionStatus struct {
	// id is the id of the inspection in the MacAssignment.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	ID string `json:"id"`
	// source is the model source of the inspection.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Source string `json:"source,omitempty"`
	// state is the state of the inspection. Valid values are:
	// - Running: the Mac is inspecting the source.
	// - Resolved: the inspection succeeded; model holds the result.
	// - Failed: the inspection failed; reason and message explain why.
	// +required
	State InspectionState `json:"state"`
	// reason is why the inspection failed: SourceNotFound, DigestMismatch,
	// InvalidModel, UnsupportedModel, SourceForbidden or SourceUnreachable.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Reason string `json:"reason,omitempty"`
	// message describes the failure and names the next step.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
	// model is the model that the Mac found at the source.
	// +optional
	Model *model.Record `json:"model,omitempty"`
}

// ReclaimReason is why an engine was stopped, or why it exited.
// +kubebuilder:validation:Enum=Drained;Crashed;LoadFailed;Replaced;Unassigned;Idle;MadeRoom;Headroom;SoftPressure;HardPressure;Emergency;OverLimit;LoadCancelled
type ReclaimReason string

const (
	// ReclaimDrained: the operator drained the replica.
	ReclaimDrained ReclaimReason = "Drained"
	// ReclaimCrashed: the process exited unexpectedly or was killed from
	// outside.
	ReclaimCrashed ReclaimReason = "Crashed"
	// ReclaimLoadFailed: the engine could not load the model.
	ReclaimLoadFailed ReclaimReason = "LoadFailed"
	// ReclaimReplaced: the engine's configuration changed.
	ReclaimReplaced ReclaimReason = "Replaced"
	// ReclaimUnassigned: the replica is no longer assigned to this Mac, for
	// example after the Mac was offline.
	ReclaimUnassigned ReclaimReason = "Unassigned"
	// ReclaimIdle: an OnDemand engine received no request for idleSeconds.
	ReclaimIdle ReclaimReason = "Idle"
	// ReclaimMadeRoom: an OnDemand engine was unloaded to make room for another
	// model.
	ReclaimMadeRoom ReclaimReason = "MadeRoom"
	// ReclaimHeadroom: an OnDemand engine was unloaded because a prompt in
	// another engine needed the memory.
	ReclaimHeadroom ReclaimReason = "Headroom"
	// ReclaimSoftPressure: an idle OnDemand engine was unloaded because memory
	// use was above the soft threshold.
	ReclaimSoftPressure ReclaimReason = "SoftPressure"
	// ReclaimHardPressure: the engine was unloaded because memory use was above
	// the hard threshold.
	ReclaimHardPressure ReclaimReason = "HardPressure"
	// ReclaimEmergency: the engine was stopped because engines used memory that
	// is reserved for the system, and this engine exceeded its limit the most.
	ReclaimEmergency ReclaimReason = "Emergency"
	// ReclaimOverLimit: the engine exceeded its own memory limit.
	ReclaimOverLimit ReclaimReason = "OverLimit"
	// ReclaimLoadCancelled: the load was cancelled because of memory pressure.
	ReclaimLoadCancelled ReclaimReason = "LoadCancelled"
)

// ExitKind is how an engine process ended.
// +kubebuilder:validation:Enum=Clean;Terminated;Killed;Crashed;Unknown
type ExitKind string

const (
	// ExitClean: the engine exited with code 0 after a Shutdown call.
	ExitClean ExitKind = "Clean"
	// ExitTerminated: the engine exited after SIGTERM.
	ExitTerminated ExitKind = "Terminated"
	// ExitKilled: the agent killed the engine with SIGKILL.
	ExitKilled ExitKind = "Killed"
	// ExitCrashed: the engine exited unexpectedly.
	ExitCrashed ExitKind = "Crashed"
	// ExitUnknown: the engine exited while no agent was running.
	ExitUnknown ExitKind = "Unknown"
)

// Reclaim records one engine that ended and the memory that it freed.
type Reclaim struct {
	// id identifies the record, in the form REPLICA-UID/EPOCH/LOAD.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	ID string `json:"id"`
	// namespace is the namespace of the ModelReplica.
	// +required
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace"`
	// name is the name of the ModelReplica.
	// +required
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
	// replicaUID is the UID of the ModelReplica.
	// +required
	// +kubebuilder:validation:MaxLength=64
	ReplicaUID string `json:"replicaUID"`
	// epoch is the epoch of the ModelReplica.
	// +required
	Epoch int64 `json:"epoch"`
	// load is the number of engines started for this epoch, counted from 1.
	// +required
	Load int64 `json:"load"`
	// reason is why the engine ended. Valid values are:
	// - Drained: the operator drained the replica.
	// - Crashed: the process exited unexpectedly or was killed from outside.
	// - LoadFailed: the engine could not load the model.
	// - Replaced: the engine's configuration changed.
	// - Unassigned: the replica is no longer assigned to this Mac.
	// - Idle: an OnDemand engine received no request for idleSeconds.
	// - MadeRoom: an OnDemand engine was unloaded to make room for another
	//   model.
	// - Headroom: an OnDemand engine was unloaded because a prompt in another
	//   engine needed the memory.
	// - SoftPressure: an idle OnDemand engine was unloaded because memory use
	//   was above the soft threshold.
	// - HardPressure: memory use was above the hard threshold.
	// - Emergency: engines used memory that is reserved for the system.
	// - OverLimit: the engine exceeded its own memory limit.
	// - LoadCancelled: the load was cancelled because of memory pressure.
	// +required
	Reason ReclaimReason `json:"reason"`
	// exit is how the engine process ended. Valid values are:
	// - Clean: it exited with code 0 after a Shutdown call.
	// - Terminated: it exited after SIGTERM.
	// - Killed: the agent killed it with SIGKILL.
	// - Crashed: it exited unexpectedly.
	// - Unknown: it exited while no agent was running.
	// +required
	Exit ExitKind `json:"exit"`
	// freedBytes is the memory footprint of the process, in bytes, measured
	// just before its exit was observed. It is absent when it could not be
	// measured, and never negative.
	// +optional
	// +kubebuilder:validation:Minimum=0
	FreedBytes *int64 `json:"freedBytes,omitempty"`
	// hostCheck reports whether the Mac's memory figures confirm that the
	// memory was freed. Valid values are:
	// - Verified: the Mac's used memory fell by the footprint of the process.
	// - Indeterminate: the change cannot be attributed, because other engines
	//   were active or the Mac is gone. freedBytes is still exact.
	// - Stranded: memory stays in use that no process owns.
	// +required
	HostCheck HostCheck `json:"hostCheck"`
	// durationMilliseconds is the time, in milliseconds, from the order to stop
	// to the observed exit.
	// +optional
	// +kubebuilder:validation:Minimum=0
	DurationMilliseconds int64 `json:"durationMilliseconds,omitempty"`
	// time is when the exit was observed.
	// +required
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern=`[.][0-9]{6}(Z|[+-][0-9:]{5})$`
	// +kubebuilder:validation:XValidation:rule="self.getFullYear() >= 0 && self.getFullYear() < 9999",message="time must be a time such as 2026-01-31T12:00:00.000000Z"
	Time metav1.MicroTime `json:"time"`
}
