package sim

import (
	"fmt"
	"slices"
	"time"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/fleet"
	"metalfleet.dev/metalfleet/controllers/placement/plan"
)

// checks are the invariants that must hold after every event, computed from the
// world itself and not from what the decisions use.
type checks struct {
	w      *world
	dark   time.Time // since when most Macs are away
	breach error     // the first one
}

// broken records the first breach.
func (c *checks) broken(format string, args ...any) {
	if c.breach == nil {
		c.breach = fmt.Errorf(format, args...)
	}
}

// promised returns the bytes of a Mac that stay in memory until they are released.
func (w *world) promised(m *mac) int64 {
	var sum int64
	for _, r := range w.replicas {
		if r.Spec.NodeName == m.node.Name && !r.gone && !r.Spec.Residency.OnDemand() {
			sum += r.Spec.ReservedBytes
		}
	}
	return sum
}

// all counts all Macs and namespaces.
func (c *checks) all() {
	c.taints()
	always, team0 := map[string]int64{}, int64(0)
	slots := map[string]bool{}
	for _, r := range c.w.replicas {
		if r.gone {
			continue
		}
		if r.DeletionTimestamp.IsZero() {
			slot := fmt.Sprintf("%s/%s/%d", r.Spec.DeploymentRef.UID, r.Spec.Revision, r.Spec.Slot)
			if slots[slot] {
				c.broken("two living replicas have the slot %s", slot)
			}
			slots[slot] = true
		}
		if r.Spec.NodeName == "" || r.Spec.Residency.OnDemand() {
			continue
		}
		always[r.Spec.NodeName] += r.Spec.ReservedBytes
		if r.Namespace == "team-0" {
			team0 += r.Spec.ReservedBytes
		}
	}
	for _, m := range c.w.macs {
		capacity, used := m.node.Status.Memory.CapacityBytes, always[m.node.Name]
		if used > capacity {
			c.broken("%s promises %s of %s", m.node.Name, v1alpha1.FormatBytes(used), v1alpha1.FormatBytes(capacity))
		}
		for r := range m.loaded {
			used += r.Spec.ReservedBytes
		}
		if used > capacity && !c.makingRoom(m, used-capacity) {
			c.broken("%s holds %s of %s", m.node.Name, v1alpha1.FormatBytes(used), v1alpha1.FormatBytes(capacity))
		}
		if m.node.Status.Disk.FreeBytes < 0 {
			c.broken("the disk of %s is overrun by %d bytes", m.node.Name, -m.node.Status.Disk.FreeBytes)
		}
	}
	if bound, limited := c.w.rules.Memory("team-0"); !limited || team0 > bound {
		c.broken("team-0 reserves %s of %s", v1alpha1.FormatBytes(team0), v1alpha1.FormatBytes(bound))
	}
}

// makingRoom reports whether the OnDemand models of a Mac cover the excess: the
// agent evicts them before it loads a model that stays.
func (c *checks) makingRoom(m *mac, over int64) bool {
	for r := range m.loaded {
		over -= r.Spec.ReservedBytes
	}
	if over > 0 {
		return false
	}
	clear(m.loaded)
	c.w.counts["evictions for what stays"]++
	return true
}

// bound requires that a replica is placed only on a Mac that is ready and may hold it,
// with the replicas of its revision spread evenly.
func (c *checks) bound(r *replica, m *mac) {
	if _, ok := fleet.Eligible(&m.node, r.Spec.Placement); !ok || fleet.StateOf(&m.node) != fleet.MacReady || m.node.Spec.Unschedulable {
		c.broken("%s was placed on %s, which may not take it", r.Name, m.node.Name)
	}
	if !m.tainted.IsZero() && c.w.patience(r) != forEver {
		c.broken("%s was placed on %s, which is tainted", r.Name, m.node.Name)
	}
	for _, spread := range r.Spec.Placement.TopologySpreadConstraints {
		rooms := map[string]int{}
		for _, x := range c.w.macs {
			if fleet.StateOf(&x.node) != fleet.MacGone {
				rooms[x.node.Labels[spread.TopologyKey]] = 0
			}
		}
		for _, x := range c.w.replicas {
			if x.Spec.NodeName != "" && x.DeletionTimestamp.IsZero() && x.Spec.Revision == r.Spec.Revision && x.Spec.DeploymentRef.UID == r.Spec.DeploymentRef.UID {
				rooms[c.w.byName[x.Spec.NodeName].node.Labels[spread.TopologyKey]]++
			}
		}
		fewest := len(c.w.replicas)
		for _, n := range rooms {
			fewest = min(fewest, n)
		}
		if n := rooms[m.node.Labels[spread.TopologyKey]]; n-fewest > int(spread.MaxSkew) {
			c.broken("%s makes a room have %d replicas where another has %d", r.Name, n, fewest)
		}
	}
}

