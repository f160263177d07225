package namespacerules

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/fleet"
)

// problem is why rules cannot have their intended effect; the zero value if they can.
type problem struct {
	reason   string
	sentence string
}

// judge returns what is wrong with the rules: unknown namespaces first, then contradictions.
func judge(s *v1alpha1.NamespaceRulesSpec, seen observed) problem {
	var unknown, contradictions []string
	claimed := map[string]string{} // the namespace that may serve a name
	for i := range s.Namespaces {
		name := s.Namespaces[i].Name
		if !seen.namespaces.Has(name) {
			unknown = append(unknown, name)
		}
		for _, served := range s.Namespaces[i].ServedNames {
			served = strings.ReplaceAll(served, "{namespace}", name)
			other, taken := claimed[served]
			switch {
			case strings.HasSuffix(served, "*"):
			case taken && other != name:
				contradictions = append(contradictions, fmt.Sprintf("namespaces %s and %s may both serve the name %s, which only one deployment can have; remove it from one of them", other, name, served))
			default:
				claimed[served] = name
			}
		}
		if why := useless(s.Of(name), seen.macs); why != "" {
			contradictions = append(contradictions, "namespace "+name+" "+why)
		}
	}
	if why := useless(s.Default, seen.macs); why != "" {
		contradictions = append(contradictions, "a namespace that is not listed "+why)
	}
	var sentences []string
	reason := ""
	if len(unknown) > 0 {
		reason = v1alpha1.ReasonUnknownNamespace
		sentences = append(sentences, "there is no namespace "+strings.Join(unknown, ", ")+"; create it, or correct its name in spec.namespaces")
	}
	if len(contradictions) > 0 {
		reason = cmp.Or(reason, v1alpha1.ReasonContradictingRules)
		sentences = append(sentences, contradictions...)
	}
	return problem{reason: reason, sentence: strings.Join(sentences, "; ")}
}

// useless returns why the rules of a namespace leave it nothing that they seem to allow.
func useless(r v1alpha1.NamespaceRule, macs []v1alpha1.MacNode) string {
	if r.MemoryLimit != nil && r.MemoryLimit.Sign() < 0 {
		return fmt.Sprintf("has the memoryLimit %s; set it to 0 or more, or leave it out for no limit", r.MemoryLimit)
	}
	return withoutMacs(r, macs)
}

// withoutMacs returns why a rule with a selector leaves no Mac of the fleet; empty if it
// leaves one. A fleet without Macs is not judged.
func withoutMacs(r v1alpha1.NamespaceRule, macs []v1alpha1.MacNode) string {
	if r.MacSelector == nil || len(macs) == 0 {
		return ""
	}
	tainted := ""
	for i := range macs {
		if !r.MacSelector.Matches(&macs[i]) {
			continue
		}
		key := closed(macs[i].Spec.Taints, r.Tolerations)
		if key == "" {
			return ""
		}
		tainted = key
	}
	if tainted != "" {
		return fmt.Sprintf("may use only Macs with taints, such as %s, that it may not tolerate; add the key to its tolerations, or change its macSelector", tainted)
	}
	return "has a macSelector that matches no Mac; correct it, or label a Mac"
}

// closed returns the key of a taint that keeps replicas away and that may not be tolerated.
func closed(taints []v1alpha1.Taint, tolerable []string) string {
	for _, t := range taints {
		may := slices.ContainsFunc(tolerable, func(key string) bool {
			prefix, open := strings.CutSuffix(key, "*")
			return key == t.Key || open && strings.HasPrefix(t.Key, prefix)
		})
		if t.Effect != corev1.TaintEffectPreferNoSchedule && !may {
			return t.Key
		}
	}
	return ""
}

// maxUses bounds the namespaces of a status, as the schema does.
const maxUses = 1000

// used returns the use of each namespace that is listed or has placed replicas, by name. It
// counts what placement counts.
func used(s *v1alpha1.NamespaceRulesSpec, replicas []v1alpha1.ModelReplica) []v1alpha1.NamespaceUse {
	uses := map[string]*v1alpha1.NamespaceUse{}
	of := func(namespace string) *v1alpha1.NamespaceUse {
		u := uses[namespace]
		if u == nil {
			u = &v1alpha1.NamespaceUse{Name: namespace}
			if limit := s.Of(namespace).MemoryLimit; limit != nil {
				bytes := limit.Value()
				u.MemoryLimitBytes = &bytes
			}
			uses[namespace] = u
		}
		return u
	}
	for i := range s.Namespaces {
		of(s.Namespaces[i].Name)
	}
	for i := range replicas {
		r := &replicas[i]
		if r.Spec.NodeName == "" || fleet.Released(r) {
			continue
		}
		u := of(r.Namespace)
		u.Replicas++
		if !r.Spec.Residency.OnDemand() {
			u.ReservedBytes += r.Spec.ReservedBytes
		}
	}
	out := make([]v1alpha1.NamespaceUse, 0, len(uses))
	for _, u := range uses {
		out = append(out, *u)
	}
	slices.SortFunc(out, func(a, b v1alpha1.NamespaceUse) int { return cmp.Compare(a.Name, b.Name) })
	return out[:min(len(out), maxUses)]
}

// summary returns the total, and the namespace with the largest share of its limit.
func summary(uses []v1alpha1.NamespaceUse) v1alpha1.NamespaceRulesSummary {
	var total int64
	fullest, share := "", 0.0
	for _, u := range uses {
		total += u.ReservedBytes
		if u.MemoryLimitBytes == nil || u.ReservedBytes == 0 {
			continue
		}
		if x := float64(u.ReservedBytes) / float64(max(1, *u.MemoryLimitBytes)); x > share {
			fullest, share = fmt.Sprintf("%s %.0f%%", u.Name, min(100*x, 999)), x
		}
	}
	return v1alpha1.NamespaceRulesSummary{Reserved: v1alpha1.FormatBytes(total), Fullest: fullest}
}
