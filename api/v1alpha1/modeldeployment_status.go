package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ModelDeploymentStatus is the most recently observed state of a deployment.
type ModelDeploymentStatus struct {
	// observedGeneration is the generation of the spec that this status
	// describes. It is -1 until the operator has evaluated the deployment.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// replicas is the number of replicas that are not being deleted.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=2147483647
	Replicas int32 `json:"replicas,omitempty"`
	// readyReplicas is the number of replicas that accept requests.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=2147483647
	ReadyReplicas int32 `json:"readyReplicas,omitempty"`
	// loadedReplicas is the number of replicas whose model is in memory. An
	// OnDemand replica can be ready without being loaded.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=2147483647
	LoadedReplicas int32 `json:"loadedReplicas"`
	// availableReplicas is the number of ready replicas whose engine has
	// generated a test token.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=2147483647
	AvailableReplicas int32 `json:"availableReplicas"`
	// updatedReplicas is the number of replicas of updateRevision.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=2147483647
	UpdatedReplicas int32 `json:"updatedReplicas"`
	// updatedAvailableReplicas is the number of available replicas of
	// updateRevision.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=2147483647
	UpdatedAvailableReplicas int32 `json:"updatedAvailableReplicas,omitempty"`
	// prefetchedMacs is the number of Macs that have the weights. It is counted
	// while spec.prefetch is set, for those of updateRevision, with and without a
	// replica.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=2147483647
	PrefetchedMacs int32 `json:"prefetchedMacs,omitempty"`
	// selector is the label selector of the replicas, for the scale
	// subresource.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	Selector string `json:"selector,omitempty"`
	// autoscaling is the most recent decision of the autoscaler. It is absent
	// when spec.autoscaling is not set.
	// +optional
	Autoscaling *AutoscalingStatus `json:"autoscaling,omitempty"`
	// currentRevision is the name of the ControllerRevision that last
	// served with all replicas that fit. A failed rollout falls back to it.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	CurrentRevision string `json:"currentRevision,omitempty"`
	// updateRevision is the name of the ControllerRevision of the current spec.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	UpdateRevision string `json:"updateRevision,omitempty"`
	// rollout is the progress of the rollout from currentRevision to
	// updateRevision.
	// +optional
	Rollout RolloutStatus `json:"rollout,omitzero"`
	// modelSource is the URL of the source that spec.model states.
	// +optional
	// +kubebuilder:validation:MaxLength=1536
	ModelSource string `json:"modelSource,omitempty"`
	// secretUID is the UID of the Secret that spec.model.secretRef names.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	SecretUID string `json:"secretUID,omitempty"`
	// context holds the limits that updateRevision uses, with the defaults of
	// the model.
	// +optional
	Context *ContextLimits `json:"context,omitempty"`
	// modelDigest is the digest of the weights of updateRevision.
	// +optional
	// +kubebuilder:validation:MaxLength=71
	ModelDigest string `json:"modelDigest,omitempty"`
	// servedNames are the names that this deployment owns, the last one
	// NAMESPACE/NAME.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=153
	// +kubebuilder:validation:items:MaxLength=384
	ServedNames []string `json:"servedNames,omitempty"`
	// adapters are the names of adapters that servedNames select. Such a name is
	// NAME:ADAPTER.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=63
	Adapters []string `json:"adapters,omitempty"`
	// url is the base URL of the API in the cluster, for example
	// http://metalfleet-gateway.metalfleet-system.svc/v1. Requests name one of
	// servedNames as their model.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	URL string `json:"url,omitempty"`
	// publicURL is the base URL outside of the cluster, for example
	// https://models.example.com/v1. It is absent unless the gateways are
	// published.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	PublicURL string `json:"publicURL,omitempty"`
	// features are what the model of updateRevision can do, as its files state it.
	// Valid values are:
	// - Generate: completions.
	// - Chat: chats.
	// - Tools: tool calls in chats. Absent with spec.chatTemplate.
	// - Embeddings: embedding vectors.
	// - Rerank: scores of documents.
	// - Vision: images in chats.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=8
	Features []Feature `json:"features,omitempty"`
	// reservedBytesPerReplica is the memory reserved for each replica, in
	// bytes: an estimate from the headers of the model's files.
	// +optional
	ReservedBytesPerReplica int64 `json:"reservedBytesPerReplica,omitempty"`
	// footprintBytes is the sum of the measured memory footprints of all
	// engines, in bytes.
	// +optional
	FootprintBytes int64 `json:"footprintBytes,omitempty"`
	// freedBytesTotal is the measured memory, in bytes, that existing and deleted
	// replicas have freed.
	// +optional
	FreedBytesTotal int64 `json:"freedBytesTotal,omitempty"`
	// retiredFreedBytes is the part of freedBytesTotal, in bytes, of deleted
	// replicas and those in accounted.
	// +optional
	RetiredFreedBytes int64 `json:"retiredFreedBytes,omitempty"`
	// accounted lists the UIDs of released replicas that retiredFreedBytes
	// includes. An entry is removed when its replica is deleted.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=2048
	// +kubebuilder:validation:items:MaxLength=64
	Accounted []string `json:"accounted,omitempty"`
	// summary holds rounded figures for display.
	// +optional
	Summary DeploymentSummary `json:"summary,omitzero"`
	// conditions are the conditions of the deployment: Ready, Available,
	// Reconciling, Stalled, Accepted, Fits, Placed, Downloaded, Progressing,
	// Degraded and, where the spec asks for it, Routed and Prefetched.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:XValidation:rule="self.lastTransitionTime.getFullYear() >= 0 && self.lastTransitionTime.getFullYear() < 9999",message="lastTransitionTime must be a time such as 2026-01-31T12:00:00Z"
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// DeploymentSummary holds rounded figures for kubectl get.
type DeploymentSummary struct {
	// ready is the number of ready and desired replicas, in the form
	// READY/DESIRED.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	Ready string `json:"ready,omitempty"`
	// memory is the measured memory footprint of all engines.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	Memory string `json:"memory,omitempty"`
	// freed is the memory measured as freed so far.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	Freed string `json:"freed,omitempty"`
}
