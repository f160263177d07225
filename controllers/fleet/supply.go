package fleet

import (
	"slices"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// SupplyChange is a change of the weights that a Mac has, or gives to the Macs of its site.
type SupplyChange struct {
	mac string
	// sites are those where it gives others than before, or at another address.
	sites []string
	// digests of the weights that it gained or lost; nil if it gives at all, or no longer, or
	// elsewhere, so that another Mac may download for all.
	digests map[string]bool
}

// SupplyChanged compares two states of a Mac, and returns nil if its weights are the same, and
// what it gives to others. A Mac that has joined or left is compared with an empty one.
func SupplyChanged(before, now *v1alpha1.MacNode) *SupplyChange {
	was, is := siteOf(before), siteOf(now)
	c := &SupplyChange{mac: now.Name}
	if c.mac == "" {
		c.mac = before.Name
	}
	if was != is || is != "" && !equalAddress(before.Status.Address, now.Status.Address) {
		c.sites = []string{was, is}
		return c
	}
	c.digests = map[string]bool{}
	for _, pair := range [][2]*v1alpha1.MacNode{{before, now}, {now, before}} {
		for _, w := range pair[0].Status.Weights {
			if !HasWeights(pair[1], w.Digest) {
				c.digests[w.Digest] = true
			}
		}
	}
	if len(c.digests) == 0 || now.Labels[LabelSite] == "" {
		return nil
	}
	if is != "" {
		c.sites = []string{is}
	}
	return c
}

// siteOf returns the site that a Mac gives weights to; empty if none.
func siteOf(m *v1alpha1.MacNode) string {
	if !gives(m) {
		return ""
	}
	return m.Labels[LabelSite]
}

func equalAddress(a, b *v1alpha1.MacAddress) bool {
	return a == b || a != nil && b != nil && *a == *b
}

// Concerned returns the names of the Macs whose peers may differ: the Mac itself, which may need
// none now or some again, and those of its sites that have an assignment whose weights they do
// not hold, and that copy them from this Mac or would have. The lists are of all Macs and
// MacAssignments after the change, or later.
func (c *SupplyChange) Concerned(macs []v1alpha1.MacNode, assigned []v1alpha1.MacAssignment) []string {
	out := []string{c.mac}
	if len(c.sites) == 0 {
		return out
	}
	byName := make(map[string]*v1alpha1.MacAssignment, len(assigned))
	for i := range assigned {
		byName[assigned[i].Name] = &assigned[i]
	}
	sources := c.sources(macs)
	for i := range macs {
		m := &macs[i]
		a, site := byName[m.Name], m.Labels[LabelSite]
		if m.Name != c.mac && a != nil && site != "" && slices.Contains(c.sites, site) && c.concerns(m, a, sources) {
			out = append(out, m.Name)
		}
	}
	return out
}

// sources returns the names of the other Macs of the site that have the digests, by digest.
func (c *SupplyChange) sources(macs []v1alpha1.MacNode) map[string][]string {
	if c.digests == nil {
		return nil
	}
	out := map[string][]string{}
	for i := range macs {
		m := &macs[i]
		if m.Name == c.mac || siteOf(m) != c.sites[0] {
			continue
		}
		for _, w := range m.Status.Weights {
			if c.digests[w.Digest] {
				out[w.Digest] = append(out[w.Digest], m.Name)
			}
		}
	}
	return out
}

func (c *SupplyChange) concerns(m *v1alpha1.MacNode, assigned *v1alpha1.MacAssignment, sources map[string][]string) bool {
	return slices.ContainsFunc(assigned.Spec.Assignments, func(a v1alpha1.Assignment) bool {
		switch digest := a.Model.Digest; {
		case a.Desired == v1alpha1.DesiredDrained || c.digests != nil && !c.digests[digest] || HasWeights(m, digest):
			return false
		default:
			return c.digests == nil || c.among(m.Name, sources[digest])
		}
	})
}

// among reports whether the changed Mac is among the peers of another one, if it has the weights
// as well as others. If it is not, it makes no difference whether it has them: what else
// changes then is a change of a Mac that is nearer.
func (c *SupplyChange) among(mac string, sources []string) bool {
	nearer, own := 0, distance(mac, c.mac)
	for _, name := range sources {
		if d := distance(mac, name); d < own || d == own && name < c.mac {
			if nearer++; nearer == maxPeers {
				return false
			}
		}
	}
	return true
}
