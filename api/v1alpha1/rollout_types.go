package v1alpha1

import (
	"math"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// WithoutRoom is what a rollout does where no Mac has room for a replica of the
// new revision beside the old ones.
// +kubebuilder:validation:Enum=Swap;Wait
type WithoutRoom string

const (
	// WithoutRoomSwap has one replica of the old revision drain for one of the
	// new; requests wait in the gateway meanwhile.
	WithoutRoomSwap WithoutRoom = "Swap"
	// WithoutRoomWait leaves the old ones alone until there is room.
	WithoutRoomWait WithoutRoom = "Wait"
)

// RolloutSpec says how a new revision replaces the old one.
// +kubebuilder:validation:XValidation:rule="!(has(self.maxSurge) && (self.maxSurge == 0 || self.maxSurge == '0%') && (!has(self.maxUnavailable) || self.maxUnavailable == 0 || self.maxUnavailable == '0%'))",message="maxSurge and maxUnavailable cannot both be zero: no replica could ever be replaced"
type RolloutSpec struct {
	// maxSurge is how many replicas above the wanted number may exist during a
	// rollout: a number, or a percentage of replicas such as "25%", rounded up.
	// Default: 1.
	// +optional
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:XValidation:rule="type(self) == string ? self.matches('^[0-9]{1,4}%$') && int(self.replace('%', '')) <= 1000 : self >= 0 && self <= 1000",message="maxSurge must be a number from 0 to 1000, or a percentage from 0% to 1000%"
	MaxSurge *intstr.IntOrString `json:"maxSurge,omitempty"`
	// maxUnavailable is how many replicas below the wanted number may be ready
	// during a rollout: a number, or a percentage of replicas such as "25%",
	// rounded down. Where both round to 0, it is 1. Default: 0.
	// +optional
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:XValidation:rule="type(self) == string ? self.matches('^[0-9]{1,3}%$') && int(self.replace('%', '')) <= 100 : self >= 0 && self <= 1000",message="maxUnavailable must be a number from 0 to 1000, or a percentage from 0% to 100%"
	MaxUnavailable *intstr.IntOrString `json:"maxUnavailable,omitempty"`
	// withoutRoom says what happens where no Mac has room for a replica of the new
	// revision beside the old ones. Swap: the weights are fetched where one of the
	// old serves, if the disk takes both; then that one drains, unloads, and the
	// new one takes its room, one after the other, below maxUnavailable if it must
	// be; requests wait in the gateway meanwhile. Wait: the old ones serve until
	// there is room. Default: Swap.
	// +optional
	WithoutRoom WithoutRoom `json:"withoutRoom,omitempty"`
	// drainSeconds is how long running requests may go on after a replica is
	// told to stop. Default: 600.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=86400
	DrainSeconds *int32 `json:"drainSeconds,omitempty"`
	// progressDeadlineSeconds is how long a rollout may make no progress (no
	// replica becomes ready, no byte is fetched or loaded) before it is halted.
	// Default: 600.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=604800
	ProgressDeadlineSeconds *int32 `json:"progressDeadlineSeconds,omitempty"`
	// paused: nothing is replaced. Replicas that are missing are made of the
	// revision that serves, and the number of them still follows replicas.
	// +optional
	Paused bool `json:"paused,omitempty"`
	// attempt: raising it tries a revision again that was halted.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Attempt int64 `json:"attempt,omitempty"`
}

// Defaults of RolloutSpec.
const (
	DefaultDrainSeconds            = 600
	DefaultProgressDeadlineSeconds = 600
	DefaultRevisionHistoryLimit    = 10
)

// Bounds are maxSurge and maxUnavailable for so many wanted replicas, as a
// Deployment of Kubernetes resolves them: what cannot be read counts as its
// default, and where both come to nothing, one may be unavailable.
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

// RolloutState is what a rollout is doing.
// +kubebuilder:validation:Enum=Complete;Pending;Starting;Surging;Replacing;Prefetching;Swapping;Waiting;Paused;Halted
type RolloutState string

const (
	// RolloutComplete: every wanted replica is of the wanted revision and ready.
	RolloutComplete RolloutState = "Complete"
	// RolloutPending: what the spec names is not accepted yet, and what was
	// accepted before goes on; the condition Accepted says why.
	RolloutPending RolloutState = "Pending"
	// RolloutStarting: all replicas are of the wanted revision, and not all of
	// them serve yet.
	RolloutStarting RolloutState = "Starting"
	// RolloutSurging: new replicas come up beside the old ones.
	RolloutSurging RolloutState = ReasonSurging
	// RolloutReplacing: old ones go before new ones come, within maxUnavailable.
	RolloutReplacing RolloutState = ReasonReplacing
	// RolloutPrefetching: there is no room beside the old ones, and the weights
	// are fetched before one of them gives its own.
	RolloutPrefetching RolloutState = ReasonPrefetching
	// RolloutSwapping: there is no room beside the old ones; one after the other
	// gives its own, and requests wait in the gateway meanwhile.
	RolloutSwapping RolloutState = ReasonSwapping
	// RolloutWaiting: there is no room, and withoutRoom says to wait for it.
	RolloutWaiting RolloutState = ReasonWaiting
	// RolloutPaused: spec.rollout.paused.
	RolloutPaused RolloutState = ReasonPaused
	// RolloutHalted: the revision failed too often; the one before serves on.
	RolloutHalted RolloutState = ReasonHalted
)

// Replaces says that replicas of one revision are to replace those of another,
// whether that goes on, waits or was stopped.
func (s RolloutState) Replaces() bool {
	switch s {
	case RolloutSurging, RolloutReplacing, RolloutPrefetching, RolloutSwapping, RolloutWaiting, RolloutPaused, RolloutHalted:
		return true
	}
	return false
}

// RolloutStatus is how far a rollout is.
type RolloutStatus struct {
	// state of the rollout.
	// +optional
	State RolloutState `json:"state,omitempty"`
	// startTime of the rollout to updateRevision.
	// +optional
	StartTime *metav1.Time `json:"startTime,omitempty"`
	// progressTime is when the figures below, or the number of available
	// replicas, moved last.
	// +optional
	ProgressTime *metav1.Time `json:"progressTime,omitempty"`
	// placedReplicas of updateRevision have a Mac.
	// +optional
	// +kubebuilder:validation:Minimum=0
	PlacedReplicas int32 `json:"placedReplicas,omitempty"`
	// bytesDone of what replicas of updateRevision that are not ready fetch or load.
	// +optional
	// +kubebuilder:validation:Minimum=0
	BytesDone int64 `json:"bytesDone,omitempty"`
	// etaSeconds to its end, an estimate from the pace so far; absent when unknown.
	// +optional
	// +kubebuilder:validation:Minimum=0
	ETASeconds *int64 `json:"etaSeconds,omitempty"`
	// halt says why updateRevision is not rolled out further.
	// +optional
	Halt *RolloutHalt `json:"halt,omitempty"`
}

// RolloutHalt is a revision that failed too often.
type RolloutHalt struct {
	// revision that failed.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Revision string `json:"revision"`
	// attempt of spec.rollout at which it did.
	// +optional
	Attempt int64 `json:"attempt,omitempty"`
	// reason of the failure.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	Reason string `json:"reason"`
	// message for people.
	// +optional
	// +kubebuilder:validation:MaxLength=2048
	Message string `json:"message,omitempty"`
	// time of the halt.
	// +required
	Time metav1.Time `json:"time"`
}

// Canary is the token that an engine generated before it took requests: no engine
// says that it is ready without.
type Canary struct {
	// time at which the Mac knew of it.
	// +required
	Time metav1.Time `json:"time"`
}
