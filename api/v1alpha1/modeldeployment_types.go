package v1alpha1

import (
	"slices"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ModelDeployment says that a model is to be served by a number of replicas,
// each on a Mac that has reserved the memory for it.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:shortName=md,categories=metalfleet
// +kubebuilder:subresource:status
// +kubebuilder:subresource:scale:specpath=.spec.replicas,statuspath=.status.replicas,selectorpath=.status.selector
// +kubebuilder:printcolumn:name="Model",type=string,JSONPath=`.spec.model.source`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.summary.ready`,description="ready and wanted replicas"
// +kubebuilder:printcolumn:name="Loaded",type=integer,JSONPath=`.status.loadedReplicas`,description="replicas whose model is in memory now",priority=1
// +kubebuilder:printcolumn:name="Status",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Memory",type=string,JSONPath=`.status.summary.memory`,description="measured footprint of all engines"
// +kubebuilder:printcolumn:name="Freed",type=string,JSONPath=`.status.summary.freed`,description="bytes measured as freed so far"
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 52",message="metadata.name may have at most 52 characters, because replica names are made from it"
// +kubebuilder:validation:XValidation:rule="!has(self.spec.routing) || !has(self.spec.routing.split) || !self.spec.routing.split.exists(s, s.deployment == self.metadata.name)",message="routing.split names this deployment itself: what others do not get stays here, leave it out"
// +kubebuilder:validation:XValidation:rule="!has(self.spec.routing) || !has(self.spec.routing.fallbacks) || !self.spec.routing.fallbacks.exists(f, f == self.metadata.name)",message="routing.fallbacks names this deployment itself: leave it out"
type ModelDeployment struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard object metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`
	// spec is what is wanted.
	// +required
	Spec ModelDeploymentSpec `json:"spec"`
	// status is what is.
	// +optional
	Status ModelDeploymentStatus `json:"status,omitzero"`
}

// ModelDeploymentSpec is what a user wants served.
// +kubebuilder:validation:XValidation:rule="!self.model.source.startsWith('https://') || has(self.model.sha256)",message="model.sha256 is required for an https:// source: what is downloaded must be provable; write the hex SHA-256 of the file"
// +kubebuilder:validation:XValidation:rule="!has(self.autoscaling) || !has(self.replicas) || self.replicas == 1",message="replicas and autoscaling exclude one another: leave replicas out, or remove autoscaling where you, an HPA or KEDA set the number"
type ModelDeploymentSpec struct {
	// model is where the weights come from.
	// +required
	Model ModelSource `json:"model"`
	// servedNames are the names that clients may put in "model". Without any,
	// it is the name of this object. "NAMESPACE/NAME" always works as well. A
	// bare name belongs to the oldest deployment that claims it.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=128
	// +kubebuilder:validation:items:Pattern=`^[A-Za-z0-9]([A-Za-z0-9._:-]*[A-Za-z0-9])?$`
	ServedNames []string `json:"servedNames,omitempty"`
	// replicas is how many copies are served, each on a Mac of its own choice of
	// placement. An HPA or KEDA sets it by the scale subresource. With autoscaling
	// it is left out, and reads as 1.
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000
	Replicas *int32 `json:"replicas,omitempty"`
	// autoscaling has the operator choose the number of replicas itself, by the
	// requests that run and wait.
	// +optional
	Autoscaling *AutoscalingSpec `json:"autoscaling,omitempty"`
	// context bounds the length and number of requests; memory is reserved for it.
	// +optional
	Context ContextSpec `json:"context,omitzero"`
	// memory overrides what is computed from the model.
	// +optional
	Memory MemorySpec `json:"memory,omitzero"`
	// cache says where what was computed of earlier prompts is kept beside memory.
	// +optional
	Cache CacheSpec `json:"cache,omitzero"`
	// residency says when the model is in memory.
	// +optional
	Residency ResidencySpec `json:"residency,omitzero"`
	// placement says which Macs may be used.
	// +optional
	Placement PlacementSpec `json:"placement,omitzero"`
	// priorityClassName names a PriorityClass of the cluster. Where no Mac has
	// room for a replica, replicas of a lower priority are drained for it,
	// unless the class says preemptionPolicy Never. Default: priority 0.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$')",message="priorityClassName must be the name of a PriorityClass: lower-case letters, digits, '-' and '.'; `kubectl get priorityclass` lists them"
	PriorityClassName string `json:"priorityClassName,omitempty"`
	// rollout says how a change reaches the replicas.
	// +optional
	Rollout RolloutSpec `json:"rollout,omitzero"`
	// revisionHistoryLimit is how many revisions are kept to go back to, beside
	// those in use. Default: 10.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	RevisionHistoryLimit *int32 `json:"revisionHistoryLimit,omitempty"`
	// routing says which other deployments answer requests for the served names
	// of this one. "NAMESPACE/NAME" always means this one alone.
	// +optional
	Routing RoutingSpec `json:"routing,omitzero"`
}

// RoutingSpec gives requests for a deployment's served names to others of its
// namespace: a part of them always, or all of them where this one cannot answer.
// What those say of routing themselves does not count.
// +kubebuilder:validation:XValidation:rule="!has(self.split) || self.split.map(s, s.percent).sum() <= 100",message="the percents of routing.split may be 100 together; what is left of 100 stays with this deployment"
// +kubebuilder:validation:XValidation:rule="!has(self.sticky) || has(self.split)",message="routing.sticky says how routing.split is kept to; leave it out, or add a split"
// +kubebuilder:validation:XValidation:rule="!has(self.fallbackSeconds) || has(self.fallbacks)",message="routing.fallbackSeconds needs routing.fallbacks: there is nobody to fall back to"
type RoutingSpec struct {
	// split gives a part of the requests to other deployments, such as 10 percent
	// to a canary. One that has no ready replica gets none.
	// +optional
	// +listType=map
	// +listMapKey=deployment
	// +kubebuilder:validation:MaxItems=8
	Split []RoutingShare `json:"split,omitempty"`
	// sticky says what stays with one deployment while the split stays the same:
	// each Conversation (told by how it begins), everything of one APIKey, or None
	// (each request is given by chance). Default: Conversation.
	// +optional
	Sticky RoutingSticky `json:"sticky,omitempty"`
	// fallbacks are deployments that answer, the first that can, where this one has
	// no ready replica, refuses, or would let a request wait for longer than
	// fallbackSeconds.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=52
	Fallbacks []string `json:"fallbacks,omitempty"`
	// fallbackSeconds is how long a request waits for a busy deployment before the
	// next one is asked. Default: 5.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=3600
	FallbackSeconds *int32 `json:"fallbackSeconds,omitempty"`
}

// RoutingSticky is what a split keeps together.
// +kubebuilder:validation:Enum=Conversation;APIKey;None
type RoutingSticky string

// The ways to keep to a split.
const (
	StickyConversation RoutingSticky = "Conversation"
	StickyAPIKey       RoutingSticky = "APIKey"
	StickyNone         RoutingSticky = "None"
)

// RoutingShare is a part of the requests.
type RoutingShare struct {
	// deployment of this namespace that gets it.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=52
	Deployment string `json:"deployment"`
	// percent of the requests.
	// +required
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	Percent int32 `json:"percent"`
}

// Targets are the other deployments that a routing names, each once.
func (r RoutingSpec) Targets() []string {
	var out []string
	for _, s := range r.Split {
		out = append(out, s.Deployment)
	}
	for _, name := range r.Fallbacks {
		if !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	return out
}

// ModelSource names the files of a model.
// +kubebuilder:validation:XValidation:rule="self.source.startsWith('file://') || self.source.startsWith('https://') || !has(self.sha256)",message="sha256 is for one file (file://, https://); a hub, a bucket and a registry say the digests of their files themselves: leave it out"
// +kubebuilder:validation:XValidation:rule="self.source.startsWith('hf://') || !has(self.revision)",message="revision is for hf:// sources; leave it out"
// +kubebuilder:validation:XValidation:rule="self.source.startsWith('hf://') || self.source.startsWith('s3://') || self.source.startsWith('oci://') || !has(self.files)",message="files is for hf://, s3:// and oci:// sources; leave it out"
// +kubebuilder:validation:XValidation:rule="self.source.startsWith('hf://') || self.source.startsWith('s3://') || self.source.startsWith('oci://') || !has(self.secretRef)",message="secretRef is for hf://, s3:// and oci:// sources: others are read without credentials; leave it out"
type ModelSource struct {
	// source of the weights: "file://PATH" is a path below the model root of
	// each Mac (a GGUF file, or a folder), "https://HOST/PATH" one GGUF file that is downloaded,
	// "hf://OWNER/NAME" a repository of the Hugging Face Hub or its mirror, of
	// which "hf://OWNER/NAME/PATH" is one file or folder, and "s3://BUCKET/PREFIX"
	// a folder or a GGUF file in a bucket of Amazon S3, or with
	// "?endpoint=https://HOST" behind it of another server that speaks its
	// protocol; "region=REGION" names the region. "oci://REGISTRY/REPOSITORY:TAG"
	// (or @sha256:DIGEST) is an artifact whose layers are the model's files.
	// +required
	// +kubebuilder:validation:MinLength=8
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="self.startsWith('file://') || self.startsWith('https://') || self.startsWith('hf://') || self.startsWith('s3://') || self.startsWith('oci://')",message="source must begin with file:// (a path below the Mac's model root), https:// (one GGUF file), hf:// (a repository of a hub), s3:// (a folder in a bucket) or oci:// (an artifact in a registry)"
	// +kubebuilder:validation:XValidation:rule="!self.matches('[\\\\s\\\\x00-\\\\x1f]')",message="source must not contain spaces or control characters; percent-encode them"
	Source string `json:"source"`
	// revision of a hub's repository: a branch, a tag or a commit. What it means
	// is looked up once; the deployment stays at that commit until its source
	// changes. Default: main.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z0-9][A-Za-z0-9._/-]*$')",message="revision must be a branch, a tag or a commit: letters, digits, and . _ / - behind the first"
	Revision string `json:"revision,omitempty"`
	// files are patterns such as "*Q8_0.gguf" that choose the weights of a hub's
	// repository, a bucket's folder or an artifact, where it holds several models. Without any, the choice must be
	// clear.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=256
	// +kubebuilder:validation:items:XValidation:rule="self.matches('^([^\\\\[\\\\]\\\\\\\\]|\\\\[[^\\\\[\\\\]\\\\\\\\]+\\\\])+$') && !self.startsWith('/') && !self.split('/').exists(p, p == '..')",message="a pattern of files is a path in the repository or a file's name, with *, ? and [a-z] for what may differ, such as '*Q8_0.gguf' or '4bit/*'"
	Files []string `json:"files,omitempty"`
	// secretRef names the Secret, in this object's namespace, that the source is
	// read with: for hf:// its key "token" holds a token of the hub, which is sent
	// to no other host; for s3:// its keys AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY
	// and, if there is one, AWS_SESSION_TOKEN hold an access key, which signs
	// requests and is sent to nobody; for oci:// it is of type
	// kubernetes.io/dockerconfigjson, of which the login of that registry is used.
	// It reaches only the Macs that look at the model or hold it.
	// +optional
	SecretRef *SecretReference `json:"secretRef,omitempty"`
	// sha256 is the hex SHA-256 that the file must have. Required for https://.
	// +optional
	// +kubebuilder:validation:MinLength=64
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="self.matches('^[0-9a-f]{64}$')",message="sha256 must be 64 lower-case hex digits, as sha256sum prints them"
	SHA256 string `json:"sha256,omitempty"`
}

// SecretReference names a Secret in the same namespace.
type SecretReference struct {
	// name of the Secret.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$')",message="secretRef.name must be the name of a Secret in this namespace: lower-case letters, digits, '-' and '.'"
	Name string `json:"name"`
}

// ContextSpec bounds requests. Memory for cacheTokens is reserved on the Mac.
// +kubebuilder:validation:XValidation:rule="!has(self.cacheTokens) || !has(self.tokens) || self.cacheTokens >= self.tokens",message="context.cacheTokens must be at least context.tokens: one request of full length must fit"
type ContextSpec struct {
	// tokens is the longest request, prompt and answer together. Default: the
	// smaller of 8192 and what the model was trained for.
	// +optional
	// +kubebuilder:validation:Minimum=16
	// +kubebuilder:validation:Maximum=10485760
	Tokens int64 `json:"tokens,omitempty"`
	// sequences is how many requests run at once at most; more wait. Default: 4.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=256
	Sequences int64 `json:"sequences,omitempty"`
	// cacheTokens is how many tokens of keys and values all running requests
	// share; memory is reserved for it. Default: twice tokens.
	// +optional
	// +kubebuilder:validation:Minimum=16
	// +kubebuilder:validation:Maximum=104857600
	CacheTokens int64 `json:"cacheTokens,omitempty"`
}

// MemorySpec overrides computed memory.
type MemorySpec struct {
	// limit of each engine process. Default: what the model, its context and
	// its runtime need, computed from the file headers.
	// +optional
	// +kubebuilder:validation:XValidation:rule="quantity(string(self)).isGreaterThan(quantity('0'))",message="memory.limit must be more than zero, such as 8Gi"
	Limit *resource.Quantity `json:"limit,omitempty"`
}

// CacheSpec says where what was computed of earlier prompts is kept. In memory it
// always is, in the KV that was promised and no request holds.
type CacheSpec struct {
	// ssd is the most that blocks of this model take of the disk of each Mac that
	// holds it: a prompt that was computed before its engine was unloaded, or ended
	// otherwise, is not computed again. Deployments of the same model share them,
	// and the largest figure counts; all models of a Mac together stay within what
	// its agent allows. Some memory is reserved for what waits to be written.
	// Default: nothing is kept on disk.
	// +optional
	// +kubebuilder:validation:XValidation:rule="quantity(string(self)).compareTo(quantity('64Mi')) >= 0 && quantity(string(self)).compareTo(quantity('1Pi')) <= 0",message="cache.ssd must be from 64Mi to 1Pi, such as 50Gi; leave it out to keep nothing on disk"
	SSD *resource.Quantity `json:"ssd,omitempty"`
}

// CacheLimits is the resolved form that replicas and Macs are given.
type CacheLimits struct {
	// ssdBytes that blocks of the model may take of a Mac's disk. It may change
	// under a running replica.
	// +optional
	// +kubebuilder:validation:Minimum=0
	SSDBytes int64 `json:"ssdBytes,omitempty"`
	// queueBytes of memory may hold what waits to be written there; 0: nothing is
	// kept on disk.
	// +optional
	// +kubebuilder:validation:Minimum=0
	QueueBytes int64 `json:"queueBytes,omitempty"`
}

// ResidencyPolicy says when an engine is in memory.
// +kubebuilder:validation:Enum=Always;OnDemand
type ResidencyPolicy string

const (
	// ResidencyAlways: loaded at once, its memory promised, never a victim.
	ResidencyAlways ResidencyPolicy = "Always"
	// ResidencyOnDemand: the first request loads it; it shares its Mac's
	// memory with other such models and goes when it is idle or room is needed.
	ResidencyOnDemand ResidencyPolicy = "OnDemand"
)

// ResidencySpec says when a model is in memory.
// +kubebuilder:validation:XValidation:rule="!has(self.idleSeconds) || (has(self.policy) && self.policy == 'OnDemand')",message="residency.idleSeconds needs residency.policy OnDemand: a model that is always resident does not go when idle"
// +kubebuilder:validation:XValidation:rule="!has(self.priority) || self.priority == 0 || (has(self.policy) && self.policy == 'OnDemand')",message="residency.priority needs residency.policy OnDemand: a model that is always resident gives its memory to nobody"
type ResidencySpec struct {
	// policy is Always (memory is reserved and the model stays loaded) or
	// OnDemand (the first request loads it). Default: Always.
	// +optional
	Policy ResidencyPolicy `json:"policy,omitempty"`
	// idleSeconds without a request after which an OnDemand model is unloaded;
	// 0 keeps it until the memory is needed. Default: 600.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=2592000
	IdleSeconds *int32 `json:"idleSeconds,omitempty"`
	// priority decides who goes first where OnDemand models need one another's
	// memory: only models of the same or a lower priority are unloaded for
	// one. Default: 0.
	// +optional
	// +kubebuilder:validation:Minimum=-1000
	// +kubebuilder:validation:Maximum=1000
	Priority int32 `json:"priority,omitempty"`
}

// Residency is the resolved form that replicas and Macs are given.
type Residency struct {
	// policy of the replica.
	// +optional
	Policy ResidencyPolicy `json:"policy,omitempty"`
	// idleSeconds without a request until an OnDemand engine is unloaded; 0: never by time alone.
	// +optional
	// +kubebuilder:validation:Minimum=0
	IdleSeconds int32 `json:"idleSeconds,omitempty"`
	// priority among OnDemand replicas of a Mac.
	// +optional
	Priority int32 `json:"priority,omitempty"`
}

// OnDemand reports whether the first request loads it.
func (r Residency) OnDemand() bool { return r.Policy == ResidencyOnDemand }

// ModelDeploymentStatus is what is.
type ModelDeploymentStatus struct {
	// observedGeneration is the generation that this status describes.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// replicas exist, ready or not, terminating ones excluded.
	// +optional
	Replicas int32 `json:"replicas,omitempty"`
	// readyReplicas answer requests.
	// +optional
	ReadyReplicas int32 `json:"readyReplicas,omitempty"`
	// loadedReplicas hold their model in memory now; a ready OnDemand replica need not.
	// +optional
	LoadedReplicas int32 `json:"loadedReplicas,omitempty"`
	// availableReplicas are ready, and their engine generated a token.
	// +optional
	AvailableReplicas int32 `json:"availableReplicas,omitempty"`
	// updatedReplicas are of updateRevision.
	// +optional
	UpdatedReplicas int32 `json:"updatedReplicas,omitempty"`
	// updatedAvailableReplicas are available and of updateRevision.
	// +optional
	UpdatedAvailableReplicas int32 `json:"updatedAvailableReplicas,omitempty"`
	// selector of the replicas, for the scale subresource.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	Selector string `json:"selector,omitempty"`
	// autoscaling is what the autoscaler decided; absent without spec.autoscaling.
	// +optional
	Autoscaling *AutoscalingStatus `json:"autoscaling,omitempty"`
	// currentRevision is the name of the ControllerRevision that served with all
	// wanted replicas last; what a rollout that fails falls back to.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	CurrentRevision string `json:"currentRevision,omitempty"`
	// updateRevision is the name of the ControllerRevision that is wanted.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	UpdateRevision string `json:"updateRevision,omitempty"`
	// rollout from one to the other.
	// +optional
	Rollout RolloutStatus `json:"rollout,omitzero"`
	// modelDigest names the weights of updateRevision.
	// +optional
	// +kubebuilder:validation:MaxLength=71
	ModelDigest string `json:"modelDigest,omitempty"`
	// servedNames that this deployment owns: its bare names, then NAMESPACE/NAME.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=9
	// +kubebuilder:validation:items:MaxLength=320
	ServedNames []string `json:"servedNames,omitempty"`
	// reservedBytesPerReplica is the memory promised to each replica, an estimate
	// from the file headers.
	// +optional
	ReservedBytesPerReplica int64 `json:"reservedBytesPerReplica,omitempty"`
	// footprintBytes is the sum of the measured footprints of all engines.
	// +optional
	FootprintBytes int64 `json:"footprintBytes,omitempty"`
	// freedBytesTotal is the sum of what was measured as freed, of replicas
	// that live and of those that are gone.
	// +optional
	FreedBytesTotal int64 `json:"freedBytesTotal,omitempty"`
	// retiredFreedBytes is the part of freedBytesTotal that came from replicas
	// that are accounted for and may go.
	// +optional
	RetiredFreedBytes int64 `json:"retiredFreedBytes,omitempty"`
	// accounted are the UIDs of released replicas whose freed bytes are in
	// retiredFreedBytes; an entry goes once its replica is gone.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=2048
	// +kubebuilder:validation:items:MaxLength=64
	Accounted []string `json:"accounted,omitempty"`
	// summary holds rounded figures for people.
	// +optional
	Summary DeploymentSummary `json:"summary,omitzero"`
	// conditions: Ready, Accepted, Fits, Placed, Downloaded, Progressing, Degraded,
	// and Routed where routing names others.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=16
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// DeploymentSummary holds rounded figures for kubectl get.
type DeploymentSummary struct {
	// ready is "READY/WANTED".
	// +optional
	// +kubebuilder:validation:MaxLength=32
	Ready string `json:"ready,omitempty"`
	// memory is the measured footprint of all engines.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	Memory string `json:"memory,omitempty"`
	// freed is what was measured as freed so far.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	Freed string `json:"freed,omitempty"`
}

// ModelDeploymentList is a list of ModelDeployments.
// +kubebuilder:object:root=true
type ModelDeploymentList struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard list metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitzero"`
	// items of the list.
	Items []ModelDeployment `json:"items"`
}
