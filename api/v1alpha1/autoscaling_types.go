package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// AutoscalingSpec lets the operator choose the number of replicas from the
// number of running and waiting requests.
// +kubebuilder:validation:XValidation:rule="!has(self.minReplicas) || self.minReplicas <= self.maxReplicas",message="autoscaling.minReplicas must not exceed autoscaling.maxReplicas"
// +kubebuilder:validation:XValidation:rule="!has(self.scaleToZeroDelaySeconds) || has(self.minReplicas) && self.minReplicas == 0",message="autoscaling.scaleToZeroDelaySeconds requires autoscaling.minReplicas 0, because the last replica is otherwise never removed"
type AutoscalingSpec struct {
	// minReplicas is the minimum number of replicas. With 0, the last replica
	// is removed after scaleToZeroDelaySeconds without a request; the next
	// request waits at the gateway until a replica is ready again. Default: 1.
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000
	MinReplicas *int32 `json:"minReplicas,omitempty"`
	// maxReplicas is the maximum number of replicas.
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	MaxReplicas int32 `json:"maxReplicas"`
	// targetConcurrency is the target number of requests, running and waiting,
	// for each replica: 12 requests with a target of 4 need 3 replicas.
	// Default: context.maxConcurrentRequests.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100000
	TargetConcurrency int32 `json:"targetConcurrency,omitempty"`
	// maxQueueSeconds is how long, in seconds, a request may wait at a gateway
	// before another replica is added, regardless of how many requests wait.
	// With 0, only the number of requests counts. Default: 15.
	// +optional
	// +kubebuilder:default=15
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=3600
	MaxQueueSeconds *int32 `json:"maxQueueSeconds,omitempty"`
	// scaleUpDelaySeconds is how long, in seconds, demand must be higher before
	// replicas are added. Scaling up from zero is never delayed. Default: 0.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=3600
	ScaleUpDelaySeconds int32 `json:"scaleUpDelaySeconds,omitempty"`
	// scaleDownDelaySeconds is how long, in seconds, demand must be lower, with
	// reports from every gateway, before replicas are removed. Default: 300.
	// +optional
	// +kubebuilder:default=300
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=86400
	ScaleDownDelaySeconds *int32 `json:"scaleDownDelaySeconds,omitempty"`
	// scaleToZeroDelaySeconds is how long, in seconds, a deployment must be
	// without requests before its last replica is removed. It is allowed only
	// when minReplicas is 0. Default: 600.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=2592000
	ScaleToZeroDelaySeconds *int32 `json:"scaleToZeroDelaySeconds,omitempty"`
}

// AutoscalingStatus is the most recent decision of the autoscaler, and the
// state that a restarted operator continues from.
type AutoscalingStatus struct {
	// desiredReplicas is the number of replicas that the autoscaler has chosen.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=2147483647
	DesiredReplicas int32 `json:"desiredReplicas"`
	// recommendedReplicas is the number of replicas that demand alone requires,
	// before delays, limits and available memory are applied.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=2147483647
	RecommendedReplicas int32 `json:"recommendedReplicas"`
	// reason is the reason for desiredReplicas, in CamelCase, for example
	// Demand.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Reason string `json:"reason,omitempty"`
	// message explains the reason.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
	// removable lists the UIDs of the replicas that were idle when the
	// autoscaler scaled down. Only these are removed, so that no busy replica
	// is stopped.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=1000
	// +kubebuilder:validation:items:MaxLength=64
	Removable []string `json:"removable,omitempty"`
	// lastScaleTime is when desiredReplicas last changed.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self.getFullYear() >= 0 && self.getFullYear() < 9999",message="lastScaleTime must be a time such as 2026-01-31T12:00:00Z"
	LastScaleTime *metav1.Time `json:"lastScaleTime,omitempty"`
	// lowSince is when fewer replicas became sufficient, moved forward by the
	// time during which not every gateway reported.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self.getFullYear() >= 0 && self.getFullYear() < 9999",message="lowSince must be a time such as 2026-01-31T12:00:00Z"
	LowSince *metav1.Time `json:"lowSince,omitempty"`
	// lowReplicas is the highest number of replicas that demand has required
	// since lowSince.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=2147483647
	LowReplicas int32 `json:"lowReplicas,omitempty"`
	// idleSince is when the deployment became idle (no request runs or waits),
	// moved forward by the time during which not every gateway reported.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self.getFullYear() >= 0 && self.getFullYear() < 9999",message="idleSince must be a time such as 2026-01-31T12:00:00Z"
	IdleSince *metav1.Time `json:"idleSince,omitempty"`
	// observedTime is when the figures for lowSince and idleSince were last
	// observed. It is updated every 30 s while one of them is set.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self.getFullYear() >= 0 && self.getFullYear() < 9999",message="observedTime must be a time such as 2026-01-31T12:00:00Z"
	ObservedTime *metav1.Time `json:"observedTime,omitempty"`
	// startSeconds is how long, in seconds, the most recent start of a replica
	// took, without its download. Requests that wait for the first replica
	// receive it as an estimate.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=2147483647
	StartSeconds int32 `json:"startSeconds,omitempty"`
}
