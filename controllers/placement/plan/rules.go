package plan

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/yaml"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// ConfigMapName is the ConfigMap in the operator's namespace whose key
// RulesKey holds the administrator's rules.
const (
	ConfigMapName = "metalfleet-placement"
	RulesKey      = "rules"
)

// Rules are an administrator's limits for placement. The zero value limits nothing.
type Rules struct {
	// OnDemandOvercommit limits the OnDemand replicas of a Mac: their requirements together
	// may be at most this multiple of the memory that permanent replicas leave. With 1 all
	// of them fit at once; 0 means no limit.
	OnDemandOvercommit float64 `json:"onDemandOvercommit,omitempty"`
	// Default applies to namespaces that are not listed.
	Default NamespaceRules `json:"default,omitzero"`
	// Namespaces by their name.
	Namespaces map[string]NamespaceRules `json:"namespaces,omitempty"`

	// unreadable is why the rules could not be parsed.
	unreadable error
}

// NamespaceRules limit one namespace.
type NamespaceRules struct {
	// Memory is the maximum permanent memory of its replicas, over all Macs; absent means
	// no limit.
	Memory *resource.Quantity `json:"memory,omitempty"`
	// ReplicasPerMac is how many of a Mac's fleet.MaxAssignments replicas may be of this
	// namespace, and the same share of the size of its assignments; 0 means no limit.
	ReplicasPerMac int `json:"replicasPerMac,omitempty"`
	// PriorityClasses that it may use; absent allows all, and an empty list none.
	PriorityClasses *[]string `json:"priorityClasses,omitempty"`
}

// ReadRules parses the rules; nil if there is no ConfigMap. While they are invalid nothing
// new is placed, because a limit was intended.
func ReadRules(cm *corev1.ConfigMap) Rules {
	if cm == nil {
		return Rules{}
	}
	var r Rules
	if err := r.read(cm); err != nil {
		return Rules{unreadable: fmt.Errorf("ConfigMap %s/%s: %w", cm.Namespace, cm.Name, err)}
	}
	return r
}

func (r *Rules) read(cm *corev1.ConfigMap) error {
	for key := range cm.Data {
		if key != RulesKey {
			return fmt.Errorf("unknown key %q, want only %q", key, RulesKey)
		}
	}
	if err := yaml.UnmarshalStrict([]byte(cm.Data[RulesKey]), r); err != nil {
		return fmt.Errorf("%s: %w", RulesKey, err)
	}
	if r.OnDemandOvercommit != 0 && r.OnDemandOvercommit < 1 {
		return fmt.Errorf("%s: onDemandOvercommit is %v, want at least 1; remove it for no limit", RulesKey, r.OnDemandOvercommit)
	}
	if err := r.Default.check(); err != nil {
		return fmt.Errorf("%s: default: %w", RulesKey, err)
	}
	for name, n := range r.Namespaces {
		if err := n.check(); err != nil {
			return fmt.Errorf("%s: namespace %s: %w", RulesKey, name, err)
		}
	}
	return nil
}

func (n NamespaceRules) check() error {
	if n.Memory != nil && n.Memory.Sign() < 0 {
		return fmt.Errorf("memory is %s, want 0 or more", n.Memory)
	}
	if n.ReplicasPerMac < 0 {
		return fmt.Errorf("replicasPerMac is %d, want 0 or more", n.ReplicasPerMac)
	}
	return nil
}

// of returns the limits of a namespace.
func (r Rules) of(namespace string) NamespaceRules {
	if bounds, listed := r.Namespaces[namespace]; listed {
		return bounds
	}
	return r.Default
}

// Err returns why the rules are invalid; nil if they are valid.
func (r Rules) Err() error { return r.unreadable }

// refuse returns why the rules do not let a replica be placed; reserved is what its
// namespace has reserved already.
func (r Rules) refuse(replica *v1alpha1.ModelReplica, reserved int64) (reason, message string) {
	if r.unreadable != nil {
		return v1alpha1.ReasonInvalidRules, r.unreadable.Error() + "; an administrator must correct it before anything new is placed"
	}
	bounds := r.of(replica.Namespace)
	if class := replica.Spec.Priority.ClassName; class != "" && bounds.PriorityClasses != nil && !slices.Contains(*bounds.PriorityClasses, class) {
		return v1alpha1.ReasonPriorityForbidden, fmt.Sprintf("namespace %s is not allowed to use PriorityClass %s; choose another one, or ask an administrator", replica.Namespace, class)
	}
	need := replica.Spec.ReservedBytes
	if bounds.Memory != nil && !replica.Spec.Residency.OnDemand() && reserved+need > bounds.Memory.Value() {
		return v1alpha1.ReasonOverQuota, fmt.Sprintf("namespace %s may reserve %s, has reserved %s, and this replica needs %s; scale down another deployment in the namespace, make it OnDemand (residency.policy), or ask an administrator for more",
			replica.Namespace, v1alpha1.FormatBytes(bounds.Memory.Value()), v1alpha1.FormatBytes(reserved), v1alpha1.FormatBytes(need))
	}
	return "", ""
}
