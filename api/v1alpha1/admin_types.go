package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// LogLevel is the verbosity of an agent's log.
// +kubebuilder:validation:Enum=Info;Debug
type LogLevel string

const (
	// LogInfo logs state changes and errors.
	LogInfo LogLevel = "Info"
	// LogDebug also logs details for debugging, like agent --verbose.
	LogDebug LogLevel = "Debug"
)

// AgentSettings are agent settings that take effect without a restart. Memory
// limits are in spec.memory.
type AgentSettings struct {
	// logLevel is the verbosity of the agent's log. It overrides the agent's
	// flag --verbose. Valid values are:
	// - Info: state changes and errors.
	// - Debug: also details for debugging.
	// +optional
	LogLevel LogLevel `json:"logLevel,omitempty"`
	// cacheLimit is the maximum disk space, in bytes, that the prefix caches of
	// all models on this Mac may use together, for example 200Gi. It overrides
	// the agent's flag --cache-limit.
	// +optional
	// +kubebuilder:validation:XValidation:rule="quantity(string(self)).isGreaterThan(quantity('0'))",message="settings.cacheLimit must be greater than zero, for example 200Gi"
	CacheLimit *resource.Quantity `json:"cacheLimit,omitempty"`
	// cacheFree is the disk space, in bytes, that the prefix caches leave free,
	// for example 10Gi. It overrides the agent's flag --cache-free.
	// +optional
	// +kubebuilder:validation:XValidation:rule="!quantity(string(self)).isLessThan(quantity('0'))",message="settings.cacheFree must not be negative, for example 10Gi"
	CacheFree *resource.Quantity `json:"cacheFree,omitempty"`
}

// SettingsInForce are the settings that an agent currently uses.
type SettingsInForce struct {
	// logLevel is the current log level: Info or Debug.
	// +optional
	LogLevel LogLevel `json:"logLevel,omitempty"`
	// cacheLimitBytes is the maximum disk space, in bytes, for prefix caches.
	// It is absent when only cacheFreeBytes limits them, or when this Mac has
	// no cache on disk.
	// +optional
	// +kubebuilder:validation:Minimum=0
	CacheLimitBytes *int64 `json:"cacheLimitBytes,omitempty"`
	// cacheFreeBytes is the disk space, in bytes, that prefix caches leave
	// free. It is absent when this Mac has no cache on disk.
	// +optional
	// +kubebuilder:validation:Minimum=0
	CacheFreeBytes *int64 `json:"cacheFreeBytes,omitempty"`
	// message names the entries of spec.settings that the agent could not
	// apply, and the reason. It is empty when all of them are applied.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
}

// CacheTier selects the caches of a Mac to clear.
// +kubebuilder:validation:Enum=All;Memory;Disk
type CacheTier string

const (
	// CacheTierAll clears memory first, then the disk.
	CacheTierAll CacheTier = "All"
	// CacheTierMemory clears the engines' prefix caches in memory and returns
	// pooled memory to the system.
	CacheTierMemory CacheTier = "Memory"
	// CacheTierDisk removes all blocks in the cache folder, including those of
	// models that are no longer on the Mac.
	CacheTierDisk CacheTier = "Disk"
)

// CacheClear requests that a Mac clears its caches. Running requests are not
// interrupted.
type CacheClear struct {
	// request identifies this request to clear the caches, for example
	// "before-benchmark". The Mac clears the caches once for each new value.
	// +required
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9][A-Za-z0-9._-]*$`
	Request string `json:"request"`
	// tier selects the caches to clear. Default: All. Valid values are:
	// - All: memory first, then the disk.
	// - Memory: the engines' prefix caches, and pooled memory.
	// - Disk: all blocks in the cache folder.
	// +optional
	Tier CacheTier `json:"tier,omitempty"`
}

// CacheCleared is the result of clearing the caches of a Mac.
type CacheCleared struct {
	// request is the value of spec.clearCache.request that this result belongs
	// to.
	// +required
	// +kubebuilder:validation:MaxLength=63
	Request string `json:"request"`
	// memoryBytes is the memory, in bytes, that the engines freed, as they
	// measured it. It is absent when tier was Disk.
	// +optional
	// +kubebuilder:validation:Minimum=0
	MemoryBytes *int64 `json:"memoryBytes,omitempty"`
	// diskBytes is the total size, in bytes, of the removed files. It is absent
	// when tier was Memory, or when this Mac has no cache on disk.
	// +optional
	// +kubebuilder:validation:Minimum=0
	DiskBytes *int64 `json:"diskBytes,omitempty"`
	// engines lists the result of each engine, by replica.
	// +optional
	// +listType=map
	// +listMapKey=replicaUID
	// +kubebuilder:validation:MaxItems=128
	Engines []EngineCleared `json:"engines,omitempty"`
	// message names what could not be cleared. It is empty when everything was
	// cleared.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
	// time is when the caches were cleared.
	// +required
	Time metav1.Time `json:"time"`
}

// EngineCleared is the memory that one engine freed.
type EngineCleared struct {
	// replicaUID is the UID of the ModelReplica that the engine serves.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	ReplicaUID string `json:"replicaUID"`
	// bytes is the memory, in bytes, that the engine freed. It is absent when
	// the engine did not respond.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Bytes *int64 `json:"bytes,omitempty"`
}
