package modeldeployment

import (
	"cmp"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/fleet"
)

// wish is what the replicas of a deployment are to become.
type wish struct {
	// revision that all of them should have.
	revision string
	// count of them.
	count int
	// surge is how many more may exist, unavailable how many fewer may be
	// ready, while replicas of another revision are replaced.
	surge, unavailable int
	// avoid is for how long the successor of a refused replica keeps away from
	// the Mac that refused.
	avoid time.Duration
	// mayRemove says whether one of too many may go; nil: any may.
	mayRemove func(*v1alpha1.ModelReplica) bool
}

// birth is a replica to create.
type birth struct {
	slot int32
	// epoch counts the attempts at a slot of a revision, from 1. It is part of
	// the name, so that a successor never meets its terminating predecessor.
	epoch int64
	avoid []v1alpha1.AvoidedMac
}

// changes are what brings the replicas closer to the wish.
type changes struct {
	create []birth
	remove []*v1alpha1.ModelReplica
}

// plan decides which replicas to create and which to remove. It sees the world
// and keeps no memory: the same world gives the same changes.
//
// Order of creation and removal: successors of failed replicas are created
// first, so that a failure in between leaves too many and not too few.
func plan(w wish, existing []v1alpha1.ModelReplica, now time.Time) changes {
	var out changes
	var current, old []*v1alpha1.ModelReplica
	for i := range existing {
		r := &existing[i]
		switch {
		case !r.DeletionTimestamp.IsZero():
		case failed(r):
			out.remove = append(out.remove, r)
		case r.Spec.Revision == w.revision:
			current = append(current, r)
		default:
			old = append(old, r)
		}
	}
	sortForRemoval(current)
	sortForRemoval(old)
	if surplus := len(current) - w.count; surplus > 0 {
		gone := removable(w, current, surplus)
		out.remove = append(out.remove, gone...)
		current = slices.DeleteFunc(current, func(r *v1alpha1.ModelReplica) bool { return slices.Contains(gone, r) })
	}
	removedOld := retire(w, current, old)
	out.remove = append(out.remove, removedOld...)

	room := w.count - len(current)
	if len(old) > 0 {
		room = min(room, w.count+w.surge-len(current)-(len(old)-len(removedOld)))
	}
	out.create = births(w, room, current, existing, now)
	return out
}

// removable picks, of replicas in the order of their removal, as many as are too
// many and may go.
func removable(w wish, current []*v1alpha1.ModelReplica, surplus int) []*v1alpha1.ModelReplica {
	var out []*v1alpha1.ModelReplica
	for _, r := range current {
		if len(out) < surplus && (w.mayRemove == nil || w.mayRemove(r)) {
			out = append(out, r)
		}
	}
	return out
}

// retire picks the replicas of other revisions that may go: at once those that
// are not ready, because nobody misses them; ready ones as far as enough ready
// replicas remain.
func retire(w wish, current, old []*v1alpha1.ModelReplica) []*v1alpha1.ModelReplica {
	ready := 0
	for _, r := range slices.Concat(current, old) {
		if fleet.ReplicaReady(r) {
			ready++
		}
	}
	spare := ready - (w.count - w.unavailable)
	var out []*v1alpha1.ModelReplica
	for _, r := range old {
		switch {
		case !fleet.ReplicaReady(r):
			out = append(out, r)
		case spare > 0:
			out = append(out, r)
			spare--
		}
	}
	return out
}

// failed says that a replica will never serve: its Mac refused it for good, or
// is gone.
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

// sortForRemoval puts first what is missed least: not ready before ready, not
// loaded before loaded, unplaced before placed, the newest before the oldest.
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
		return cmp.Or(cmp.Compare(rank(a), rank(b)),
			b.CreationTimestamp.Compare(a.CreationTimestamp.Time), cmp.Compare(b.Spec.Slot, a.Spec.Slot), cmp.Compare(b.Name, a.Name))
	})
}

// births fills the lowest free slots. Existing replicas, terminating ones
// included, decide the epoch.
func births(w wish, room int, current []*v1alpha1.ModelReplica, existing []v1alpha1.ModelReplica, now time.Time) []birth {
	taken := map[int32]bool{}
	for _, r := range current {
		taken[r.Spec.Slot] = true
	}
	last := map[int32]int64{}
	for i := range existing {
		if r := &existing[i]; r.Spec.Revision == w.revision {
			last[r.Spec.Slot] = max(last[r.Spec.Slot], r.Spec.Epoch)
		}
	}
	avoid := avoided(w, existing, now)
	var out []birth
	for slot := int32(0); len(out) < room; slot++ {
		if !taken[slot] {
			out = append(out, birth{slot: slot, epoch: last[slot] + 1, avoid: avoid})
		}
	}
	return out
}

// avoided are the Macs that refused any replica of this deployment, for as long
// as the refusal is remembered: by the refused replica while it exists, and by
// every successor that was told.
func avoided(w wish, existing []v1alpha1.ModelReplica, now time.Time) []v1alpha1.AvoidedMac {
	byName := map[string]v1alpha1.AvoidedMac{}
	note := func(a v1alpha1.AvoidedMac) {
		if known, has := byName[a.Name]; a.Until.After(now) && (!has || known.Until.Before(&a.Until)) {
			byName[a.Name] = a
		}
	}
	for i := range existing {
		r := &existing[i]
		for _, a := range r.Spec.Avoid {
			note(a)
		}
		if why, refused := fleet.Refused(r); refused && r.Spec.NodeName != "" {
			since := condition(r.Status.Conditions, v1alpha1.ConditionAdmitted).LastTransitionTime.Time
			// The transition has the Mac's clock; it may not reach into the future.
			if since.After(now) || since.Before(r.CreationTimestamp.Time) {
				since = now
			}
			note(v1alpha1.AvoidedMac{Name: r.Spec.NodeName, Until: metav1.NewTime(since.Add(w.avoid).Truncate(time.Second)), Reason: shorten(why, 1024)})
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

func shorten(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return s[:most-3] + "..."
}
