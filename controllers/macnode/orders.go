package macnode

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

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
	"metalfleet.dev/metalfleet/controllers/internal/status"
)

// Orders writes the complete assignments and inspections of each Mac.
type Orders struct {
	Client client.Client
	Clock  clock.PassiveClock
	// Grants signs the permissions to copy weights; nil disables copying between Macs.
	Grants Granter
}

// orders are the fields of a MacNode's spec that this reconciler owns.
type orders struct {
	Assignments []v1alpha1.Assignment `json:"assignments,omitempty"`
	Inspections []v1alpha1.Inspection `json:"inspections,omitempty"`
}

// configuration applies both lists even if they are empty, which generated configurations
// leave out: a spec without any owned field would become null, which the API server
// rejects.
type configuration struct {
	*ac.MacNodeApplyConfiguration
	Spec struct {
		Assignments []ac.AssignmentApplyConfiguration `json:"assignments"`
		Inspections []ac.InspectionApplyConfiguration `json:"inspections"`
	} `json:"spec"`
}

func (o orders) configure(mac *v1alpha1.MacNode) (*configuration, error) {
	c := &configuration{MacNodeApplyConfiguration: ac.MacNode(mac.Name).WithUID(mac.UID)}
	assignments, err := status.Convert[[]ac.AssignmentApplyConfiguration](append([]v1alpha1.Assignment{}, o.Assignments...))
	if err != nil {
		return nil, err
	}
	inspections, err := status.Convert[[]ac.InspectionApplyConfiguration](append([]v1alpha1.Inspection{}, o.Inspections...))
	if err != nil {
		return nil, err
	}
	c.Spec.Assignments, c.Spec.Inspections = *assignments, *inspections
	return c, nil
}

// SetupWithManager starts the reconciler with its watches.
func (r *Orders) SetupWithManager(mgr ctrl.Manager, o controller.Options) error {
	return ctrl.NewControllerManagedBy(mgr).Named("macnode-orders").WithOptions(o).
		For(&v1alpha1.MacNode{}, builder.WithPredicates(ordersChanged())).
		Watches(&v1alpha1.ModelReplica{}, handler.EnqueueRequestsFromMapFunc(holder), builder.WithPredicates(specChanged())).
		Watches(&v1alpha1.ModelDeployment{}, handler.EnqueueRequestsFromMapFunc(r.concerned), builder.WithPredicates(predicate.Or(specChanged(), namesChanged()))).
		Watches(&v1alpha1.MacNode{}, handler.EnqueueRequestsFromMapFunc(r.peers), builder.WithPredicates(askableChanged())).
		Watches(&v1alpha1.MacNode{}, handler.EnqueueRequestsFromMapFunc(r.inspectors), builder.WithPredicates(verdictsChanged())).
		Watches(&v1alpha1.MacNode{}, handler.EnqueueRequestsFromMapFunc(r.site), builder.WithPredicates(siteChanged())).
		Complete(r)
}

// ordersChanged passes a Mac that is new, whose orders were changed by others, or that may
// be asked for other inspections.
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

// namesChanged passes a deployment that got or lost a served name.
func namesChanged() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		return !slices.Equal(fleet.Served(e.ObjectOld.(*v1alpha1.ModelDeployment)), fleet.Served(e.ObjectNew.(*v1alpha1.ModelDeployment)))
	}}
}

func askableChanged() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool { return askable(e.ObjectOld) != askable(e.ObjectNew) }}
}

// askable returns what decides whether a Mac is asked to inspect, as one string.
func askable(o client.Object) string {
	m := o.(*v1alpha1.MacNode)
	var b strings.Builder
	fmt.Fprint(&b, fleet.StateOf(m), m.Labels, m.Spec.Taints, m.Status.Chip)
	return b.String()
}

// verdictsChanged passes a Mac whose inspection reports changed: they decide whether
// another Mac is asked.
func verdictsChanged() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		return !status.Equal(e.ObjectOld.(*v1alpha1.MacNode).Status.Inspections, e.ObjectNew.(*v1alpha1.MacNode).Status.Inspections)
	}}
}

// inspectors returns the Macs that are asked for a source that this one reports on.
func (r *Orders) inspectors(ctx context.Context, o client.Object) []reconcile.Request {
	macs, err := r.listMacs(ctx)
	if err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Cannot list Macs")
		return nil
	}
	names := map[string]bool{}
	for _, i := range o.(*v1alpha1.MacNode).Status.Inspections {
		var deployments v1alpha1.ModelDeploymentList
		if err := r.Client.List(ctx, &deployments, client.MatchingFields{fleet.IndexInspection: i.ID}, client.DisableReadYourWritesConsistency); err != nil {
			ctrl.LoggerFrom(ctx).Error(err, "Cannot list deployments")
			continue
		}
		for n := range deployments.Items {
			if !strings.HasPrefix(deployments.Items[n].Spec.Model.Source, fleet.FileScheme) {
				maps.Copy(names, askedNames(&deployments.Items[n], macs))
			}
		}
	}
	return requests(names)
}

