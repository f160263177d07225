package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ModelProfile holds settings that ModelDeployments have in common. An
// administrator defines it for all namespaces, and a ModelDeployment names it in
// spec.profileName. A field that the deployment states replaces that of the
// profile, and a field that neither states has its built-in default. A change of
// a profile creates a new revision of each deployment that it changes, which
// rolls out as its spec.rollout says.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,path=modelprofiles,singular=modelprofile,shortName=mprof,categories=metalfleet
// +kubebuilder:printcolumn:name="Tokens",type=integer,JSONPath=`.spec.context.maxTokens`,description="context.maxTokens"
// +kubebuilder:printcolumn:name="Concurrent",type=integer,JSONPath=`.spec.context.maxConcurrentRequests`,description="context.maxConcurrentRequests"
// +kubebuilder:printcolumn:name="Temperature",type=string,JSONPath=`.spec.sampling.temperature`,description="sampling.temperature"
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 63",message="metadata.name must have at most 63 characters"
type ModelProfile struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard object metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`
	// spec holds the settings.
	// +optional
	Spec ModelProfileSpec `json:"spec,omitzero"`
}

// ModelProfileSpec holds the settings of a profile. They are those of a
// ModelDeployment that determine its engine, for any model. What
// NamespaceRules limit is not part of it.
type ModelProfileSpec struct {
	// context limits the length and the number of concurrent requests, for
	// example maxTokens: 32768.
	// +optional
	Context ContextSpec `json:"context,omitzero"`
	// sampling sets how tokens are chosen where a request does not state it, and
	// limits what a request may state.
	// +optional
	Sampling SamplingSpec `json:"sampling,omitzero"`
	// chatTemplate is a Jinja template that replaces the chat templates of
	// models.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=16384
	ChatTemplate string `json:"chatTemplate,omitempty"`
	// prefixCache configures the prefix cache on disk, and what tenants share of
	// the prefix cache.
	// +optional
	PrefixCache PrefixCacheSpec `json:"prefixCache,omitzero"`
}

// ModelProfileList is a list of ModelProfiles.
// +kubebuilder:object:root=true
type ModelProfileList struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard list metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitzero"`
	// items are the ModelProfiles of the list.
	Items []ModelProfile `json:"items"`
}
