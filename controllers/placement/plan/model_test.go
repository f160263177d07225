//go:build !race

package plan

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/fleet"
)

// slow is placement without caches, indexes or stored sums: it counts everything again for
// each question.
type slow struct {
	t        *testing.T
	rng      *rand.Rand
	macs     []v1alpha1.MacNode
	replicas []v1alpha1.ModelReplica
	rules    Rules
	claims   []claim // of this pass
	// doomed are those that a decision of this pass evicts: until the next one they count
	// for disks and domains.
	doomed map[types.UID]bool
	born   int
	log    []string
}

type claim struct {
	mac   string
	bytes int64
}

func (m *slow) say(format string, args ...any) { m.log = append(m.log, fmt.Sprintf(format, args...)) }

func (m *slow) fatal(format string, args ...any) {
	m.t.Helper()
	for _, line := range m.log[max(0, len(m.log)-30):] {
		m.t.Log(line)
	}
	m.t.Fatalf(format, args...)
}

func (m *slow) lives(r *v1alpha1.ModelReplica) bool {
	return r.DeletionTimestamp.IsZero() || m.doomed[r.UID]
}

func holding(r *v1alpha1.ModelReplica) bool { return r.Spec.NodeName != "" && !fleet.Released(r) }

func (m *slow) promised(mac string) (always, leaves, onDemand int64) {
	for i := range m.replicas {
		r := &m.replicas[i]
		switch {
		case !holding(r) || r.Spec.NodeName != mac:
		case r.Spec.Residency.OnDemand():
			onDemand += r.Spec.ReservedBytes
		default:
			always += r.Spec.ReservedBytes
			if !r.DeletionTimestamp.IsZero() {
				leaves += r.Spec.ReservedBytes
			}
		}
	}
	return always, leaves, onDemand
}

func (m *slow) free(mac *v1alpha1.MacNode) int64 {
	always, leaves, _ := m.promised(mac.Name)
	var claimed int64
	for _, c := range m.claims {
		if c.mac == mac.Name {
			claimed += c.bytes
		}
	}
	return mac.Status.Memory.CapacityBytes - always - max(0, claimed-leaves)
}

// diskFits: each digest is fetched once, and pending downloads come first.
func (m *slow) diskFits(mac *v1alpha1.MacNode, r *v1alpha1.ModelReplica) bool {
	if fleet.HasWeights(mac, r.Spec.Model.Digest) || r.Spec.Model.Bytes() == 0 {
		return true
	}
	pending := map[string]int64{}
	for i := range m.replicas {
		o := &m.replicas[i]
		if holding(o) && o.Spec.NodeName == mac.Name && m.lives(o) && !fleet.HasWeights(mac, o.Spec.Model.Digest) {
			pending[o.Spec.Model.Digest] = o.Spec.Model.Bytes()
		}
	}
	if _, comes := pending[r.Spec.Model.Digest]; comes {
		return true
	}
	free := mac.Status.Disk.FreeBytes - diskMargin - r.Spec.Model.Bytes()
	for _, bytes := range pending {
		free -= bytes
	}
	for _, w := range mac.Status.Weights { // it may be deleted unless it is needed again
		if mac.Status.Disk.FreeBytes > 0 && !slices.ContainsFunc(m.replicas, func(o v1alpha1.ModelReplica) bool {
			return holding(&o) && o.Spec.NodeName == mac.Name && o.Spec.Model.Digest == w.Digest
		}) {
			free += w.ReclaimableBytes
		}
	}
	return free >= 0
}

