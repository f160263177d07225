package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// AgentOrder is the agent that a Mac is to run.
type AgentOrder struct {
	// version that the program says of itself.
	// +required
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9][A-Za-z0-9._+-]{0,63}$`
	// +kubebuilder:validation:MaxLength=64
	Version string `json:"version"`
	// source is the https:// address of a .tar.gz archive with the programs
	// agent and engine.
	// +required
	// +kubebuilder:validation:Pattern=`^https://[^\s@]+$`
	// +kubebuilder:validation:MaxLength=1024
	Source string `json:"source"`
	// sha256 of the archive.
	// +required
	// +kubebuilder:validation:Pattern=`^[0-9a-f]{64}$`
	// +kubebuilder:validation:MaxLength=64
	SHA256 string `json:"sha256"`
	// attempt counts the administrator's wishes: what failed is tried again
	// only under another number.
	// +required
	// +kubebuilder:validation:Minimum=1
	Attempt int64 `json:"attempt"`
	// drainSeconds is how long running requests may go on before the agent is
	// replaced. Default: 600.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=86400
	DrainSeconds *int32 `json:"drainSeconds,omitempty"`
}

// AgentUpgradePhase is how far the upgrade of an agent is.
// +kubebuilder:validation:Enum=Fetching;Draining;Trial;Succeeded;RolledBack;Refused
type AgentUpgradePhase string

const (
	// UpgradeFetching: the archive is downloaded and looked at; requests are served.
	UpgradeFetching AgentUpgradePhase = "Fetching"
	// UpgradeDraining: running requests finish, no new ones are taken.
	UpgradeDraining AgentUpgradePhase = "Draining"
	// UpgradeTrial: the new agent has started and has to prove itself.
	UpgradeTrial AgentUpgradePhase = "Trial"
	// UpgradeSucceeded: it did.
	UpgradeSucceeded AgentUpgradePhase = "Succeeded"
	// UpgradeRolledBack: it did not, and the agent from before runs again.
	UpgradeRolledBack AgentUpgradePhase = "RolledBack"
	// UpgradeRefused: the archive is not what was ordered; nothing was stopped for it.
	UpgradeRefused AgentUpgradePhase = "Refused"
)

// AgentUpgrade is the last upgrade of a Mac's agent, as the agent reports it.
type AgentUpgrade struct {
	// from is the version that ran before.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	From string `json:"from,omitempty"`
	// to is the version that was ordered.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	To string `json:"to"`
	// sha256 of its archive.
	// +required
	// +kubebuilder:validation:MaxLength=64
	SHA256 string `json:"sha256"`
	// attempt of the order.
	// +required
	Attempt int64 `json:"attempt"`
	// phase that it is in.
	// +required
	Phase AgentUpgradePhase `json:"phase"`
	// message says why, and what to do.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
	// time at which the phase began, by the Mac's clock.
	// +required
	Time metav1.Time `json:"time"`
}

// Is says that this is the upgrade which an order asks for.
func (u *AgentUpgrade) Is(o *AgentOrder) bool {
	return u != nil && o != nil && u.SHA256 == o.SHA256 && u.To == o.Version && u.Attempt == o.Attempt
}

// Failed says that it ended, and not well: it is not tried again by itself.
func (u *AgentUpgrade) Failed() bool {
	return u != nil && (u.Phase == UpgradeRolledBack || u.Phase == UpgradeRefused)
}
