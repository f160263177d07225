package plan

import (
	"math"
	"slices"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/fleet"
)

// view is the snapshot as one replica sees it.
type view struct {
	s *Snapshot
	r *v1alpha1.ModelReplica
	c *class
	// orderBytes that the replica's order takes.
	orderBytes int
	// siblings counts the living replicas of the same deployment on each Mac.
	siblings []int32
	// ahead is, for each constraint, by how many replicas each domain would be
	// ahead of the one with the fewest if the replica went there.
	ahead [][]int32
	lower []*v1alpha1.ModelReplica // room for evict
}

func (s *Snapshot) view(r *v1alpha1.ModelReplica) *view { return s.viewOf(s.class(r), r) }

func (s *Snapshot) viewOf(c *class, r *v1alpha1.ModelReplica) *view {
	v := &view{s: s, r: r, c: c, orderBytes: fleet.OrderBytes(r), siblings: make([]int32, len(s.macs))}
	kin := s.kin[r.Spec.DeploymentRef.UID]
	for _, p := range kin {
		v.siblings[p.mac]++
	}
	for i := range v.c.spreads {
		v.ahead = append(v.ahead, v.c.spreads[i].count(kin, r.Spec.Revision))
	}
	return v
}

// count is ahead of one constraint. Replicas of another revision do not count:
// they go, and what stays behind is to be even.
func (t *spread) count(kin []place, revision string) []int32 {
	out := make([]int32, len(t.counted))
	for _, p := range kin {
		if d := t.domain[p.mac]; d != noDomain && p.revision == revision {
			out[d]++
		}
	}
	fewest := int32(math.MaxInt32)
	for d, n := range out {
		if t.counted[d] {
			fewest = min(fewest, n)
		}
	}
	for d := range out {
		out[d] += 1 - fewest
	}
	return out
}

// diskMargin is what an agent leaves free on the disk of its store.
const diskMargin = 64 << 20

// fits says whether a Mac can hold the replica, or of which kind its rejection
// is. It is asked for every Mac and every replica: it makes no words.
func (v *view) fits(i int) (kind, bool) {
	f, st := &v.c.fixed[i], v.s.macs[i]
	switch {
	case f.no != nil:
		return f.no.kind, false
	case st.replicas >= fleet.MaxAssignments, fleet.FullOfOrders(st.orderBytes, v.orderBytes, fleet.MaxAssignments):
		return full, false
	case v.crowds(st):
		return crowded, false
	case f.fetch > 0 && f.fetch > v.disk(st, f.fetch):
		return noDisk, false
	}
	if n := v.unevenIn(i); n >= 0 {
		if v.c.spreads[n].domain[i] == noDomain {
			return constraint, false
		}
		return uneven, false
	}
	free := st.free()
	if free < v.r.Spec.ReservedBytes {
		return short, false
	}
	if factor := v.s.rules.OnDemandOvercommit; factor > 0 && v.r.Spec.Residency.OnDemand() &&
		float64(st.onDemand+v.r.Spec.ReservedBytes) > factor*float64(free) {
		return overcommitted, false
	}
	if !f.holds {
		// Last, so that only a Mac with room is waited for.
		return looking, false
	}
	return 0, true
}

// crowds reports whether the namespace of the replica has its share of a Mac's
// orders. Only a Mac that has as many in all is counted.
func (v *view) crowds(st *state) bool {
	most := v.s.rules.of(v.r.Namespace).ReplicasPerMac
	if most == 0 || st.replicas < most && !fleet.FullOfOrders(st.orderBytes, v.orderBytes, most) {
		return false
	}
	n, bytes := 0, 0
	for _, r := range st.bound {
		if r.Namespace == v.r.Namespace {
			n++
			bytes += fleet.OrderBytes(r)
		}
	}
	return n >= most || fleet.FullOfOrders(bytes, v.orderBytes, most)
}

