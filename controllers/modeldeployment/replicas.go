package modeldeployment

import (
	"cmp"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/fleet"
	"metalfleet.dev/metalfleet/controllers/internal/status"
)

// desiredState is the target for the replicas of a deployment.
type desiredState struct {
	// revision that all of them should have.
	revision string
	// served is the last revision that served with all wanted replicas: revision itself,
	// another existing one to fall back to, or empty.
	served string
	// count of them.
	count int
	// surge is how many more may exist, and unavailable how many fewer may be ready, while
	// replicas of another revision are replaced.
	surge, unavailable int
	// swap: if there is no memory next to the old replicas, one of them is removed first.
	swap bool
	// paused: nothing is replaced. halted: nothing is replaced, and replicas of the
	// revision that do not serve are removed; an earlier revision has served.
	paused, halted bool
	// avoid is for how long the successor of a refused replica avoids the Mac that refused.
	avoid time.Duration
	// abandoned are the replicas that are replaced because of their Macs, which their successors avoid.
	abandoned map[types.UID]v1alpha1.AvoidedMac
	// unplaced is how many replicas may wait for a Mac at once; 0 means maxUnplaced.
	unplaced int
	// mayRemove reports whether a surplus replica may be removed; nil: any may.
	mayRemove func(*v1alpha1.ModelReplica) bool
}

// replicaToCreate is a replica to create.
type replicaToCreate struct {
	revision string
	slot     int32
	// epoch counts the attempts at a slot of a revision, from 1. It is part of the name, so
	// that a successor never conflicts with its terminating predecessor.
	epoch int64
	avoid []v1alpha1.AvoidedMac
}

// changes bring the replicas closer to the desired state.
type changes struct {
	create []replicaToCreate
	remove []*v1alpha1.ModelReplica
	// swap is the one replica that may take the memory of an old one; empty: none.
	swap types.UID
}

// partition groups the replicas of a deployment that are not being deleted.
type partition struct {
	// failed never serve: they are replaced by others of their revision.
	failed       []*v1alpha1.ModelReplica
	current, old []*v1alpha1.ModelReplica
	// evicted are those, of current and old, that a successor replaces before they go.
	evicted []*v1alpha1.ModelReplica
}

func partitionOf(w desiredState, existing []v1alpha1.ModelReplica) partition {
	var k partition
	for i := range existing {
		r := &existing[i]
		switch {
		case !r.DeletionTimestamp.IsZero():
		case failed(r) || w.gaveUp(r):
			k.failed = append(k.failed, r)
		case r.Spec.Revision == w.revision:
			k.current = append(k.current, r)
		default:
			k.old = append(k.old, r)
		}
	}
	sortForRemoval(k.current)
	sortForRemoval(k.old)
	for _, r := range slices.Concat(k.current, k.old) {
		if evicted(r) {
			k.evicted = append(k.evicted, r)
		}
	}
	return k
}

func (w desiredState) gaveUp(r *v1alpha1.ModelReplica) bool {
	_, ok := w.abandoned[r.UID]
	return ok
}

// evicted reports whether a person drains the Mac of a replica.
func evicted(r *v1alpha1.ModelReplica) bool {
	return r.Spec.NodeName != "" && r.Annotations[v1alpha1.AnnotationEvict] != ""
}

// evict picks the evicted replicas of living ones that may be removed: those that do not serve, and others
// as far as enough remain. It returns how many replicas are missing, without the evicted: their
// successors are created while they serve, as many at a time as a rollout surges, at least one.
func evict(w desiredState, living []*v1alpha1.ModelReplica) (gone []*v1alpha1.ModelReplica, missing int) {
	spare, kept := availableOf(living...)-(w.count-w.unavailable), 0
	for _, r := range living {
		switch {
		case !evicted(r):
			kept++
		case !available(r):
			gone = append(gone, r)
		case spare > 0:
			gone = append(gone, r)
			spare--
		}
	}
	missing = w.count - kept
	if left := len(living) - len(gone) - kept; left > 0 {
		missing = min(missing, w.count+max(1, w.surge)-kept-left)
	}
	return gone, missing
}