// holder returns the Mac that a replica is assigned to.
func holder(_ context.Context, o client.Object) []reconcile.Request {
	mac := fleet.OrderedOn(o.(*v1alpha1.ModelReplica))
	if mac == "" {
		return nil
	}
	return []reconcile.Request{{NamespacedName: client.ObjectKey{Name: mac}}}
}

// concerned returns the Macs whose orders include a deployment, or will: those that hold a
// replica of it, that are asked for its source, or that were. On an update, it is called
// for the old deployment as well.
func (r *Orders) concerned(ctx context.Context, o client.Object) []reconcile.Request {
	d := o.(*v1alpha1.ModelDeployment)
	macs, err := r.listMacs(ctx)
	if err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Cannot list Macs")
		return nil
	}
	var replicas v1alpha1.ModelReplicaList
	if err := r.Client.List(ctx, &replicas, client.InNamespace(d.Namespace), client.DisableReadYourWritesConsistency); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Cannot list replicas")
		return nil
	}
	names := askedNames(d, macs)
	for i := range replicas.Items {
		if mac := fleet.OrderedOn(&replicas.Items[i]); mac != "" && replicas.Items[i].Spec.DeploymentRef.Name == d.Name {
			names[mac] = true
		}
	}
	return requests(names)
}

// peers: if one Mac is asked on behalf of all, a change of one may change which one.
func (r *Orders) peers(ctx context.Context, _ client.Object) []reconcile.Request {
	var deployments v1alpha1.ModelDeploymentList
	if err := r.Client.List(ctx, &deployments, client.DisableReadYourWritesConsistency); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Cannot list deployments")
		return nil
	}
	ofOne := slices.DeleteFunc(deployments.Items, func(d v1alpha1.ModelDeployment) bool { return strings.HasPrefix(d.Spec.Model.Source, fleet.FileScheme) })
	if len(ofOne) == 0 {
		return nil
	}
	macs, err := r.listMacs(ctx)
	if err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Cannot list Macs")
		return nil
	}
	names := map[string]bool{}
	for i := range ofOne {
		maps.Copy(names, askedNames(&ofOne[i], macs))
	}
	return requests(names)
}

func (r *Orders) listMacs(ctx context.Context) ([]v1alpha1.MacNode, error) {
	var macs v1alpha1.MacNodeList
	err := r.Client.List(ctx, &macs, client.DisableReadYourWritesConsistency, client.UnsafeDisableDeepCopy)
	return macs.Items, err
}

// askedNames returns the names of the Macs that are asked for a deployment's source, or
// still have an inspection of it.
func askedNames(d *v1alpha1.ModelDeployment, macs []v1alpha1.MacNode) map[string]bool {
	names, id := map[string]bool{}, fleet.InspectionID(d)
	for _, mac := range fleet.Asked(d, macs) {
		names[mac.Name] = true
	}
	for i := range macs {
		if slices.ContainsFunc(macs[i].Spec.Inspections, func(in v1alpha1.Inspection) bool { return in.ID == id }) {
			names[macs[i].Name] = true
		}
	}
	return names
}

func requests(names map[string]bool) []reconcile.Request {
	out := make([]reconcile.Request, 0, len(names))
	for name := range names {
		out = append(out, reconcile.Request{NamespacedName: client.ObjectKey{Name: name}})
	}
	return out
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
	wanted, macs, err := r.derive(ctx, &mac)
	if err != nil {
		return reconcile.Result{}, err
	}
	copies, ungranted := r.introduce(ctx, &mac, wanted.Assignments, macs)
	var again reconcile.Result
	if copies { // a grant is due after half its validity
		again.RequeueAfter = renewGrant
	}
	if status.Equal(wanted, orders{mac.Spec.Assignments, mac.Spec.Inspections}) {
		return again, ungranted
	}
	applied, err := wanted.configure(&mac)
	if err == nil {
		err = client.IgnoreNotFound(status.Apply(ctx, r.Client, v1alpha1.ManagerOrders, applied))
	}
	return again, errors.Join(err, ungranted)
}

// derive returns the orders without peers, and all Macs, which must not be changed.
func (r *Orders) derive(ctx context.Context, mac *v1alpha1.MacNode) (orders, []v1alpha1.MacNode, error) {
	var replicas v1alpha1.ModelReplicaList
	var deployments v1alpha1.ModelDeploymentList
	var macs v1alpha1.MacNodeList
	if err := r.Client.List(ctx, &replicas, client.MatchingFields{fleet.IndexNode: mac.Name}); err != nil {
		return orders{}, nil, fmt.Errorf("list replicas of %s: %w", mac.Name, err)
	}
	if err := r.Client.List(ctx, &deployments); err != nil {
		return orders{}, nil, fmt.Errorf("list deployments: %w", err)
	}
	if err := r.Client.List(ctx, &macs, client.UnsafeDisableDeepCopy); err != nil { // all of them, and only read
		return orders{}, nil, fmt.Errorf("list Macs: %w", err)
	}
	return orders{
		Assignments: fleet.Assignments(mac.Name, replicas.Items, deployments.Items),
		Inspections: fleet.Inspections(mac.Name, deployments.Items, macs.Items),
	}, macs.Items, nil
}
