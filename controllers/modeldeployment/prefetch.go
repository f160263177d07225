package modeldeployment

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/fleet"
	"metalfleet.dev/metalfleet/controllers/internal/status"
)

// prefetch creates, updates and removes the replicas that keep the weights of the current
// revision on Macs and run no engine (spec.prefetch).
func (r *Reconciler) prefetch(ctx context.Context, s *scope) error {
	oversized := s.oversized() != nil
	var noRoom error
	for i := range s.prefetchers {
		replica := &s.prefetchers[i]
		if !replica.DeletionTimestamp.IsZero() {
			continue
		}
		next, inherits, err := r.inherit(ctx, s, replica, oversized)
		if err != nil && !full(err) {
			return err
		}
		noRoom = cmp.Or(noRoom, err)
		if !inherits {
			continue
		}
		if !s.mayWrite() {
			return noRoom
		}
		before := replica.DeepCopy()
		before.DeepCopyInto(replica) // the response is decoded into it
		replica.Labels, replica.Annotations, replica.Spec.Placement = next.Labels, next.Annotations, next.Spec.Placement
		if err := r.Client.Patch(ctx, replica, client.MergeFrom(before), client.FieldOwner(v1alpha1.ManagerOperator)); err != nil {
			return fmt.Errorf("update replica %s: %w", replica.Name, err)
		}
	}
	serving := waiting(s.replicas)
	create, remove := planPrefetch(int(s.deployment.Spec.Prefetch.Macs), s.unplaced()-serving, s.current, s.replicas, s.prefetchers)
	create, err := r.withinNamespace(ctx, s, create, serving+waiting(s.prefetchers))
	return errors.Join(noRoom, err, r.createPrefetchers(ctx, s, create), r.remove(ctx, s, remove))
}

func (r *Reconciler) createPrefetchers(ctx context.Context, s *scope, create []replicaToCreate) error {
	for _, b := range create {
		replica, err := newPrefetcher(s, b)
		if err != nil {
			return err
		}
		if err := r.createReplica(ctx, replica); err != nil {
			return err
		}
		s.prefetchers = append(s.prefetchers, *replica)
	}
	return nil
}

// newPrefetcher returns a replica that only keeps weights.
func newPrefetcher(s *scope, b replicaToCreate) (*v1alpha1.ModelReplica, error) {
	out, err := newReplica(s, b)
	if err != nil {
		return nil, err
	}
	out.Name = s.nameFor(s.deployment.Name + "-" + fleet.Digest(string(s.deployment.UID), "prefetch", b.revision, fmt.Sprint(b.slot), fmt.Sprint(b.epoch))[:10])
	out.Spec.Desired = v1alpha1.DesiredDownloaded
	return out, nil
}

// planPrefetch decides which prefetching replicas to create and to remove, so that macs Macs
// have the weights of the current revision; those of its serving replicas count. At most room
// of the prefetching replicas wait for a Mac at once. It is pure.
func planPrefetch(macs, room int, current *revision, serving, prefetchers []v1alpha1.ModelReplica) (create []replicaToCreate, remove []*v1alpha1.ModelReplica) {
	serves := sets.Set[string]{}
	for i := range serving {
		if r := &serving[i]; r.DeletionTimestamp.IsZero() && r.Spec.NodeName != "" && sameWeights(&r.Spec.Model, &current.engine.Model) {
			serves.Insert(r.Spec.NodeName)
		}
	}
	var kept []*v1alpha1.ModelReplica
	last, unplaced := map[int32]int64{}, 0
	for i := range prefetchers {
		r := &prefetchers[i]
		if r.Spec.Revision == current.object.Name {
			last[r.Spec.Slot] = max(last[r.Spec.Slot], r.Spec.Epoch)
		}
		switch {
		case !r.DeletionTimestamp.IsZero():
		case macs == 0 || !sameWeights(&r.Spec.Model, &current.engine.Model) || serves.Has(r.Spec.PrefetchNodeName):
			remove = append(remove, r)
		default:
			kept = append(kept, r)
		}
	}
	slices.SortFunc(kept, func(a, b *v1alpha1.ModelReplica) int {
		return cmp.Or(cmp.Compare(progressOf(a), progressOf(b)), b.CreationTimestamp.Compare(a.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	missing := max(0, macs-serves.Len()) - len(kept)
	if missing < 0 {
		return nil, append(remove, kept[:-missing]...)
	}
	taken := map[int32]bool{}
	for _, r := range kept {
		taken[r.Spec.Slot] = true
		if r.Spec.PrefetchNodeName == "" {
			unplaced++
		}
	}
	missing = min(missing, min(room, maxUnplacedPrefetchers)-unplaced)
	for slot := int32(0); len(create) < missing; slot++ {
		if !taken[slot] {
			create = append(create, replicaToCreate{revision: current.object.Name, slot: slot, epoch: last[slot] + 1})
		}
	}
	return create, remove
}

// progressOf orders prefetching replicas: without a Mac, downloading, complete.
func progressOf(r *v1alpha1.ModelReplica) int {
	switch {
	case r.Spec.PrefetchNodeName == "":
		return 0
	case !hasWeights(r):
		return 1
	}
	return 2
}

// hasWeights reports whether the weights of a replica are on the disk of its Mac.
func hasWeights(r *v1alpha1.ModelReplica) bool {
	c := condition(r.Status.Conditions, v1alpha1.ConditionDownloaded)
	return c != nil && c.Status == metav1.ConditionTrue
}

// sameWeights reports whether two records have the same files.
func sameWeights(a, b *model.Record) bool {
	return a.Source == b.Source && a.Digest == b.Digest && slices.EqualFunc(a.Adapters, b.Adapters, model.Adapter.SameFiles)
}

// prefetchedMacs counts the Macs that have the weights of the current revision.
func prefetchedMacs(s *scope) int32 {
	macs := sets.Set[string]{}
	for _, r := range slices.Concat(living(s.replicas), living(s.prefetchers)) {
		if hasWeights(r) && fleet.OrderedOn(r) != "" && s.current != nil && sameWeights(&r.Spec.Model, &s.current.engine.Model) {
			macs.Insert(fleet.OrderedOn(r))
		}
	}
	return int32(macs.Len())
}

// prefetchedCondition reports whether as many Macs as requested have the weights, and if not,
// what the first replica without them waits for.
func prefetchedCondition(s *scope, next v1alpha1.ModelDeploymentStatus) status.Condition {
	is, wanted := v1alpha1.ConditionPrefetched, s.deployment.Spec.Prefetch.Macs
	progress := fmt.Sprintf("%d of %d Macs have the weights", next.PrefetchedMacs, wanted)
	if next.PrefetchedMacs >= wanted {
		return status.True(is, v1alpha1.ReasonPrefetched, progress)
	}
	for _, r := range slices.Concat(living(s.prefetchers), living(s.replicas)) {
		placed, downloaded := condition(r.Status.Conditions, v1alpha1.ConditionPlaced), condition(r.Status.Conditions, v1alpha1.ConditionDownloaded)
		switch {
		case fleet.OrderedOn(r) == "" && placed != nil:
			return status.False(is, placed.Reason, progress+"; "+r.Name+": "+placed.Message)
		case downloaded != nil && downloaded.Status != metav1.ConditionTrue:
			return status.False(is, downloaded.Reason, progress+"; "+r.Name+" on "+fleet.OrderedOn(r)+": "+downloaded.Message)
		}
	}
	return status.False(is, v1alpha1.ReasonPending, progress)
}
