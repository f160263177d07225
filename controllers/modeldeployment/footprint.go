package modeldeployment

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/fleet"
)

// besideSpec is what a replica takes in the operator's memory besides its fleet.ReplicaBytes: its
// object and status (1.7 KB), its assignment (1.4 KB) and the report of its Mac (1.0 KB).
const besideSpec = 4 << 10

// bytesOf returns what a replica takes.
func bytesOf(r *v1alpha1.ModelReplica) int { return fleet.ReplicaBytes(r) + besideSpec }

// footprint is what the replicas of a namespace take, as one pass reads and changes it.
type footprint struct {
	all int
	// most is what the namespace may have beyond fleet.ReplicasRoom.Least; 0 until that is asked for.
	most int
	// waiting is what those without a Mac take, by fleet.ReplicaBytes.
	waiting int
}

// fullError refuses a replica for which the namespace has no room.
type fullError struct {
	namespace string
	bytes     int // with that replica
	most      int
}

func (e *fullError) Error() string {
	return fmt.Sprintf("all replicas of the namespace %s would take %s in the operator, at most %s are allowed; scale down or delete deployments there, "+
		"or shorten spec.placement, spec.chatTemplate, spec.prefixCache.sharedPrefixes and spec.replicaMetadata of those with many replicas",
		e.namespace, v1alpha1.FormatBytes(int64(e.bytes)), v1alpha1.FormatBytes(int64(e.most)))
}

// add counts more bytes, or refuses them.
func (r *Reconciler) add(ctx context.Context, f *footprint, namespace string, bytes int) error {
	most := fleet.ReplicasRoom.Least
	switch {
	case f.all+bytes > fleet.ReplicasRoom.Namespace: // others do not matter, and to read all of theirs costs memory
		most = fleet.ReplicasRoom.Namespace
	case f.all+bytes > most:
		if f.most == 0 {
			others, err := r.replicasOfOthers(ctx, namespace)
			if err != nil {
				return err
			}
			f.most = fleet.ReplicasRoom.Of(others)
		}
		most = f.most
	}
	if f.all+bytes > most {
		return &fullError{namespace, f.all + bytes, most}
	}
	f.all += bytes
	return nil
}

// replicasOfOthers returns what the replicas of all other namespaces take.
func (r *Reconciler) replicasOfOthers(ctx context.Context, namespace string) (n int, err error) {
	var list v1alpha1.ModelReplicaList // shares its objects with the cache: read only
	if err := r.Client.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return 0, fmt.Errorf("list the replicas of all namespaces: %w", err)
	}
	for i := range list.Items {
		if list.Items[i].Namespace != namespace {
			n += bytesOf(&list.Items[i])
		}
	}
	return n, nil
}

// footprint reads what the replicas of the namespace take, once in a pass.
func (r *Reconciler) footprint(ctx context.Context, s *scope) (*footprint, error) {
	if s.footprint != nil {
		return s.footprint, nil
	}
	var list v1alpha1.ModelReplicaList // shares its objects with the cache: read only
	if err := r.Client.List(ctx, &list, client.InNamespace(s.deployment.Namespace), client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list the replicas of the namespace: %w", err)
	}
	f, listed := &footprint{}, sets.Set[string]{}
	// The cache may not have those that this pass created.
	for _, replica := range slices.Concat(all(list.Items), all(s.replicas), all(s.prefetchers)) {
		if listed.Has(replica.Name) {
			continue
		}
		listed.Insert(replica.Name)
		f.all += bytesOf(replica)
		if waits(replica) {
			f.waiting += fleet.ReplicaBytes(replica)
		}
	}
	s.footprint = f
	return f, nil
}

// withinNamespace returns the replicas to create for which the namespace has room. Of those that
// wait for a Mac, it has room for one in any case if none waits already: when one of them is
// placed, its deployment creates another. An error explains that all replicas of the namespace
// take too much. While the spec is too large, a deployment without a replica gets none: it is not
// known where one may be placed.
func (r *Reconciler) withinNamespace(ctx context.Context, s *scope, missing []replicaToCreate, waiting int) ([]replicaToCreate, error) {
	if len(missing) == 0 {
		return nil, nil
	}
	if _, known := s.lastPlacement(); s.oversized() != nil && !known {
		return nil, nil
	}
	f, err := r.footprint(ctx, s)
	if err != nil {
		return nil, err
	}
	for i, b := range missing {
		replica, err := newReplica(s, b)
		if err != nil {
			return nil, err
		}
		bytes := fleet.ReplicaBytes(replica)
		if f.waiting+bytes > maxNamespaceUnplacedBytes && waiting+i > 0 {
			return missing[:i], nil
		}
		if err := r.add(ctx, f, s.deployment.Namespace, bytesOf(replica)); err != nil {
			return missing[:i], &createError{name: replica.Name, err: err}
		}
		f.waiting += bytes
	}
	return missing, nil
}

// inherit returns a replica with the placement, labels and annotations of its deployment, and
// reports whether they differ. It keeps its own while the spec is too large, and, with an error,
// if the namespace has no room for larger ones.
func (r *Reconciler) inherit(ctx context.Context, s *scope, replica *v1alpha1.ModelReplica, oversized bool) (next v1alpha1.ModelReplica, changed bool, err error) {
	next = *replica
	if oversized {
		return next, false, nil
	}
	next.Labels, next.Annotations, changed = passOn(s.deployment.Spec.ReplicaMetadata, &replica.ObjectMeta)
	// The cache's replicas share a large placement, and only the first of them is compared in full.
	if !changed && fleet.SamePlacement(&replica.Spec.Placement, cmp.Or(s.inherited, &s.deployment.Spec.Placement)) {
		s.inherited = &replica.Spec.Placement
		return *replica, false, nil
	}
	next.Spec.Placement = s.deployment.Spec.Placement
	f, err := r.footprint(ctx, s)
	if err != nil {
		return *replica, false, err
	}
	if more := fleet.ReplicaBytes(&next) - fleet.ReplicaBytes(replica); more > 0 {
		err = r.add(ctx, f, s.deployment.Namespace, more)
	} else {
		f.all += more
	}
	if err != nil {
		return *replica, false, fmt.Errorf("update replica %s: %w", replica.Name, err)
	}
	return next, true, nil
}
