package macnode

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	metav1ac "k8s.io/client-go/applyconfigurations/meta/v1"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
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
	"metalfleet.dev/metalfleet/controllers/internal/status"
)

// Orders writes the MacAssignment of each Mac: its complete assignments and inspections. It
// confirms each generation that it has written or found to be right; a Mac follows no
// other.
type Orders struct {
	Client client.Client
	Clock  clock.PassiveClock
	// Grants signs the permissions to copy weights; nil disables copying between Macs.
	Grants Granter
	// Inspectors decides which Macs are asked for a source. Nil keeps nothing between passes.
	Inspectors *fleet.Inspectors
	// Sites decides which Macs copy from which. Nil keeps nothing between passes.
	Sites *fleet.Sites
}

// orders are the fields of a MacAssignment's spec that this reconciler owns.
type orders struct {
	Assignments []v1alpha1.Assignment `json:"assignments,omitempty"`
	Inspections []v1alpha1.Inspection `json:"inspections,omitempty"`
}

// configuration applies both lists even if they are empty, which generated configurations
// leave out: a spec without any owned field would become null, which the API server
// rejects.
type configuration struct {
	*ac.MacAssignmentApplyConfiguration
	Spec struct {
		Assignments []ac.AssignmentApplyConfiguration `json:"assignments"`
		Inspections []ac.InspectionApplyConfiguration `json:"inspections"`
	} `json:"spec"`
}

// configure returns the configuration of a Mac's orders. A UID makes sure that an existing
// object is written, and that none is created.
func (o orders) configure(mac *v1alpha1.MacNode, uid types.UID) (*configuration, error) {
	c := &configuration{MacAssignmentApplyConfiguration: ac.MacAssignment(mac.Name).WithOwnerReferences(owner(mac))}
	if uid != "" {
		c.WithUID(uid)
	}
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
		For(&v1alpha1.MacNode{}, builder.WithPredicates(askableChanged())).
		Watches(&v1alpha1.MacAssignment{}, &handler.EnqueueRequestForObject{}, builder.WithPredicates(assignmentChanged())).
		Watches(&v1alpha1.ModelReplica{}, ofReplicas(), builder.WithPredicates(specChanged())).
		Watches(&v1alpha1.ModelDeployment{}, fairqueue.InTurns(r.ofDeployments()), builder.WithPredicates(predicate.Or(specChanged(), statusChanged()))).
		Watches(&v1alpha1.MacNode{}, fairqueue.InTurns(fleet.OnMacChange(r.peers))).
		Watches(&v1alpha1.MacNode{}, fairqueue.InTurns(fleet.OnMacChange(r.inspectors))).
		Watches(&v1alpha1.MacNode{}, fairqueue.InTurns(fleet.OnMacChange(r.site))).
		Watches(&v1alpha1.NamespaceRules{}, handler.EnqueueRequestsFromMapFunc(r.all), builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Complete(r)
}

// ofReplicas and ofDeployments enqueue Macs on behalf of the namespace that changed, so that one
// whose replicas are on all Macs does not make others wait.
func ofReplicas() handler.EventHandler {
	return fairqueue.OnBehalf(handler.EnqueueRequestsFromMapFunc(holder))
}

func (r *Orders) ofDeployments() handler.EventHandler {
	return fairqueue.OnBehalf(edits{handler.EnqueueRequestsFromMapFunc(r.concerned)})
}

// editsAfter is how long the orders of Macs wait for more edits of a deployment: a MacAssignment is
// written whole, once for its spec and once for the confirmation, on each Mac with a replica. What
// stops a replica is a change of the replica, which does not wait.
const editsAfter = 500 * time.Millisecond

// edits delays the updates of deployments.
type edits struct{ handler.EventHandler }

func (h edits) Update(ctx context.Context, e event.UpdateEvent, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
	h.EventHandler.Update(ctx, e, fairqueue.Later(q, editsAfter))
}

// assignmentChanged passes a MacAssignment that was deleted, or changed by others.
func assignmentChanged() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		return e.ObjectOld.GetUID() != e.ObjectNew.GetUID() || !e.ObjectNew.(*v1alpha1.MacAssignment).Confirmed() ||
			!status.Equal(e.ObjectOld.GetOwnerReferences(), e.ObjectNew.GetOwnerReferences())
	}}
}

func specChanged() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		return e.ObjectOld.GetGeneration() != e.ObjectNew.GetGeneration() ||
			e.ObjectOld.GetDeletionTimestamp().IsZero() != e.ObjectNew.GetDeletionTimestamp().IsZero()
	}}
}

// statusChanged passes a deployment that got or lost a served name, whose credential is of another
// Secret, or that needs its place among the inspections more or less than before.
func statusChanged() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		old, now := e.ObjectOld.(*v1alpha1.ModelDeployment), e.ObjectNew.(*v1alpha1.ModelDeployment)
		return !slices.Equal(fleet.Served(old), fleet.Served(now)) || old.Status.SecretUID != now.Status.SecretUID || fleet.NeedOf(old) != fleet.NeedOf(now)
	}}
}

