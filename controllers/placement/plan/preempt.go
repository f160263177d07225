package plan

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/fleet"
)

// eviction is what one Mac would have to evict for a replica.
type eviction struct {
	mac     int
	victims []*v1alpha1.ModelReplica
	bytes   int64
	// late is 1 if it is not enough without drains that their owners made long, else 0.
	late int
	// swap: a replica of another revision of the same deployment, kin, is evicted.
	swap bool
	kin  *v1alpha1.ModelReplica
	// lead of the weights, for a swap.
	lead lead
}

// preempt finds the Mac on which replicas of a lower priority make room, or one of another
// revision for a replica that may swap: preferably one where enough of them drain already,
// else one where the fewest and least important have to be evicted. No second victim is
// chosen for the same replica: draining replicas count in the next pass as well.
func (v *view) preempt() (Decision, bool) {
	if !v.r.Spec.Priority.Preempts() && !v.r.Spec.Swap {
		return Decision{}, false
	}
	var best *eviction
	for i := range v.s.macs {
		why, ok := v.fits(i)
		if ok || why != short && !v.swapsOnFullDisk(i, why) || !v.c.fixed[i].holds {
			continue
		}
		e, ok := v.evict(i)
		if !ok || why == noDisk && !v.clears(i, &e) {
			continue
		}
		if best == nil || e.compare(best) < 0 {
			best = &e
		}
	}
	if best == nil {
		return Decision{}, false
	}
	if best.waits() {
		return v.prefetch(best), true
	}
	return v.order(best), true
}

// order returns the decision to evict.
func (v *view) order(best *eviction) Decision {
	name := v.s.macs[best.mac].mac.Name
	d := Decision{Reason: v1alpha1.ReasonPreempting, Awaits: name, Victims: best.victims,
		Message: fmt.Sprintf("waiting for room on %s, where replicas with a lower priority than %d are draining", name, v.r.Spec.Priority.Value)}
	n := len(best.victims)
	switch {
	case best.swap && n > 0:
		d.Reason, d.Message = v1alpha1.ReasonSwapping, fmt.Sprintf("%s of the old revision drains to make room on %s", best.victims[0].Name, name)
	case best.swap:
		d.Reason, d.Message = v1alpha1.ReasonSwapping, fmt.Sprintf("waiting for room on %s, where a replica of the old revision is draining", name)
	case n > 0:
		d.Message = fmt.Sprintf("draining %d of the replicas with a lower priority than %d to make room on %s", n, v.r.Spec.Priority.Value, name)
	}
	if best.swap {
		d.Message += best.lead.note()
		if best.lead == leadThere && downloads(v.r) {
			d.Prefetch = name // so that it is not garbage-collected meanwhile
		}
	}
	return d
}

// evict returns the replicas that would have to be evicted from a Mac for memory: none if
// enough of a lower priority drains already, and false if all of them would not be enough.
func (v *view) evict(i int) (eviction, bool) {
	st, need := v.s.macs[i], v.r.Spec.ReservedBytes
	late := v.late(st)
	free := st.capacity - (st.promise.Always - st.leaving) - st.claimed - late
	lower := v.lower[:0] // called for every Mac: the slice is reused
	drains, swaps := false, false
	var kin, left *v1alpha1.ModelReplica
	for _, b := range st.bound {
		switch {
		case b.Spec.Residency.OnDemand():
		case v.swapsWith(b):
			if !b.DeletionTimestamp.IsZero() || v.s.doomed[b.UID] {
				drains, swaps, left = true, true, b
			} else if kin == nil || missed(kin, b) < 0 {
				kin = b
			}
		case !v.r.Spec.Priority.Preempts() || b.Spec.Priority.Value >= v.r.Spec.Priority.Value:
		case !b.DeletionTimestamp.IsZero() || v.s.doomed[b.UID]:
			drains = true
		default:
			lower = append(lower, b)
			free += b.Spec.ReservedBytes
		}
	}
	if kin != nil && free < need { // one of them, and only if the others are not enough
		lower, swaps, left = append(lower, kin), true, kin
		free += kin.Spec.ReservedBytes
	}
	v.lower = lower
	e := eviction{mac: i, swap: swaps, kin: left}
	if swaps {
		e.lead = v.lead(i)
	}
	if free < need {
		e.late = 1
		free += late
	}
	if free < need || !drains && len(lower) == 0 {
		return e, false
	}
	slices.SortFunc(lower, missed)
	for _, b := range lower {
		if free-b.Spec.ReservedBytes >= need {
			free -= b.Spec.ReservedBytes
			continue
		}
		e.victims = append(e.victims, b)
		e.bytes += b.Spec.ReservedBytes
	}
	return e, true
}

