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

// AgentSettings are settings of an agent, of one Mac or of a class. They take
// effect without a restart, except modelRoot. Memory limits are in spec.memory of
// the MacNode.
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
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="string(self).matches('^[+]?([0-9]{1,19}([.][0-9]{0,9})?|[.][0-9]{1,9})([KMGTPE]i|[numkMGTPE]|[eE][0-9]{1,2})?$') && quantity(string(self)).isGreaterThan(quantity('0'))",message="settings.cacheLimit must be greater than zero, for example 200Gi; write at most 19 digits, 9 decimals and a unit such as Gi, M or e9"
	CacheLimit *resource.Quantity `json:"cacheLimit,omitempty"`
	// cacheFree is the disk space, in bytes, that the prefix caches leave free,
	// for example 10Gi. It overrides the agent's flag --cache-free.
	// +optional
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="string(self).matches('^[+]?([0-9]{1,19}([.][0-9]{0,9})?|[.][0-9]{1,9})([KMGTPE]i|[numkMGTPE]|[eE][0-9]{1,2})?$') && !quantity(string(self)).isLessThan(quantity('0'))",message="settings.cacheFree must not be negative, for example 10Gi; write at most 19 digits, 9 decimals and a unit such as Gi, M or e9"
	CacheFree *resource.Quantity `json:"cacheFree,omitempty"`
	// hubEndpoint is the URL of the hub or mirror for hf:// sources, for example
	// https://hub.example.com. Default: the agent's flag --hub-endpoint, else
	// https://huggingface.co.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:XValidation:rule="self.matches('^https://[^\\\\s@?#/]+(/[^\\\\s@?#]*)?$')",message="settings.hubEndpoint must be https://HOST, without a password, ? or #"
	HubEndpoint string `json:"hubEndpoint,omitempty"`
	// allowedSourceCIDRs are the private networks that https:// and hf:// sources
	// may use, for example [10.20.0.0/16]; [] allows none. Default: the agent's
	// flag --allow-source-cidr, else none.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=64
	// +kubebuilder:validation:items:XValidation:rule="isCIDR(self)",message="settings.allowedSourceCIDRs must be CIDRs, for example 10.20.0.0/16"
	AllowedSourceCIDRs []string `json:"allowedSourceCIDRs,omitzero"`
	// downloadRate is the maximum rate of all downloads together, in bytes per
	// second, at least 64Ki, for example 50M. Default: the agent's flag
	// --download-rate, else no limit.
	// +optional
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="string(self).matches('^[+]?([0-9]{1,19}([.][0-9]{0,9})?|[.][0-9]{1,9})([KMGTPE]i|[numkMGTPE]|[eE][0-9]{1,2})?$') && !quantity(string(self)).isLessThan(quantity('64Ki'))",message="settings.downloadRate must be at least 64Ki, in bytes per second, for example 50M; write at most 19 digits, 9 decimals and a unit such as Gi, M or e9"
	DownloadRate *resource.Quantity `json:"downloadRate,omitempty"`
	// giveRate is the maximum rate of all copies of weights to other Macs
	// together, in bytes per second, at least 64Ki, for example 200M. Default: the
	// agent's flag --give-rate, else 200M.
	// +optional
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="string(self).matches('^[+]?([0-9]{1,19}([.][0-9]{0,9})?|[.][0-9]{1,9})([KMGTPE]i|[numkMGTPE]|[eE][0-9]{1,2})?$') && !quantity(string(self)).isLessThan(quantity('64Ki'))",message="settings.giveRate must be at least 64Ki, in bytes per second, for example 200M; write at most 19 digits, 9 decimals and a unit such as Gi, M or e9"
	GiveRate *resource.Quantity `json:"giveRate,omitempty"`
	// diskMarks control when unused weights are evicted. Default: the agent's
	// flags --disk-high-percent and --disk-low-percent, else 90 and 85.
	// +optional
	DiskMarks *DiskMarks `json:"diskMarks,omitempty"`
	// modelRoot is the folder that file:// sources are relative to, for example
	// /Users/Shared/models. It takes effect when the agent starts; until then
	// status.settings.restartRequired names it. Default: the agent's flag
	// --model-root, else file:// sources are disabled.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:XValidation:rule="self.startsWith('/') && self != '/' && !self.matches('(^|/)[.][.](/|$)')",message="settings.modelRoot must be an absolute path, for example /Users/Shared/models"
	ModelRoot string `json:"modelRoot,omitempty"`
	// quietHours are hours in which downloads are slower, for example while
	// people use the Mac. Default: none.
	// +optional
	QuietHours *QuietHours `json:"quietHours,omitempty"`
}

