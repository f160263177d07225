package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// LogLevel is how much an agent logs.
// +kubebuilder:validation:Enum=Info;Debug
type LogLevel string

const (
	// LogInfo: what changed.
	LogInfo LogLevel = "Info"
	// LogDebug: details that help to debug, as agent --verbose.
	LogDebug LogLevel = "Debug"
)

// AgentSettings are the settings of an agent that change while it runs. The
// bounds of its memory are in spec.memory.
type AgentSettings struct {
	// logLevel of the agent, in place of its --verbose.
	// +optional
	LogLevel LogLevel `json:"logLevel,omitempty"`
	// cacheLimit is the most of the disk that caches of all models together take,
	// in place of --cache-limit.
	// +optional
	// +kubebuilder:validation:XValidation:rule="quantity(string(self)).isGreaterThan(quantity('0'))",message="settings.cacheLimit must be more than zero, such as 200Gi"
	CacheLimit *resource.Quantity `json:"cacheLimit,omitempty"`
	// cacheFree is what stays free of that disk, in place of --cache-free.
	// +optional
	// +kubebuilder:validation:XValidation:rule="!quantity(string(self)).isLessThan(quantity('0'))",message="settings.cacheFree must not be below zero, such as 10Gi"
	CacheFree *resource.Quantity `json:"cacheFree,omitempty"`
}

// SettingsInForce are the settings that an agent follows.
type SettingsInForce struct {
	// logLevel of the agent.
	// +optional
	LogLevel LogLevel `json:"logLevel,omitempty"`
	// cacheLimitBytes of the disk that caches take at most; absent where only the
	// free space bounds them, or the Mac keeps none.
	// +optional
	// +kubebuilder:validation:Minimum=0
	CacheLimitBytes *int64 `json:"cacheLimitBytes,omitempty"`
	// cacheFreeBytes of that disk stay free; absent where the Mac keeps no cache.
	// +optional
	// +kubebuilder:validation:Minimum=0
	CacheFreeBytes *int64 `json:"cacheFreeBytes,omitempty"`
	// message names what of spec.settings cannot be followed, and why; empty where
	// all is.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
}

// CacheTier says which caches of a Mac are meant.
// +kubebuilder:validation:Enum=All;Memory;Disk
type CacheTier string

const (
	// CacheTierAll: memory first, then the disk.
	CacheTierAll CacheTier = "All"
	// CacheTierMemory: what engines hold of earlier prompts, and pooled memory.
	CacheTierMemory CacheTier = "Memory"
	// CacheTierDisk: all blocks in the cache's folder, those of models that are gone too.
	CacheTierDisk CacheTier = "Disk"
)

// CacheClear is an order to clear the caches of a Mac. Requests that run go on.
type CacheClear struct {
	// request names the order. The Mac carries it out once; another value is
	// another order.
	// +required
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9][A-Za-z0-9._-]*$`
	Request string `json:"request"`
	// tier that is cleared. Default: All.
	// +optional
	Tier CacheTier `json:"tier,omitempty"`
}

// CacheCleared is what came back when caches were cleared.
type CacheCleared struct {
	// request of the order.
	// +required
	// +kubebuilder:validation:MaxLength=63
	Request string `json:"request"`
	// memoryBytes that engines gave back, as they measured it; absent where memory
	// was not asked for.
	// +optional
	// +kubebuilder:validation:Minimum=0
	MemoryBytes *int64 `json:"memoryBytes,omitempty"`
	// diskBytes of files that were removed; absent where the disk was not asked
	// for, or the Mac keeps no cache there.
	// +optional
	// +kubebuilder:validation:Minimum=0
	DiskBytes *int64 `json:"diskBytes,omitempty"`
	// engines that were asked, by replica.
	// +optional
	// +listType=map
	// +listMapKey=replicaUID
	// +kubebuilder:validation:MaxItems=128
	Engines []EngineCleared `json:"engines,omitempty"`
	// message says what could not be cleared; empty where all was.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
	// time at which it was done.
	// +required
	Time metav1.Time `json:"time"`
}

// EngineCleared is what one engine gave back.
type EngineCleared struct {
	// replicaUID of its assignment.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	ReplicaUID string `json:"replicaUID"`
	// bytes that it gave back; absent where it did not answer.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Bytes *int64 `json:"bytes,omitempty"`
}