// plan decides which replicas to create and which to remove. It has no memory: the same
// state gives the same changes.
//
// Successors of failed replicas are created before removals, so that a failure in between
// leaves too many and not too few.
func plan(w desiredState, existing []v1alpha1.ModelReplica, now time.Time) changes {
	k := partitionOf(w, existing)
	if w.paused || w.halted {
		return w.hold(k, existing, now)
	}
	out := changes{remove: k.failed}
	current, old := k.current, k.old
	kept := len(slices.DeleteFunc(slices.Clone(current), evicted))
	if surplus := kept - w.count; surplus > 0 {
		gone := removable(w, current, surplus)
		out.remove = append(out.remove, gone...)
		current = without(current, gone)
	}
	gone, room := evict(w, slices.Concat(current, old))
	if len(k.evicted) == 0 || len(old) > 0 {
		gone, room = nil, w.count-len(current) // the rollout replaces the old ones anyway
	}
	out.remove = append(out.remove, gone...)
	current = without(current, gone)
	removedOld := retire(w, current, old)
	out.remove = append(out.remove, removedOld...)
	// Fewer are wanted than when the rollout began: remove those that do not serve yet.
	for excess := len(current) + len(old) - len(removedOld) - (w.count + w.surge); excess > 0 && len(old) > 0 && len(current) > 0 && !available(current[0]); excess-- {
		out.remove = append(out.remove, current[0])
		current = current[1:]
	}

	if len(old) > 0 {
		room = min(room, w.count+w.surge-len(current)-(len(old)-len(removedOld)))
	}
	out.create = fillSlots(w, w.revision, room, current, existing, now)
	under := swapUnderWay(w, existing)
	if len(old) > len(removedOld) || under {
		out.swap = w.mayswap(current, old, under)
	}
	return out
}

func without(replicas, gone []*v1alpha1.ModelReplica) []*v1alpha1.ModelReplica {
	return slices.DeleteFunc(replicas, func(r *v1alpha1.ModelReplica) bool { return slices.Contains(gone, r) })
}

// removable picks the surplus replicas that may be removed, from replicas in the order of
// their removal.
func removable(w desiredState, current []*v1alpha1.ModelReplica, surplus int) []*v1alpha1.ModelReplica {
	var out []*v1alpha1.ModelReplica
	for _, r := range current {
		if len(out) < surplus && !evicted(r) && (w.mayRemove == nil || w.mayRemove(r)) {
			out = append(out, r)
		}
	}
	return out
}

// hold keeps the existing replicas while nothing may be replaced: missing replicas are
// created with the revision that served, surplus ones are removed. After a halt, replicas
// of the failed revision that do not serve are removed too, and those it was to replace are
// restored.
func (w desiredState) hold(k partition, existing []v1alpha1.ModelReplica, now time.Time) changes {
	out := changes{remove: k.failed}
	var living []*v1alpha1.ModelReplica
	for _, r := range k.current {
		if w.halted && !available(r) {
			out.remove = append(out.remove, r)
			continue
		}
		living = append(living, r)
	}
	living = append(living, k.old...)
	most := w.count
	if w.paused && !w.halted && w.count > 0 && len(k.current) > 0 && len(k.old) > 0 {
		most += w.surge // what was begun stays
	}
	sortForRemoval(living)
	if surplus := len(slices.DeleteFunc(slices.Clone(living), evicted)) - most; surplus > 0 {
		gone := removable(w, living, surplus)
		out.remove = append(out.remove, gone...)
		living = without(living, gone)
	}
	missing := w.count - len(living)
	if len(k.evicted) > 0 {
		var gone []*v1alpha1.ModelReplica
		gone, missing = evict(w, living)
		out.remove = append(out.remove, gone...)
		living = without(living, gone)
	}
	revision := w.served
	if revision == "" {
		revision = w.revision
	}
	if w.paused && w.served == "" && len(existing) == 0 {
		return out // it begins when it is resumed
	}
	var same []*v1alpha1.ModelReplica
	for _, r := range living {
		if r.Spec.Revision == revision {
			same = append(same, r)
		}
	}
	out.create = fillSlots(w, revision, missing, same, existing, now)
	return out
}

// available reports whether a replica counts as serving.
func available(r *v1alpha1.ModelReplica) bool { return fleet.ReplicaReady(r) }

func availableOf(replicas ...*v1alpha1.ModelReplica) int {
	n := 0
	for _, r := range replicas {
		if available(r) {
			n++
		}
	}
	return n
}

