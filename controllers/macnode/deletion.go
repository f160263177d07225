package macnode

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/fleet"
	"metalfleet.dev/metalfleet/controllers/internal/status"
)

// Deletion drains a Mac whose MacNode is being deleted: its replicas are deleted, running
// requests may finish, and their deployments create others. The MacNode stays until the Mac
// has released them. A Mac that is gone, or that a person declared lost, is not waited for,
// and no Mac for ever: it keeps its identity meanwhile.
type Deletion struct {
	Client client.Client
	Clock  clock.PassiveClock
}

// A drain for a deletion ends after the longest drainSeconds of the Mac's replicas, of
// which mostDrain counts, and unloadTime for its engines.
const (
	mostDrain  = time.Hour
	unloadTime = 5 * time.Minute
	// drainAgain is when to look again: the operator's clock may be slow, and corrected.
	drainAgain = time.Minute
)

// SetupWithManager starts the reconciler with its watches: Macs that come, leave or are
// gone, and replicas that were removed.
func (r *Deletion) SetupWithManager(mgr ctrl.Manager, o controller.Options) error {
	matters := func(o client.Object) any {
		m := o.(*v1alpha1.MacNode)
		return []any{m.DeletionTimestamp, m.Finalizers, m.Annotations[v1alpha1.AnnotationLost], fleet.StateOf(m)}
	}
	changed := predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool { return !status.Equal(matters(e.ObjectOld), matters(e.ObjectNew)) }}
	removed := predicate.Funcs{CreateFunc: func(event.CreateEvent) bool { return false }, UpdateFunc: func(event.UpdateEvent) bool { return false }}
	return ctrl.NewControllerManagedBy(mgr).Named("macnode-deletion").WithOptions(o).
		For(&v1alpha1.MacNode{}, builder.WithPredicates(changed)).
		Watches(&v1alpha1.ModelReplica{}, handler.EnqueueRequestsFromMapFunc(holder), builder.WithPredicates(removed)).
		Complete(r)
}

// Reconcile adds the finalizer to a Mac, or drains one that is being deleted.
func (r *Deletion) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	var mac v1alpha1.MacNode
	if err := r.Client.Get(ctx, client.ObjectKey{Name: req.Name}, &mac); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	var err error
	switch before := mac.DeepCopy(); {
	case mac.DeletionTimestamp.IsZero():
		if !controllerutil.AddFinalizer(&mac, v1alpha1.FinalizerDrain) {
			return reconcile.Result{}, nil
		}
		err = r.Client.Patch(ctx, &mac, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}), client.FieldOwner(v1alpha1.ManagerOperator))
	case !fleet.Leaving(&mac):
		return reconcile.Result{}, nil
	default:
		wait, failed := r.drain(ctx, &mac)
		if failed != nil || wait > 0 {
			return reconcile.Result{RequeueAfter: wait}, failed // the removal of the last replica triggers an earlier pass
		}
		err = status.RemoveFinalizer(ctx, r.Client, v1alpha1.ManagerOperator, &mac, v1alpha1.FinalizerDrain)
	}
	if client.IgnoreNotFound(err) != nil {
		return reconcile.Result{}, fmt.Errorf("finalizer of Mac %s: %w", mac.Name, err)
	}
	return reconcile.Result{}, nil
}

// drain deletes the replicas of a Mac, and returns for how long to wait for them. If there
// is nothing to wait for, the MacAssignment is deleted too.
func (r *Deletion) drain(ctx context.Context, mac *v1alpha1.MacNode) (time.Duration, error) {
	var replicas v1alpha1.ModelReplicaList
	if err := r.Client.List(ctx, &replicas, client.MatchingFields{fleet.IndexNode: mac.Name}); err != nil {
		return 0, fmt.Errorf("list replicas of %s: %w", mac.Name, err)
	}
	var errs []error
	var longest time.Duration
	for i := range replicas.Items {
		replica := &replicas.Items[i]
		longest = max(longest, time.Duration(fleet.DrainSeconds(replica))*time.Second)
		if !replica.DeletionTimestamp.IsZero() {
			continue
		}
		ctrl.LoggerFrom(ctx).Info("Draining a replica because its MacNode is being deleted", "ModelReplica", client.ObjectKeyFromObject(replica))
		if err := r.Client.Delete(ctx, replica, client.Preconditions{UID: &replica.UID}); client.IgnoreNotFound(err) != nil {
			errs = append(errs, fmt.Errorf("drain replica %s: %w", client.ObjectKeyFromObject(replica), err))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return 0, err
	}
	lost := mac.Annotations[v1alpha1.AnnotationLost] == "true" || fleet.StateOf(mac) == fleet.MacGone
	left := mac.DeletionTimestamp.Add(min(longest, mostDrain) + unloadTime).Sub(r.Clock.Now())
	if len(replicas.Items) > 0 && !lost && left > 0 {
		return min(left, drainAgain), nil
	}
	assigned := &v1alpha1.MacAssignment{}
	err := r.Client.Get(ctx, client.ObjectKey{Name: mac.Name}, assigned)
	if err == nil {
		err = r.Client.Delete(ctx, assigned, client.Preconditions{UID: &assigned.UID})
	}
	if client.IgnoreNotFound(err) != nil {
		return 0, fmt.Errorf("delete MacAssignment %s: %w", mac.Name, err)
	}
	return 0, nil
}
