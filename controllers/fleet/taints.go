package fleet

import (
	"math"
	"time"

	corev1 "k8s.io/api/core/v1"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/klog/v2"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// coreTaint and coreToleration are what the scheduler's helpers compare.
func coreTaint(t v1alpha1.Taint) corev1.Taint {
	return corev1.Taint{Key: t.Key, Value: t.Value, Effect: t.Effect}
}

func coreToleration(t v1alpha1.Toleration) corev1.Toleration {
	return corev1.Toleration{Key: t.Key, Operator: t.Operator, Value: t.Value, Effect: t.Effect, TolerationSeconds: t.TolerationSeconds}
}

// keepsAway reports whether a taint has an effect other than PreferNoSchedule.
func keepsAway(t *corev1.Taint) bool { return t.Effect != corev1.TaintEffectPreferNoSchedule }

func tolerates(tolerations []corev1.Toleration, t *corev1.Taint) bool {
	return corev1helpers.TolerationsTolerateTaint(klog.Background(), tolerations, t, false)
}

// admitting returns the tolerations that let new replicas in: one with tolerationSeconds
// only lets placed replicas stay for a while.
func admitting(tolerations []v1alpha1.Toleration) []corev1.Toleration {
	var out []corev1.Toleration
	for _, t := range tolerations {
		if t.TolerationSeconds == nil {
			out = append(out, coreToleration(t))
		}
	}
	return out
}

// Eviction is the end of the stay of a replica on a tainted Mac.
type Eviction struct {
	// Taint is the NoExecute taint that ends it first, as KEY or KEY=VALUE.
	Taint string
	// After is how long the replica is tolerated, from when the taint is noticed.
	After time.Duration
}

// Evicted returns the eviction that the NoExecute taints of a Mac mean for a replica with
// these tolerations; nil if it may stay. Of several tolerations that match a taint, the
// longest counts.
func Evicted(mac *v1alpha1.MacNode, tolerations []v1alpha1.Toleration) *Eviction {
	if mac == nil {
		return nil
	}
	var out *Eviction
	for _, taint := range mac.Spec.Taints {
		if taint.Effect != corev1.TaintEffectNoExecute {
			continue
		}
		if after, ends := toleratedFor(coreTaint(taint), tolerations); ends && (out == nil || after < out.After) {
			name := taint.Key
			if taint.Value != "" {
				name += "=" + taint.Value
			}
			out = &Eviction{Taint: name, After: after}
		}
	}
	return out
}

// toleratedFor returns how long a taint is tolerated, and false if it is for ever.
func toleratedFor(taint corev1.Taint, tolerations []v1alpha1.Toleration) (time.Duration, bool) {
	longest := int64(0)
	for _, t := range tolerations {
		if !tolerates([]corev1.Toleration{coreToleration(t)}, &taint) {
			continue
		}
		if t.TolerationSeconds == nil {
			return 0, false
		}
		longest = max(longest, *t.TolerationSeconds)
	}
	return time.Duration(min(longest, math.MaxInt32)) * time.Second, true
}
