// Package placement binds replicas to Macs. One reconciler looks at all
// unplaced replicas together, because reservations are cumulative.
//
// It owns spec.nodeName of a replica (bound once) and its condition Placed. It
// refuses to decide: package plan does, on a snapshot; a choice is assumed
// there first and taken back if it cannot be persisted. It never moves a bound
// replica: its deployment makes another.
//
// Start reading at Reconciler.Reconcile.
package placement

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
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
	"metalfleet.dev/metalfleet/controllers/placement/plan"
)

// +kubebuilder:rbac:groups=metalfleet.dev,resources=macnodes,verbs=get;list;watch
// +kubebuilder:rbac:groups=metalfleet.dev,resources=modelreplicas,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=metalfleet.dev,resources=modelreplicas/status,verbs=get;patch

// Reconciler places all unplaced replicas in one pass.
type Reconciler struct {
	Client client.Client
	Clock  clock.PassiveClock
}

// pass is the one request of this reconciler: the whole fleet.
var pass = reconcile.Request{NamespacedName: client.ObjectKey{Name: "fleet"}}

// SetupWithManager starts the reconciler with its watches.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager, o controller.Options) error {
	always := handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request {
		return []reconcile.Request{pass}
	})
	return ctrl.NewControllerManagedBy(mgr).Named("placement").WithOptions(o).
		Watches(&v1alpha1.ModelReplica{}, always, builder.WithPredicates(replicaMatters())).
		Watches(&v1alpha1.MacNode{}, always, builder.WithPredicates(macMatters())).
		Complete(r)
}

// replicaMatters passes what can change a plan: an unplaced replica that came
// or changed, and room that came back.
func replicaMatters() predicate.Predicate {
	return predicate.Funcs{
		UpdateFunc: func(e event.UpdateEvent) bool {
			old, now := e.ObjectOld.(*v1alpha1.ModelReplica), e.ObjectNew.(*v1alpha1.ModelReplica)
			return old.Generation != now.Generation || fleet.Released(old) != fleet.Released(now) ||
				now.DeletionTimestamp.IsZero() && (now.Spec.NodeName == "" || !placedTrue(now))
		},
	}
}

// macMatters passes what the plan reads of a Mac.
func macMatters() predicate.Predicate {
	return predicate.Funcs{
		UpdateFunc: func(e event.UpdateEvent) bool {
			return !status.Equal(view(e.ObjectOld.(*v1alpha1.MacNode)), view(e.ObjectNew.(*v1alpha1.MacNode)))
		},
	}
}

// view is what the plan reads of a Mac, and nothing that moves while a Mac idles.
func view(m *v1alpha1.MacNode) any {
	return struct {
		State         fleet.MacState
		Accepting     bool
		Skewed        bool
		Stranded      bool
		Labels        map[string]string
		Taints        any
		Unschedulable bool
		Capacity      int64
		Chip          string
		Weights       []v1alpha1.StoredWeights
		Inspections   []v1alpha1.InspectionStatus
	}{fleet.StateOf(m), !meta.IsStatusConditionFalse(m.Status.Conditions, v1alpha1.ConditionAccepting), plan.Skewed(m), plan.Stranded(m), m.Labels, m.Spec.Taints,
		m.Spec.Unschedulable, m.Status.Memory.CapacityBytes, m.Status.Chip, m.Status.Weights, m.Status.Inspections}
}

func placedTrue(r *v1alpha1.ModelReplica) bool {
	return meta.IsStatusConditionTrue(r.Status.Conditions, v1alpha1.ConditionPlaced)
}

// Reconcile makes one pass over all replicas.
func (r *Reconciler) Reconcile(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	var macs v1alpha1.MacNodeList
	var replicas v1alpha1.ModelReplicaList
	if err := errors.Join(r.Client.List(ctx, &macs), r.Client.List(ctx, &replicas)); err != nil {
		return reconcile.Result{}, fmt.Errorf("read the fleet: %w", err)
	}
	snapshot := plan.NewSnapshot(macs.Items, replicas.Items, r.Clock.Now())
	var errs []error
	var wait time.Duration
	for _, replica := range open(replicas.Items) {
		d := plan.Decision{Mac: replica.Spec.NodeName, Reason: v1alpha1.ReasonPlaced, Message: "on " + replica.Spec.NodeName}
		if replica.Spec.NodeName == "" {
			d = snapshot.Pick(replica)
		}
		if err := r.carryOut(ctx, snapshot, replica, d); err != nil {
			errs = append(errs, client.IgnoreNotFound(err))
		}
		if d.RetryAfter > 0 && (wait == 0 || d.RetryAfter < wait) {
			wait = d.RetryAfter
		}
	}
	if err := errors.Join(errs...); err != nil {
		return reconcile.Result{}, err
	}
	// What no watch tells: the end of the time for which a Mac is avoided, or waited for.
	return reconcile.Result{RequeueAfter: wait}, nil
}

// open are the replicas that placement owes something: a Mac, or the word that
// they have one. The oldest come first.
func open(replicas []v1alpha1.ModelReplica) []*v1alpha1.ModelReplica {
	var out []*v1alpha1.ModelReplica
	for i := range replicas {
		if r := &replicas[i]; r.DeletionTimestamp.IsZero() && (r.Spec.NodeName == "" || !placedTrue(r)) {
			out = append(out, r)
		}
	}
	slices.SortFunc(out, func(a, b *v1alpha1.ModelReplica) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time),
			cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return out
}

// carryOut assumes the choice, persists it, and forgets it if that fails.
func (r *Reconciler) carryOut(ctx context.Context, s *plan.Snapshot, replica *v1alpha1.ModelReplica, d plan.Decision) error {
	condition := status.False(v1alpha1.ConditionPlaced, d.Reason, d.Message)
	if d.Mac != "" {
		condition = status.True(v1alpha1.ConditionPlaced, d.Reason, d.Message)
		if replica.Spec.NodeName == "" {
			undo := s.Assume(replica, d.Mac)
			if err := r.bind(ctx, replica, d.Mac); err != nil {
				undo()
				return err
			}
			ctrl.LoggerFrom(ctx).Info("Replica placed", "ModelReplica", client.ObjectKeyFromObject(replica), "MacNode", d.Mac)
		}
	}
	return r.report(ctx, replica, condition)
}

// bind writes nodeName. The write is locked, so that a replica which is being
// deleted and let go at this moment is not bound.
func (r *Reconciler) bind(ctx context.Context, replica *v1alpha1.ModelReplica, mac string) error {
	return status.Apply(ctx, r.Client, status.Document{
		Object: replica, Manager: v1alpha1.ManagerPlacement, Locked: true,
		Spec: map[string]any{"nodeName": mac},
	})
}

func (r *Reconciler) report(ctx context.Context, replica *v1alpha1.ModelReplica, c status.Condition) error {
	before := status.Pick(replica.Status.Conditions, v1alpha1.ConditionPlaced)
	after := status.Merge(before, replica.Generation, r.Clock.Now(), c)
	if status.Equal(before, after) {
		return nil
	}
	return status.Apply(ctx, r.Client, status.Document{
		Object: replica, Manager: v1alpha1.ManagerPlacement,
		Status: map[string][]metav1.Condition{"conditions": after},
	})
}