// DiskMarks are percentages of the disk that are in use.
// +kubebuilder:validation:XValidation:rule="self.highPercent == 0 || self.lowPercent >= 1 && self.lowPercent < self.highPercent",message="diskMarks.lowPercent must be less than highPercent and at least 1"
type DiskMarks struct {
	// highPercent is the disk usage above which unused weights are evicted, least
	// recently used first, for example 90. 0 evicts only when a download needs the
	// space.
	// +required
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	HighPercent int32 `json:"highPercent"`
	// lowPercent is the disk usage at which the eviction stops, for example 85.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=99
	LowPercent int32 `json:"lowPercent"`
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
	// class is the MacClass whose settings the agent uses, and classGeneration
	// its generation. They are absent when the Mac has no class.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Class string `json:"class,omitempty"`
	// classGeneration is the generation of the MacClass.
	// +optional
	ClassGeneration int64 `json:"classGeneration,omitempty"`
	// hubEndpoint is the URL of the hub for hf:// sources.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	HubEndpoint string `json:"hubEndpoint,omitempty"`
	// allowedSourceCIDRs are the private networks that sources may use.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=64
	AllowedSourceCIDRs []string `json:"allowedSourceCIDRs,omitempty"`
	// downloadRateBytes is the current maximum rate of all downloads together, in
	// bytes per second, also that of quiet hours. It is absent when there is none.
	// +optional
	// +kubebuilder:validation:Minimum=0
	DownloadRateBytes int64 `json:"downloadRateBytes,omitempty"`
	// giveRateBytes is the maximum rate of all copies to other Macs together, in
	// bytes per second. It is absent when there is none.
	// +optional
	// +kubebuilder:validation:Minimum=0
	GiveRateBytes int64 `json:"giveRateBytes,omitempty"`
	// diskMarks are the percentages that control the eviction of weights.
	// +optional
	DiskMarks *DiskMarks `json:"diskMarks,omitempty"`
	// modelRoot is the folder that file:// sources are relative to. It is absent
	// when file:// sources are disabled.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	ModelRoot string `json:"modelRoot,omitempty"`
	// quietHours is On during quiet hours. It is absent when there are none.
	// Valid values are:
	// - On: downloads have the rate of the quiet hours.
	// - Off: they have their usual rate.
	// +optional
	QuietHours QuietState `json:"quietHours,omitempty"`
	// restartRequired names the settings that take effect when the agent is
	// restarted, for example [modelRoot].
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:MaxLength=64
	RestartRequired []string `json:"restartRequired,omitempty"`
	// message names the settings of the MacNode and of its class that the agent
	// could not apply, and the reason. It is empty when all of them are applied.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
}

// QuietState is whether quiet hours slow downloads.
// +kubebuilder:validation:Enum=On;Off
type QuietState string

const (
	// QuietOn: downloads have the rate of the quiet hours.
	QuietOn QuietState = "On"
	// QuietOff: downloads have their usual rate.
	QuietOff QuietState = "Off"
)

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
	// +kubebuilder:validation:XValidation:rule="self.getFullYear() >= 0 && self.getFullYear() < 9999",message="time must be a time such as 2026-01-31T12:00:00Z"
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
