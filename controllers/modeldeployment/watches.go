package modeldeployment

import (
	"cmp"
	"context"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	appsv1 "k8s.io/api/apps/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/fleet"
	"metalfleet.dev/metalfleet/controllers/internal/fairqueue"
	"metalfleet.dev/metalfleet/controllers/internal/status"
)

// SetupWithManager starts the reconciler with its watches.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager, o controller.Options) error {
	patient := fairqueue.AfterRefusals(r, &o)
	return ctrl.NewControllerManagedBy(mgr).Named("modeldeployment").WithOptions(o).
		For(&v1alpha1.ModelDeployment{}, builder.WithPredicates(specChanged())).
		Watches(&v1alpha1.ModelReplica{}, onNews{handler.EnqueueRequestsFromMapFunc(ofReplica)}).
		Watches(&appsv1.ControllerRevision{}, handler.EnqueueRequestsFromMapFunc(ofRevision)).
		Watches(&v1alpha1.ModelDeployment{}, fairqueue.InTurns(r.onClaims())).
		Watches(&v1alpha1.ModelDeployment{}, fairqueue.InTurns(handler.EnqueueRequestsFromMapFunc(r.routers)), builder.WithPredicates(comesOrGoes())).
		Watches(&v1alpha1.MacNode{}, fairqueue.InTurns(fleet.OnMacChange(r.inspectedBy))).
		Watches(&schedulingv1.PriorityClass{}, handler.EnqueueRequestsFromMapFunc(r.ofClass)).
		Watches(&v1alpha1.ModelProfile{}, handler.EnqueueRequestsFromMapFunc(r.ofProfile), builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&v1alpha1.NamespaceRules{}, handler.EnqueueRequestsFromMapFunc(r.underRules), builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Complete(patient)
}

// ofReplica returns the deployment of a replica by its spec: the garbage collector may have removed
// the owner.
func ofReplica(_ context.Context, o client.Object) []reconcile.Request {
	key := client.ObjectKey{Namespace: o.GetNamespace(), Name: o.(*v1alpha1.ModelReplica).Spec.DeploymentRef.Name}
	return []reconcile.Request{{NamespacedName: key}}
}

// ofRevision returns the deployment of a revision by its label, for the same reason.
func ofRevision(_ context.Context, o client.Object) []reconcile.Request {
	key := client.ObjectKey{Namespace: o.GetNamespace(), Name: o.GetLabels()[v1alpha1.LabelDeployment]}
	return []reconcile.Request{{NamespacedName: key}}
}

// specChanged drops our own status writes, and passes decisions of the autoscaler, and a spec that
// the cache has in full again.
func specChanged() predicate.Predicate {
	decided := func(o client.Object) any {
		a := o.(*v1alpha1.ModelDeployment).Status.Autoscaling
		if a == nil {
			return nil
		}
		return v1alpha1.AutoscalingStatus{DesiredReplicas: a.DesiredReplicas, Removable: a.Removable}
	}
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		return !status.Equal(decided(e.ObjectOld), decided(e.ObjectNew)) ||
			e.ObjectOld.GetGeneration() != e.ObjectNew.GetGeneration() ||
			fleet.Crowded(e.ObjectOld.(*v1alpha1.ModelDeployment)) != fleet.Crowded(e.ObjectNew.(*v1alpha1.ModelDeployment)) ||
			e.ObjectOld.GetDeletionTimestamp().IsZero() != e.ObjectNew.GetDeletionTimestamp().IsZero() ||
			!slices.Equal(e.ObjectOld.GetFinalizers(), e.ObjectNew.GetFinalizers())
	}}
}

// onClaims enqueues the rivals of each deployment whose names change. On an update, only those
// that claim a name that it got or lost: a deployment may have 150 names, which thousands claim.
func (r *Reconciler) onClaims() handler.EventHandler {
	type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]
	add := func(ctx context.Context, before, now fleet.NameHolder, q queue) {
		for _, request := range r.rivals(ctx, cmp.Or(now.UID, before.UID), fleet.ChangedNames(before, now)) {
			q.Add(request)
		}
	}
	of := func(o client.Object) fleet.NameHolder { return fleet.HolderOf(o.(*v1alpha1.ModelDeployment)) }
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q queue) { add(ctx, fleet.NameHolder{}, of(e.Object), q) },
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q queue) { add(ctx, of(e.ObjectOld), of(e.ObjectNew), q) },
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q queue) { add(ctx, of(e.Object), fleet.NameHolder{}, q) },
	}
}

