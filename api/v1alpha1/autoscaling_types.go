package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// AutoscalingSpec has the operator choose the number of replicas by what is
// asked of the model.
// +kubebuilder:validation:XValidation:rule="!has(self.minReplicas) || self.minReplicas <= self.maxReplicas",message="autoscaling.minReplicas must not exceed autoscaling.maxReplicas"
// +kubebuilder:validation:XValidation:rule="!has(self.idleSeconds) || has(self.minReplicas) && self.minReplicas == 0",message="autoscaling.idleSeconds needs autoscaling.minReplicas 0: without it the last replica stays"
type AutoscalingSpec struct {
	// minReplicas is the fewest that there are. With 0 the last one goes when
	// nothing was asked for idleSeconds; the next request waits at the gateway
	// until one is there again. Default: 1.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000
	MinReplicas *int32 `json:"minReplicas,omitempty"`
	// maxReplicas is the most that there are.
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	MaxReplicas int32 `json:"maxReplicas"`
	// targetInFlight is how many requests, running and waiting, a replica is
	// wanted for. Default: context.sequences, as many as run at once.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100000
	TargetInFlight int32 `json:"targetInFlight,omitempty"`
	// maxQueueSeconds is how long a request may have waited at a gateway before
	// one more replica is wanted, however few wait; 0 looks at their number
	// alone. Default: 15.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=3600
	MaxQueueSeconds *int32 `json:"maxQueueSeconds,omitempty"`
	// scaleUpDelaySeconds is how long more replicas must have been wanted before
	// there are more. The first one after none never waits. Default: 0.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=3600
	ScaleUpDelaySeconds int32 `json:"scaleUpDelaySeconds,omitempty"`
	// scaleDownDelaySeconds is for how long fewer replicas must have been enough,
	// by the figures of every gateway, before there are fewer. Default: 300.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=86400
	ScaleDownDelaySeconds *int32 `json:"scaleDownDelaySeconds,omitempty"`
	// idleSeconds without any request after which the last replica goes, where
	// minReplicas is 0. Default: 600.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=2592000
	IdleSeconds *int32 `json:"idleSeconds,omitempty"`
}

// AutoscalingStatus is what the autoscaler decided, and what it remembers: an
// operator that starts anew goes on from here.
type AutoscalingStatus struct {
	// desiredReplicas is the number that is wanted.
	// +optional
	// +kubebuilder:validation:Minimum=0
	DesiredReplicas int32 `json:"desiredReplicas"`
	// recommendedReplicas is what the figures alone ask for, before delays, limits
	// and what fits.
	// +optional
	// +kubebuilder:validation:Minimum=0
	RecommendedReplicas int32 `json:"recommendedReplicas"`
	// reason of the number, in one word.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Reason string `json:"reason,omitempty"`
	// message says the same in a sentence.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
	// removable are the UIDs of the replicas that were idle when the number was
	// lowered: these go, and none that is busy.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=1000
	// +kubebuilder:validation:items:MaxLength=64
	Removable []string `json:"removable,omitempty"`
	// lastScaleTime is when the number last changed.
	// +optional
	LastScaleTime *metav1.Time `json:"lastScaleTime,omitempty"`
	// lowSince is since when fewer replicas would have been enough, less the time
	// in which not every gateway was heard.
	// +optional
	LowSince *metav1.Time `json:"lowSince,omitempty"`
	// lowReplicas is the most that was wanted since then.
	// +optional
	// +kubebuilder:validation:Minimum=0
	LowReplicas int32 `json:"lowReplicas,omitempty"`
	// idleSince is since when nothing was asked, less the time in which not every
	// gateway was heard.
	// +optional
	IdleSince *metav1.Time `json:"idleSince,omitempty"`
	// observedTime is until when the figures behind these times were seen; it is
	// written every 30 s while one of them runs.
	// +optional
	ObservedTime *metav1.Time `json:"observedTime,omitempty"`
	// startSeconds is what the last start of a replica took, without its download;
	// those who wait for the first replica are told it.
	// +optional
	// +kubebuilder:validation:Minimum=0
	StartSeconds int32 `json:"startSeconds,omitempty"`
}