// evenFits counts the replicas of the revision in each room.
func (m *slow) evenFits(mac *v1alpha1.MacNode, r *v1alpha1.ModelReplica) bool {
	for _, c := range r.Spec.Placement.TopologySpreadConstraints {
		if c.WhenUnsatisfiable == corev1.ScheduleAnyway {
			continue
		}
		rooms := map[string]int{}
		for i := range m.macs {
			if _, ok := fleet.Eligible(&m.macs[i], r.Spec.Placement); ok && fleet.StateOf(&m.macs[i]) != fleet.MacGone {
				rooms[m.macs[i].Labels[c.TopologyKey]] += 0
			}
		}
		for i := range m.replicas {
			o := &m.replicas[i]
			if o.Spec.NodeName == "" || !m.lives(o) || o.Spec.DeploymentRef.UID != r.Spec.DeploymentRef.UID || o.Spec.Revision != r.Spec.Revision {
				continue
			}
			room := m.mac(o.Spec.NodeName).Labels[c.TopologyKey]
			if _, counts := rooms[room]; counts {
				rooms[room]++
			}
		}
		fewest := 1 << 30
		for _, n := range rooms {
			fewest = min(fewest, n)
		}
		if rooms[mac.Labels[c.TopologyKey]]+1-fewest > int(c.MaxSkew) {
			return false
		}
	}
	return true
}

func (m *slow) mac(name string) *v1alpha1.MacNode {
	return &m.macs[slices.IndexFunc(m.macs, func(x v1alpha1.MacNode) bool { return x.Name == name })]
}

// but reports whether a Mac could hold a replica if it had more free bytes.
func (m *slow) but(mac *v1alpha1.MacNode, r *v1alpha1.ModelReplica, more int64) bool {
	_, eligible := fleet.Eligible(mac, r.Spec.Placement)
	orders := 0
	for i := range m.replicas {
		if m.replicas[i].Spec.NodeName == mac.Name {
			orders++
		}
	}
	free := m.free(mac) + more
	_, _, onDemand := m.promised(mac.Name)
	shares := m.rules.overcommit == 0 || !r.Spec.Residency.OnDemand() ||
		float64(onDemand+r.Spec.ReservedBytes) <= m.rules.overcommit*float64(free)
	return eligible && fleet.StateOf(mac) == fleet.MacReady && !mac.Spec.Unschedulable && orders < fleet.MaxAssignments &&
		r.Spec.ReservedBytes <= mac.Status.Memory.CapacityBytes && free >= r.Spec.ReservedBytes && shares && m.diskFits(mac, r) && m.evenFits(mac, r)
}

func (m *slow) quota(r *v1alpha1.ModelReplica) bool {
	bound, limited := m.rules.Memory(r.Namespace)
	if !limited || r.Spec.Residency.OnDemand() {
		return true
	}
	sum := r.Spec.ReservedBytes
	for i := range m.replicas {
		if o := &m.replicas[i]; holding(o) && o.Namespace == r.Namespace && !o.Spec.Residency.OnDemand() {
			sum += o.Spec.ReservedBytes
		}
	}
	return sum <= bound
}

// pass places the open replicas, as the reconciler does, and compares each decision.
func (m *slow) pass() {
	m.claims, m.doomed = nil, map[types.UID]bool{}
	// The snapshot has copies, so that it keeps its own sums and not our lists.
	s := NewSnapshot(m.macs, slices.Clone(m.replicas), now).Under(m.rules)
	var order []int
	for i := range m.replicas {
		if r := &m.replicas[i]; r.Spec.NodeName == "" && r.DeletionTimestamp.IsZero() {
			order = append(order, i)
		}
	}
	slices.SortFunc(order, func(a, b int) int { return Before(&m.replicas[a], &m.replicas[b]) })
	for _, i := range order {
		m.decide(s, &m.replicas[i])
	}
}

