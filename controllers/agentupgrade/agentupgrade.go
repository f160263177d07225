// Package agentupgrade upgrades the agents of Macs to the version that the administrator
// wants, one Mac at a time, and reports for each Mac whether its agent is current.
//
// It owns spec.agent of every MacAssignment, the condition AgentCurrent of every MacNode,
// and the Event of a failed upgrade. It decides nothing: package turn does, from the target in a ConfigMap and
// the status of the Macs. A target that cannot be read changes nothing.
//
// Start reading at turn.Next, then Reconciler.Reconcile.
package agentupgrade

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
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

	ac "metalfleet.dev/metalfleet/api/applyconfiguration/api/v1alpha1"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/agentupgrade/turn"
	"metalfleet.dev/metalfleet/controllers/internal/notice"
	"metalfleet.dev/metalfleet/controllers/internal/status"
)

// +kubebuilder:rbac:groups=metalfleet.dev,resources=macnodes,verbs=get;list;watch
// +kubebuilder:rbac:groups=metalfleet.dev,resources=macassignments,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=metalfleet.dev,resources=macnodes/status,verbs=get;patch
// +kubebuilder:rbac:groups="",resources=configmaps,namespace=metalfleet-system,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=events,verbs=create

// Reconciler upgrades agents. It has a single request for the whole fleet.
type Reconciler struct {
	Client client.Client
	// Namespace of the ConfigMap.
	Namespace string
	// Version of this operator.
	Version string
	Clock   clock.PassiveClock
}

// SetupWithManager starts the reconciler with its watches.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager, o controller.Options) error {
	all := handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request {
		return []reconcile.Request{{NamespacedName: r.key()}}
	})
	return ctrl.NewControllerManagedBy(mgr).Named("agent-upgrade").WithOptions(o).
		Watches(&corev1.ConfigMap{}, all, builder.WithPredicates(predicate.NewPredicateFuncs(func(o client.Object) bool {
			return client.ObjectKeyFromObject(o) == r.key()
		}))).
		Watches(&v1alpha1.MacNode{}, all, builder.WithPredicates(predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
			return !status.Equal(concerns(e.ObjectOld), concerns(e.ObjectNew))
		}})).
		Watches(&v1alpha1.MacAssignment{}, all, builder.WithPredicates(predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
			return !status.Equal(e.ObjectOld.(*v1alpha1.MacAssignment).Spec.Agent, e.ObjectNew.(*v1alpha1.MacAssignment).Spec.Agent)
		}})).
		Complete(r)
}

func (r *Reconciler) key() client.ObjectKey {
	return client.ObjectKey{Namespace: r.Namespace, Name: turn.ConfigMapName}
}

// concerns returns the parts of a MacNode that affect upgrades, without its figures.
func concerns(o client.Object) any {
	m := o.(*v1alpha1.MacNode)
	return []any{m.Spec.Unschedulable, m.Status.AgentVersion, m.Status.AgentUpgrade, m.DeletionTimestamp,
		status.Pick(m.Status.Conditions, v1alpha1.ConditionReady, v1alpha1.ConditionAccepting, v1alpha1.ConditionAgentCurrent)}
}

// Reconcile judges every Mac, and orders the upgrade of the one whose turn it is.
func (r *Reconciler) Reconcile(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	target, err := r.target(ctx)
	if err != nil {
		return reconcile.Result{}, err
	}
	var macs v1alpha1.MacNodeList
	if err := r.Client.List(ctx, &macs); err != nil {
		return reconcile.Result{}, fmt.Errorf("list Macs: %w", err)
	}
	var assigned v1alpha1.MacAssignmentList
	if err := r.Client.List(ctx, &assigned); err != nil {
		return reconcile.Result{}, fmt.Errorf("list MacAssignments: %w", err)
	}
	all := turn.Join(macs.Items, assigned.Items)
	next := turn.Next(target, r.Version, all, r.Clock.Now())
	for _, mac := range all {
		if next.Start && mac.Name == next.Mac {
			if err := r.order(ctx, assigned.Items, mac.Name, target); err != nil {
				return reconcile.Result{}, err
			}
		}
		if err := r.judge(ctx, mac, target); err != nil {
			return reconcile.Result{}, err
		}
	}
	return reconcile.Result{RequeueAfter: next.After}, nil // until a Mac has been healthy for long enough
}

