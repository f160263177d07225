package sim

import (
	"fmt"
	"slices"
	"time"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/fleet"
	"metalfleet.dev/metalfleet/controllers/placement/plan"
)

// Invariants that must hold after every event, computed from the world itself
// and not from what the decisions use.

// broken records the first breach.
func (w *world) broken(format string, args ...any) {
	if w.breach == nil {
		w.breach = fmt.Errorf(format, args...)
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

// check counts all Macs and namespaces.
func (w *world) check() {
	always, team0 := map[string]int64{}, int64(0)
	slots := map[string]bool{}
	for _, r := range w.replicas {
		if r.gone {
			continue
		}
		if r.DeletionTimestamp.IsZero() {
			slot := fmt.Sprintf("%s/%s/%d", r.Spec.DeploymentRef.UID, r.Spec.Revision, r.Spec.Slot)
			if slots[slot] {
				w.broken("two living replicas have the slot %s", slot)
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
	for _, m := range w.macs {
		capacity, used := m.node.Status.Memory.CapacityBytes, always[m.node.Name]
		if used > capacity {
			w.broken("%s promises %s of %s", m.node.Name, v1alpha1.FormatBytes(used), v1alpha1.FormatBytes(capacity))
		}
		for r := range m.loaded {
			used += r.Spec.ReservedBytes
		}
		if used > capacity && !w.makingRoom(m, used-capacity) {
			w.broken("%s holds %s of %s", m.node.Name, v1alpha1.FormatBytes(used), v1alpha1.FormatBytes(capacity))
		}
		if m.node.Status.Disk.FreeBytes < 0 {
			w.broken("the disk of %s is overrun by %d bytes", m.node.Name, -m.node.Status.Disk.FreeBytes)
		}
	}
	if bound := w.rules.Namespaces["team-0"].Memory.Value(); team0 > bound {
		w.broken("team-0 reserves %s of %s", v1alpha1.FormatBytes(team0), v1alpha1.FormatBytes(bound))
	}
}

// makingRoom reports whether the OnDemand models of a Mac cover the excess: the
// agent evicts them before it loads a model that stays.
func (w *world) makingRoom(m *mac, over int64) bool {
	for r := range m.loaded {
		over -= r.Spec.ReservedBytes
	}
	if over > 0 {
		return false
	}
	clear(m.loaded)
	w.counts["evictions for what stays"]++
	return true
}

// checkBind requires that a replica is placed only on a Mac that is ready and may hold it,
// with the replicas of its revision spread evenly.
func (w *world) checkBind(r *replica, m *mac) {
	if _, ok := fleet.Eligible(&m.node, r.Spec.Placement); !ok || fleet.StateOf(&m.node) != fleet.MacReady || m.node.Spec.Unschedulable {
		w.broken("%s was placed on %s, which may not take it", r.Name, m.node.Name)
	}
	for _, c := range r.Spec.Placement.TopologySpreadConstraints {
		rooms := map[string]int{}
		for _, x := range w.macs {
			if fleet.StateOf(&x.node) != fleet.MacGone {
				rooms[x.node.Labels[c.TopologyKey]] = 0
			}
		}
		for _, x := range w.replicas {
			if x.Spec.NodeName != "" && x.DeletionTimestamp.IsZero() && x.Spec.Revision == r.Spec.Revision && x.Spec.DeploymentRef.UID == r.Spec.DeploymentRef.UID {
				rooms[w.byName[x.Spec.NodeName].node.Labels[c.TopologyKey]]++
			}
		}
		fewest := len(w.replicas)
		for _, n := range rooms {
			fewest = min(fewest, n)
		}
		if n := rooms[m.node.Labels[c.TopologyKey]]; n-fewest > int(c.MaxSkew) {
			w.broken("%s makes a room have %d replicas where another has %d", r.Name, n, fewest)
		}
	}
}

// checkRollout: a revision that generates no token never takes over, nothing of
// it serves, and there are never more replicas than wanted, or busy, and the
// surge.
func (w *world) checkRollout(d *deployment) {
	if d.bad[d.Status.CurrentRevision] {
		w.broken("%s/%s: the revision %s took over and generates no token", d.Namespace, d.Name, d.Status.CurrentRevision)
	}
	wanted := int(fleet.Wanted(&d.ModelDeployment))
	surge, _ := d.Spec.Rollout.Bounds(wanted)
	living, stay := 0, 0
	for _, r := range w.replicas {
		if r.Spec.DeploymentRef.UID == string(d.UID) && !r.gone && r.DeletionTimestamp.IsZero() {
			living++
			if !fleet.MayRemove(&d.ModelDeployment, &r.ModelReplica) {
				stay++
			}
			if r.bad && readyReplica(r) {
				w.broken("%s serves and generates no token", r.Name)
			}
		}
	}
	if living > max(wanted, stay)+surge {
		w.broken("%s/%s has %d replicas of %d with a surge of %d, and %d that must stay", d.Namespace, d.Name, living, wanted, surge, stay)
	}
}

// checkVictim wants no replica to give its room to one of the same priority, but
// to its successor.
func (w *world) checkVictim(r, victim *replica, m *mac) {
	if victim != nil && victim.Spec.DeploymentRef.UID == r.Spec.DeploymentRef.UID && r.Spec.Swap && victim.Spec.Revision != r.Spec.Revision && !victim.gone && victim.DeletionTimestamp.IsZero() {
		w.checkSwap(r)
		w.checkAhead(r, m)
		return
	}
	if victim == nil || victim.gone || !victim.DeletionTimestamp.IsZero() || victim.Spec.Priority.Value >= r.Spec.Priority.Value {
		w.broken("%s preempts what it may not", r.Name)
	}
	w.counts["preemptions"]++
}

// checkSwap: no second replica gives its room before the first one's successor
// serves.
func (w *world) checkSwap(r *replica) {
	for _, x := range w.replicas {
		if x != r && x.Spec.DeploymentRef.UID == r.Spec.DeploymentRef.UID && x.Spec.Revision == r.Spec.Revision && x.Spec.Swap && !x.gone && x.DeletionTimestamp.IsZero() &&
			x.Spec.NodeName != "" && !readyReplica(x) && readyReason(x) != v1alpha1.ReasonMacSilent && w.byName[x.Spec.NodeName].alive {
			w.broken("%s swaps while %s does not serve yet", r.Name, x.Name)
		}
	}
	w.counts["swaps"]++
}

// checkAhead requires that no replica is evicted before the weights of its successor are on
// the Mac's disk, unless the disk has no room for them.
func (w *world) checkAhead(r *replica, m *mac) {
	lies := map[string]bool{}
	for _, x := range m.node.Status.Weights {
		lies[x.Digest] = true
	}
	if lies[r.Spec.Model.Digest] {
		return
	}
	free := m.node.Status.Disk.FreeBytes
	for _, x := range w.replicas {
		comes := x.Spec.NodeName == m.node.Name || x.Spec.NodeName == "" && x.Spec.PrefetchNodeName == m.node.Name
		if d := x.Spec.Model.Digest; x != r && comes && !x.gone && x.DeletionTimestamp.IsZero() && !lies[d] {
			lies[d] = true
			free -= x.Spec.Model.Bytes()
		}
	}
	if free-r.Spec.Model.Bytes() > diskSpare {
		w.broken("%s takes a room on %s before its weights lie there, and %s of disk are free", r.Name, m.node.Name, v1alpha1.FormatBytes(free))
	}
	w.counts["swaps without their weights"]++
}

// diskSpare is what a Mac's disk may lack of being full and still take no more.
const diskSpare = int64(1) << 30

// settles is how long it may take until the operator knows that most are away: a silence of
// 30 s, and a check every 5 s, after Leases of up to 12 s.
const settles = time.Minute

// checkMove: while most of the fleet is away for the same cause, no replica of a silent Mac
// is given up. The count is of the actual Macs, not of the operator's observations.
func (w *world) checkMove(m *mac, r *replica) {
	if readyReason(r) != v1alpha1.ReasonMacGone {
		return
	}
	w.counts["moved from a Mac that is gone"]++
	if !w.dark.IsZero() && w.now.Sub(w.dark) > settles {
		w.broken("%s is moved from %s, and most Macs are away since %s", r.Name, m.node.Name, w.dark.Sub(epoch))
	}
}

// together is how close in time Macs go away that have one cause, as the circuit breaker has it.
const together = time.Minute

// lights notes since when more than half of the Macs are away that went together.
func (w *world) lights() {
	var went []time.Time
	for _, m := range w.macs {
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
	case 2*most <= len(w.macs):
		w.dark = time.Time{}
	case w.dark.IsZero():
		w.dark = w.now
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
func (w *world) settled() error {
	w.pass()
	if w.breach != nil {
		return w.breach
	}
	macs := make([]v1alpha1.MacNode, 0, len(w.macs))
	for _, m := range w.macs {
		macs = append(macs, m.node)
	}
	all := make([]v1alpha1.ModelReplica, 0, len(w.replicas))
	for _, r := range w.replicas {
		all = append(all, r.ModelReplica)
	}
	s := plan.NewSnapshot(macs, all, w.now).Under(w.rules)
	waiting := 0
	for _, r := range w.replicas {
		if r.Spec.NodeName != "" || !r.DeletionTimestamp.IsZero() {
			continue
		}
		waiting++
		if d := s.Pick(&r.ModelReplica); d.Mac != "" {
			return fmt.Errorf("%s waits and fits on %s", r.Name, d.Mac)
		}
	}
	w.counts["without a Mac at the end"] = waiting
	return nil
}