// rollout: a revision that generates no token never takes over, nothing of
// it serves, and there are never more replicas than wanted, or busy, and the
// surge, of which there is one at least for the successor of an evicted replica.
func (c *checks) rollout(d *deployment) {
	if d.bad[d.Status.CurrentRevision] {
		c.broken("%s/%s: the revision %s took over and generates no token", d.Namespace, d.Name, d.Status.CurrentRevision)
	}
	wanted := int(fleet.Wanted(&d.ModelDeployment))
	surge, _ := d.Spec.Rollout.Bounds(wanted)
	living, stay, evicted := 0, 0, 0
	for _, r := range c.w.replicas {
		if r.Spec.DeploymentRef.UID == string(d.UID) && !r.gone && r.DeletionTimestamp.IsZero() {
			living++
			if r.Annotations[v1alpha1.AnnotationEvict] != "" {
				evicted = 1
			}
			if !fleet.MayRemove(&d.ModelDeployment, &r.ModelReplica) {
				stay++
			}
			if r.bad && readyReplica(r) {
				c.broken("%s serves and generates no token", r.Name)
			}
		}
	}
	if surge = max(surge, evicted); living > max(wanted, stay)+surge {
		c.broken("%s/%s has %d replicas of %d with a surge of %d, and %d that must stay", d.Namespace, d.Name, living, wanted, surge, stay)
	}
}

// replaced wants a replica on a drained Mac to serve until enough others do.
func (c *checks) replaced(r *replica) {
	if r.Annotations[v1alpha1.AnnotationEvict] == "" || !readyReplica(r) {
		return
	}
	i := slices.IndexFunc(c.w.deployments, func(d *deployment) bool { return string(d.UID) == r.Spec.DeploymentRef.UID })
	if i < 0 || !c.w.deployments[i].DeletionTimestamp.IsZero() {
		return
	}
	d := &c.w.deployments[i].ModelDeployment
	wanted, others := int(fleet.Wanted(d)), 0
	_, unavailable := d.Spec.Rollout.Bounds(wanted)
	for _, x := range c.w.replicas {
		if x != r && x.Spec.DeploymentRef.UID == r.Spec.DeploymentRef.UID && !x.gone && x.DeletionTimestamp.IsZero() && readyReplica(x) {
			others++
		}
	}
	if others < wanted-unavailable {
		c.broken("%s is evicted, and %d of %d others serve", r.Name, others, wanted)
	}
	c.w.counts["evictions after which enough serve"]++
}

// victim wants no replica to give its room to one of the same priority, but
// to its successor.
func (c *checks) victim(r, victim *replica, m *mac) {
	if victim != nil && victim.Spec.DeploymentRef.UID == r.Spec.DeploymentRef.UID && r.Spec.Swap && victim.Spec.Revision != r.Spec.Revision && !victim.gone && victim.DeletionTimestamp.IsZero() {
		c.swap(r)
		c.ahead(r, m)
		return
	}
	if victim == nil || victim.gone || !victim.DeletionTimestamp.IsZero() || victim.Spec.Priority.Value >= r.Spec.Priority.Value {
		c.broken("%s preempts what it may not", r.Name)
	}
	c.w.counts["preemptions"]++
}

// swap: no second replica gives its room before the first one's successor
// serves.
func (c *checks) swap(r *replica) {
	for _, x := range c.w.replicas {
		if x != r && x.Spec.DeploymentRef.UID == r.Spec.DeploymentRef.UID && x.Spec.Revision == r.Spec.Revision && x.Spec.Swap && !x.gone && x.DeletionTimestamp.IsZero() &&
			x.Spec.NodeName != "" && !readyReplica(x) && readyReason(x) != v1alpha1.ReasonMacSilent && c.w.byName[x.Spec.NodeName].alive {
			c.broken("%s swaps while %s does not serve yet", r.Name, x.Name)
		}
	}
	c.w.counts["swaps"]++
}

