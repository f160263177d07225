package v1alpha1

// ResidencyPolicy controls when an engine is in memory.
// +kubebuilder:validation:Enum=Always;OnDemand
type ResidencyPolicy string

const (
	// ResidencyAlways: the model is loaded at once, its memory is reserved, and
	// it is never evicted.
	ResidencyAlways ResidencyPolicy = "Always"
	// ResidencyOnDemand: the first request loads the model. It shares memory
	// with other OnDemand models and is unloaded when it is idle or the memory
	// is needed.
	ResidencyOnDemand ResidencyPolicy = "OnDemand"
)

// ResidencySpec controls when a model is in memory.
// +kubebuilder:validation:XValidation:rule="!has(self.idleSeconds) || (has(self.policy) && self.policy == 'OnDemand')",message="residency.idleSeconds requires residency.policy OnDemand, because an Always model is never unloaded when it is idle"
// +kubebuilder:validation:XValidation:rule="!has(self.evictionPriority) || self.evictionPriority == 0 || (has(self.policy) && self.policy == 'OnDemand')",message="residency.evictionPriority requires residency.policy OnDemand, because an Always model is never evicted"
type ResidencySpec struct {
	// policy controls when the model is in memory. Default: Always. Valid
	// values are:
	// - Always: the model is loaded at once, its memory is reserved, and it is
	//   never evicted.
	// - OnDemand: the first request loads the model. It shares memory with
	//   other OnDemand models and is unloaded when idle or, even in use, when
	//   others wait a minute for memory.
	// +optional
	// +kubebuilder:default=Always
	Policy ResidencyPolicy `json:"policy,omitempty"`
	// idleSeconds is how long, in seconds, an OnDemand model stays in memory
	// without a request. With 0, it stays until the memory is needed. Default:
	// 600.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=2592000
	IdleSeconds *int32 `json:"idleSeconds,omitempty"`
	// evictionPriority protects OnDemand models from eviction: to load a model,
	// only OnDemand models with the same or a lower priority are unloaded.
	// Default: 0.
	// +optional
	// +kubebuilder:validation:Minimum=-1000
	// +kubebuilder:validation:Maximum=1000
	EvictionPriority int32 `json:"evictionPriority,omitempty"`
}

// Residency is the resolved form of ResidencySpec that replicas and Macs use.
type Residency struct {
	// policy controls when the model is in memory: Always or OnDemand.
	// +optional
	Policy ResidencyPolicy `json:"policy,omitempty"`
	// idleSeconds is how long, in seconds, an OnDemand engine stays in memory
	// without a request. With 0, it stays until the memory is needed.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=2147483647
	IdleSeconds int32 `json:"idleSeconds,omitempty"`
	// evictionPriority protects OnDemand replicas of a Mac from eviction: to
	// load one, only those with the same or a lower priority are unloaded.
	// +optional
	// +kubebuilder:validation:Minimum=-2147483648
	// +kubebuilder:validation:Maximum=2147483647
	EvictionPriority int32 `json:"evictionPriority,omitempty"`
}

// OnDemand reports whether the first request loads the model.
func (r Residency) OnDemand() bool { return r.Policy == ResidencyOnDemand }
