package fleet

import (
	"cmp"
	"fmt"
	"hash/fnv"
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

// Sites are the Macs of a fleet and their assigned weights, as places to copy weights from.
type Sites struct {
	macs     []v1alpha1.MacNode
	assigned map[string]*v1alpha1.MacAssignment // by Mac
	replicas []v1alpha1.ModelReplica
}

// NewSites returns the sites. It refers to the lists and does not change them.
func NewSites(macs []v1alpha1.MacNode, assigned []v1alpha1.MacAssignment, replicas []v1alpha1.ModelReplica) Sites {
	return Sites{macs, ByMac(assigned), replicas}
}

// ByMac returns what is assigned to each Mac, by its name.
func ByMac(assigned []v1alpha1.MacAssignment) map[string]*v1alpha1.MacAssignment {
	out := make(map[string]*v1alpha1.MacAssignment, len(assigned))
	for i := range assigned {
		out[assigned[i].Name] = &assigned[i]
	}
	return out
}

// Peers returns the Macs that a Mac may copy the weights of an assignment from: those of
// its site that have them; if none has, the one that downloads them for all. That one has
// no peers, and neither has a Mac that needs no copy: it uses the source.
func (s Sites) Peers(mac *v1alpha1.MacNode, order *v1alpha1.Assignment) []*v1alpha1.MacNode {
	if !Copies(mac, order) {
		return nil
	}
	site := mac.Labels[LabelSite]
	var out []*v1alpha1.MacNode
	for i := range s.macs {
		m := &s.macs[i]
		if m.Name != mac.Name && m.Labels[LabelSite] == site && gives(m) && HasWeights(m, order.Model.Digest) {
			out = append(out, m)
		}
	}
	if len(out) == 0 {
		if m := s.fetcher(site, order); m != nil && m.Name != mac.Name {
			out = append(out, m)
		}
		return out
	}
	// Each Mac has its own order, so that not all use the same peer first.
	slices.SortFunc(out, func(a, b *v1alpha1.MacNode) int {
		return cmp.Or(cmp.Compare(distance(mac.Name, a.Name), distance(mac.Name, b.Name)), cmp.Compare(a.Name, b.Name))
	})
	return out[:min(len(out), maxPeers)]
}

// Copies reports whether a Mac may have peers and needs the weights of an assignment.
func Copies(mac *v1alpha1.MacNode, order *v1alpha1.Assignment) bool {
	return mac.Labels[LabelSite] != "" && order.Desired != v1alpha1.DesiredDrained &&
		!strings.HasPrefix(order.Model.Source, FileScheme) && !HasWeights(mac, order.Model.Digest)
}

func distance(a, b string) uint64 {
	h := fnv.New64a()
	fmt.Fprintf(h, "%s\n%s", a, b)
	return h.Sum64()
}

// fetcher returns the Mac of a site that downloads from the source for all: the one that
// was chosen already, else the one that is assigned the oldest replica.
func (s Sites) fetcher(site string, order *v1alpha1.Assignment) *v1alpha1.MacNode {
	var best *v1alpha1.MacNode
	var sent bool
	var oldest *v1alpha1.ModelReplica
	for i := range s.replicas {
		r := &s.replicas[i]
		if OrderedOn(r) == "" || r.Spec.Model.Digest != order.Model.Digest || r.Spec.Model.Source != order.Model.Source ||
			r.Spec.Desired == v1alpha1.DesiredDrained || !r.DeletionTimestamp.IsZero() {
			continue
		}
		m := s.named(OrderedOn(r))
		if m == nil || m.Labels[LabelSite] != site || !gives(m) {
			continue
		}
		was := wasSent(s.assigned[m.Name], order.Model.Digest)
		if best == nil || was && !sent || was == sent && olderReplica(r, oldest) {
			best, sent, oldest = m, was, r
		}
	}
	return best
}

func olderReplica(a, b *v1alpha1.ModelReplica) bool {
	return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.UID, b.UID)) < 0
}

func (s Sites) named(name string) *v1alpha1.MacNode {
	for i := range s.macs {
		if s.macs[i].Name == name {
			return &s.macs[i]
		}
	}
	return nil
}

// wasSent reports whether a Mac has the assignment already, without peers.
func wasSent(assigned *v1alpha1.MacAssignment, digest string) bool {
	return assigned != nil && slices.ContainsFunc(assigned.Spec.Assignments, func(a v1alpha1.Assignment) bool {
		return a.Model.Digest == digest && a.Desired != v1alpha1.DesiredDrained && len(a.Peers) == 0
	})
}

// gives reports whether a Mac can be reached for a copy.
func gives(m *v1alpha1.MacNode) bool {
	return StateOf(m) == MacReady && m.Status.Address != nil && !meta.IsStatusConditionFalse(m.Status.Conditions, v1alpha1.ConditionAccepting)
}

// SiteFacts returns what decides which Macs copy from a Mac, as one string.
func SiteFacts(m *v1alpha1.MacNode) string {
	if m.Labels[LabelSite] == "" {
		return ""
	}
	var b strings.Builder
	fmt.Fprint(&b, m.Labels[LabelSite], gives(m))
	if a := m.Status.Address; a != nil {
		fmt.Fprint(&b, *a)
	}
	for _, w := range m.Status.Weights { // sorted by its agent
		b.WriteString(w.Digest)
	}
	return b.String()
}

// Lacks reports whether a Mac has an assignment whose weights it does not hold.
func Lacks(m *v1alpha1.MacNode, assigned *v1alpha1.MacAssignment) bool {
	return assigned != nil && slices.ContainsFunc(assigned.Spec.Assignments, func(a v1alpha1.Assignment) bool {
		return a.Desired != v1alpha1.DesiredDrained && !HasWeights(m, a.Model.Digest)
	})
}