// filter says why a Mac cannot hold the replica.
func (v *view) filter(i int) (rejection, bool) {
	k, ok := v.fits(i)
	if ok {
		return rejection{}, true
	}
	if no := v.c.fixed[i].no; no != nil {
		return *no, false
	}
	st := v.s.macs[i]
	out := rejection{mac: st.mac.Name, kind: k}
	switch k {
	case short:
		out.bytes = max(0, st.free())
	case noDisk:
		out.bytes = max(0, v.disk(st, math.MaxInt64))
	case uneven:
		out.text = v.c.spreads[v.unevenIn(i)].key
	case constraint:
		out.text = "without the label " + v.c.spreads[v.unevenIn(i)].key + " of topologySpread"
	}
	return out, false
}

// disk is what a Mac's disk takes for the replica, beside what is already to be
// fetched for others: what is free and, where that is less than it needs,
// weights there that nobody wants.
func (v *view) disk(st *state, need int64) int64 {
	free := st.mac.Status.Disk.FreeBytes - diskMargin - st.fetchBytes
	if free < need && st.fetches(v.r.Spec.Model.Digest) >= 0 {
		return math.MaxInt64 // fetched once for all
	}
	if free >= need || st.mac.Status.Disk.FreeBytes <= 0 { // unknown is no room
		return free
	}
	return free + st.reclaimable()
}

// reclaimable is what weights give back that neither the Mac nor a replica that
// is to come there wants.
func (st *state) reclaimable() (sum int64) {
	for i := range st.mac.Status.Weights {
		w := &st.mac.Status.Weights[i]
		wanted := func(r *v1alpha1.ModelReplica) bool { return r.Spec.Model.Digest == w.Digest }
		if w.ReclaimableBytes > 0 && !slices.ContainsFunc(st.bound, wanted) && !slices.Contains(st.mac.Spec.PinnedWeights, w.Digest) {
			sum += w.ReclaimableBytes
		}
	}
	return sum
}

// unevenIn is the constraint that keeps the replica out of the Mac's domains;
// -1 where none does.
func (v *view) unevenIn(i int) int {
	for n := range v.c.spreads {
		t := &v.c.spreads[n]
		if d := t.domain[i]; t.hard && (d == noDomain || v.ahead[n][d] > t.most) {
			return n
		}
	}
	return -1
}

// Weights of the score. Spreading a deployment over Macs outweighs all else:
// two replicas on one Mac fall together. An OnDemand model that could never be
// loaded again outweighs a download. What the user prefers outweighs weights on
// disk, and those outweigh balance: a download takes longer than anything that
// balance gains. Of two Macs with the same room the one with fewer OnDemand
// bytes evicts less often.
const (
	perSibling       = -1000
	perStarved       = -400
	perPreference    = -300
	perAffinity      = 300
	perAhead         = -150
	weightsHere      = 200
	perFreeShare     = 100
	perOnDemandShare = -50
)

// score is higher for a better Mac.
func (v *view) score(i int) int64 {
	st, need := v.s.macs[i], v.r.Spec.ReservedBytes
	score := perSibling*int64(v.siblings[i]) + v.c.fixed[i].score
	for n := range v.c.spreads {
		t := &v.c.spreads[n]
		switch d := t.domain[i]; {
		case t.hard:
		case d == noDomain:
			score += perAhead * maxAhead
		default:
			score += perAhead * int64(min(maxAhead, max(0, v.ahead[n][d]-t.most)))
		}
	}
	free := st.free() - need
	if !v.r.Spec.Residency.OnDemand() {
		score += perStarved * int64(starved(st.promise, free))
	}
	score += int64(perOnDemandShare * min(2, float64(st.onDemand)/float64(st.capacity)))
	share := int64(perFreeShare * float64(free) / float64(st.capacity))
	if v.r.Spec.Placement.Strategy == v1alpha1.PlacementBinPack {
		share = perFreeShare - share
	}
	return score + share
}

// maxAhead bounds what an uneven domain costs: beyond it, it may not outweigh a
// sibling.
const maxAhead = 3

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
