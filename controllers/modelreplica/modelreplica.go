// Package modelreplica maintains the status of each replica, and releases it.
//
// It owns a replica's status except the condition Placed, the Events of its
// download and load, spec.desired once the replica is deleted, the removal of
// the release finalizer, and the deletion of a replica whose Mac has a NoExecute taint
// that it does not tolerate, or no longer (evict.go), or whose deployment does not exist. It refuses to
// let a replica go before its Mac said Released for that epoch, or is gone, and
// before the deployment has counted what it freed, or could not for minutes (release.go). The figures are the Mac's:
// it copies them, derives Ready, and marks what is stale.
//
// Start reading at Reconciler.Reconcile and derive.
package modelreplica

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	ac "metalfleet.dev/metalfleet/api/applyconfiguration/api/v1alpha1"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/fleet"
	"metalfleet.dev/metalfleet/controllers/internal/fairqueue"
	"metalfleet.dev/metalfleet/controllers/internal/notice"
	"metalfleet.dev/metalfleet/controllers/internal/status"
)

// +kubebuilder:rbac:groups=metalfleet.dev,resources=macnodes;modeldeployments,verbs=get;list;watch
// +kubebuilder:rbac:groups=metalfleet.dev,resources=modelreplicas,verbs=get;list;watch;patch;delete
// +kubebuilder:rbac:groups=metalfleet.dev,resources=modelreplicas/status,verbs=get;patch
// +kubebuilder:rbac:groups="",resources=events,verbs=create

// Reconciler maintains one replica's status and releases it when it may.
type Reconciler struct {
	Client client.Client
	// Live reads from the API server, without a cache.
	Live  client.Reader
	Clock clock.PassiveClock

	// limits bound the Events about what a Mac reports.
	limits notice.Limits
	// waits are released replicas that are not accounted for yet.
	waits waits
}

// SetupWithManager starts the reconciler with its watches.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager, o controller.Options) error {
	patient := fairqueue.AfterRefusals(r, &o)
	return ctrl.NewControllerManagedBy(mgr).Named("modelreplica").WithOptions(o).
		For(&v1alpha1.ModelReplica{}).
		Watches(&v1alpha1.MacNode{}, r.ofMac()).
		Watches(&v1alpha1.ModelDeployment{}, handler.EnqueueRequestsFromMapFunc(r.waitingFor),
			builder.WithPredicates(accountChanged())).
		Complete(patient)
}

