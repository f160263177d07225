package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// DefaultMacClass is the class of Macs that name none.
const DefaultMacClass = "default"

// MacClass holds what many Macs have in common: the settings of their agents,
// when they may be maintained, and the version of the agent. A MacNode names its
// class in spec.class; Macs that name none are of the class default, if there is
// one. A setting of a class replaces the agent's built-in default; a flag of the
// agent replaces that, and spec.settings of the MacNode replaces both.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,path=macclasses,singular=macclass,shortName=mclass,categories=metalfleet
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Accepted",type=string,JSONPath=`.status.conditions[?(@.type=="Accepted")].status`
// +kubebuilder:printcolumn:name="Status",type=string,JSONPath=`.status.conditions[?(@.type=="Applied")].reason`
// +kubebuilder:printcolumn:name="Macs",type=integer,JSONPath=`.status.macs`,description="number of Macs of the class"
// +kubebuilder:printcolumn:name="Current",type=integer,JSONPath=`.status.currentMacs`,description="Macs that run with the current settings of the class"
// +kubebuilder:printcolumn:name="Release",type=string,JSONPath=`.spec.release.version`,description="version of the agent that the class requests"
// +kubebuilder:printcolumn:name="Upgraded",type=integer,JSONPath=`.status.upgrade.upgradedMacs`,description="Macs that run this version"
// +kubebuilder:printcolumn:name="Upgrade",type=string,JSONPath=`.status.upgrade.state`
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.conditions[?(@.type=="Applied")].message`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 63",message="metadata.name must have at most 63 characters"
type MacClass struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard object metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`
	// spec is what the Macs of the class have in common.
	// +optional
	Spec MacClassSpec `json:"spec,omitzero"`
	// status is how many Macs the class has, and how many of them follow it.
	// +optional
	// +kubebuilder:default={"observedGeneration":-1}
	Status MacClassStatus `json:"status,omitzero"`
}

// MacClassSpec is what the Macs of a class have in common.
type MacClassSpec struct {
	// settings are settings of the agents. An absent setting keeps the agent's
	// built-in default.
	// +optional
	Settings AgentSettings `json:"settings,omitzero"`
	// release is the version of the agent that the Macs should run. When it is
	// absent, they keep their versions.
	// +optional
	Release *AgentRelease `json:"release,omitempty"`
	// maintenanceWindow is when upgrades of agents may begin, for example start
	// "22:00", end "05:00". One that has begun is completed. Default: always.
	// +optional
	MaintenanceWindow *Hours `json:"maintenanceWindow,omitempty"`
}

