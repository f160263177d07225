package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// AgentOrder is the agent version that a Mac should run.
type AgentOrder struct {
	// version is the version that the program reports, for example v0.5.0.
	// +required
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9][A-Za-z0-9._+-]{0,63}$`
	// +kubebuilder:validation:MaxLength=64
	Version string `json:"version"`
	// source is the https:// URL of a .tar.gz archive that contains the
	// programs agent and engine.
	// +required
	// +kubebuilder:validation:Pattern=`^https://[^\s@]+$`
	// +kubebuilder:validation:MaxLength=1024
	Source string `json:"source"`
	// sha256 is the SHA-256 digest of the archive, in lower-case hex.
	// +required
	// +kubebuilder:validation:Pattern=`^[0-9a-f]{64}$`
	// +kubebuilder:validation:MaxLength=64
	SHA256 string `json:"sha256"`
	// attempt is the number of the upgrade attempt. A failed upgrade is tried
	// again only when this number changes.
	// +required
	// +kubebuilder:validation:Minimum=1
	Attempt int64 `json:"attempt"`
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

// DowngradePolicy controls whether an agent may be replaced by an older version.
// +kubebuilder:validation:Enum=Refuse;Allow
type DowngradePolicy string

const (
	// DowngradeRefuse: an older version is refused.
	DowngradeRefuse DowngradePolicy = "Refuse"
	// DowngradeAllow: an older version is installed.
	DowngradeAllow DowngradePolicy = "Allow"
)

// AgentUpgradePhase is the phase of an agent upgrade.
// +kubebuilder:validation:Enum=Fetching;Draining;Trial;Succeeded;RolledBack;Refused
type AgentUpgradePhase string

const (
	// UpgradeFetching: the agent downloads and checks the archive; requests are
	// served.
	UpgradeFetching AgentUpgradePhase = "Fetching"
	// UpgradeDraining: running requests finish; the agent accepts no new ones.
	UpgradeDraining AgentUpgradePhase = "Draining"
	// UpgradeTrial: the new agent has started and must become ready in time.
	UpgradeTrial AgentUpgradePhase = "Trial"
	// UpgradeSucceeded: the new agent became ready.
	UpgradeSucceeded AgentUpgradePhase = "Succeeded"
	// UpgradeRolledBack: the new agent failed and the previous one runs again.
	UpgradeRolledBack AgentUpgradePhase = "RolledBack"
	// UpgradeRefused: the archive did not match the order; the running agent
	// was not stopped.
	UpgradeRefused AgentUpgradePhase = "Refused"
)

// AgentUpgrade is the most recent upgrade of a Mac's agent, as the agent
// reports it.
type AgentUpgrade struct {
	// from is the version that ran before the upgrade.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	From string `json:"from,omitempty"`
	// to is the version that was requested.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	To string `json:"to"`
	// sha256 is the SHA-256 digest of the archive, in lower-case hex.
	// +required
	// +kubebuilder:validation:MaxLength=64
	SHA256 string `json:"sha256"`
	// attempt is the number of the requested attempt that this upgrade belongs to.
	// +required
	Attempt int64 `json:"attempt"`
	// phase is the current phase of the upgrade. Valid values are:
	// - Fetching: the agent downloads and checks the archive; requests are
	//   served.
	// - Draining: running requests finish; the agent accepts no new ones.
	// - Trial: the new agent has started and must become ready in time.
	// - Succeeded: the new agent became ready.
	// - RolledBack: the new agent failed and the previous one runs again.
	// - Refused: the archive was not the requested one; the running agent
	//   was not stopped.
	// +required
	Phase AgentUpgradePhase `json:"phase"`
	// message explains the phase and names the next step.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
	// time is when the phase began, by the Mac's clock.
	// +required
	// +kubebuilder:validation:XValidation:rule="self.getFullYear() >= 0 && self.getFullYear() < 9999",message="time must be a time such as 2026-01-31T12:00:00Z"
	Time metav1.Time `json:"time"`
}

// Is reports whether this is the upgrade that o requests.
func (u *AgentUpgrade) Is(o *AgentOrder) bool {
	return u != nil && o != nil && u.SHA256 == o.SHA256 && u.To == o.Version && u.Attempt == o.Attempt
}

// Failed reports whether the upgrade ended without success. It is not tried
// again automatically.
func (u *AgentUpgrade) Failed() bool {
	return u != nil && (u.Phase == UpgradeRolledBack || u.Phase == UpgradeRefused)
}
