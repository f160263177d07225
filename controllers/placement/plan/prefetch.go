package plan

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/fleet"
)

// lead is how near a replica's weights are to the Mac where it is to swap, the
// nearest first.
type lead int

const (
	leadThere   lead = iota // or nothing has to be fetched
	leadComing              // they are ordered there
	leadRefused             // they are, and the Mac has no room for them below its high mark
	leadAbsent              // they could be ordered there
	leadNoRoom              // the disk does not take them beside what is wanted there
)

// note says in a sentence about a swap that it goes on without the weights.
func (l lead) note() string {
	if l == leadRefused || l == leadNoRoom {
		return "; the weights are not downloaded before, because the disk has no space for both models"
	}
	return ""
}

// lead of the replica's weights on a Mac. The Mac itself knows its high mark: it
// takes the order or says DiskFull.
func (v *view) lead(i int) lead {
	st, need := v.s.macs[i], v.c.fixed[i].fetch
	ordered := v.r.Spec.PrefetchNodeName == st.mac.Name
	switch report := fleet.Report(st.mac, v.r); {
	case need == 0:
		return leadThere
	case ordered && report != nil && meta.IsStatusConditionTrue(report.Conditions, v1alpha1.ConditionDownloaded):
		return leadThere
	case ordered && report != nil && diskFull(report):
		return leadRefused
	case ordered:
		return leadComing
	case need > v.disk(st, need):
		return leadNoRoom
	}
	return leadAbsent
}

func diskFull(report *v1alpha1.AssignmentStatus) bool {
	c := meta.FindStatusCondition(report.Conditions, v1alpha1.ConditionDownloaded)
	return c != nil && c.Reason == v1alpha1.ReasonDiskFull
}

// waits says that one of the old revision would have to go before the weights are
// there, and need not.
func (e *eviction) waits() bool {
	return e.swap && slices.Contains(e.victims, e.kin) && (e.lead == leadComing || e.lead == leadAbsent)
}

// prefetch has the weights fetched; nobody goes meanwhile.
func (v *view) prefetch(e *eviction) Decision {
	name := v.s.macs[e.mac].mac.Name
	return Decision{Reason: v1alpha1.ReasonPrefetching, Prefetch: name,
		Message: fmt.Sprintf("downloading the weights (%s) on %s before a replica of the old revision drains there", v1alpha1.FormatBytes(v.r.Spec.Model.Bytes()), name)}
}

// FetchesOn is the Mac that has the order to fetch a replica's weights after the
// decision; empty for none. The order stays as long as the leave to swap does and
// no other Mac was chosen: one that is away for a while fetches on.
func (d Decision) FetchesOn(r *v1alpha1.ModelReplica) string {
	before := r.Spec.PrefetchNodeName
	switch {
	case !r.Spec.Swap:
		return ""
	case d.Prefetch != "":
		return d.Prefetch
	case d.Awaits != "" && d.Awaits != before:
		return ""
	}
	return before
}

// noteAhead counts on a Mac's disk what it fetches for a replica that has no Mac
// yet.
func (s *Snapshot) noteAhead(r *v1alpha1.ModelReplica) {
	s.Fetch(r, fleet.OrderedOn(r))
}

// Fetch notes that a Mac fetches the weights of a replica that is not bound: its
// disk is not promised to another.
func (s *Snapshot) Fetch(r *v1alpha1.ModelReplica, mac string) {
	i, has := s.index[mac]
	if !has || !downloads(r) || fleet.HasWeights(s.macs[i].mac, r.Spec.Model.Digest) {
		return
	}
	s.version++
	s.macs[i].fetch(r.Spec.Model.Digest, max(0, r.Spec.Model.Bytes()-fetched(r)))
}

// swapsOnFullDisk says that memory lacks on a Mac whose disk lacks room as well:
// who may swap gets the disk of the one that goes.
func (v *view) swapsOnFullDisk(i int, why kind) bool {
	return why == noDisk && v.r.Spec.Swap && v.s.macs[i].free() < v.r.Spec.ReservedBytes && v.unevenIn(i) < 0
}

// clears says that the disk takes the weights once those of the replica that goes
// are gone.
func (v *view) clears(i int, e *eviction) bool {
	st, need := v.s.macs[i], v.c.fixed[i].fetch
	return e.kin != nil && st.mac.Status.Disk.FreeBytes > 0 && need <= v.disk(st, need)+st.sole(e.kin)
}

// sole is what the weights of a replica take that nobody else on the Mac wants.
func (st *state) sole(r *v1alpha1.ModelReplica) int64 {
	digest := r.Spec.Model.Digest
	for _, b := range st.bound {
		if b.UID != r.UID && b.Spec.Model.Digest == digest {
			return 0
		}
	}
	for i := range st.mac.Status.Weights {
		if w := &st.mac.Status.Weights[i]; w.Digest == digest && !slices.Contains(st.mac.Spec.PinnedWeights, digest) {
			return w.Bytes
		}
	}
	return 0
}
