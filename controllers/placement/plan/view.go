package plan

import (
	"maps"
	"math"
	"slices"
	"strings"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/fleet"
)

// view is the snapshot for one replica.
type view struct {
	s *Snapshot
	r *v1alpha1.ModelReplica
	c *class
	// orderBytes is the size of the replica's assignment.
	orderBytes int
	// siblings counts the replicas of the same deployment on each Mac that are not being
	// deleted.
	siblings []int32
	// ahead is, for each constraint, how many more replicas each domain would have than the
	// one with the fewest if the replica were placed there.
	ahead [][]int32
	lower []*v1alpha1.ModelReplica // scratch space for evict
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

// count computes ahead for one constraint. Replicas of another revision do not count: they
// will be removed.
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

// fits reports whether a Mac can hold the replica, or the kind of its rejection. It runs
// for every Mac and every replica, so it formats no message.
func (v *view) fits(i int) (kind, bool) {
	f, st := &v.c.fixed[i], v.s.macs[i]
	switch {
	case f.no != nil:
		return f.no.kind, false
	case st.replicas >= fleet.MaxAssignments, fleet.FullOfOrders(st.orderBytes, v.orderBytes, fleet.MaxAssignments):
		return full, false
	case v.crowds(st):
		return crowded, false
	case v.crowdsDisk(st):
		return crowdedDisk, false
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
	if v.overcommits(st, free) {
		return overcommitted, false
	}
	if !f.holds {
		// Last, so that only a Mac with room is waited for.
		return looking, false
	}
	return 0, true
}

// overcommits reports whether the replica and the OnDemand replicas of a Mac would together need
// more than the rules allow for its free memory.
func (v *view) overcommits(st *state, free int64) bool {
	factor := v.s.rules.overcommit
	return factor > 0 && v.r.Spec.Residency.OnDemand() && float64(st.onDemand+v.r.Spec.ReservedBytes) > factor*float64(free)
}

// crowds reports whether the namespace of the replica has used its share of a Mac's
// assignments. Only a Mac that may have as many in total is counted.
func (v *view) crowds(st *state) bool {
	most := v.s.rules.of(v.r.Namespace).perMac
	if most == 0 || len(st.standing) == 0 && st.replicas < most && !fleet.FullOfOrders(st.orderBytes, v.orderBytes, most) {
		return false
	}
	n, bytes := v.own(st)
	return n >= most || fleet.FullOfOrders(bytes, v.orderBytes, most)
}

// crowdsDisk reports whether the OnDemand models of the replica's namespace would take more than
// its share of a Mac's disk: its limit of memory does not count these. Weights that are stored there
// count too: without the replica, the Mac could remove them. The first model fits in any
// case. Of the same deployment one other model does not count, the largest: the replica replaces it.
func (v *view) crowdsDisk(st *state) bool {
	most := v.s.rules.of(v.r.Namespace).perMac
	if most == 0 || !v.r.Spec.Residency.OnDemand() || st.shares[v.r.Namespace].count == 0 {
		return false
	}
	taken := map[string]bool{} // the weights that are counted: true if a bound replica has them
	add := func(r *v1alpha1.ModelReplica) (bytes int64) {
		for _, part := range r.Spec.Model.Parts() {
			if strings.HasPrefix(part.Source, fleet.FileScheme) {
				continue
			}
			if _, counted := taken[part.Digest]; !counted {
				bytes += part.Bytes()
			}
			taken[part.Digest] = r != v.r
		}
		return bytes
	}
	need, others, replaced := add(v.r), int64(0), int64(0)
	for _, kin := range []bool{false, true} {
		for _, r := range st.bound {
			if r.Namespace != v.r.Namespace || !r.Spec.Residency.OnDemand() || kin != (r.Spec.DeploymentRef.UID == v.r.Spec.DeploymentRef.UID) {
				continue
			}
			bytes := add(r)
			if others += bytes; kin {
				replaced = max(replaced, bytes)
			}
		}
	}
	if others -= replaced; others == 0 || !slices.Contains(slices.Collect(maps.Values(taken)), false) {
		return false // the first, or nothing that is not counted already
	}
	disk := &st.mac.Status.Disk
	return float64(others+need) > float64(disk.FreeBytes+disk.WeightsBytes)*float64(most)/fleet.MaxAssignments
}

// own returns how many assignments of a Mac are for the namespace of the replica, and their
// bytes: those of serving replicas, and those that only keep weights, but for the ones of the
// same deployment, which end where it serves.
func (v *view) own(st *state) (n, bytes int) {
	own := st.shares[v.r.Namespace]
	for _, r := range st.standing {
		if r.Spec.DeploymentRef.UID == v.r.Spec.DeploymentRef.UID {
			own.count, own.bytes = own.count-1, own.bytes-fleet.OrderBytes(r)
		}
	}
	return own.count, own.bytes
}

// filter returns why a Mac cannot hold the replica.
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
		out.text = "without the label " + v.c.spreads[v.unevenIn(i)].key + " of topologySpreadConstraints"
	}
	return out, false
}

// disk returns the disk space of a Mac for the replica, after pending downloads: the free
// space and, if that is not enough, weights that nothing wants.
func (v *view) disk(st *state, need int64) int64 {
	free := st.mac.Status.Disk.FreeBytes - diskMargin - st.fetchBytes
	if free < need && st.fetchesAll(v.r) {
		return math.MaxInt64 // fetched once for all
	}
	if free >= need || st.mac.Status.Disk.FreeBytes <= 0 { // unknown means no room
		return free
	}
	return free + st.reclaimable()
}

// reclaimable returns the disk space that the agent can free for a download: that of
// weights that neither the Mac nor a replica to be placed there wants, and what the status
// counts and does not list.
func (st *state) reclaimable() int64 {
	unlisted := st.mac.Status.Disk.ReclaimableBytes
	for i := range st.mac.Status.Weights {
		unlisted -= st.mac.Status.Weights[i].ReclaimableBytes
	}
	sum := max(0, unlisted) // an earlier agent reports no sum
	for i := range st.mac.Status.Weights {
		w := &st.mac.Status.Weights[i]
		wanted := func(r *v1alpha1.ModelReplica) bool { return needs(r, w.Digest) }
		if w.ReclaimableBytes > 0 && !slices.ContainsFunc(st.bound, wanted) && !slices.Contains(st.mac.Spec.PinnedWeights, w.Digest) {
			sum += w.ReclaimableBytes
		}
	}
	return sum
}

// unevenIn returns the constraint that keeps the replica out of the Mac's domains; -1 if
// none does.
func (v *view) unevenIn(i int) int {
	for n := range v.c.spreads {
		t := &v.c.spreads[n]
		if d := t.domain[i]; t.hard && (d == noDomain || v.ahead[n][d] > t.most) {
			return n
		}
	}
	return -1
}

// Weights of the score. Spreading a deployment over Macs outweighs everything else: two
// replicas on one Mac fail together. An OnDemand model that could never be loaded again
// outweighs a download. The user's preference outweighs weights on disk, and those outweigh
// balance: a download takes longer than anything that balance gains. Of two Macs with the
// same room, the one with fewer OnDemand bytes evicts less often.
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

// maxAhead bounds the cost of an uneven domain, so that it does not outweigh a sibling.
const maxAhead = 3

// starved counts the OnDemand replicas that would no longer fit if only free bytes were
// left to them.
func starved(p fleet.Promise, free int64) int {
	n := 0
	for _, need := range p.OnDemand {
		if need > free {
			n++
		}
	}
	return min(n, 2) // bounded, so that it does not outweigh a sibling
}
