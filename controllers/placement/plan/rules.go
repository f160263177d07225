package plan

import (
	"fmt"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// Rules are an administrator's limits for placement: those parts of NamespaceRules that are
// not checked when a deployment is written. The zero value limits nothing.
type Rules struct {
	// overcommit limits the OnDemand replicas of a Mac: their requirements together may be
	// at most this multiple of the memory that permanent replicas leave; 0 means no limit.
	overcommit float64
	// others are the limits of namespaces that are not listed.
	others bounds
	listed map[string]bounds
	// missing reports that there are no rules although there should be.
	missing bool
}

// bounds limit one namespace.
type bounds struct {
	// memory is the maximum permanent memory of its replicas, over all Macs; nil means no
	// limit.
	memory *int64
	// prefetch is the maximum disk space of its prefetches, over all Macs, apart from that of one
	// swap at a time; nil means no limit.
	prefetch *int64
	// perMac is how many of a Mac's fleet.MaxAssignments replicas may be of this namespace,
	// and the same share of the size of its assignments and of its disk for OnDemand models; 0
	// means no limit.
	perMac int
	// macs selects the Macs that it may use; nil means all.
	macs *v1alpha1.MacSelector
}

// NewRules parses the rules. Without them nothing new is placed if they are required,
// because limits were intended, and nothing is limited otherwise.
func NewRules(n *v1alpha1.NamespaceRules, required bool) Rules {
	if n == nil {
		return Rules{missing: required}
	}
	out := Rules{overcommit: float64(n.Spec.OnDemandOvercommitPercent) / 100, others: boundsOf(n.Spec.Default),
		listed: make(map[string]bounds, len(n.Spec.Namespaces))}
	for i := range n.Spec.Namespaces {
		name := n.Spec.Namespaces[i].Name
		out.listed[name] = boundsOf(n.Spec.Of(name))
	}
	return out
}

func boundsOf(r v1alpha1.NamespaceRule) bounds {
	b := bounds{perMac: int(r.ReplicasPerMac), macs: r.MacSelector, prefetch: new(int64)}
	if r.PrefetchLimit != nil {
		*b.prefetch = r.PrefetchLimit.Value()
	}
	if r.MemoryLimit != nil {
		memory := r.MemoryLimit.Value()
		b.memory = &memory
	}
	return b
}

// of returns the limits of a namespace.
func (r Rules) of(namespace string) bounds {
	if b, listed := r.listed[namespace]; listed {
		return b
	}
	return r.others
}

// Memory returns the memory limit of a namespace, in bytes; false if it has none.
func (r Rules) Memory(namespace string) (limit int64, limited bool) {
	if memory := r.of(namespace).memory; memory != nil {
		return *memory, true
	}
	return 0, false
}

// refuse returns why the rules do not let a replica be placed; reserved is what its
// namespace has reserved already.
func (r Rules) refuse(replica *v1alpha1.ModelReplica, reserved int64) (reason, message string) {
	if r.missing {
		return v1alpha1.ReasonRulesMissing, fmt.Sprintf("NamespaceRules %s does not exist; an administrator must create it before anything new is placed, or run the operator without --require-namespace-rules",
			v1alpha1.NamespaceRulesName)
	}
	limit, limited := r.Memory(replica.Namespace)
	need := replica.Spec.ReservedBytes
	if limited && !replica.Spec.Residency.OnDemand() && need > limit-reserved {
		return v1alpha1.ReasonOverQuota, fmt.Sprintf("namespace %s may reserve %s, has reserved %s, and this replica needs %s; scale down another deployment in the namespace, make it OnDemand (residency.policy), or ask an administrator for more",
			replica.Namespace, v1alpha1.FormatBytes(limit), v1alpha1.FormatBytes(reserved), v1alpha1.FormatBytes(need))
	}
	return "", ""
}