// ofMac returns the replicas of a Mac whose report or state changed: one entry of a report
// concerns one replica.
func (r *Reconciler) ofMac() handler.EventHandler {
	all := func(ctx context.Context, mac client.Object, changed func(*v1alpha1.ModelReplica) bool) []reconcile.Request {
		var list v1alpha1.ModelReplicaList
		if err := r.Client.List(ctx, &list, client.MatchingFields{fleet.IndexNode: mac.GetName()}, client.DisableReadYourWritesConsistency, client.UnsafeDisableDeepCopy); err != nil {
			ctrl.LoggerFrom(ctx).Error(err, "Cannot list the replicas of a Mac", "MacNode", mac.GetName())
			return nil
		}
		var out []reconcile.Request
		for i := range list.Items {
			if changed(&list.Items[i]) {
				out = append(out, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
			}
		}
		return out
	}
	any := func(*v1alpha1.ModelReplica) bool { return true }
	return macEvents{
		limits: &notice.Limits{Burst: reportBurst, Every: reportEvery}, now: r.Clock.Now,
		every: func(ctx context.Context, mac client.Object) []reconcile.Request { return all(ctx, mac, any) },
		update: func(ctx context.Context, old, now *v1alpha1.MacNode) []reconcile.Request {
			if fleet.StateOf(old) != fleet.StateOf(now) || fleet.Unreachable(old) != fleet.Unreachable(now) || !status.Equal(old.Spec.Taints, now.Spec.Taints) {
				return all(ctx, now, any)
			}
			return all(ctx, now, func(replica *v1alpha1.ModelReplica) bool {
				return !status.Equal(fleet.Report(old, replica), fleet.Report(now, replica))
			})
		},
	}
}

// waitingFor returns the replicas that a deployment's accounting, or its end, releases.
func (r *Reconciler) waitingFor(ctx context.Context, d client.Object) []reconcile.Request {
	var list v1alpha1.ModelReplicaList
	if err := r.Client.List(ctx, &list, client.MatchingFields{fleet.IndexOwner: string(d.GetUID())}, client.DisableReadYourWritesConsistency, client.UnsafeDisableDeepCopy); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Cannot list the replicas of a deployment", "ModelDeployment", client.ObjectKeyFromObject(d))
		return nil
	}
	var out []reconcile.Request
	for i := range list.Items {
		if !list.Items[i].DeletionTimestamp.IsZero() || !d.GetDeletionTimestamp().IsZero() {
			out = append(out, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
		}
	}
	return out
}

func accountChanged() predicate.Predicate {
	return predicate.Funcs{
		CreateFunc: func(event.CreateEvent) bool { return false },
		UpdateFunc: func(e event.UpdateEvent) bool {
			return !slices.Equal(e.ObjectOld.(*v1alpha1.ModelDeployment).Status.Accounted, e.ObjectNew.(*v1alpha1.ModelDeployment).Status.Accounted)
		},
	}
}

// Reconcile updates one replica's status and, when it is deleted, drains and releases it.
func (r *Reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	var replica v1alpha1.ModelReplica
	if err := r.Client.Get(ctx, req.NamespacedName, &replica); err != nil {
		if apierrors.IsNotFound(err) {
			r.waits.end(req.NamespacedName)
		}
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if err := r.deleteOrphan(ctx, &replica); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	mac, err := r.mac(ctx, &replica)
	if err != nil {
		return reconcile.Result{}, err
	}
	if err := r.drain(ctx, &replica); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if unspoken(&replica) {
		return reconcile.Result{}, nil
	}
	next := derive(&replica, mac, r.Clock.Now())
	if err := r.report(ctx, &replica, next); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	left, err := r.evict(ctx, &replica, mac)
	if err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	// No watch reports the end of the replica's stay on a tainted Mac, nor that its deployment
	// did not account for it in time.
	wait, err := r.release(ctx, &replica)
	return reconcile.Result{RequeueAfter: cmp.Or(wait, left)}, client.IgnoreNotFound(err)
}

// unspoken reports whether placement has not looked at a replica yet. It has no status
// before: a write would conflict with the binding, which is locked.
func unspoken(replica *v1alpha1.ModelReplica) bool {
	return replica.DeletionTimestamp.IsZero() && replica.Spec.NodeName == "" && len(replica.Status.Conditions) == 0
}

// mac returns the Mac that a replica is assigned to; nil if there is none.
func (r *Reconciler) mac(ctx context.Context, replica *v1alpha1.ModelReplica) (*v1alpha1.MacNode, error) {
	name := fleet.OrderedOn(replica)
	if name == "" {
		return nil, nil
	}
	var mac v1alpha1.MacNode
	err := r.Client.Get(ctx, client.ObjectKey{Name: name}, &mac)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		// A Mac that could not be read must not be mistaken for one that is gone.
		return nil, fmt.Errorf("read Mac %s: %w", name, err)
	}
	return &mac, nil
}

// drain sets spec.desired of a replica that is being deleted.
func (r *Reconciler) drain(ctx context.Context, replica *v1alpha1.ModelReplica) error {
	if replica.DeletionTimestamp.IsZero() || replica.Spec.Desired == v1alpha1.DesiredDrained || fleet.Prefetches(replica) {
		return nil
	}
	before := replica.DeepCopy()
	replica.Spec.Desired = v1alpha1.DesiredDrained
	if err := r.Client.Patch(ctx, replica, client.MergeFrom(before), client.FieldOwner(v1alpha1.ManagerOperator)); err != nil {
		return fmt.Errorf("drain %s: %w", client.ObjectKeyFromObject(replica), err)
	}
	return nil
}

// report writes the status if it changed.
func (r *Reconciler) report(ctx context.Context, replica *v1alpha1.ModelReplica, next v1alpha1.ModelReplicaStatus) error {
	kinds := append([]string{v1alpha1.ConditionReady, v1alpha1.ConditionEvicting}, copied...)
	before := replica.Status
	before.Conditions = status.Pick(before.Conditions, kinds...)
	next.Conditions = status.Pick(next.Conditions, kinds...)
	if status.Equal(before, next) {
		return nil
	}
	posts := notices(replica, before.Conditions, next.Conditions)
	applied, err := status.Convert[ac.ModelReplicaStatusApplyConfiguration](next)
	if err != nil {
		return err
	}
	o := ac.ModelReplica(replica.Name, replica.Namespace).WithUID(replica.UID).WithStatus(applied)
	if err := status.ApplyStatus(ctx, r.Client, v1alpha1.ManagerOperator, o); err != nil {
		return err
	}
	mac := cmp.Or(replica.Spec.NodeName, replica.Spec.PrefetchNodeName)
	notice.PostAll(ctx, r.Client, r.Clock.Now(), r.limits.Within(mac, r.Clock.Now(), posts)...)
	return nil
}