// ahead requires that no replica is evicted before the weights of its successor are on
// the Mac's disk, unless the disk has no room for them.
func (c *checks) ahead(r *replica, m *mac) {
	lies := map[string]bool{}
	for _, x := range m.node.Status.Weights {
		lies[x.Digest] = true
	}
	if lies[r.Spec.Model.Digest] {
		return
	}
	free := m.node.Status.Disk.FreeBytes
	for _, x := range c.w.replicas {
		comes := x.Spec.NodeName == m.node.Name || x.Spec.NodeName == "" && x.Spec.PrefetchNodeName == m.node.Name
		if d := x.Spec.Model.Digest; x != r && comes && !x.gone && x.DeletionTimestamp.IsZero() && !lies[d] {
			lies[d] = true
			free -= x.Spec.Model.Bytes()
		}
	}
	if free-r.Spec.Model.Bytes() > diskSpare {
		c.broken("%s takes a room on %s before its weights lie there, and %s of disk are free", r.Name, m.node.Name, v1alpha1.FormatBytes(free))
	}
	c.w.counts["swaps without their weights"]++
}

// diskSpare is what a Mac's disk may lack of being full and still take no more.
const diskSpare = int64(1) << 30

// settles is how long it may take until the operator knows that most are away: a silence of
// 30 s, and a check every 5 s, after Leases of up to 12 s.
const settles = time.Minute

// move: while most of the fleet is away for the same cause, no replica of a silent Mac
// is given up. The count is of the actual Macs, not of the operator's observations.
func (c *checks) move(m *mac, r *replica) {
	if readyReason(r) != v1alpha1.ReasonMacGone {
		return
	}
	c.w.counts["moved from a Mac that is gone"]++
	if !c.dark.IsZero() && c.w.now.Sub(c.dark) > settles {
		c.broken("%s is moved from %s, and most Macs are away since %s", r.Name, m.node.Name, c.dark.Sub(epoch))
	}
}

// together is how close in time Macs go away that have one cause, as the circuit breaker has it.
const together = time.Minute

// lights notes since when more than half of the Macs are away that went together.
func (c *checks) lights() {
	var went []time.Time
	for _, m := range c.w.macs {
		if !m.alive {
			went = append(went, m.died)
		}
	}
	slices.SortFunc(went, time.Time.Compare)
	most, from := 0, 0
	for i, at := range went {
		for at.Sub(went[from]) > together {
			from++
		}
		most = max(most, i-from+1)
	}
	switch {
	case 2*most <= len(c.w.macs):
		c.dark = time.Time{}
	case c.dark.IsZero():
		c.dark = c.w.now
	}
}

func readyReason(r *replica) string {
	for _, c := range r.Status.Conditions {
		if c.Type == v1alpha1.ConditionReady {
			return c.Reason
		}
	}
	return ""
}

// settled requires that no replica is without a Mac at the end that could have one.
func (c *checks) settled() error {
	c.w.pass()
	if c.breach != nil {
		return c.breach
	}
	macs := make([]v1alpha1.MacNode, 0, len(c.w.macs))
	for _, m := range c.w.macs {
		macs = append(macs, m.node)
	}
	all := make([]v1alpha1.ModelReplica, 0, len(c.w.replicas))
	for _, r := range c.w.replicas {
		all = append(all, r.ModelReplica)
	}
	s := plan.NewSnapshot(macs, all, c.w.now).Under(c.w.rules)
	waiting := 0
	for _, r := range c.w.replicas {
		if r.Spec.NodeName != "" || !r.DeletionTimestamp.IsZero() {
			continue
		}
		waiting++
		if d := s.Pick(&r.ModelReplica); d.Mac != "" {
			return fmt.Errorf("%s waits and fits on %s", r.Name, d.Mac)
		}
	}
	c.w.counts["without a Mac at the end"] = waiting
	return nil
}
