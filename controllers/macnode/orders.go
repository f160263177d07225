package macnode

import (
	"context"
	"fmt"
	"strings"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/fleet"
	"metalfleet.dev/metalfleet/controllers/internal/status"
)

// Orders writes the whole list of orders of each Mac.
type Orders struct {
	Client client.Client
}

// orders are the fields of a MacNode's spec that this reconciler owns.
type orders struct {
	Assignments []v1alpha1.Assignment `json:"assignments,omitempty"`
	Inspections []v1alpha1.Inspection `json:"inspections,omitempty"`
}

// whole names both lists even where they are empty: a spec of which everything
// is withdrawn at once becomes null, which the API server refuses.
func (o orders) whole() map[string]any {
	return map[string]any{
		"assignments": append([]v1alpha1.Assignment{}, o.Assignments...),
		"inspections": append([]v1alpha1.Inspection{}, o.Inspections...),
	}
}

// SetupWithManager starts the reconciler with its watches.
func (r *Orders) SetupWithManager(mgr ctrl.Manager, o controller.Options) error {
	return ctrl.NewControllerManagedBy(mgr).Named("macnode-orders").WithOptions(o).
		For(&v1alpha1.MacNode{}, builder.WithPredicates(ordersChanged())).
		Watches(&v1alpha1.ModelReplica{}, handler.EnqueueRequestsFromMapFunc(holder), builder.WithPredicates(specChanged())).
		Watches(&v1alpha1.ModelDeployment{}, handler.EnqueueRequestsFromMapFunc(r.everyMac), builder.WithPredicates(specChanged())).
		Watches(&v1alpha1.MacNode{}, handler.EnqueueRequestsFromMapFunc(r.neighbours), builder.WithPredicates(askableChanged())).
		Complete(r)
}

// ordersChanged passes a Mac that is new, whose orders somebody changed, or
// that may be asked other things.
func ordersChanged() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		return e.ObjectOld.GetGeneration() != e.ObjectNew.GetGeneration() || askable(e.ObjectOld) != askable(e.ObjectNew)
	}}
}

func specChanged() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		return e.ObjectOld.GetGeneration() != e.ObjectNew.GetGeneration() ||
			e.ObjectOld.GetDeletionTimestamp().IsZero() != e.ObjectNew.GetDeletionTimestamp().IsZero()
	}}
}

func askableChanged() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool { return askable(e.ObjectOld) != askable(e.ObjectNew) }}
}

// askable is what decides whether a Mac is asked to inspect, as one string.
func askable(o client.Object) string {
	m := o.(*v1alpha1.MacNode)
	var b strings.Builder
	fmt.Fprint(&b, fleet.StateOf(m), m.Labels, m.Spec.Taints, m.Status.Chip)
	for _, i := range m.Status.Inspections {
		if i.State == v1alpha1.InspectionFailed && i.Reason == v1alpha1.ReasonSourceUnreachable {
			fmt.Fprint(&b, i.ID)
		}
	}
	return b.String()
}

// holder is the Mac that a replica is bound to.
func holder(_ context.Context, o client.Object) []reconcile.Request {
	mac := o.(*v1alpha1.ModelReplica).Spec.NodeName
	if mac == "" {
		return nil
	}
	return []reconcile.Request{{NamespacedName: client.ObjectKey{Name: mac}}}
}

// everyMac: a deployment may concern any of them.
func (r *Orders) everyMac(ctx context.Context, _ client.Object) []reconcile.Request {
	var macs v1alpha1.MacNodeList
	if err := r.Client.List(ctx, &macs, client.DisableReadYourWritesConsistency); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Cannot list Macs")
		return nil
	}
	out := make([]reconcile.Request, 0, len(macs.Items))
	for i := range macs.Items {
		out = append(out, reconcile.Request{NamespacedName: client.ObjectKey{Name: macs.Items[i].Name}})
	}
	return out
}

// neighbours: where one Mac is asked on behalf of all, a change of one changes
// who is asked.
func (r *Orders) neighbours(ctx context.Context, o client.Object) []reconcile.Request {
	var deployments v1alpha1.ModelDeploymentList
	if err := r.Client.List(ctx, &deployments, client.DisableReadYourWritesConsistency); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Cannot list deployments")
		return nil
	}
	for i := range deployments.Items {
		if !strings.HasPrefix(deployments.Items[i].Spec.Model.Source, fleet.FileScheme) {
			return r.everyMac(ctx, o)
		}
	}
	return nil
}

// Reconcile derives the orders of one Mac and writes them if they changed.
func (r *Orders) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	var mac v1alpha1.MacNode
	if err := r.Client.Get(ctx, client.ObjectKey{Name: req.Name}, &mac); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if !mac.DeletionTimestamp.IsZero() {
		return reconcile.Result{}, nil
	}
	wanted, err := r.derive(ctx, &mac)
	if err != nil {
		return reconcile.Result{}, err
	}
	if status.Equal(wanted, orders{mac.Spec.Assignments, mac.Spec.Inspections}) {
		return reconcile.Result{}, nil
	}
	err = status.Apply(ctx, r.Client, status.Document{Object: &mac, Manager: v1alpha1.ManagerOrders, Spec: wanted.whole()})
	return reconcile.Result{}, client.IgnoreNotFound(err)
}

func (r *Orders) derive(ctx context.Context, mac *v1alpha1.MacNode) (orders, error) {
	var replicas v1alpha1.ModelReplicaList
	var deployments v1alpha1.ModelDeploymentList
	var macs v1alpha1.MacNodeList
	if err := r.Client.List(ctx, &replicas, client.MatchingFields{fleet.IndexNode: mac.Name}); err != nil {
		return orders{}, fmt.Errorf("list replicas of %s: %w", mac.Name, err)
	}
	if err := r.Client.List(ctx, &deployments); err != nil {
		return orders{}, fmt.Errorf("list deployments: %w", err)
	}
	if err := r.Client.List(ctx, &macs); err != nil {
		return orders{}, fmt.Errorf("list Macs: %w", err)
	}
	return orders{
		Assignments: fleet.Assignments(mac.Name, replicas.Items, deployments.Items),
		Inspections: fleet.Inspections(mac.Name, deployments.Items, macs.Items),
	}, nil
}
