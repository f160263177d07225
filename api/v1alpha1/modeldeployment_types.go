package v1alpha1

import (
	"slices"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"metalfleet.dev/metalfleet/api/model"
)

// ModelDeployment serves a model with a number of replicas, each on a Mac that
// has reserved memory for it.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:shortName=mdep,categories=metalfleet
// +kubebuilder:subresource:status
// +kubebuilder:subresource:scale:specpath=.spec.replicas,statuspath=.status.replicas,selectorpath=.status.selector
// +kubebuilder:printcolumn:name="Model",type=string,JSONPath=`.status.modelSource`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.summary.ready`,description="number of ready and desired replicas"
// +kubebuilder:printcolumn:name="Up-to-date",type=integer,JSONPath=`.status.updatedReplicas`,description="number of replicas of the current spec"
// +kubebuilder:printcolumn:name="Available",type=integer,JSONPath=`.status.availableReplicas`,description="number of replicas, of any revision, that accept requests"
// +kubebuilder:printcolumn:name="Loaded",type=integer,JSONPath=`.status.loadedReplicas`,description="number of replicas whose model is in memory",priority=1
// +kubebuilder:printcolumn:name="Status",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Memory",type=string,JSONPath=`.status.summary.memory`,description="measured memory footprint of all engines"
// +kubebuilder:printcolumn:name="Freed",type=string,JSONPath=`.status.summary.freed`,description="memory measured as freed so far"
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 52",message="metadata.name must have at most 52 characters, because replica names are derived from it"
// +kubebuilder:validation:XValidation:rule="!has(self.spec.routing) || !has(self.spec.routing.split) || !self.spec.routing.split.exists(s, s.deployment == self.metadata.name)",message="routing.split must not name this deployment, which receives the remainder; remove the entry"
// +kubebuilder:validation:XValidation:rule="!has(self.spec.routing) || !has(self.spec.routing.fallbacks) || !self.spec.routing.fallbacks.exists(f, f == self.metadata.name)",message="routing.fallbacks must not name this deployment; remove the entry"
type ModelDeployment struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard object metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`
	// spec is the desired state of the deployment.
	// +required
	Spec ModelDeploymentSpec `json:"spec"`
	// status is the most recently observed state of the deployment.
	// +optional
	// +kubebuilder:default={"observedGeneration":-1}
	Status ModelDeploymentStatus `json:"status,omitzero"`
}

// ModelDeploymentSpec is the desired state of a deployment.
// +kubebuilder:validation:XValidation:rule="!has(self.model.source) || !self.model.source.startsWith('https://') || has(self.model.sha256)",message="model.sha256 is required for an https:// source, to verify the download; set it to the SHA-256 of the file in hex"
// +kubebuilder:validation:XValidation:rule="!has(self.adapters) || !self.adapters.exists(a, a.source.startsWith('file://')) || has(self.model.local) || has(self.model.source) && self.model.source.startsWith('file://')",message="an adapter with a file:// source needs a model with one, because only then placement looks for Macs that have the files; publish the adapter on the hub, in a bucket or in a registry"
// +kubebuilder:validation:XValidation:rule="!has(self.adapters) || !has(self.servedNames) || !self.servedNames.exists(n, self.adapters.exists(a, n.endsWith(':' + a.name)))",message="servedNames must not end in :ADAPTER of an adapter, which such a name selects; remove the name, or rename the adapter"
// +kubebuilder:validation:XValidation:rule="!has(self.autoscaling) || !has(self.replicas) || self.replicas == 1 || oldSelf.hasValue() && has(oldSelf.value().replicas) && oldSelf.value().replicas == self.replicas",optionalOldSelf=true,message="replicas and autoscaling are mutually exclusive: remove replicas, or remove autoscaling if you, an HPA or KEDA set the number of replicas"
type ModelDeploymentSpec struct {
	// model is the source of the weights.
	// +required
	Model ModelSource `json:"model"`
	// profileName is the name of a ModelProfile, which fills fields that this spec
	// leaves out. These are context, sampling, chatTemplate and prefixCache, each
	// field by itself, sharedPrefixes as a whole. A change of the profile creates a
	// new revision. While the profile does not exist, the deployment is not
	// accepted (ProfileNotFound), and its previous revision stays. Default: no
	// profile.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$')",message="profileName must be the name of a ModelProfile: lower-case letters, digits, '-' and '.'; `kubectl get modelprofile` lists them"
	ProfileName string `json:"profileName,omitempty"`
	// adapters are LoRA adapters of the model. It must be in safetensors and
	// generate text. A request for NAME:ADAPTER, for each NAME of the
	// deployment, is answered with that adapter, and one for NAME without any;
	// both run in the same batch. Adapters are inspected, downloaded and loaded
	// with the model, and count in its disk space and memory. A change creates a
	// new revision. Default: none.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=16
	Adapters []AdapterSpec `json:"adapters,omitempty"`
	// servedNames are the names that clients use in the request field "model",
	// for example qwen3-8b or Qwen/Qwen3-8B. Default: metadata.name. The name
	// NAMESPACE/NAME always works as well, and belongs to that deployment.
	// Another name belongs to the first deployment that is accepted with it;
	// others that claim it are refused (NameConflict).
	// All of them, alone and with each adapter, may take 8 KiB, and those of a
	// namespace may be 5,000.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=128
	// +kubebuilder:validation:items:Pattern=`^[A-Za-z0-9]([A-Za-z0-9._:-]*[A-Za-z0-9])?(/[A-Za-z0-9]([A-Za-z0-9._:-]*[A-Za-z0-9])?)?$`
	ServedNames []string `json:"servedNames,omitempty"`
	// replicas is the number of replicas, each on a Mac that placement chooses.
	// A HorizontalPodAutoscaler or KEDA can set it through the scale
	// subresource. Leave it out when autoscaling is set: a number that was set
	// before, for example by kubectl scale, then has no effect. Default: 1.
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000
	Replicas *int32 `json:"replicas,omitempty"`
	// autoscaling lets the operator choose the number of replicas from the
	// number of running and waiting requests. It cannot be combined with
	// replicas.
	// +optional
	Autoscaling *AutoscalingSpec `json:"autoscaling,omitempty"`
	// suspend, when true, removes all replicas until it is false again. Running
	// requests finish, and new ones are refused, or answered by
	// routing.fallbacks. Names, revisions, the number of replicas and weights on
	// disk are kept. Default: false.
	// +optional
	Suspend bool `json:"suspend,omitempty"`
	// replicaMetadata has labels and annotations for the replicas, for example to
	// select them with kubectl or to charge them to a team.
	// +optional
	ReplicaMetadata ReplicaMetadata `json:"replicaMetadata,omitzero"`
	// prefetch keeps the weights on Macs without a replica. A replica that starts
	// there needs no download.
	// +optional
	Prefetch PrefetchSpec `json:"prefetch,omitzero"`
	// context limits the length and the number of concurrent requests. Memory
	// is reserved accordingly.
	// +optional
	Context ContextSpec `json:"context,omitzero"`
	// sampling sets how tokens are chosen where a request does not state it. It
	// also limits what a request may state. A change creates a new revision. Default: none.
	// +optional
	Sampling SamplingSpec `json:"sampling,omitzero"`
	// chatTemplate is a Jinja template that replaces the chat templates of the
	// model. An example is one with a fixed system prompt. Its text is part of the
	// object, so keep no secret in it. One that cannot be rendered halts the
	// rollout. A change creates a new revision. Default: the template of the
	// model.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=16384
	ChatTemplate string `json:"chatTemplate,omitempty"`
	// memory overrides the memory limit that is computed from the model.
	// +optional
	Memory MemorySpec `json:"memory,omitzero"`
	// prefixCache configures the prefix cache on disk, in addition to the one
	// in memory.
	// +optional
	PrefixCache PrefixCacheSpec `json:"prefixCache,omitzero"`
	// residency controls when the model is in memory.
	// +optional
	// +kubebuilder:default={}
	Residency ResidencySpec `json:"residency,omitzero"`
	// placement controls which Macs may hold replicas.
	// +optional
	// +kubebuilder:default={}
	Placement PlacementSpec `json:"placement,omitzero"`
	// priorityClassName is the name of a PriorityClass of the cluster. When no
	// Mac has room for a replica, replicas with a lower priority are drained to
	// make room, unless the class sets preemptionPolicy to Never. Default: no
	// class, which is priority 0.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$')",message="priorityClassName must be the name of a PriorityClass: lower-case letters, digits, '-' and '.'; `kubectl get priorityclass` lists them"
	PriorityClassName string `json:"priorityClassName,omitempty"`
	// rollout controls how a new revision replaces the current one.
	// +optional
	// +kubebuilder:default={}
	Rollout RolloutSpec `json:"rollout,omitzero"`
	// revisionHistoryLimit is the number of unused revisions to keep for a
	// rollback. Default: 10.
	// +optional
	// +kubebuilder:default=10
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	RevisionHistoryLimit *int32 `json:"revisionHistoryLimit,omitempty"`
	// routing lets other deployments answer requests for the served names of
	// this deployment. Requests for NAMESPACE/NAME always go to this
	// deployment.
	// +optional
	Routing RoutingSpec `json:"routing,omitzero"`
}

// ReplicaMetadata holds labels and annotations for the replicas of a deployment.
// A change reaches existing replicas in place. Other labels and annotations of
// replicas stay.
type ReplicaMetadata struct {
	// labels are labels of the replicas, for example team: search. Keys of
	// metalfleet.dev belong to the operator.
	// +optional
	// +kubebuilder:validation:MaxProperties=16
	// +kubebuilder:validation:XValidation:rule="self.all(k, k.matches('^([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$') && size(k) <= 317)",message="a key of replicaMetadata.labels must be a name such as team or example.com/team"
	// +kubebuilder:validation:XValidation:rule="self.all(k, self[k].matches('^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$'))",message="a value of replicaMetadata.labels must have at most 63 letters, digits, '-', '_' and '.', and begin and end with a letter or digit"
	// +kubebuilder:validation:XValidation:rule="!self.exists(k, k.matches('^([^/]*[.])?metalfleet[.]dev/'))",message="replicaMetadata.labels must have no key of metalfleet.dev, which are the operator's"
	Labels map[string]MetadataValue `json:"labels,omitempty"`
	// annotations are annotations of the replicas. Keys of metalfleet.dev belong
	// to the operator.
	// +optional
	// +kubebuilder:validation:MaxProperties=16
	// +kubebuilder:validation:XValidation:rule="self.all(k, k.matches('^([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$') && size(k) <= 317)",message="a key of replicaMetadata.annotations must be a name such as owner or example.com/owner"
	// +kubebuilder:validation:XValidation:rule="!self.exists(k, k.matches('^([^/]*[.])?metalfleet[.]dev/'))",message="replicaMetadata.annotations must have no key of metalfleet.dev, which are the operator's"
	Annotations map[string]MetadataValue `json:"annotations,omitempty"`
}

// MetadataValue is the value of a label or an annotation.
// +kubebuilder:validation:MaxLength=256
type MetadataValue string

// PrefetchSpec keeps weights on the disks of Macs.
type PrefetchSpec struct {
	// macs is the number of Macs that keep the weights, including those with a
	// replica. With replicas 2 and macs 5, three more Macs download them. With
	// replicas 0, or while the deployment is suspended, all of them keep the
	// weights and nothing is served. Placement chooses Macs that match
	// spec.placement and could hold a replica, with room on their disks. No memory
	// is reserved. NamespaceRules limit the bytes (prefetchLimit). The condition
	// Prefetched reports when the weights are there. Default: 0.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=500
	Macs int32 `json:"macs,omitempty"`
}

// ContextSpec limits requests. Each Mac reserves memory for kvCacheTokens.
// +kubebuilder:validation:XValidation:rule="!has(self.kvCacheTokens) || !has(self.maxTokens) || self.kvCacheTokens >= self.maxTokens",message="context.kvCacheTokens must be at least context.maxTokens, so that one request of maximum length fits"
type ContextSpec struct {
	// maxTokens is the maximum length of a request, prompt and output together,
	// in tokens. Default: 8192, or the context length of the model if that is
	// smaller.
	// +optional
	// +kubebuilder:validation:Minimum=16
	// +kubebuilder:validation:Maximum=10485760
	MaxTokens int64 `json:"maxTokens,omitempty"`
	// maxConcurrentRequests is the maximum number of requests that a replica
	// runs concurrently; further requests wait. Default: 4.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=256
	MaxConcurrentRequests int64 `json:"maxConcurrentRequests,omitempty"`
	// kvCacheTokens is the size of the KV cache that all running requests of a
	// replica share, in tokens. Memory is reserved for it. Default: twice
	// maxTokens.
	// +optional
	// +kubebuilder:validation:Minimum=16
	// +kubebuilder:validation:Maximum=104857600
	KVCacheTokens int64 `json:"kvCacheTokens,omitempty"`
}

// MemorySpec overrides the computed memory limit.
type MemorySpec struct {
	// limit is the memory limit of each engine process, for example 8Gi.
	// Default: an estimate of what the model, its context and its runtime need,
	// computed from the headers of the model's files.
	// +optional
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="string(self).matches('^[+]?([0-9]{1,19}([.][0-9]{0,9})?|[.][0-9]{1,9})([KMGTPE]i|[numkMGTPE]|[eE][0-9]{1,2})?$') && quantity(string(self)).isGreaterThan(quantity('0'))",message="memory.limit must be greater than zero, for example 8Gi; write at most 19 digits, 9 decimals and a unit such as Gi, M or e9"
	Limit *resource.Quantity `json:"limit,omitempty"`
}

// PrefixCacheSpec configures where the KV cache of earlier prompts (the prefix
// cache) is kept. It is always kept in the reserved KV cache memory that no
// running request uses.
type PrefixCacheSpec struct {
	// diskLimit is the maximum disk space that the prefix cache of this model
	// may use on each Mac that holds it, for example 50Gi. Cached prompts
	// survive when the engine is unloaded or restarted. Deployments of a
	// namespace with equal model, adapters and chat template share the cache,
	// and the largest value applies; the agent's own limit applies to all models
	// of a Mac together. Some memory is reserved for pending writes. Default: no
	// cache on disk.
	// +optional
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="string(self).matches('^[+]?([0-9]{1,19}([.][0-9]{0,9})?|[.][0-9]{1,9})([KMGTPE]i|[numkMGTPE]|[eE][0-9]{1,2})?$') && quantity(string(self)).compareTo(quantity('64Mi')) >= 0 && quantity(string(self)).compareTo(quantity('1Pi')) <= 0",message="prefixCache.diskLimit must be from 64Mi to 1Pi, for example 50Gi; write at most 19 digits, 9 decimals and a unit such as Gi, M or e9; remove it to keep no cache on disk"
	DiskLimit *resource.Quantity `json:"diskLimit,omitempty"`
	// sharedPrefixes are beginnings of prompts, such as a system prompt, whose
	// cache all tenants share. Otherwise each tenant (see API keys) has its own
	// cache, so that none can find out what another sent. State only texts that
	// every client may know, for example the system prompt of an application:
	// "You are the assistant of the Example company." Deployments of the same
	// model and namespace that state the same text share it as well. A change
	// creates a new revision. Default: nothing is shared.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=4
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=4096
	SharedPrefixes []string `json:"sharedPrefixes,omitempty"`
}

// PrefixCacheLimits is the resolved form of PrefixCacheSpec that replicas and
// Macs use.
type PrefixCacheLimits struct {
	// diskBytes is the maximum disk space, in bytes, for the prefix cache of
	// the model. It may change while the replica runs.
	// +optional
	// +kubebuilder:validation:Minimum=0
	DiskBytes int64 `json:"diskBytes,omitempty"`
	// queueBytes is the maximum memory, in bytes, for blocks that wait to be
	// written to disk. With 0, there is no cache on disk.
	// +optional
	// +kubebuilder:validation:Minimum=0
	QueueBytes int64 `json:"queueBytes,omitempty"`
}

// Feature is something that a model can do.
// +kubebuilder:validation:Enum=Generate;Chat;Tools;Embeddings;Rerank;Vision
type Feature string

const (
	// FeatureGenerate: it generates text.
	FeatureGenerate Feature = "Generate"
	// FeatureChat: it has a chat template.
	FeatureChat Feature = "Chat"
	// FeatureTools: it calls tools.
	FeatureTools Feature = "Tools"
	// FeatureEmbeddings: it converts texts to embedding vectors.
	FeatureEmbeddings Feature = "Embeddings"
	// FeatureRerank: it scores documents for a query.
	FeatureRerank Feature = "Rerank"
	// FeatureVision: it accepts images.
	FeatureVision Feature = "Vision"
)

// FeaturesOf returns what a model can do with a chat template; empty means its own. What
// another template does with tools is not known.
func FeaturesOf(r model.Record, template string) (out []Feature) {
	switch r.Facts.TaskOf() {
	case model.Embed:
		out = append(out, FeatureEmbeddings)
	case model.Rerank:
		out = append(out, FeatureRerank)
	default:
		out = append(out, FeatureGenerate)
		if template != "" || slices.Contains(r.Features, model.Chat) {
			out = append(out, FeatureChat)
		}
		if template == "" && slices.Contains(r.Features, model.Tools) {
			out = append(out, FeatureTools)
		}
	}
	if r.Facts.Sees() {
		out = append(out, FeatureVision)
	}
	return out
}

// ModelDeploymentList is a list of ModelDeployments.
// +kubebuilder:object:root=true
type ModelDeploymentList struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard list metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitzero"`
	// items are the ModelDeployments of the list.
	Items []ModelDeployment `json:"items"`
}