func (m *slow) decide(s *Snapshot, r *v1alpha1.ModelReplica) {
	asked := r.DeepCopy()
	d := s.Pick(asked)
	m.say("%s needs %d (priority %d, on demand %v): %q %s %q", r.Name, r.Spec.ReservedBytes, r.Spec.Priority.Value, r.Spec.Residency.OnDemand(), d.Mac, d.Awaits, d.Reason)
	fits := map[string]bool{}
	for i := range m.macs {
		fits[m.macs[i].Name] = m.but(&m.macs[i], r, 0)
	}
	for _, c := range s.Candidates(asked) {
		if c.Fits != fits[c.Mac] {
			m.fatal("%s on %s: fits %v (%s), and counted again %v", r.Name, c.Mac, c.Fits, c.Why, fits[c.Mac])
		}
	}
	any := false
	for _, ok := range fits {
		any = any || ok
	}
	switch {
	case d.Mac != "" && (!fits[d.Mac] || !m.quota(r)):
		m.fatal("%s was placed on %s, where it does not fit", r.Name, d.Mac)
	case d.Mac == "" && any && m.quota(r):
		m.fatal("%s fits somewhere and was not placed: %s", r.Name, d.Message)
	case d.Mac == "" && d.Awaits == "" && !any && m.quota(r) && r.Spec.Priority.Preempts():
		for i := range m.macs {
			if m.victimsWouldDo(&m.macs[i], r) {
				m.fatal("%s could preempt on %s and does not: %s", r.Name, m.macs[i].Name, d.Message)
			}
		}
	}
	m.carryOut(s, r, asked, d)
}

// lower returns the permanent bytes on a Mac with a lower priority.
func (m *slow) lower(mac string, r *v1alpha1.ModelReplica) (bytes int64) {
	for i := range m.replicas {
		o := &m.replicas[i]
		if holding(o) && o.Spec.NodeName == mac && !o.Spec.Residency.OnDemand() && o.DeletionTimestamp.IsZero() && o.Spec.Priority.Value < r.Spec.Priority.Value {
			bytes += o.Spec.ReservedBytes
		}
	}
	return bytes
}

// afterDrains returns the free bytes of a Mac after all drains and all claims.
func (m *slow) afterDrains(mac *v1alpha1.MacNode) int64 {
	always, leaves, _ := m.promised(mac.Name)
	free := mac.Status.Memory.CapacityBytes - always + leaves
	for _, c := range m.claims {
		if c.mac == mac.Name {
			free -= c.bytes
		}
	}
	return free
}

func (m *slow) victimsWouldDo(mac *v1alpha1.MacNode, r *v1alpha1.ModelReplica) bool {
	lower := m.lower(mac.Name, r)
	enough := m.afterDrains(mac)+lower >= r.Spec.ReservedBytes
	return lower > 0 && enough && m.rules.overcommit == 0 && m.but(mac, r, 1<<50)
}

// carryOut applies the decision, or fails and reverts it.
func (m *slow) carryOut(s *Snapshot, r, asked *v1alpha1.ModelReplica, d Decision) {
	fails := m.rng.IntN(6) == 0
	switch {
	case d.Mac != "":
		undo := s.Assume(asked, d.Mac)
		if fails {
			undo()
			return
		}
		r.Spec.NodeName = d.Mac
	case d.Awaits != "":
		mac := m.mac(d.Awaits)
		before := m.afterDrains(mac)
		undo := s.Claim(asked, d)
		if fails {
			undo()
			return
		}
		for _, v := range d.Victims {
			i := slices.IndexFunc(m.replicas, func(x v1alpha1.ModelReplica) bool { return x.UID == v.UID })
			victim := &m.replicas[i]
			if victim.Spec.NodeName != d.Awaits || victim.Spec.Priority.Value >= r.Spec.Priority.Value || !victim.DeletionTimestamp.IsZero() {
				m.fatal("%s preempts %s", r.Name, victim.Name)
			}
			if before >= r.Spec.ReservedBytes {
				m.fatal("%s preempts %s, and has room without", r.Name, victim.Name)
			}
			before += victim.Spec.ReservedBytes
			victim.DeletionTimestamp = &metav1.Time{Time: now}
			m.doomed[victim.UID] = true
			m.say("  %s is evicted", victim.Name)
		}
		if before < r.Spec.ReservedBytes {
			m.fatal("%s preempts, and has no room then either", r.Name)
		}
		m.claims = append(m.claims, claim{mac: d.Awaits, bytes: r.Spec.ReservedBytes})
	}
}