// AgentRelease is a version of the agent for the Macs of a class. They are
// upgraded one at a time; one that fails is rolled back, and halts the others.
type AgentRelease struct {
	// version is the version that the program reports, for example v0.5.0.
	// +required
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9][A-Za-z0-9._+-]{0,63}$`
	// +kubebuilder:validation:MaxLength=64
	Version string `json:"version"`
	// source is the https:// URL of a .tar.gz archive that contains the
	// programs agent and engine, for example
	// https://releases.example.com/agent-v0.5.0.tar.gz.
	// +required
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="self.matches('^https://[^\\\\s@/]+/[^\\\\s@]*$')",message="release.source must be the https:// URL of a .tar.gz archive, without a password or an @"
	Source string `json:"source"`
	// sha256 is the SHA-256 digest of the archive, in lower-case hex, as
	// sha256sum prints it.
	// +required
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="self.matches('^[0-9a-f]{64}$')",message="release.sha256 must be 64 lower-case hex digits, as printed by sha256sum"
	SHA256 string `json:"sha256"`
	// retryGeneration, when it is increased, tries an upgrade that failed again.
	// Default: 1.
	// +optional
	// +kubebuilder:validation:Minimum=1
	RetryGeneration int64 `json:"retryGeneration,omitempty"`
	// state pauses the upgrade. Default: Active. Valid values are:
	// - Active: Macs are upgraded.
	// - Paused: no further upgrade begins; the running one is completed.
	// +optional
	State ReleaseState `json:"state,omitempty"`
	// waves divide the class: the Macs that the first wave selects are upgraded
	// first, then those of the second one, and so on; Macs that no wave selects
	// are upgraded last.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=8
	Waves []ReleaseWave `json:"waves,omitempty"`
	// mac is the name of the only Mac to upgrade. Default: all Macs of the class.
	// +optional
	// +kubebuilder:validation:MaxLength=52
	Mac string `json:"mac,omitempty"`
	// downgrade controls whether the agent may be replaced by an older version.
	// Default: Refuse. Valid values are:
	// - Refuse: an older version, or one that cannot be compared, is refused.
	// - Allow: any version is installed.
	// +optional
	Downgrade DowngradePolicy `json:"downgrade,omitempty"`
	// drainSeconds is how long running requests may continue, in seconds,
	// before the agent is replaced. Default: 600.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=86400
	DrainSeconds *int32 `json:"drainSeconds,omitempty"`
}

// ReleaseState pauses an upgrade.
// +kubebuilder:validation:Enum=Active;Paused
type ReleaseState string

const (
	// ReleaseActive: Macs are upgraded.
	ReleaseActive ReleaseState = "Active"
	// ReleasePaused: no further upgrade begins.
	ReleasePaused ReleaseState = "Paused"
)

// ReleaseWave is a part of a class that is upgraded before the rest.
type ReleaseWave struct {
	// macSelector selects the Macs of the wave, by their labels.
	// +required
	MacSelector MacSelector `json:"macSelector"`
	// soakSeconds is how long the last Mac of the wave must run the new version
	// before the next wave begins, in seconds, for example 86400 for a day.
	// Default: 0.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=2592000
	SoakSeconds int32 `json:"soakSeconds,omitempty"`
}

// Order returns the order for a Mac.
func (r *AgentRelease) Order() *AgentOrder {
	return &AgentOrder{Version: r.Version, Source: r.Source, SHA256: r.SHA256, Attempt: max(1, r.RetryGeneration), DrainSeconds: r.DrainSeconds, Downgrade: r.Downgrade}
}

// MacClassStatus is how many Macs a class has, and how many of them follow it.
type MacClassStatus struct {
	// observedGeneration is the generation of the spec that this status
	// describes. It is -1 until the operator has evaluated it.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// conditions are the conditions of the class. Accepted is False, with a
	// sentence, while a part of the spec cannot have the intended effect. Applied
	// is False while a Mac does not run with the current settings.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:XValidation:rule="self.lastTransitionTime.getFullYear() >= 0 && self.lastTransitionTime.getFullYear() < 9999",message="lastTransitionTime must be a time such as 2026-01-31T12:00:00Z"
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// macs is the number of Macs of the class.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=2147483647
	Macs int32 `json:"macs"`
	// currentMacs is how many of them report that they run with the current
	// generation of the settings, all of them applied.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=2147483647
	CurrentMacs int32 `json:"currentMacs"`
	// upgrade is the progress of spec.release. It is absent when there is none.
	// +optional
	Upgrade *ClassUpgrade `json:"upgrade,omitempty"`
}

// ClassUpgrade is the progress of the release of a class.
type ClassUpgrade struct {
	// state is the state of the upgrade. Valid values are:
	// - Done: every reachable Mac runs the version.
	// - Upgrading: a Mac is being upgraded.
	// - Waiting: something has to change first, or the maintenance window is
	//   closed.
	// - Paused: by spec.release.state.
	// - Halted: it failed on a Mac.
	// +required
	// +kubebuilder:validation:MaxLength=16
	State string `json:"state"`
	// message explains the state and names the next step.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
	// mac is the Mac that the state is about.
	// +optional
	// +kubebuilder:validation:MaxLength=52
	Mac string `json:"mac,omitempty"`
	// upgradedMacs is how many Macs of the class run the version.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=2147483647
	UpgradedMacs int32 `json:"upgradedMacs"`
}

// MacClassList is a list of MacClasses.
// +kubebuilder:object:root=true
type MacClassList struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard list metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitzero"`
	// items are the MacClasses of the list.
	Items []MacClass `json:"items"`
}

// AssignedClass is the class of a Mac, with its settings.
type AssignedClass struct {
	// name is the name of the MacClass.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Name string `json:"name"`
	// generation is the generation of the MacClass that the settings are from.
	// +required
	// +kubebuilder:validation:Minimum=1
	Generation int64 `json:"generation"`
	// settings are the settings of the class.
	// +optional
	Settings AgentSettings `json:"settings,omitzero"`
}

// ClassName returns the name of the class of a Mac.
func (m *MacNode) ClassName() string {
	if m.Spec.Class == "" {
		return DefaultMacClass
	}
	return m.Spec.Class
}