// longDrain is how long the drain of a replica may still last to be counted as room that comes.
const longDrain = v1alpha1.DefaultDrainSeconds * time.Second

// late returns the bytes of replicas of other deployments on a Mac whose drain may last for long.
// Their owners choose how long, and those of a lower priority must not keep the replica waiting
// where others can make room. One that was preempted counts as room that comes: no second victim
// is chosen for the same replica.
func (v *view) late(st *state) (bytes int64) {
	if !v.r.Spec.Priority.Preempts() || st.leaving == 0 {
		return 0
	}
	for _, b := range st.bound {
		if b.DeletionTimestamp.IsZero() || b.Spec.Residency.OnDemand() || b.Spec.DeploymentRef.UID == v.r.Spec.DeploymentRef.UID {
			continue
		}
		ends := b.DeletionTimestamp.Add(time.Duration(b.Spec.DrainSeconds) * time.Second)
		if ends.Sub(v.s.now) > longDrain && !meta.IsStatusConditionFalse(b.Status.Conditions, v1alpha1.ConditionPlaced) {
			bytes += b.Spec.ReservedBytes
		}
	}
	return bytes
}

// swapsWith reports whether another replica is of another revision of the same deployment
// and may be replaced by this one.
func (v *view) swapsWith(b *v1alpha1.ModelReplica) bool {
	return v.r.Spec.Swap && b.Spec.DeploymentRef.UID == v.r.Spec.DeploymentRef.UID && b.Spec.Revision != v.r.Spec.Revision
}

// missed orders by importance: the higher priority first, then serving ones, then older
// ones.
func missed(a, b *v1alpha1.ModelReplica) int {
	if c := cmp.Compare(b.Spec.Priority.Value, a.Spec.Priority.Value); c != 0 {
		return c
	}
	switch x, y := fleet.ReplicaReady(a), fleet.ReplicaReady(b); {
	case x == y:
		return older(a, b)
	case x:
		return -1
	default:
		return 1
	}
}

// compare prefers what needs no long drain, then no victims, then the lowest priority, then the Mac that is nearest to
// having the weights, then the fewest victims, then the fewest that serve, then the fewest
// bytes, then the first name.
func (e *eviction) compare(other *eviction) int {
	return cmp.Or(cmp.Compare(e.late, other.late), cmp.Compare(min(1, len(e.victims)), min(1, len(other.victims))), cmp.Compare(e.highest(), other.highest()), cmp.Compare(e.lead, other.lead),
		cmp.Compare(len(e.victims), len(other.victims)), cmp.Compare(e.serving(), other.serving()), cmp.Compare(e.bytes, other.bytes), cmp.Compare(e.mac, other.mac))
}

// serving counts the victims that serve.
func (e *eviction) serving() int {
	n := 0
	for _, v := range e.victims {
		if fleet.ReplicaReady(v) {
			n++
		}
	}
	return n
}

// highest returns the highest priority among the victims; they are sorted by it.
func (e *eviction) highest() int32 {
	if len(e.victims) == 0 {
		return 0
	}
	return e.victims[0].Spec.Priority.Value
}

// Claim records that a replica waits for memory on d.Awaits, and that d.Victims are
// evicted: no later decision may use that memory. It returns a function that reverts it.
func (s *Snapshot) Claim(r *v1alpha1.ModelReplica, d Decision) (undo func()) {
	i, has := s.index[d.Awaits]
	if !has {
		return func() {}
	}
	st := s.macs[i]
	leaving := int64(0)
	for _, v := range d.Victims {
		s.doomed[v.UID] = true
		leaving += v.Spec.ReservedBytes
	}
	s.version++
	st.claimed += r.Spec.ReservedBytes
	st.leaving += leaving
	return func() {
		s.version++
		st.claimed -= r.Spec.ReservedBytes
		st.leaving -= leaving
		for _, v := range d.Victims {
			delete(s.doomed, v.UID)
		}
	}
}
