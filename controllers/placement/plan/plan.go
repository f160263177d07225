// Package plan chooses a Mac for a replica: filter, score, pick, with a reason
// for every Mac that was rejected.
//
// It owns the decision and nothing else: it is pure, it sees a snapshot and
// returns data. It refuses to guess: a Mac whose capacity is unknown holds
// nothing, and reservations are cumulative, so that what was promised counts
// whether or not it is used yet. Only replicas that stay in memory are promised
// it for good: OnDemand ones share what those leave, each alone has to fit into
// it, and they do not count against one another.
//
// Start reading at Snapshot.Pick.
package plan

import (
	"cmp"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/fleet"
)

// Snapshot is the fleet at one moment, with trial placements on top.
type Snapshot struct {
	now  time.Time
	macs []*state
}

// state is one Mac in a snapshot.
type state struct {
	mac     *v1alpha1.MacNode
	promise fleet.Promise
	// replicas counts what is bound here, released or not: each has an order.
	replicas int
	// siblings counts the living replicas here, by UID of their deployment.
	siblings map[string]int
}

// NewSnapshot reads all Macs and all replicas.
func NewSnapshot(macs []v1alpha1.MacNode, replicas []v1alpha1.ModelReplica, now time.Time) *Snapshot {
	s := &Snapshot{now: now}
	byName := map[string]*state{}
	for i := range macs {
		st := &state{mac: &macs[i], siblings: map[string]int{}, promise: fleet.Promised(macs[i].Name, replicas)}
		byName[macs[i].Name] = st
		s.macs = append(s.macs, st)
	}
	slices.SortFunc(s.macs, func(a, b *state) int { return cmp.Compare(a.mac.Name, b.mac.Name) })
	for i := range replicas {
		st := byName[replicas[i].Spec.NodeName]
		if st == nil {
			continue
		}
		st.replicas++
		if replicas[i].DeletionTimestamp.IsZero() {
			st.siblings[replicas[i].Spec.DeploymentRef.UID]++
		}
	}
	return s
}

// Assume places a replica in the snapshot and returns what takes it back.
func (s *Snapshot) Assume(r *v1alpha1.ModelReplica, mac string) (undo func()) {
	i := slices.IndexFunc(s.macs, func(st *state) bool { return st.mac.Name == mac })
	if i < 0 {
		return func() {}
	}
	st, owner := s.macs[i], r.Spec.DeploymentRef.UID
	st.promise.Add(r)
	st.replicas++
	st.siblings[owner]++
	return func() {
		st.promise.Remove(r)
		st.replicas--
		st.siblings[owner]--
	}
}

// Decision is where a replica goes, or why it goes nowhere.
type Decision struct {
	// Mac that was picked; empty if none.
	Mac string
	// Reason of the condition Placed: Placed, NoRoom, TooLarge or NoCandidates.
	Reason string
	// Message for people: the choice, or the reasons of all Macs compactly.
	Message string
	// RetryAfter is when a Mac that is avoided today may be chosen; 0 means
	// that only a change of the fleet can help.
	RetryAfter time.Duration
}

// Pick decides for one replica.
func (s *Snapshot) Pick(r *v1alpha1.ModelReplica) Decision {
	var rejected []rejection
	var best *state
	var bestScore int64
	for _, st := range s.macs {
		if why, ok := s.filter(st, r); !ok {
			rejected = append(rejected, why)
			continue
		}
		// Sorted by name: the first of equals wins, the same in every pass.
		if score := st.score(r); best == nil || score > bestScore {
			best, bestScore = st, score
		}
	}
	if best == nil {
		return s.explain(r, rejected)
	}
	if wait := s.patience(r, best, rejected); wait > 0 {
		return Decision{Reason: v1alpha1.ReasonWaiting, RetryAfter: wait,
			Message: "a replica of this deployment is on " + best.mac.Name + "; waiting for another Mac that still looks for the model's files"}
	}
	return Decision{Mac: best.mac.Name, Reason: v1alpha1.ReasonPlaced, Message: best.chosen(r)}
}

