package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
)

// Taint keeps away replicas that do not tolerate it.
type Taint struct {
	// key is the name of the taint, for example example.com/desk.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	// +kubebuilder:validation:XValidation:rule="self.matches('^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$')",message="the key of a taint must be a label name, for example desk or example.com/desk"
	Key string `json:"key"`
	// value is compared with the value of tolerations. Default: empty.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self.matches('^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$')",message="the value of a taint must be a valid label value, for example lab-2"
	Value string `json:"value,omitempty"`
	// effect is what happens to replicas that do not tolerate the taint. Valid
	// values are:
	// - NoSchedule: no new replica is placed on the Mac.
	// - PreferNoSchedule: placement prefers other Macs.
	// - NoExecute: no new replica is placed on the Mac, and those that it holds
	//   drain and are replaced on other Macs, at once or after the
	//   tolerationSeconds of their toleration.
	// +required
	// +kubebuilder:validation:Enum=NoSchedule;PreferNoSchedule;NoExecute
	Effect corev1.TaintEffect `json:"effect"`
}

// Toleration matches taints.
// +kubebuilder:validation:XValidation:rule="has(self.key) || has(self.operator) && self.operator == 'Exists'",message="a toleration without key requires operator Exists, which tolerates every taint; set key, or operator: Exists"
// +kubebuilder:validation:XValidation:rule="!has(self.value) || !has(self.operator) || self.operator != 'Exists'",message="operator Exists takes no value; remove value, or set operator: Equal"
// +kubebuilder:validation:XValidation:rule="!has(self.tolerationSeconds) || has(self.effect) && self.effect == 'NoExecute'",message="tolerationSeconds requires effect: NoExecute, the only effect that concerns placed replicas"
type Toleration struct {
	// key is the name of the tolerated taint. Default: every taint, which
	// requires operator Exists.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	// +kubebuilder:validation:XValidation:rule="self.matches('^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$')",message="the key of a toleration must be a label name, for example desk or example.com/desk"
	Key string `json:"key,omitempty"`
	// operator compares the taint with value. Default: Equal. Valid values are:
	// - Equal: the taint has the same value.
	// - Exists: the taint has any value.
	// +optional
	// +kubebuilder:validation:Enum=Equal;Exists
	Operator corev1.TolerationOperator `json:"operator,omitempty"`
	// value is the value of the tolerated taint. Default: empty.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self.matches('^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$')",message="the value of a toleration must be a valid label value, for example lab-2"
	Value string `json:"value,omitempty"`
	// effect is the tolerated effect. Default: every effect. Valid values are:
	// - NoSchedule: new replicas stay away.
	// - PreferNoSchedule: new replicas go elsewhere where they can.
	// - NoExecute: new replicas stay away, and placed ones leave.
	// +optional
	// +kubebuilder:validation:Enum=NoSchedule;PreferNoSchedule;NoExecute
	Effect corev1.TaintEffect `json:"effect,omitempty"`
	// tolerationSeconds is how long, in seconds, a placed replica stays on a Mac
	// that gets the taint, for example 300. It requires effect NoExecute, and
	// does not let new replicas in. With 0, the replica leaves at once. Default:
	// it stays, and new ones are let in.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=2592000
	TolerationSeconds *int64 `json:"tolerationSeconds,omitempty"`
}