// retire picks the replicas of other revisions to remove: those that serve only as far as
// enough others do, and likewise those of the revision that served last, or of a silent
// Mac, which may serve again in a moment. Others are removed at once. Idle ones come first.
func retire(w desiredState, current, old []*v1alpha1.ModelReplica) []*v1alpha1.ModelReplica {
	spare := availableOf(current...) + availableOf(old...) - (w.count - w.unavailable)
	excess := len(current) + len(old) - (w.count + w.surge)
	var out []*v1alpha1.ModelReplica
	for _, r := range idleFirst(w, old) {
		switch {
		case !available(r):
			if spare >= 0 || excess > len(out) || !maybeBack(w, r) {
				out = append(out, r)
			}
		case spare > 0:
			out = append(out, r)
			spare--
		}
	}
	return out
}

// idleFirst returns the replicas with those first that may be removed also if they are not replaced.
func idleFirst(w desiredState, replicas []*v1alpha1.ModelReplica) []*v1alpha1.ModelReplica {
	if w.mayRemove == nil {
		return replicas
	}
	var idle, others []*v1alpha1.ModelReplica
	for _, r := range replicas {
		if w.mayRemove(r) {
			idle = append(idle, r)
		} else {
			others = append(others, r)
		}
	}
	return append(idle, others...)
}

// maybeBack reports whether a replica that does not serve may serve again.
func maybeBack(w desiredState, r *v1alpha1.ModelReplica) bool {
	admitted, ready := condition(r.Status.Conditions, v1alpha1.ConditionAdmitted), condition(r.Status.Conditions, v1alpha1.ConditionReady)
	if admitted != nil && admitted.Status == metav1.ConditionFalse {
		return false // its Mac gave up restarting it
	}
	return r.Spec.Revision == w.served || ready != nil && ready.Status == metav1.ConditionUnknown
}

// swapUnderWay reports whether a replica of another revision still holds the memory that it
// is to free.
func swapUnderWay(w desiredState, existing []v1alpha1.ModelReplica) bool {
	return slices.ContainsFunc(existing, func(r v1alpha1.ModelReplica) bool {
		return !r.DeletionTimestamp.IsZero() && r.Spec.Revision != w.revision && r.Spec.NodeName != "" && !fleet.Released(&r)
	})
}

// mayswap returns the replica that may take the memory of an old one. There is one at a
// time, and none while fewer serve than maxUnavailable allows: swapped replicas have to
// serve first. An old one that does not serve may be swapped in any case.
func (w desiredState) mayswap(current, old []*v1alpha1.ModelReplica, under bool) types.UID {
	if !w.swap {
		return ""
	}
	var next *v1alpha1.ModelReplica
	for _, r := range current {
		switch {
		case r.Spec.NodeName != "":
			if r.Spec.Swap && !available(r) {
				return ""
			}
		case !withoutRoom(r) && !prefetches(r):
		case next == nil || r.Spec.Swap && !next.Spec.Swap || r.Spec.Swap == next.Spec.Swap && r.Spec.Slot < next.Spec.Slot:
			next = r
		}
	}
	if next != nil && next.Spec.Swap && under {
		return next.UID // it waits for the memory that it was promised
	}
	serve := availableOf(old...)
	if next == nil || under || serve == len(old) && serve+availableOf(current...) < w.count-w.unavailable {
		return ""
	}
	return next.UID
}

// withoutRoom reports whether placement found no Mac for lack of memory.
func withoutRoom(r *v1alpha1.ModelReplica) bool {
	c := condition(r.Status.Conditions, v1alpha1.ConditionPlaced)
	return c != nil && c.Status == metav1.ConditionFalse &&
		(c.Reason == v1alpha1.ReasonNoRoom || c.Reason == v1alpha1.ReasonPrefetching || c.Reason == v1alpha1.ReasonSwapping)
}

// prefetches reports whether a Mac prefetches the weights of a replica for a swap, or is to
// and is away.
func prefetches(r *v1alpha1.ModelReplica) bool {
	c := condition(r.Status.Conditions, v1alpha1.ConditionPlaced)
	return r.Spec.NodeName == "" && r.Spec.Swap && r.Spec.PrefetchNodeName != "" && c != nil &&
		(c.Reason == v1alpha1.ReasonPrefetching || c.Reason == v1alpha1.ReasonNoCandidates)
}

// failed reports whether a replica will never serve: its Mac refused it for good, or is
// gone.
func failed(r *v1alpha1.ModelReplica) bool {
	if _, refused := fleet.Refused(r); refused {
		return true
	}
	return readyReason(r) == v1alpha1.ReasonMacGone
}

