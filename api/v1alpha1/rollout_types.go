package v1alpha1

import (
	"math"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// InsufficientMemoryPolicy selects what a rollout does when no Mac has room for
// a new replica alongside the old ones.
// +kubebuilder:validation:Enum=Swap;Wait
type InsufficientMemoryPolicy string

const (
	// InsufficientMemorySwap drains one replica of the old revision to make
	// room for one of the new; requests wait at the gateway meanwhile.
	InsufficientMemorySwap InsufficientMemoryPolicy = "Swap"
	// InsufficientMemoryWait keeps the old replicas until there is room.
	InsufficientMemoryWait InsufficientMemoryPolicy = "Wait"
)

// RolloutSpec controls how a new revision replaces the current one.
// +kubebuilder:validation:XValidation:rule="!(has(self.maxSurge) && (self.maxSurge == 0 || self.maxSurge == '0%') && (!has(self.maxUnavailable) || self.maxUnavailable == 0 || self.maxUnavailable == '0%'))",message="maxSurge and maxUnavailable must not both be zero, because no replica could be replaced"
type RolloutSpec struct {
	// maxSurge is the maximum number of replicas above the desired number
	// during a rollout: a number, or a percentage of replicas such as "25%",
	// rounded up. Default: 1.
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:XValidation:rule="type(self) == string ? self.matches('^[0-9]{1,4}%$') && int(self.replace('%', '')) <= 1000 : self >= 0 && self <= 1000",message="maxSurge must be a number from 0 to 1000, or a percentage from 0% to 1000%"
	// +kubebuilder:validation:MaxLength=32
	MaxSurge *intstr.IntOrString `json:"maxSurge,omitempty"`
	// maxUnavailable is the maximum number of replicas that may be unavailable
	// during a rollout: a number, or a percentage of replicas such as "25%",
	// rounded down. When both maxSurge and maxUnavailable round to 0,
	// maxUnavailable is 1. Default: 0.
	// +optional
	// +kubebuilder:default=0
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:XValidation:rule="type(self) == string ? self.matches('^[0-9]{1,3}%$') && int(self.replace('%', '')) <= 100 : self >= 0 && self <= 1000",message="maxUnavailable must be a number from 0 to 1000, or a percentage from 0% to 100%"
	// +kubebuilder:validation:MaxLength=32
	MaxUnavailable *intstr.IntOrString `json:"maxUnavailable,omitempty"`
	// onInsufficientMemory selects what happens when no Mac has room for a new
	// replica alongside the old ones. Default: Swap. Valid values are:
	// - Swap: a Mac that serves an old replica downloads the new weights, if
	//   its disk has space for both. Then the old replica drains and the new
	//   one takes its place, one replica at a time, even if that exceeds
	//   maxUnavailable. Requests wait at the gateway meanwhile.
	// - Wait: the old replicas serve until there is room.
	// +optional
	// +kubebuilder:default=Swap
	OnInsufficientMemory InsufficientMemoryPolicy `json:"onInsufficientMemory,omitempty"`
	// drainSeconds is how long running requests may continue, in seconds, after
	// a replica starts to drain; at most 600 if preempted. Default: 600.
	// +optional
	// +kubebuilder:default=600
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=86400
	DrainSeconds *int32 `json:"drainSeconds,omitempty"`
	// progressDeadlineSeconds is how long, in seconds, a rollout may go without
	// progress (no replica becomes ready, nothing is downloaded or loaded)
	// before it is halted. Default: 600.
	// +optional
	// +kubebuilder:default=600
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=604800
	ProgressDeadlineSeconds *int32 `json:"progressDeadlineSeconds,omitempty"`
	// paused stops the rollout: no replica is replaced. Missing replicas are
	// created from the revision that serves, and changes of replicas still
	// apply. Default: false.
	// +optional
	Paused bool `json:"paused,omitempty"`
	// retryGeneration retries a halted revision: increase it to try the
	// revision again. Default: 0.
	// +optional
	// +kubebuilder:validation:Minimum=0
	RetryGeneration int64 `json:"retryGeneration,omitempty"`
	// restartedAt replaces all replicas by a rollout when it changes, also if
	// nothing else does. `kubectl metalfleet rollout restart` sets it to the
	// current time. By default, nothing is restarted.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self.getFullYear() >= 0 && self.getFullYear() < 9999",message="restartedAt must be a time such as 2026-01-31T12:00:00Z"
	RestartedAt *metav1.Time `json:"restartedAt,omitempty"`
}

// Defaults of RolloutSpec.
const (
	DefaultDrainSeconds            = 600
	DefaultProgressDeadlineSeconds = 600
	DefaultRevisionHistoryLimit    = 10
)

// Bounds resolves maxSurge and maxUnavailable for the desired number of
// replicas, like a Kubernetes Deployment. An invalid value counts as its
// default, and when both resolve to 0, one replica may be unavailable.
func (r RolloutSpec) Bounds(wanted int) (surge, unavailable int) {
	surge = share(r.MaxSurge, wanted, 1, math.Ceil)
	unavailable = share(r.MaxUnavailable, wanted, 0, math.Floor)
	if surge == 0 && unavailable == 0 {
		unavailable = 1
	}
	return surge, unavailable
}

func share(v *intstr.IntOrString, of, otherwise int, round func(float64) float64) int {
	if v == nil {
		return otherwise
	}
	if v.Type == intstr.Int {
		return max(0, int(v.IntVal))
	}
	percent, err := strconv.Atoi(strings.TrimSuffix(v.StrVal, "%"))
	if err != nil || percent < 0 || !strings.HasSuffix(v.StrVal, "%") {
		return otherwise
	}
	return int(round(float64(percent) * float64(of) / 100))
}

// RolloutState is the state of a rollout.
// +kubebuilder:validation:Enum=Complete;Pending;Starting;Surging;Replacing;Prefetching;Swapping;Waiting;Paused;Halted
type RolloutState string

const (
	// RolloutComplete: all desired replicas belong to updateRevision and are
	// ready.
	RolloutComplete RolloutState = "Complete"
	// RolloutPending: the current spec is not accepted yet, and the previous
	// one stays in effect. The condition Accepted explains why.
	RolloutPending RolloutState = "Pending"
	// RolloutStarting: all replicas belong to updateRevision, and some do not
	// serve yet.
	RolloutStarting RolloutState = "Starting"
	// RolloutSurging: new replicas start alongside the old ones.
	RolloutSurging RolloutState = ReasonSurging
	// RolloutReplacing: old replicas are removed before new ones start, within
	// maxUnavailable.
	RolloutReplacing RolloutState = ReasonReplacing
	// RolloutPrefetching: there is no room alongside the old replicas; a Mac
	// downloads the new weights before its old replica drains.
	RolloutPrefetching RolloutState = ReasonPrefetching
	// RolloutSwapping: there is no room alongside the old replicas; they are
	// drained one at a time, and requests wait at the gateway meanwhile.
	RolloutSwapping RolloutState = ReasonSwapping
	// RolloutWaiting: there is no room, and onInsufficientMemory is Wait.
	RolloutWaiting RolloutState = ReasonWaiting
	// RolloutPaused: spec.rollout.paused is true.
	RolloutPaused RolloutState = ReasonPaused
	// RolloutHalted: the new revision failed repeatedly; the previous one
	// serves.
	RolloutHalted RolloutState = ReasonHalted
)

// Replaces reports whether a rollout from one revision to another is in
// progress, waiting, paused or halted.
func (s RolloutState) Replaces() bool {
	switch s {
	case RolloutSurging, RolloutReplacing, RolloutPrefetching, RolloutSwapping, RolloutWaiting, RolloutPaused, RolloutHalted:
		return true
	}
	return false
}

// RolloutStatus is the progress of a rollout.
type RolloutStatus struct {
	// state is the state of the rollout. Valid values are:
	// - Complete: all desired replicas belong to updateRevision and are ready.
	// - Pending: the current spec is not accepted yet; see the condition
	//   Accepted.
	// - Starting: all replicas belong to updateRevision, and some do not serve
	//   yet.
	// - Surging: new replicas start alongside the old ones.
	// - Replacing: old replicas are removed before new ones start, within
	//   maxUnavailable.
	// - Prefetching: there is no room alongside the old replicas; a Mac
	//   downloads the new weights before its old replica drains.
	// - Swapping: there is no room alongside the old replicas; they are drained
	//   one at a time.
	// - Waiting: there is no room, and onInsufficientMemory is Wait.
	// - Paused: spec.rollout.paused is true.
	// - Halted: the new revision failed repeatedly; the previous one serves.
	// +optional
	State RolloutState `json:"state,omitempty"`
	// startTime is when the rollout to updateRevision started.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self.getFullYear() >= 0 && self.getFullYear() < 9999",message="startTime must be a time such as 2026-01-31T12:00:00Z"
	StartTime *metav1.Time `json:"startTime,omitempty"`
	// progressTime is when the rollout last made progress: placedReplicas,
	// bytesDone or the number of available replicas changed.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self.getFullYear() >= 0 && self.getFullYear() < 9999",message="progressTime must be a time such as 2026-01-31T12:00:00Z"
	ProgressTime *metav1.Time `json:"progressTime,omitempty"`
	// placedReplicas is the number of replicas of updateRevision that have a
	// Mac.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=2147483647
	PlacedReplicas int32 `json:"placedReplicas,omitempty"`
	// bytesDone is the number of bytes that the replicas of updateRevision
	// which are not ready have downloaded or loaded.
	// +optional
	// +kubebuilder:validation:Minimum=0
	BytesDone int64 `json:"bytesDone,omitempty"`
	// etaSeconds is the estimated time to the end of the rollout, in seconds.
	// It is absent when it is unknown.
	// +optional
	// +kubebuilder:validation:Minimum=0
	ETASeconds *int64 `json:"etaSeconds,omitempty"`
	// halt explains why the rollout to updateRevision was halted. It is absent
	// while the rollout is not halted.
	// +optional
	Halt *RolloutHalt `json:"halt,omitempty"`
}

// RolloutHalt describes why a rollout was halted.
type RolloutHalt struct {
	// revision is the name of the ControllerRevision that failed.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Revision string `json:"revision"`
	// retryGeneration is the value of spec.rollout.retryGeneration when the
	// revision failed.
	// +optional
	RetryGeneration int64 `json:"retryGeneration,omitempty"`
	// reason is the reason for the failure, in CamelCase.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	Reason string `json:"reason"`
	// message describes the failure and names the next step.
	// +optional
	// +kubebuilder:validation:MaxLength=2048
	Message string `json:"message,omitempty"`
	// time is when the rollout was halted.
	// +required
	// +kubebuilder:validation:XValidation:rule="self.getFullYear() >= 0 && self.getFullYear() < 9999",message="time must be a time such as 2026-01-31T12:00:00Z"
	Time metav1.Time `json:"time"`
}

// Canary is the test token that an engine must generate before it accepts
// requests.
type Canary struct {
	// time is when the Mac observed the token.
	// +required
	// +kubebuilder:validation:XValidation:rule="self.getFullYear() >= 0 && self.getFullYear() < 9999",message="time must be a time such as 2026-01-31T12:00:00Z"
	Time metav1.Time `json:"time"`
}