// check verifies the invariants.
func (m *slow) check() {
	for i := range m.macs {
		always, _, _ := m.promised(m.macs[i].Name)
		if capacity := m.macs[i].Status.Memory.CapacityBytes; always > capacity {
			m.fatal("%s promises %d of %d", m.macs[i].Name, always, capacity)
		}
	}
}

// step makes a random change.
func (m *slow) step() {
	switch n := m.rng.IntN(10); {
	case n < 5:
		m.create()
	case n < 7 && len(m.replicas) > 0:
		r := &m.replicas[m.rng.IntN(len(m.replicas))]
		r.DeletionTimestamp = &metav1.Time{Time: now}
	case n < 9:
		m.release()
	default:
		mac := &m.macs[m.rng.IntN(len(m.macs))]
		mac.Spec.Unschedulable = !mac.Spec.Unschedulable
		if m.rng.IntN(3) == 0 {
			c := &mac.Status.Conditions[0]
			c.Status, c.Reason = metav1.ConditionTrue, v1alpha1.ReasonReporting
			if m.rng.IntN(2) == 0 {
				c.Status, c.Reason = metav1.ConditionFalse, v1alpha1.ReasonMacGone
			}
		}
	}
}

// release releases some draining replicas, and removes released ones.
func (m *slow) release() {
	m.replicas = slices.DeleteFunc(m.replicas, func(r v1alpha1.ModelReplica) bool {
		return !r.DeletionTimestamp.IsZero() && (r.Spec.NodeName == "" || fleet.Released(&r))
	})
	for i := range m.replicas {
		if r := &m.replicas[i]; !r.DeletionTimestamp.IsZero() && m.rng.IntN(2) == 0 {
			r.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReleased, Status: metav1.ConditionTrue}}
		}
	}
}

func (m *slow) create() {
	m.born++
	name := fmt.Sprintf("r%03d", m.born)
	files := m.rng.IntN(4)
	r := replica(name, int64(1+m.rng.IntN(12))*gib, weighs(fmt.Sprint("sha256:", files), int64(files)*gib))
	r.UID, r.Namespace = types.UID(name), []string{"ns", "other"}[m.rng.IntN(2)]
	r.CreationTimestamp = metav1.NewTime(now.Add(time.Duration(m.born) * time.Second))
	d := m.rng.IntN(4)
	r.Spec.DeploymentRef.UID, r.Spec.Revision = fmt.Sprint("d", d), fmt.Sprint("rev", m.rng.IntN(2))
	r.Spec.Priority.Value = int32(m.rng.IntN(3))
	if m.rng.IntN(4) == 0 {
		onDemand(&r)
	}
	if d == 0 {
		spreadOver("room", 1, corev1.DoNotSchedule)(&r)
	}
	if d == 1 {
		packs(&r)
		requires(expression("room", "In", "a", "b"))(&r)
	}
	m.replicas = append(m.replicas, r)
}

// The sums, indexes and classes of a snapshot agree with counting everything again, through
// placements, reverted failures, preemptions, drains and Macs that come and go; and no byte
// is ever reserved twice.
func TestRandomHistoriesAgreeWithPlainCounting(t *testing.T) {
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 12))
		m := &slow{t: t, rng: rng}
		m.say("seed %d", seed)
		for i := range 2 + rng.IntN(6) {
			x := mac(fmt.Sprint("m", i), int64(8+rng.IntN(24))*gib, in([]string{"a", "b", "c"}[rng.IntN(3)]), disk(int64(rng.IntN(8))*gib))
			for _, digest := range []string{"sha256:1", "sha256:3", "sha256:none"} {
				if rng.IntN(4) == 0 {
					unwantedThere(digest, int64(1+rng.IntN(3))*gib)(&x)
				}
			}
			m.macs = append(m.macs, x)
		}
		switch seed % 3 {
		case 1:
			m.rules = rules(t, "namespaces: [{name: ns, memoryLimit: 40Gi}]")
		case 2:
			m.rules = rules(t, "onDemandOvercommitPercent: 150")
		}
		for range 80 {
			m.step()
			m.pass()
			m.check()
		}
	}
}