func readyReason(r *v1alpha1.ModelReplica) string {
	if c := condition(r.Status.Conditions, v1alpha1.ConditionReady); c != nil {
		return c.Reason
	}
	return ""
}

// sortForRemoval puts the least useful first: not ready before ready, not loaded before
// loaded, unplaced before placed, evicted before others, the newest before the oldest.
func sortForRemoval(replicas []*v1alpha1.ModelReplica) {
	rank := func(r *v1alpha1.ModelReplica) int {
		switch {
		case fleet.ReplicaReady(r) && fleet.Loaded(r):
			return 3
		case fleet.ReplicaReady(r):
			return 2
		case r.Spec.NodeName != "":
			return 1
		default:
			return 0
		}
	}
	slices.SortFunc(replicas, func(a, b *v1alpha1.ModelReplica) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), -boolCompare(evicted(a), evicted(b)),
			b.CreationTimestamp.Compare(a.CreationTimestamp.Time), cmp.Compare(b.Spec.Slot, a.Spec.Slot), cmp.Compare(b.Name, a.Name))
	})
}

// boolCompare orders false before true.
func boolCompare(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

// fillSlots fills the lowest free slots of a revision. Existing replicas, including
// terminating ones, determine the epoch.
func fillSlots(w desiredState, revision string, room int, same []*v1alpha1.ModelReplica, existing []v1alpha1.ModelReplica, now time.Time) []replicaToCreate {
	taken, unplaced := map[int32]bool{}, 0
	for _, r := range same {
		taken[r.Spec.Slot] = true
		if r.Spec.NodeName == "" {
			unplaced++
		}
	}
	room = min(room, cmp.Or(w.unplaced, maxUnplaced)-unplaced)
	last := map[int32]int64{}
	for i := range existing {
		if r := &existing[i]; r.Spec.Revision == revision {
			last[r.Spec.Slot] = max(last[r.Spec.Slot], r.Spec.Epoch)
		}
	}
	avoid := avoided(w, revision, existing, now)
	var out []replicaToCreate
	for slot := int32(0); len(out) < room; slot++ {
		if !taken[slot] {
			out = append(out, replicaToCreate{revision: revision, slot: slot, epoch: last[slot] + 1, avoid: avoid})
		}
	}
	return out
}

// avoided returns the Macs that refused any replica of this deployment, or where one of the revision
// was given up, for as long as that is remembered: by the refused replica while it exists, and by
// every successor that copied it.
func avoided(w desiredState, revision string, existing []v1alpha1.ModelReplica, now time.Time) []v1alpha1.AvoidedMac {
	byName := map[string]v1alpha1.AvoidedMac{}
	latest := metav1.NewTime(now.Add(w.avoid).Truncate(time.Second)) // later ones are of a clock that was ahead
	note := func(a v1alpha1.AvoidedMac) {
		if a.Until.After(latest.Time) {
			a.Until = latest
		}
		known, has := byName[a.Name]
		if !a.Until.After(now) || has && !known.Until.Before(&a.Until) {
			return
		}
		if a.Failure == "" && known.Failure != "" {
			a.Failure, a.Reason = known.Failure, known.Reason
		}
		byName[a.Name] = a
	}
	for i := range existing {
		r := &existing[i]
		same := r.Spec.Revision == revision
		for _, a := range r.Spec.Avoid {
			if same || a.Failure == "" {
				note(a)
			}
		}
		if a, ok := w.abandoned[r.UID]; ok && same {
			note(a)
		}
		if why, refused := fleet.Refused(r); refused && r.Spec.NodeName != "" {
			since := condition(r.Status.Conditions, v1alpha1.ConditionAdmitted).LastTransitionTime.Time
			// The transition time is of the Mac's clock; it must not be in the future.
			if since.After(now) || since.Before(r.CreationTimestamp.Time) {
				since = now
			}
			note(v1alpha1.AvoidedMac{Name: r.Spec.NodeName, Until: metav1.NewTime(since.Add(w.avoid).Truncate(time.Second)), Reason: status.Shorten(why, 1024)})
		}
	}
	out := make([]v1alpha1.AvoidedMac, 0, len(byName))
	for _, a := range byName {
		out = append(out, a)
	}
	slices.SortFunc(out, func(a, b v1alpha1.AvoidedMac) int {
		return cmp.Or(b.Until.Compare(a.Until.Time), cmp.Compare(a.Name, b.Name))
	})
	const most = 64
	if len(out) > most {
		out = out[:most]
	}
	return out
}
