package modelreplica

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/fleet"
	"metalfleet.dev/metalfleet/controllers/internal/status"
)

// accountWithin is how long a released replica waits until its deployment has accounted for it.
// A tenant can make a deployment whose status cannot be written, because it is too large or
// written all the time; its replicas must not keep their places on Macs.
const accountWithin = 2 * time.Minute

// waits has the time at which each released replica was first found not accounted for. The zero
// value is ready; it is safe for concurrent use.
type waits struct {
	mu    sync.Mutex
	since map[types.NamespacedName]wait
}

// wait is that of one replica of a name.
type wait struct {
	uid   types.UID
	since time.Time
}

// left returns how much longer a replica waits; 0 if it has waited long enough.
func (w *waits) left(replica *v1alpha1.ModelReplica, now time.Time) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	key := client.ObjectKeyFromObject(replica)
	begun, ok := w.since[key]
	if !ok || begun.uid != replica.UID {
		begun = wait{replica.UID, now}
		if w.since == nil {
			w.since = map[types.NamespacedName]wait{}
		}
		w.since[key] = begun
	}
	return max(0, accountWithin-now.Sub(begun.since))
}

// end drops the time of a replica that is gone.
func (w *waits) end(key types.NamespacedName) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.since, key)
}

// release removes the finalizer of a replica that is deleted, released and accounted for, or has
// waited for that long enough; otherwise it returns how long it still waits.
// The write is locked by the spec, so that it cannot overtake a binding.
func (r *Reconciler) release(ctx context.Context, replica *v1alpha1.ModelReplica) (time.Duration, error) {
	if replica.DeletionTimestamp.IsZero() || !fleet.Released(replica) ||
		!controllerutil.ContainsFinalizer(replica, v1alpha1.FinalizerRelease) {
		return 0, nil
	}
	accounted, err := r.accounted(ctx, replica)
	if err != nil {
		return 0, err
	}
	if !accounted {
		if left := r.waits.left(replica, r.Clock.Now()); left > 0 {
			return left, nil // the deployment's status triggers another pass
		}
	}
	if err := status.RemoveFinalizerUnlessSpecChanged(ctx, r.Client, v1alpha1.ManagerOperator, replica, v1alpha1.FinalizerRelease); err != nil {
		return 0, err
	}
	ctrl.LoggerFrom(ctx).Info("Replica released", "MacNode", replica.Spec.NodeName, "freedBytesTotal", replica.Status.Freed.TotalBytes, "accounted", accounted)
	return 0, nil
}

// accounted reports whether the owner has counted the replica's freed bytes, or cannot
// because it is deleted.
func (r *Reconciler) accounted(ctx context.Context, replica *v1alpha1.ModelReplica) (bool, error) {
	owner, err := ownerOf(ctx, r.Client, replica)
	return err == nil && (owner == nil || slices.Contains(owner.Status.Accounted, string(replica.UID))), err
}

// ownerOf returns the deployment of a replica; nil if it does not exist.
func ownerOf(ctx context.Context, from client.Reader, replica *v1alpha1.ModelReplica) (*v1alpha1.ModelDeployment, error) {
	owner := &v1alpha1.ModelDeployment{}
	key := client.ObjectKey{Namespace: replica.Namespace, Name: replica.Spec.DeploymentRef.Name}
	err := from.Get(ctx, key, owner)
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read deployment %s: %w", key, err)
	case string(owner.UID) != replica.Spec.DeploymentRef.UID:
		return nil, nil
	}
	return owner, nil
}

// deleteOrphan deletes a replica whose deployment does not exist: a tenant removed its finalizers
// before it was released, and no other controller looks at the replica. The cache may lack a new deployment.
func (r *Reconciler) deleteOrphan(ctx context.Context, replica *v1alpha1.ModelReplica) error {
	if !replica.DeletionTimestamp.IsZero() {
		return nil
	}
	for _, from := range []client.Reader{r.Client, r.Live} {
		if owner, err := ownerOf(ctx, from, replica); err != nil || owner != nil {
			return err
		}
	}
	ctrl.LoggerFrom(ctx).Info("Deleting a replica whose deployment does not exist", "ModelDeployment", replica.Spec.DeploymentRef.Name)
	if err := r.Client.Delete(ctx, replica, client.Preconditions{UID: &replica.UID}); err != nil {
		return fmt.Errorf("delete orphan %s: %w", client.ObjectKeyFromObject(replica), err)
	}
	return nil
}
