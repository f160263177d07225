package fleet

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// tolerated says whether a taint keeps nothing away: it only prefers, or a
// toleration names it.
func tolerated(taint *corev1.Taint, tolerations []corev1.Toleration) bool {
	return taint.Effect == corev1.TaintEffectPreferNoSchedule || named(taint, tolerations)
}

// Preferences counts the taints of a Mac that would rather not have a replica.
func Preferences(mac *v1alpha1.MacNode, p v1alpha1.PlacementSpec) int {
	n := 0
	for i := range mac.Spec.Taints {
		if mac.Spec.Taints[i].Effect == corev1.TaintEffectPreferNoSchedule && !named(&mac.Spec.Taints[i], p.Tolerations) {
			n++
		}
	}
	return n
}

func named(taint *corev1.Taint, tolerations []corev1.Toleration) bool {
	for i := range tolerations {
		if tolerations[i].ToleratesTaint(klog.Background(), taint, false) {
			return true
		}
	}
	return false
}