// filter says why a Mac cannot hold a replica. What never changes comes first
// (constraints, size of the empty Mac), so that "too large" is not hidden by
// "not ready".
func (s *Snapshot) filter(st *state, r *v1alpha1.ModelReplica) (rejection, bool) {
	reject := func(k kind, figure int64) (rejection, bool) {
		return rejection{mac: st.mac.Name, kind: k, bytes: figure}, false
	}
	if why, ok := fleet.Eligible(st.mac, r.Spec.Placement); !ok {
		return rejection{mac: st.mac.Name, kind: constraint, text: why}, false
	}
	capacity := st.mac.Status.Memory.CapacityBytes
	if capacity > 0 && r.Spec.ReservedBytes > capacity {
		return reject(tooSmall, capacity)
	}
	if fleet.StateOf(st.mac) != fleet.MacReady {
		return reject(notReady, 0)
	}
	if st.mac.Spec.Unschedulable {
		return reject(cordoned, 0)
	}
	if !accepting(st.mac) {
		return reject(shuttingDown, 0)
	}
	if Stranded(st.mac) {
		return reject(stranded, 0)
	}
	if Skewed(st.mac) {
		return reject(skewed, 0)
	}
	if left := s.avoided(st.mac.Name, r); left > 0 {
		why, _ := reject(avoided, 0)
		why.left = left
		return why, false
	}
	holds := fleet.HoldsSource(st.mac, &r.Spec.Model)
	if !holds && !fleet.StillLooks(st.mac, r.Spec.Model.Source) {
		return reject(withoutFiles, 0)
	}
	if capacity <= 0 {
		return reject(unknownCapacity, 0)
	}
	if st.replicas >= fleet.MaxAssignments {
		return reject(full, 0)
	}
	if free := capacity - st.promise.Always; free < r.Spec.ReservedBytes {
		return reject(short, max(0, free))
	}
	if !holds {
		// Last, so that only a Mac with room is waited for.
		return reject(looking, 0)
	}
	return rejection{}, true
}

// spreadPatience is how long a replica waits for a Mac of its own. It is never
// moved later, and a look at large files takes a while.
const spreadPatience = 30 * time.Second

// patience says how much longer a replica waits rather than share a Mac with a
// sibling, while another Mac may yet become a candidate.
func (s *Snapshot) patience(r *v1alpha1.ModelReplica, best *state, rejected []rejection) time.Duration {
	isLooking := func(x rejection) bool { return x.kind == looking }
	if best.siblings[r.Spec.DeploymentRef.UID] == 0 || !slices.ContainsFunc(rejected, isLooking) {
		return 0
	}
	return max(0, spreadPatience-max(0, s.now.Sub(r.CreationTimestamp.Time)))
}

// accepting is false only where the agent says so: one that says nothing is judged by its Lease.
func accepting(mac *v1alpha1.MacNode) bool {
	return !meta.IsStatusConditionFalse(mac.Status.Conditions, v1alpha1.ConditionAccepting)
}

// Stranded says that a Mac holds memory that no process owns: what its figures
// promise is not there until it was rebooted.
func Stranded(mac *v1alpha1.MacNode) bool {
	return meta.IsStatusConditionTrue(mac.Status.Conditions, v1alpha1.ConditionWiredStranded)
}

// Skewed says that this operator does not serve the Mac's agent: what is placed
// there might be misunderstood.
func Skewed(mac *v1alpha1.MacNode) bool {
	c := meta.FindStatusCondition(mac.Status.Conditions, v1alpha1.ConditionAgentCurrent)
	return c != nil && (c.Reason == v1alpha1.ReasonAgentTooOld || c.Reason == v1alpha1.ReasonAgentTooNew)
}

// avoided says how much longer a replica keeps away from a Mac.
func (s *Snapshot) avoided(mac string, r *v1alpha1.ModelReplica) time.Duration {
	for _, a := range r.Spec.Avoid {
		if a.Name == mac {
			return max(0, a.Until.Sub(s.now))
		}
	}
	return 0
}

// Weights of the score. Spreading a deployment over Macs outweighs all else:
// two replicas on one Mac fall together. An OnDemand model that could never be
// loaded again outweighs a download. Weights on disk outweigh balance: a
// download takes longer than anything that balance gains. Of two Macs with the
// same room the one with fewer OnDemand bytes evicts less often.
const (
	perSibling       = -1000
	perStarved       = -400
	perPreference    = -300
	weightsHere      = 200
	perFreeShare     = 100
	perOnDemandShare = -50
)

// score is higher for a better Mac.
func (st *state) score(r *v1alpha1.ModelReplica) int64 {
	score := perSibling * int64(st.siblings[r.Spec.DeploymentRef.UID])
	score += perPreference * int64(fleet.Preferences(st.mac, r.Spec.Placement))
	if fleet.HasWeights(st.mac, r.Spec.Model.Digest) {
		score += weightsHere
	}
	capacity := st.mac.Status.Memory.CapacityBytes
	free := capacity - st.promise.Always - r.Spec.ReservedBytes
	if !r.Spec.Residency.OnDemand() {
		score += perStarved * int64(starved(st.promise, free))
	}
	score += int64(perOnDemandShare * min(2, float64(st.promise.OnDemandBytes())/float64(capacity)))
	return score + int64(perFreeShare*float64(free)/float64(capacity))
}

// starved counts the OnDemand replicas that would fit no more where only free
// bytes are left to them.
func starved(p fleet.Promise, free int64) int {
	n := 0
	for _, need := range p.OnDemand {
		if need > free {
			n++
		}
	}
	return min(n, 2) // beyond that it may not outweigh a sibling
}
