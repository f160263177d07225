package fleet

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// LabelSite of a MacNode names its site: Macs with the same value are near one another, and
// copy weights among themselves. A Mac without it has no peers.
const LabelSite = corev1.LabelTopologyZone

// maxPeers is how many Macs an assignment names to copy from.
const maxPeers = 3

// Copies reports whether a Mac may have peers and needs the weights of an assignment.
func Copies(mac *v1alpha1.MacNode, order *v1alpha1.Assignment) bool {
	return mac.Labels[LabelSite] != "" && order.Desired != v1alpha1.DesiredDrained &&
		!strings.HasPrefix(order.Model.Source, FileScheme) && !HasWeights(mac, order.Model.Digest)
}

// sentWeights returns the digests that a Mac has assigned already without peers, sorted.
func sentWeights(assigned *v1alpha1.MacAssignment) []string {
	var out []string
	for i := range assigned.Spec.Assignments {
		if a := &assigned.Spec.Assignments[i]; a.Desired != v1alpha1.DesiredDrained && len(a.Peers) == 0 {
			out = append(out, a.Model.Digest)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// gives reports whether a Mac can be reached for a copy.
func gives(m *v1alpha1.MacNode) bool {
	return StateOf(m) == MacReady && m.Status.Address != nil && !meta.IsStatusConditionFalse(m.Status.Conditions, v1alpha1.ConditionAccepting)
}