// askableChanged passes a Mac for which other sources may be asked.
func askableChanged() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		return !fleet.SameStanding(e.ObjectOld.(*v1alpha1.MacNode), e.ObjectNew.(*v1alpha1.MacNode))
	}}
}

// inspectors returns the Macs that are asked for a source on which this one reports another
// result.
func (r *Orders) inspectors(ctx context.Context, before, now *v1alpha1.MacNode) []reconcile.Request {
	var about []v1alpha1.ModelDeployment // of the cache's own objects: read only
	for _, id := range fleet.ChangedReports(before, now) {
		var deployments v1alpha1.ModelDeploymentList
		if err := r.Client.List(ctx, &deployments, client.MatchingFields{fleet.IndexInspection: id}, client.DisableReadYourWritesConsistency, client.UnsafeDisableDeepCopy); err != nil {
			ctrl.LoggerFrom(ctx).Error(err, "Cannot list deployments")
			continue
		}
		about = append(about, deployments.Items...)
	}
	return requests(r.askedNames(ctx, downloaded(about)))
}

// downloaded returns the deployments whose source is inspected by some Macs for all.
func downloaded(deployments []v1alpha1.ModelDeployment) []v1alpha1.ModelDeployment {
	return slices.DeleteFunc(deployments, func(d v1alpha1.ModelDeployment) bool {
		return strings.HasPrefix(d.Spec.Model.Resolved().Source, fleet.FileScheme)
	})
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
	var replicas v1alpha1.ModelReplicaList
	own := client.MatchingFields{fleet.IndexOwner: string(d.UID)} // its namespace may have 10,000
	if err := r.Client.List(ctx, &replicas, own, client.InNamespace(d.Namespace), client.DisableReadYourWritesConsistency, client.UnsafeDisableDeepCopy); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Cannot list replicas")
		return nil
	}
	names := r.askedNames(ctx, []v1alpha1.ModelDeployment{*d})
	for i := range replicas.Items {
		if mac := fleet.OrderedOn(&replicas.Items[i]); mac != "" {
			names[mac] = true
		}
	}
	return requests(names)
}

// peers: if one Mac is asked on behalf of all, a change of one may change which one.
func (r *Orders) peers(ctx context.Context, before, now *v1alpha1.MacNode) []reconcile.Request {
	if fleet.SameStanding(before, now) {
		return nil
	}
	var deployments v1alpha1.ModelDeploymentList // of the cache's own objects: read only
	if err := r.Client.List(ctx, &deployments, client.DisableReadYourWritesConsistency, client.UnsafeDisableDeepCopy); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Cannot list deployments")
		return nil
	}
	concerned := slices.DeleteFunc(deployments.Items, func(d v1alpha1.ModelDeployment) bool { return !fleet.Concerns(before, now, &d) })
	return requests(r.askedNames(ctx, downloaded(concerned)))
}

// listMacs waits for no writes of MacNodes in flight: none is needed for orders, and a Mac can make
// each take most of a second.
func (r *Orders) listMacs(ctx context.Context) ([]v1alpha1.MacNode, error) {
	var macs v1alpha1.MacNodeList
	err := r.Client.List(ctx, &macs, client.DisableReadYourWritesConsistency, client.UnsafeDisableDeepCopy)
	return macs.Items, err
}

// askedNames returns the names of the Macs that are asked for the source of any of the
// deployments, or still have an inspection of it.
func (r *Orders) askedNames(ctx context.Context, deployments []v1alpha1.ModelDeployment) map[string]bool {
	if len(deployments) == 0 {
		return nil
	}
	macs, err := r.listMacs(ctx)
	if err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Cannot list Macs")
		return map[string]bool{}
	}
	rules, err := r.rules(ctx)
	if err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Cannot read the NamespaceRules")
	}
	names, ids := r.Inspectors.AskedNames(deployments, macs, rules)
	for id := range ids {
		var asked v1alpha1.MacAssignmentList
		byID := client.MatchingFields{fleet.IndexAsked: id}
		if err := r.Client.List(ctx, &asked, byID, client.DisableReadYourWritesConsistency, client.UnsafeDisableDeepCopy); err != nil {
			ctrl.LoggerFrom(ctx).Error(err, "Cannot list MacAssignments")
		}
		for n := range asked.Items {
			names[asked.Items[n].Name] = true
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

// Reconcile derives the orders of one Mac, writes them if they changed, and confirms them.
func (r *Orders) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	var mac v1alpha1.MacNode
	if err := r.Client.Get(ctx, client.ObjectKey{Name: req.Name}, &mac); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if !mac.DeletionTimestamp.IsZero() && !fleet.Leaving(&mac) {
		return reconcile.Result{}, nil
	}
	before, err := r.written(ctx, mac.Name)
	if err != nil {
		return reconcile.Result{}, err
	}
	wanted, macs, lasts, err := r.derive(ctx, &mac)
	if err != nil {
		return reconcile.Result{}, err
	}
	copies, ungranted := r.introduce(ctx, &mac, wanted.Assignments, before.Spec.Assignments, macs)
	again := reconcile.Result{RequeueAfter: lasts}    // other Macs are asked then
	if copies && (lasts == 0 || lasts > renewGrant) { // a grant is due after half its validity
		again.RequeueAfter = renewGrant
	}
	return again, errors.Join(client.IgnoreNotFound(r.write(ctx, &mac, before, wanted)), ungranted)
}

// written returns the MacAssignment of a Mac; an empty one if there is none. One that the
// operator did not create, such as a copy from a backup, is deleted.
func (r *Orders) written(ctx context.Context, mac string) (*v1alpha1.MacAssignment, error) {
	var a v1alpha1.MacAssignment
	err := r.Client.Get(ctx, client.ObjectKey{Name: mac}, &a)
	if apierrors.IsNotFound(err) {
		return &v1alpha1.MacAssignment{}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read MacAssignment %s: %w", mac, err)
	}
	if a.Status.UID == string(a.UID) {
		return &a, nil
	}
	if err := r.Client.Delete(ctx, &a, client.Preconditions{UID: &a.UID}); client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("delete MacAssignment %s, which the operator did not create: %w", mac, err)
	}
	return &v1alpha1.MacAssignment{}, nil
}