// rivals returns the other deployments that claim one of the names of a deployment, by its UID:
// those that it holds, or those of its own like NAMESPACE/NAME. Only holders decide what others get.
func (r *Reconciler) rivals(ctx context.Context, of types.UID, names []string) []reconcile.Request {
	seen, claimed := sets.New(of), fleet.NamesOf(names)
	var out []reconcile.Request
	for _, group := range fleet.ClaimGroups(names) {
		out = append(out, r.find(ctx, func(d *v1alpha1.ModelDeployment) bool {
			if seen.Has(d.UID) {
				return false
			}
			seen.Insert(d.UID)
			return claimed.ClaimedBy(d)
		}, client.MatchingFields{fleet.IndexClaim: group})...)
	}
	return out
}

// comesOrGoes passes the creation and deletion of deployments.
func comesOrGoes() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		return e.ObjectOld.GetDeletionTimestamp().IsZero() != e.ObjectNew.GetDeletionTimestamp().IsZero()
	}}
}

// routers returns the deployments whose routing names this one.
func (r *Reconciler) routers(ctx context.Context, o client.Object) []reconcile.Request {
	return r.find(ctx, func(d *v1alpha1.ModelDeployment) bool { return slices.Contains(d.Spec.Routing.Targets(), o.GetName()) },
		client.InNamespace(o.GetNamespace()))
}

// ofClass returns the deployments that name a PriorityClass.
func (r *Reconciler) ofClass(ctx context.Context, o client.Object) []reconcile.Request {
	return r.find(ctx, func(d *v1alpha1.ModelDeployment) bool { return d.Spec.PriorityClassName == o.GetName() })
}

// ofProfile returns the deployments that name a ModelProfile.
func (r *Reconciler) ofProfile(ctx context.Context, o client.Object) []reconcile.Request {
	return r.find(ctx, func(d *v1alpha1.ModelDeployment) bool { return d.Spec.ProfileName == o.GetName() })
}

// inspectedBy returns the deployments that a change of a Mac may help: those that are not
// accepted, and for whose source other Macs may be asked, or on whose source it reports another
// result.
func (r *Reconciler) inspectedBy(ctx context.Context, before, now *v1alpha1.MacNode) []reconcile.Request {
	var out []reconcile.Request
	if !fleet.SameStanding(before, now) {
		out = r.find(ctx, func(d *v1alpha1.ModelDeployment) bool { return !accepted(d) && fleet.Concerns(before, now, d) })
	}
	for _, id := range fleet.ChangedReports(before, now) {
		out = append(out, r.find(ctx, func(d *v1alpha1.ModelDeployment) bool { return !accepted(d) }, client.MatchingFields{fleet.IndexInspection: id})...)
	}
	return out
}

// underRules returns the deployments that are not accepted: the rules may let their namespaces use
// other Macs, whose reports on a source are known already.
func (r *Reconciler) underRules(ctx context.Context, _ client.Object) []reconcile.Request {
	return r.find(ctx, func(d *v1alpha1.ModelDeployment) bool { return !accepted(d) })
}

// accepted reports whether the spec of a deployment was accepted.
func accepted(d *v1alpha1.ModelDeployment) bool {
	c := meta.FindStatusCondition(d.Status.Conditions, v1alpha1.ConditionAccepted)
	return c != nil && c.Status == "True" && c.ObservedGeneration == d.Generation
}

// find returns the deployments that are wanted. They are not copied from the cache: wanted
// must not change them.
func (r *Reconciler) find(ctx context.Context, wanted func(*v1alpha1.ModelDeployment) bool, opts ...client.ListOption) []reconcile.Request {
	var list v1alpha1.ModelDeploymentList
	if err := r.Client.List(ctx, &list, append(opts, client.DisableReadYourWritesConsistency, client.UnsafeDisableDeepCopy)...); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Cannot list deployments")
		return nil
	}
	var out []reconcile.Request
	for i := range list.Items {
		if wanted(&list.Items[i]) {
			out = append(out, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
		}
	}
	return out
}