// target returns what the administrator wants, or nil. One that cannot be read is logged
// and treated as a pause: no upgrade begins.
func (r *Reconciler) target(ctx context.Context) (*turn.Target, error) {
	var cm corev1.ConfigMap
	if err := r.Client.Get(ctx, r.key(), &cm); err != nil {
		if apierrors.IsNotFound(err) {
			return nil, nil
		}
		return nil, fmt.Errorf("read ConfigMap %s: %w", r.key(), err)
	}
	w, err := turn.Read(&cm)
	if err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Invalid agent version in the ConfigMap; no Mac is upgraded")
		return nil, nil
	}
	return w, nil
}

// order writes spec.agent of a Mac's MacAssignment, with the resource version that the
// decision was based on: if it has changed since, the decision is repeated. A Mac that has
// none yet is ordered once it has one.
func (r *Reconciler) order(ctx context.Context, assigned []v1alpha1.MacAssignment, mac string, w *turn.Target) error {
	i := slices.IndexFunc(assigned, func(a v1alpha1.MacAssignment) bool { return a.Name == mac })
	if i < 0 {
		return nil
	}
	ctrl.LoggerFrom(ctx).Info("Agent upgrade starts", "MacNode", mac, "version", w.Version, "attempt", w.Attempt)
	order, err := status.Convert[ac.AgentOrderApplyConfiguration](w.Order())
	if err != nil {
		return err
	}
	return client.IgnoreNotFound(status.Apply(ctx, r.Client, v1alpha1.ManagerUpgrades,
		ac.MacAssignment(mac).WithUID(assigned[i].UID).WithResourceVersion(assigned[i].ResourceVersion).WithSpec(ac.MacAssignmentSpec().WithAgent(order))))
}

// judge writes the condition AgentCurrent if it changed, and emits an Event on a failure.
func (r *Reconciler) judge(ctx context.Context, mac turn.Mac, w *turn.Target) error {
	if !mac.DeletionTimestamp.IsZero() {
		return nil
	}
	c := turn.Judge(w, mac, r.Version)
	before := status.Pick(mac.Status.Conditions, v1alpha1.ConditionAgentCurrent)
	after := status.Merge(before, 0, r.Clock.Now(), status.Condition{Type: c.Type, Status: c.Status, Reason: c.Reason, Message: c.Message})
	if status.Equal(before, after) {
		return nil
	}
	if c.Reason == v1alpha1.ReasonAgentRolledBack || c.Reason == v1alpha1.ReasonAgentRefused {
		if _, err := upgradeNotice(mac.MacNode, c).Post(ctx, r.Client, r.Clock.Now()); err != nil {
			return err
		}
	}
	return client.IgnoreNotFound(status.ApplyStatus(ctx, r.Client, v1alpha1.ManagerUpgrades,
		ac.MacNode(mac.Name).WithUID(mac.UID).WithStatus(ac.MacNodeStatus().WithConditions(status.Conditions(after)...))))
}

// upgradeNotice returns the Event of a failed upgrade. Its ID is derived from the attempt,
// so that each attempt has one Event.
func upgradeNotice(mac *v1alpha1.MacNode, c metav1.Condition) notice.Notice {
	up := mac.Status.AgentUpgrade
	return notice.Notice{About: notice.Of("MacNode", mac), ID: fmt.Sprintf("%s %s %d %s", up.To, up.SHA256, up.Attempt, up.Phase),
		Reason: c.Reason, Message: c.Message, Warning: true}
}