// write applies the orders of a Mac if they changed, then confirms what it wrote: first the
// spec, then the status, so that a pass that fails between them is repeated.
func (r *Orders) write(ctx context.Context, mac *v1alpha1.MacNode, before *v1alpha1.MacAssignment, wanted orders) error {
	uid, generation := before.UID, before.Generation
	if uid == "" || !metav1.IsControlledBy(before, mac) || !status.Equal(wanted, orders{before.Spec.Assignments, before.Spec.Inspections}) {
		applied, err := wanted.configure(mac, uid)
		if err != nil {
			return err
		}
		if err := status.Apply(ctx, r.Client, v1alpha1.ManagerOrders, applied); err != nil {
			return err
		}
		uid, generation = ptr.Deref(applied.UID, ""), ptr.Deref(applied.Generation, 0)
	}
	if before.Confirmed() && before.UID == uid && before.Generation == generation {
		return nil
	}
	return status.ApplyStatus(ctx, r.Client, v1alpha1.ManagerOrders, ac.MacAssignment(mac.Name).WithUID(uid).WithStatus(
		ac.MacAssignmentStatus().WithUID(string(uid)).WithObservedGeneration(generation).WithReplicas(int32(len(wanted.Assignments)))))
}

// owner makes a MacNode the controller of its MacAssignment.
func owner(mac *v1alpha1.MacNode) *metav1ac.OwnerReferenceApplyConfiguration {
	return metav1ac.OwnerReference().WithAPIVersion(v1alpha1.GroupVersion.String()).WithKind("MacNode").WithName(mac.Name).
		WithUID(mac.UID).WithController(true).WithBlockOwnerDeletion(false)
}

// derive returns the orders without peers, all Macs, and how long the orders last if nothing
// changes; 0 means for ever. The lists are of the cache's own
// objects, which must not be changed: copying all of them for each Mac would cost more than the
// orders. Neither must what the orders refer to.
func (r *Orders) derive(ctx context.Context, mac *v1alpha1.MacNode) (orders, []v1alpha1.MacNode, time.Duration, error) {
	var replicas v1alpha1.ModelReplicaList
	var deployments v1alpha1.ModelDeploymentList
	if err := r.Client.List(ctx, &replicas, client.MatchingFields{fleet.IndexNode: mac.Name}, client.UnsafeDisableDeepCopy); err != nil {
		return orders{}, nil, 0, fmt.Errorf("list replicas of %s: %w", mac.Name, err)
	}
	if err := r.Client.List(ctx, &deployments, client.UnsafeDisableDeepCopy); err != nil {
		return orders{}, nil, 0, fmt.Errorf("list deployments: %w", err)
	}
	macs, err := r.listMacs(ctx)
	if err != nil {
		return orders{}, nil, 0, fmt.Errorf("list Macs: %w", err)
	}
	rules, err := r.rules(ctx)
	if err != nil {
		return orders{}, nil, 0, err
	}
	inspections, lasts := r.Inspectors.InspectionsFor(mac.Name, deployments.Items, macs, rules)
	return orders{fleet.Assignments(mac.Name, replicas.Items, deployments.Items), inspections}, macs, lasts, nil
}

// rules returns the NamespaceRules; nil if there are none.
func (r *Orders) rules(ctx context.Context) (*v1alpha1.NamespaceRules, error) {
	var rules v1alpha1.NamespaceRules
	err := r.Client.Get(ctx, client.ObjectKey{Name: v1alpha1.NamespaceRulesName}, &rules)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the NamespaceRules: %w", err)
	}
	return &rules, nil
}

// all returns all Macs: the rules may select other Macs for a namespace.
func (r *Orders) all(ctx context.Context, _ client.Object) []reconcile.Request {
	macs, err := r.listMacs(ctx)
	if err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Cannot list Macs")
		return nil
	}
	names := map[string]bool{}
	for i := range macs {
		names[macs[i].Name] = true
	}
	return requests(names)
}
