package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// MacNodeStatus is the most recently observed state of a Mac, as its agent
// reports it.
type MacNodeStatus struct {
	// observedGeneration is the generation of the spec that this status
	// describes. It is -1 until the agent has reported.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// agentVersion is the version of the running agent.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	AgentVersion string `json:"agentVersion,omitempty"`
	// bootID identifies one run of the agent. It changes when the agent
	// restarts; engines keep running across a restart.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	BootID string `json:"bootID,omitempty"`
	// agentUpgrade is the most recent upgrade of the agent.
	// +optional
	AgentUpgrade *AgentUpgrade `json:"agentUpgrade,omitempty"`
	// address is where the agent accepts requests.
	// +optional
	Address *MacAddress `json:"address,omitempty"`
	// trustedRoots are the SHA-256 fingerprints, in hex, of the operator's root
	// certificates that this Mac currently trusts. The operator signs with a
	// new root only when every live Mac lists it here.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:Pattern=`^[0-9a-f]{64}$`
	// +kubebuilder:validation:items:MaxLength=64
	TrustedRoots []string `json:"trustedRoots,omitempty"`
	// chip is the chip of the Mac, for example M2Ultra.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	Chip string `json:"chip,omitempty"`
	// backend is the compute back end of the engines on this Mac: mlx or ref.
	// +optional
	// +kubebuilder:validation:MaxLength=16
	Backend string `json:"backend,omitempty"`
	// simulated is true when chip and memory were declared with agent --mac
	// instead of measured.
	// +optional
	Simulated bool `json:"simulated,omitempty"`
	// memory reports the memory of the Mac and of its engines.
	// +optional
	Memory MacMemory `json:"memory,omitzero"`
	// disk reports the disk that holds the weights.
	// +optional
	Disk MacDisk `json:"disk,omitzero"`
	// settings are the settings that the agent currently uses, from
	// spec.settings, from its flags or from its class.
	// +optional
	Settings SettingsInForce `json:"settings,omitzero"`
	// cacheCleared is the result of the most recent spec.clearCache.
	// +optional
	CacheCleared *CacheCleared `json:"cacheCleared,omitempty"`
	// weights lists the models on disk, by digest. If there are more than 256, it
	// lists the largest, those that assignments want and a share of each
	// namespace.
	// +optional
	// +listType=map
	// +listMapKey=digest
	// +kubebuilder:validation:MaxItems=256
	Weights []StoredWeights `json:"weights,omitempty"`
	// assignments reports the state of each assignment.
	// +optional
	// +listType=map
	// +listMapKey=replicaUID
	// +kubebuilder:validation:MaxItems=128
	Assignments []AssignmentStatus `json:"assignments,omitempty"`
	// inspections reports the state and result of each inspection.
	// +optional
	// +listType=map
	// +listMapKey=id
	// +kubebuilder:validation:MaxItems=64
	Inspections []InspectionStatus `json:"inspections,omitempty"`
	// reclaims lists the 16 most recently ended engines and the memory that
	// they freed, newest first.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	Reclaims []Reclaim `json:"reclaims,omitempty"`
	// summary holds rounded figures for display.
	// +optional
	Summary MacSummary `json:"summary,omitzero"`
	// conditions are the conditions of the Mac. The operator writes Ready and
	// AgentCurrent; the agent writes Accepting, MemoryPressure, WiredStranded,
	// MemoryDiverged and GuardInactive.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:XValidation:rule="self.lastTransitionTime.getFullYear() >= 0 && self.lastTransitionTime.getFullYear() < 9999",message="lastTransitionTime must be a time such as 2026-01-31T12:00:00Z"
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// MacAddress is where a Mac's agent accepts requests.
type MacAddress struct {
	// host is the host name or IP address of the Mac.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Host string `json:"host"`
	// port is the agent's port, which requires TLS with client certificates.
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port int32 `json:"port"`
	// reach is how gateways connect to the Mac. Default: Direct. Valid values
	// are:
	// - Direct: gateways connect to host and port.
	// - Tunnel: the agent connects to each gateway, and requests use these
	//   connections.
	// - DirectOrTunnel: gateways connect directly while that works, and
	//   otherwise use the tunnel.
	// +optional
	Reach MacReach `json:"reach,omitempty"`
}

// MacReach is how gateways connect to a Mac. Direct: gateways connect to its
// host and port. Tunnel: the agent connects to each gateway, and requests use
// these connections. DirectOrTunnel: gateways connect directly while that
// works, and otherwise use the tunnel.
// +kubebuilder:validation:Enum=Direct;Tunnel;DirectOrTunnel
type MacReach string

// The ways to reach a Mac.
const (
	ReachDirect         MacReach = "Direct"
	ReachTunnel         MacReach = "Tunnel"
	ReachDirectOrTunnel MacReach = "DirectOrTunnel"
)

// CeilingTerm is the term that limits a Mac's memory ceiling.
// +kubebuilder:validation:Enum=Static;Dynamic;MetalCap;Explicit
type CeilingTerm string

// The terms of the ceiling; metal/footprint documents the design and the
// constants.
const (
	CeilingStatic   CeilingTerm = "Static"
	CeilingDynamic  CeilingTerm = "Dynamic"
	CeilingMetalCap CeilingTerm = "MetalCap"
	CeilingExplicit CeilingTerm = "Explicit"
)

// PressureLevel is how close the engines' memory use is to the Mac's ceiling;
// the thresholds are in metal/footprint.
// +kubebuilder:validation:Enum=Normal;Soft;Hard;Emergency
type PressureLevel string

const (
	// PressureNormal: memory use is under the soft threshold.
	PressureNormal PressureLevel = "Normal"
	// PressureSoft: new prompts wait and idle OnDemand models are unloaded.
	PressureSoft PressureLevel = "Soft"
	// PressureHard: idle models are unloaded, then requests of engines over
	// their limit are ended.
	PressureHard PressureLevel = "Hard"
	// PressureEmergency: engines use memory that is reserved for the system.
	PressureEmergency PressureLevel = "Emergency"
)

// MacMemory reports the memory of a Mac, in bytes. Figures are measured unless
// their description calls them an estimate.
type MacMemory struct {
	// totalBytes is the physical memory of the Mac.
	// +optional
	TotalBytes int64 `json:"totalBytes,omitempty"`
	// ceilingBytes is the maximum memory that all engines may use together.
	// +optional
	CeilingBytes int64 `json:"ceilingBytes,omitempty"`
	// ceilingTerm is the term that determines ceilingBytes. Valid values are:
	// - Static: the Mac's memory minus the reserve of spec.memory.policy.
	// - MetalCap: the Mac's limit for GPU memory.
	// - Explicit: spec.memory.ceiling.
	// +optional
	CeilingTerm CeilingTerm `json:"ceilingTerm,omitempty"`
	// dynamicCeilingBytes is the memory that engines may use at this moment,
	// computed from the free memory of the system. It limits loads and triggers
	// evictions, but does not change reservations.
	// +optional
	DynamicCeilingBytes int64 `json:"dynamicCeilingBytes,omitempty"`
	// effectiveCeilingBytes is the smaller of ceilingBytes and
	// dynamicCeilingBytes. pressureLevel is relative to it.
	// +optional
	EffectiveCeilingBytes int64 `json:"effectiveCeilingBytes,omitempty"`
	// effectiveCeilingTerm is the term that determines effectiveCeilingBytes: a
	// value of ceilingTerm, or Dynamic for dynamicCeilingBytes.
	// +optional
	EffectiveCeilingTerm CeilingTerm `json:"effectiveCeilingTerm,omitempty"`
	// pressureLevel is the memory pressure that the agent acts on. Valid values
	// are:
	// - Normal: memory use is under the soft threshold.
	// - Soft: new prompts wait and idle OnDemand models are unloaded.
	// - Hard: idle models are unloaded, then requests of engines over their
	//   limit are ended.
	// - Emergency: engines use memory that is reserved for the system.
	// +optional
	PressureLevel PressureLevel `json:"pressureLevel,omitempty"`
	// activeBytes is the size of the live arrays of all engines, as the engines
	// count them.
	// +optional
	ActiveBytes int64 `json:"activeBytes,omitempty"`
	// accountedBytes is the size of loaded weights and KV cache in use, as the
	// engines count them.
	// +optional
	AccountedBytes int64 `json:"accountedBytes,omitempty"`
	// pooledBytes is the free memory that the engines' back ends keep and have
	// not returned to the system.
	// +optional
	PooledBytes int64 `json:"pooledBytes,omitempty"`
	// strandedBytes is the wired memory that no live process owns. Only a
	// reboot frees it.
	// +optional
	// +kubebuilder:validation:Minimum=0
	StrandedBytes int64 `json:"strandedBytes,omitempty"`
	// swapUsedBytes is the swap space in use.
	// +optional
	SwapUsedBytes int64 `json:"swapUsedBytes,omitempty"`
	// thermalState is the thermal state that macOS reports: Nominal, Fair,
	// Serious or Critical.
	// +optional
	// +kubebuilder:validation:MaxLength=16
	ThermalState string `json:"thermalState,omitempty"`
	// capacityBytes is the maximum memory that may be reserved for replicas,
	// somewhat less than ceilingBytes.
	// +optional
	CapacityBytes int64 `json:"capacityBytes,omitempty"`
	// reservedBytes is the memory reserved for replicas, an estimate.
	// +optional
	ReservedBytes int64 `json:"reservedBytes,omitempty"`
	// footprintBytes is the memory footprint of all engine processes, as the
	// kernel reports it.
	// +optional
	FootprintBytes int64 `json:"footprintBytes,omitempty"`
	// foreignBytes is the memory in use that belongs to no engine.
	// +optional
	ForeignBytes int64 `json:"foreignBytes,omitempty"`
	// freeBytes is the memory that the system can allocate at once.
	// +optional
	FreeBytes int64 `json:"freeBytes,omitempty"`
	// freedBytesTotal is the memory measured as freed by all ended engines
	// since the agent's journal was created.
	// +optional
	// +kubebuilder:validation:Minimum=0
	FreedBytesTotal int64 `json:"freedBytesTotal,omitempty"`
	// indeterminateReclaims is the number of unloads whose effect on the Mac's
	// memory could not be attributed.
	// +optional
	// +kubebuilder:validation:Minimum=0
	IndeterminateReclaims int64 `json:"indeterminateReclaims,omitempty"`
	// measuredAt is when the figures were measured.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self.getFullYear() >= 0 && self.getFullYear() < 9999",message="measuredAt must be a time such as 2026-01-31T12:00:00Z"
	MeasuredAt *metav1.Time `json:"measuredAt,omitempty"`
}

// MacDisk reports the disk that holds the weights.
type MacDisk struct {
	// freeBytes is the free space on the disk, in bytes.
	// +optional
	FreeBytes int64 `json:"freeBytes,omitempty"`
	// totalBytes is the size of the disk, in bytes.
	// +optional
	TotalBytes int64 `json:"totalBytes,omitempty"`
	// weightsBytes is the size of all downloaded weights, in bytes. A file that
	// several models share counts once.
	// +optional
	WeightsBytes int64 `json:"weightsBytes,omitempty"`
	// reclaimableBytes is the disk space, in bytes, that downloads may use in
	// addition to freeBytes: that of unused weights, including those that
	// status.weights does not list, and that of the prefix cache if it is on this
	// disk.
	// +optional
	// +kubebuilder:validation:Minimum=0
	ReclaimableBytes int64 `json:"reclaimableBytes,omitempty"`
	// collected reports the unused weights that were removed since the agent
	// started.
	// +optional
	Collected Collected `json:"collected,omitzero"`
	// message describes a problem with the disk. It is empty when there is
	// none.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
	// cache reports the prefix cache on the disk.
	// +optional
	Cache MacCache `json:"cache,omitzero"`
}

// Collected reports the unused weights that a Mac removed to free disk space.
type Collected struct {
	// models is the number of models that were removed.
	// +optional
	Models int64 `json:"models,omitempty"`
	// bytes is the disk space, in bytes, that was freed.
	// +optional
	Bytes int64 `json:"bytes,omitempty"`
	// last lists the most recent removals, newest first.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=8
	Last []Collection `json:"last,omitempty"`
}

// CollectionReason is why unused weights were removed.
// +kubebuilder:validation:Enum=HighMark;Download;Count
type CollectionReason string

const (
	// CollectedForMark: disk usage was above --disk-high-percent.
	CollectedForMark CollectionReason = "HighMark"
	// CollectedForDownload: a download needed the space.
	CollectedForDownload CollectionReason = "Download"
	// CollectedForCount: the Mac kept too many models or files.
	CollectedForCount CollectionReason = "Count"
)

// Collection records the removal of one unused model.
type Collection struct {
	// digest is the digest of the model record.
	// +required
	// +kubebuilder:validation:MaxLength=71
	Digest string `json:"digest"`
	// source is where the weights were downloaded from.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Source string `json:"source,omitempty"`
	// bytes is the disk space, in bytes, that the removal freed. Files shared
	// with other models do not count.
	// +required
	// +kubebuilder:validation:Minimum=0
	Bytes int64 `json:"bytes"`
	// reason is why the weights were removed. Valid values are:
	// - HighMark: disk usage was above the agent's --disk-high-percent.
	// - Download: a download needed the space.
	// - Count: the Mac kept more than 512 models or 16,384 files.
	// +required
	Reason CollectionReason `json:"reason"`
	// time is when the weights were removed.
	// +required
	// +kubebuilder:validation:XValidation:rule="self.getFullYear() >= 0 && self.getFullYear() < 9999",message="time must be a time such as 2026-01-31T12:00:00Z"
	Time metav1.Time `json:"time"`
}

// MacCache reports the prefix cache on a Mac's disk. Counters start at zero
// when the agent starts.
type MacCache struct {
	// bytes is the size of the cache, in bytes.
	// +optional
	Bytes int64 `json:"bytes,omitempty"`
	// limitBytes is the current maximum size of the cache for all models
	// together, in bytes. It depends on the free space of the disk.
	// +optional
	LimitBytes int64 `json:"limitBytes,omitempty"`
	// writtenBytes is the number of bytes written to the cache.
	// +optional
	WrittenBytes int64 `json:"writtenBytes,omitempty"`
	// hits is the number of blocks that were read instead of computed.
	// +optional
	Hits int64 `json:"hits,omitempty"`
	// dropped is the number of blocks that were discarded because the cache was
	// full or the disk was too slow.
	// +optional
	Dropped int64 `json:"dropped,omitempty"`
	// message describes a problem with the cache. It is empty when there is
	// none.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
}

// StoredWeights is one complete, verified model on a Mac's disk.
type StoredWeights struct {
	// digest is the digest of the model record.
	// +required
	// +kubebuilder:validation:MaxLength=71
	Digest string `json:"digest"`
	// bytes is the size of the model's files, in bytes.
	// +required
	Bytes int64 `json:"bytes"`
	// reclaimableBytes is the disk space, in bytes, that removing this model
	// would free for a download. It is 0 while the model is in use or pinned.
	// Files shared with other models do not count.
	// +optional
	// +kubebuilder:validation:Minimum=0
	ReclaimableBytes int64 `json:"reclaimableBytes,omitempty"`
}

// MacSummary holds rounded figures for kubectl get.
type MacSummary struct {
	// memory is the physical memory of the Mac, for example "192.0 GiB".
	// +optional
	// +kubebuilder:validation:MaxLength=32
	Memory string `json:"memory,omitempty"`
	// ceiling is the maximum memory that all engines may use together.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	Ceiling string `json:"ceiling,omitempty"`
	// reserved is the memory reserved for replicas, an estimate.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	Reserved string `json:"reserved,omitempty"`
	// used is the memory footprint of all engines.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	Used string `json:"used,omitempty"`
	// freed is the memory measured as freed so far.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	Freed string `json:"freed,omitempty"`
}
