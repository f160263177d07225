package plan

import (
	"cmp"
	"fmt"
	"slices"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/fleet"
)

// eviction is what one Mac would have to give up for a replica.
type eviction struct {
	mac     int
	victims []*v1alpha1.ModelReplica
	bytes   int64
}

// preempt finds the Mac where replicas of a lower priority make room: one where
// enough of them drain already, else one where the fewest and least important
// would have to. Nobody is sent away twice for the same replica: what drains is
// seen in the next pass as well.
func (v *view) preempt() (Decision, bool) {
	if !v.r.Spec.Priority.Preempts() {
		return Decision{}, false
	}
	var best *eviction
	for i := range v.s.macs {
		if why, ok := v.fits(i); ok || why != short || !v.c.fixed[i].holds {
			continue
		}
		e, ok := v.evict(i)
		if !ok {
			continue
		}
		if best == nil || e.compare(best) < 0 {
			best = &e
		}
	}
	if best == nil {
		return Decision{}, false
	}
	name := v.s.macs[best.mac].mac.Name
	d := Decision{Reason: v1alpha1.ReasonPreempting, Awaits: name, Victims: best.victims,
		Message: fmt.Sprintf("waits for room on %s, where replicas of a lower priority than %d drain", name, v.r.Spec.Priority.Value)}
	if n := len(best.victims); n > 0 {
		d.Message = fmt.Sprintf("%d of a lower priority than %d give their room on %s", n, v.r.Spec.Priority.Value, name)
	}
	return d, true
}

// evict says who would have to go from a Mac that is short of memory: nobody
// where enough of a lower priority drains already, and false where all of them
// would not be enough.
func (v *view) evict(i int) (eviction, bool) {
	st, need := v.s.macs[i], v.r.Spec.ReservedBytes
	free := st.capacity - (st.promise.Always - st.leaving) - st.claimed
	lower := v.lower[:0] // asked of every Mac: one list for all
	drains := false
	for _, b := range st.bound {
		switch {
		case b.Spec.Residency.OnDemand() || b.Spec.Priority.Value >= v.r.Spec.Priority.Value:
		case !b.DeletionTimestamp.IsZero() || v.s.doomed[b.UID]:
			drains = true
		default:
			lower = append(lower, b)
			free += b.Spec.ReservedBytes
		}
	}
	v.lower = lower
	e := eviction{mac: i}
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

// missed puts first who is to be spared: the higher priority, one that serves,
// the older.
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

// compare prefers nobody, then who has the lowest priority, then the fewest,
// then the fewest bytes, then the first name.
func (e *eviction) compare(other *eviction) int {
	return cmp.Or(cmp.Compare(min(1, len(e.victims)), min(1, len(other.victims))), cmp.Compare(e.highest(), other.highest()),
		cmp.Compare(len(e.victims), len(other.victims)), cmp.Compare(e.bytes, other.bytes), cmp.Compare(e.mac, other.mac))
}

// highest priority among the victims; they are sorted by it.
func (e *eviction) highest() int32 {
	if len(e.victims) == 0 {
		return 0
	}
	return e.victims[0].Spec.Priority.Value
}

// Claim notes that a replica waits for room on d.Awaits, and that d.Victims go:
// nobody who is looked at later may have that room. It returns what takes it
// back.
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
