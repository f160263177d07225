package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// MacNodeStatus is what a Mac's agent reports.
type MacNodeStatus struct {
	// observedGeneration of the orders that this report takes into account.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// agentVersion that runs there.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	AgentVersion string `json:"agentVersion,omitempty"`
	// bootID changes when the agent starts; engines survive that.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	BootID string `json:"bootID,omitempty"`
	// agentUpgrade is the last upgrade of the agent.
	// +optional
	AgentUpgrade *AgentUpgrade `json:"agentUpgrade,omitempty"`
	// address of the agent's one port.
	// +optional
	Address *MacAddress `json:"address,omitempty"`
	// trustedRoots are the SHA-256 fingerprints, in hex, of the operator's roots
	// by which this Mac knows gateways at this moment. The operator signs with a
	// new root only when every living Mac names it here.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:Pattern=`^[0-9a-f]{64}$`
	// +kubebuilder:validation:items:MaxLength=64
	TrustedRoots []string `json:"trustedRoots,omitempty"`
	// chip, such as "M2Ultra".
	// +optional
	// +kubebuilder:validation:MaxLength=32
	Chip string `json:"chip,omitempty"`
	// backends of the engine there, such as "mlx" or "ref".
	// +optional
	// +kubebuilder:validation:MaxLength=16
	Backend string `json:"backend,omitempty"`
	// simulated is true where chip and memory were declared and not measured.
	// +optional
	Simulated bool `json:"simulated,omitempty"`
	// memory of the Mac.
	// +optional
	Memory MacMemory `json:"memory,omitzero"`
	// disk of the weight store.
	// +optional
	Disk MacDisk `json:"disk,omitzero"`
	// settings that the agent follows now, whoever said them.
	// +optional
	Settings SettingsInForce `json:"settings,omitzero"`
	// cacheCleared is the last order to clear caches that was carried out.
	// +optional
	CacheCleared *CacheCleared `json:"cacheCleared,omitempty"`
	// weights on disk, by digest.
	// +optional
	// +listType=map
	// +listMapKey=digest
	// +kubebuilder:validation:MaxItems=256
	Weights []StoredWeights `json:"weights,omitempty"`
	// assignments as the Mac sees them.
	// +optional
	// +listType=map
	// +listMapKey=replicaUID
	// +kubebuilder:validation:MaxItems=128
	Assignments []AssignmentStatus `json:"assignments,omitempty"`
	// inspections and their results.
	// +optional
	// +listType=map
	// +listMapKey=id
	// +kubebuilder:validation:MaxItems=64
	Inspections []InspectionStatus `json:"inspections,omitempty"`
	// reclaims are the last 16, newest first.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	Reclaims []Reclaim `json:"reclaims,omitempty"`
	// summary holds rounded figures for people.
	// +optional
	Summary MacSummary `json:"summary,omitzero"`
	// conditions: Ready and AgentCurrent (the operator's); Accepting, MemoryPressure, WiredStranded, MemoryDiverged, GuardInactive (the agent's).
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=16
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// MacAddress is where a Mac's agent listens.
type MacAddress struct {
	// host name or IP address.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Host string `json:"host"`
	// port of TLS with client certificates.
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port int32 `json:"port"`
	// reach is how gateways come to the Mac; absent, they go there directly.
	// +optional
	Reach MacReach `json:"reach,omitempty"`
}

// MacReach is how gateways come to a Mac. Direct: they open connections to its
// host and port. Tunnel: its agent opens one to each gateway, and they open none.
// DirectOrTunnel: they go directly while that works, else through the tunnel.
// +kubebuilder:validation:Enum=Direct;Tunnel;DirectOrTunnel
type MacReach string

// Ways to a Mac.
const (
	ReachDirect         MacReach = "Direct"
	ReachTunnel         MacReach = "Tunnel"
	ReachDirectOrTunnel MacReach = "DirectOrTunnel"
)

// CeilingTerm is what binds a Mac's ceiling.
// +kubebuilder:validation:Enum=Static;Dynamic;MetalCap;Explicit
type CeilingTerm string

// The terms of the ceiling; design and constants stand in metal/footprint.
const (
	CeilingStatic   CeilingTerm = "Static"
	CeilingDynamic  CeilingTerm = "Dynamic"
	CeilingMetalCap CeilingTerm = "MetalCap"
	CeilingExplicit CeilingTerm = "Explicit"
)

// PressureLevel is how near a Mac's engines are to its ceiling; the fractions
// stand in metal/footprint.
// +kubebuilder:validation:Enum=Normal;Soft;Hard;Emergency
type PressureLevel string

const (
	// PressureNormal: below the soft mark.
	PressureNormal PressureLevel = "Normal"
	// PressureSoft: new prompts wait, idle OnDemand models go.
	PressureSoft PressureLevel = "Soft"
	// PressureHard: idle models go, then requests of whoever is over its limit end.
	PressureHard PressureLevel = "Hard"
	// PressureEmergency: over what was promised to the system.
	PressureEmergency PressureLevel = "Emergency"
)

// MacMemory are the figures of a Mac's memory, in bytes, measured where not said otherwise.
type MacMemory struct {
	// totalBytes of the machine.
	// +optional
	TotalBytes int64 `json:"totalBytes,omitempty"`
	// ceilingBytes is the most that engines may use together.
	// +optional
	CeilingBytes int64 `json:"ceilingBytes,omitempty"`
	// ceilingTerm is what binds the ceiling.
	// +optional
	CeilingTerm CeilingTerm `json:"ceilingTerm,omitempty"`
	// dynamicCeilingBytes is what the system's free memory allows engines at
	// this moment. It gates loads and the enforcer, never what was promised.
	// +optional
	DynamicCeilingBytes int64 `json:"dynamicCeilingBytes,omitempty"`
	// effectiveCeilingBytes is the smaller of both ceilings, and what pressure is judged by.
	// +optional
	EffectiveCeilingBytes int64 `json:"effectiveCeilingBytes,omitempty"`
	// effectiveCeilingTerm is what binds it.
	// +optional
	EffectiveCeilingTerm CeilingTerm `json:"effectiveCeilingTerm,omitempty"`
	// pressureLevel that the agent acts on.
	// +optional
	PressureLevel PressureLevel `json:"pressureLevel,omitempty"`
	// activeBytes are the live arrays of all engines, as the engines count them.
	// +optional
	ActiveBytes int64 `json:"activeBytes,omitempty"`
	// accountedBytes are loaded weights and KV in use, as the engines count them.
	// +optional
	AccountedBytes int64 `json:"accountedBytes,omitempty"`
	// pooledBytes are free inside the engines' back ends and not yet returned.
	// +optional
	PooledBytes int64 `json:"pooledBytes,omitempty"`
	// strandedBytes are wired, and no living process owns them.
	// +optional
	// +kubebuilder:validation:Minimum=0
	StrandedBytes int64 `json:"strandedBytes,omitempty"`
	// swapUsedBytes of the machine.
	// +optional
	SwapUsedBytes int64 `json:"swapUsedBytes,omitempty"`
	// thermalState of the machine, as it says: Nominal, Fair, Serious, Critical.
	// +optional
	// +kubebuilder:validation:MaxLength=16
	ThermalState string `json:"thermalState,omitempty"`
	// capacityBytes is the most that may be reserved, somewhat under the ceiling.
	// +optional
	CapacityBytes int64 `json:"capacityBytes,omitempty"`
	// reservedBytes promised to replicas, an estimate.
	// +optional
	ReservedBytes int64 `json:"reservedBytes,omitempty"`
	// footprintBytes of all engines.
	// +optional
	FootprintBytes int64 `json:"footprintBytes,omitempty"`
	// foreignBytes used by what no engine owns.
	// +optional
	ForeignBytes int64 `json:"foreignBytes,omitempty"`
	// freeBytes the system could give out at once.
	// +optional
	FreeBytes int64 `json:"freeBytes,omitempty"`
	// freedBytesTotal measured as freed since the agent's journal began.
	// +optional
	// +kubebuilder:validation:Minimum=0
	FreedBytesTotal int64 `json:"freedBytesTotal,omitempty"`
	// indeterminateReclaims counts unloads whose effect on the host could not be attributed.
	// +optional
	// +kubebuilder:validation:Minimum=0
	IndeterminateReclaims int64 `json:"indeterminateReclaims,omitempty"`
	// measuredAt is when the figures were read.
	// +optional
	MeasuredAt *metav1.Time `json:"measuredAt,omitempty"`
}

// MacDisk are the figures of the disk that holds weights.
type MacDisk struct {
	// freeBytes on it.
	// +optional
	FreeBytes int64 `json:"freeBytes,omitempty"`
	// totalBytes of it.
	// +optional
	TotalBytes int64 `json:"totalBytes,omitempty"`
	// weightsBytes that the store holds; a file that several models have counts
	// once.
	// +optional
	WeightsBytes int64 `json:"weightsBytes,omitempty"`
	// collected is what was removed to make room since the agent started.
	// +optional
	Collected Collected `json:"collected,omitzero"`
	// message says what is wrong with the disk; empty while nothing is.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
	// cache of what engines computed of prompts.
	// +optional
	Cache MacCache `json:"cache,omitzero"`
}

// Collected are the weights that a Mac removed to make room: nobody wanted them.
type Collected struct {
	// models that were removed.
	// +optional
	Models int64 `json:"models,omitempty"`
	// bytes of their files that no other model has.
	// +optional
	Bytes int64 `json:"bytes,omitempty"`
	// last of them, newest first.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=8
	Last []Collection `json:"last,omitempty"`
}

// CollectionReason is why weights that nobody wants were removed.
// +kubebuilder:validation:Enum=HighMark;Download
type CollectionReason string

const (
	// CollectedForMark: the disk was above its high mark.
	CollectedForMark CollectionReason = "HighMark"
	// CollectedForDownload: a download needed the room.
	CollectedForDownload CollectionReason = "Download"
)

// Collection is one removal of weights that nobody wanted.
type Collection struct {
	// digest of the model record.
	// +required
	// +kubebuilder:validation:MaxLength=71
	Digest string `json:"digest"`
	// source that they came from.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Source string `json:"source,omitempty"`
	// bytes of their files that no other model has.
	// +required
	// +kubebuilder:validation:Minimum=0
	Bytes int64 `json:"bytes"`
	// reason of it.
	// +required
	Reason CollectionReason `json:"reason"`
	// time of it.
	// +required
	Time metav1.Time `json:"time"`
}

// MacCache are the figures of a Mac's cache on disk. Counts are since its agent
// started.
type MacCache struct {
	// bytes that it holds, of limitBytes that all models together may take now.
	// +optional
	Bytes int64 `json:"bytes,omitempty"`
	// limitBytes follows the disk's free space.
	// +optional
	LimitBytes int64 `json:"limitBytes,omitempty"`
	// writtenBytes to the disk.
	// +optional
	WrittenBytes int64 `json:"writtenBytes,omitempty"`
	// hits are blocks that were read and did not have to be computed again.
	// +optional
	Hits int64 `json:"hits,omitempty"`
	// dropped blocks had no room, or came too fast for the disk.
	// +optional
	Dropped int64 `json:"dropped,omitempty"`
	// message says what is wrong with it; empty while nothing is.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
}

// StoredWeights are complete, verified files on a Mac's disk.
type StoredWeights struct {
	// digest of the model record.
	// +required
	// +kubebuilder:validation:MaxLength=71
	Digest string `json:"digest"`
	// bytes of its files.
	// +required
	Bytes int64 `json:"bytes"`
	// reclaimableBytes come back if a download needs the room: nobody wants these
	// weights. Files that other models have do not count.
	// +optional
	// +kubebuilder:validation:Minimum=0
	ReclaimableBytes int64 `json:"reclaimableBytes,omitempty"`
}

// MacSummary holds rounded figures for kubectl get.
type MacSummary struct {
	// memory of the machine.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	Memory string `json:"memory,omitempty"`
	// ceiling of all engines.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	Ceiling string `json:"ceiling,omitempty"`
	// reserved by replicas.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	Reserved string `json:"reserved,omitempty"`
	// used by engines.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	Used string `json:"used,omitempty"`
	// freed so far.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	Freed string `json:"freed,omitempty"`
}
