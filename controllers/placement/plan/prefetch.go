package plan

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"

	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/fleet"
)

// lead is how near a replica's weights are to the Mac where it is to swap, the nearest
// first.
type lead int

const (
	leadThere   lead = iota // or nothing has to be fetched
	leadComing              // the download is assigned there
	leadRefused             // it is, but the Mac has no room for them under its high mark
	leadAbsent              // it could be assigned there
	leadLimited             // it could, if its namespace prefetched less for other swaps
	leadNoRoom              // the disk has no room for them in addition to wanted weights
)

// note returns a sentence about a swap that continues without the weights.
func (l lead) note() string {
	if l == leadRefused || l == leadNoRoom {
		return "; the weights are not downloaded before, because the disk has no space for both models"
	}
	return ""
}

// lead returns the state of the replica's weights on a Mac. Only the Mac knows its high
// mark: it accepts the download or reports DiskFull.
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
	case v.limitsLead():
		return leadLimited
	}
	return leadAbsent
}

// limitsLead reports whether the rules refuse to prefetch the weights now. They allow one swap of
// a namespace at a time in any case.
func (v *view) limitsLead() bool {
	s, limit, need := v.s, v.s.rules.of(v.r.Namespace).prefetch, v.r.Spec.Model.DiskBytes()
	own := int64(0)
	if _, counted := s.index[v.r.Spec.PrefetchNodeName]; counted {
		own = need
	}
	return limit != nil && s.ahead[v.r.Namespace] > own && need > *limit-(s.prefetched[v.r.Namespace]-own)
}

func diskFull(report *v1alpha1.AssignmentStatus) bool {
	c := meta.FindStatusCondition(report.Conditions, v1alpha1.ConditionDownloaded)
	return c != nil && c.Reason == v1alpha1.ReasonDiskFull
}

// waits reports whether an eviction of the old revision can wait for the weights.
func (e *eviction) waits() bool {
	return e.swap && slices.Contains(e.victims, e.kin) && (e.lead == leadComing || e.lead == leadAbsent || e.lead == leadLimited)
}

// prefetch returns the decision to fetch the weights, or to wait until the rules allow it; no
// replica is evicted meanwhile.
func (v *view) prefetch(e *eviction) Decision {
	name := v.s.macs[e.mac].mac.Name
	if e.lead == leadLimited {
		return Decision{Reason: v1alpha1.ReasonPrefetching, Message: fmt.Sprintf("waiting for other rollouts in namespace %s to complete: with the weights for this one (%s) it would prefetch more than %s (prefetchLimit of the NamespaceRules)",
			v.r.Namespace, v1alpha1.FormatBytes(v.r.Spec.Model.DiskBytes()), v1alpha1.FormatBytes(*v.s.rules.of(v.r.Namespace).prefetch))}
	}
	return Decision{Reason: v1alpha1.ReasonPrefetching, Prefetch: name,
		Message: fmt.Sprintf("downloading the weights (%s) on %s before a replica of the old revision drains there", v1alpha1.FormatBytes(v.r.Spec.Model.DiskBytes()), name)}
}

// FetchesOn returns the Mac that is assigned to prefetch a replica's weights after the
// decision; empty for none. The prefetch continues for as long as the replica may swap and
// no other Mac was chosen, also on a Mac that is away for a while.
func (d Decision) FetchesOn(r *v1alpha1.ModelReplica) string {
	before := r.Spec.PrefetchNodeName
	switch {
	case fleet.Prefetches(r):
		return d.Prefetch
	case !r.Spec.Swap:
		return ""
	case d.Prefetch != "":
		return d.Prefetch
	case d.Awaits != "" && d.Awaits != before:
		return ""
	}
	return before
}

// noteAhead counts a prefetch on a Mac's disk.
func (s *Snapshot) noteAhead(r *v1alpha1.ModelReplica) {
	s.FetchAhead(r, fleet.OrderedOn(r))
}

// FetchAhead is Fetch, and counts the prefetch of the namespace.
func (s *Snapshot) FetchAhead(r *v1alpha1.ModelReplica, mac string) {
	s.Fetch(r, mac)
	s.notePrefetch(r, mac)
}

// Fetch records that a Mac prefetches the weights of an unbound replica: the disk space is
// not available to others.
func (s *Snapshot) Fetch(r *v1alpha1.ModelReplica, mac string) {
	i, has := s.index[mac]
	if !has || len(absent(s.macs[i].mac, r)) == 0 {
		return
	}
	s.version++
	s.macs[i].fetchParts(r, fetched(r))
}

// swapsOnFullDisk reports whether a Mac lacks both memory and disk space: a replica that
// may swap gets the disk space of the one it replaces.
func (v *view) swapsOnFullDisk(i int, why kind) bool {
	return why == noDisk && v.r.Spec.Swap && v.s.macs[i].free() < v.r.Spec.ReservedBytes && v.unevenIn(i) < 0
}

// clears reports whether the disk has room for the weights once those of the replaced
// replica are deleted.
func (v *view) clears(i int, e *eviction) bool {
	st, need := v.s.macs[i], v.c.fixed[i].fetch
	return e.kin != nil && st.mac.Status.Disk.FreeBytes > 0 && need <= v.disk(st, need)+st.sole(e.kin)
}

// sole returns the size of a replica's weights that no other replica on the Mac wants.
func (st *state) sole(r *v1alpha1.ModelReplica) (sum int64) {
	for _, part := range r.Spec.Model.Parts() {
		wanted := func(b *v1alpha1.ModelReplica) bool { return b.UID != r.UID && needs(b, part.Digest) }
		if slices.ContainsFunc(st.bound, wanted) || slices.Contains(st.mac.Spec.PinnedWeights, part.Digest) {
			continue
		}
		for i := range st.mac.Status.Weights {
			if w := &st.mac.Status.Weights[i]; w.Digest == part.Digest {
				sum += w.Bytes
			}
		}
	}
	return sum
}

// needs reports whether weights are those of a replica's model or of its adapters.
func needs(r *v1alpha1.ModelReplica, digest string) bool {
	return r.Spec.Model.Digest == digest || slices.ContainsFunc(r.Spec.Model.Adapters, func(a model.Adapter) bool { return a.Digest == digest })
}
