// Package agentupgrade upgrades the agents of Macs to the release of their MacClass, one Mac
// at a time, and reports for each Mac whether its agent is current.
//
// It owns spec.agent of every MacAssignment, the condition AgentCurrent of every MacNode,
// status.upgrade of every MacClass, and the Event of a failed upgrade. It decides nothing:
// package turn does, from the classes and the status of the Macs.
//
// Start reading at turn.Next, then Reconciler.Reconcile.
package agentupgrade

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

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
// +kubebuilder:rbac:groups=metalfleet.dev,resources=macclasses,verbs=get;list;watch
// +kubebuilder:rbac:groups=metalfleet.dev,resources=macclasses/status,verbs=get;patch
// +kubebuilder:rbac:groups="",resources=events,verbs=create

// Reconciler upgrades agents. It has a single request for the whole fleet.
type Reconciler struct {
	Client client.Client
	// Version of this operator.
	Version string
	Clock   clock.PassiveClock

	// limits bound the writes of AgentCurrent: a Mac may report another version all the time.
	limits notice.Limits
}

const (
	judgeBurst = 16
	judgeEvery = 10 * time.Second
)

// SetupWithManager starts the reconciler with its watches.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager, o controller.Options) error {
	r.limits.Burst, r.limits.Every = judgeBurst, judgeEvery
	all := handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request {
		return []reconcile.Request{{NamespacedName: client.ObjectKey{Name: "fleet"}}}
	})
	return ctrl.NewControllerManagedBy(mgr).Named("agent-upgrade").WithOptions(o).
		Watches(&v1alpha1.MacClass{}, all, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&v1alpha1.MacNode{}, all, builder.WithPredicates(predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
			return !status.Equal(concerns(e.ObjectOld), concerns(e.ObjectNew))
		}})).
		Watches(&v1alpha1.MacAssignment{}, all, builder.WithPredicates(predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
			return !status.Equal(e.ObjectOld.(*v1alpha1.MacAssignment).Spec.Agent, e.ObjectNew.(*v1alpha1.MacAssignment).Spec.Agent)
		}})).
		Complete(r)
}

// concerns returns the parts of a MacNode that affect upgrades, without its figures.
func concerns(o client.Object) any {
	m := o.(*v1alpha1.MacNode)
	return []any{m.Spec.Unschedulable, m.Spec.Class, m.Labels, m.Status.AgentVersion, m.Status.AgentUpgrade, m.DeletionTimestamp,
		status.Pick(m.Status.Conditions, v1alpha1.ConditionReady, v1alpha1.ConditionAccepting, v1alpha1.ConditionAgentCurrent)}
}

// Reconcile judges every Mac, orders the upgrade of the one whose turn it is, and reports the
// progress of each class.
func (r *Reconciler) Reconcile(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	var classes v1alpha1.MacClassList
	var macs v1alpha1.MacNodeList
	var assigned v1alpha1.MacAssignmentList
	shared := client.UnsafeDisableDeepCopy // the objects belong to the cache and are only read
	if err := errors.Join(r.Client.List(ctx, &classes, shared), r.Client.List(ctx, &macs, shared), r.Client.List(ctx, &assigned, shared)); err != nil {
		return reconcile.Result{}, fmt.Errorf("read the Macs and their classes: %w", err)
	}
	slices.SortFunc(classes.Items, func(a, b v1alpha1.MacClass) int { return cmp.Compare(a.Name, b.Name) })
	groups := turn.Classes(classes.Items, turn.Join(macs.Items, assigned.Items))
	turns := turn.All(groups, r.Version, r.Clock.Now())
	var res reconcile.Result
	var failures []error // one Mac that cannot be written must not keep the others back
	for i, g := range groups {
		t := turns[i]
		if t.After > 0 && (res.RequeueAfter == 0 || t.After < res.RequeueAfter) {
			res.RequeueAfter = t.After // until a Mac has been healthy for long enough, or a window opens
		}
		for _, mac := range g.Macs {
			if t.Start && mac.Name == t.Mac {
				failures = append(failures, r.order(ctx, assigned.Items, mac.Name, g.Class.Spec.Release))
			}
			later, err := r.judge(ctx, mac, g.Release())
			if later && (res.RequeueAfter == 0 || judgeEvery < res.RequeueAfter) {
				res.RequeueAfter = judgeEvery // until the condition of a Mac may be written again
			}
			failures = append(failures, err)
		}
		failures = append(failures, r.report(ctx, g.Class, &t))
	}
	return res, errors.Join(failures...)
}

// maxMessage bounds the message of an upgrade, as the schema does.
const maxMessage = 1024

// report writes the progress of a class if it changed.
func (r *Reconciler) report(ctx context.Context, class *v1alpha1.MacClass, t *turn.Turn) error {
	if class == nil {
		return nil
	}
	var after *v1alpha1.ClassUpgrade
	said := ac.MacClassStatus()
	if t.State != turn.Idle {
		after = &v1alpha1.ClassUpgrade{State: string(t.State), Message: status.Shorten(t.Message, maxMessage), Mac: t.Mac, UpgradedMacs: t.Upgraded()}
		said.WithUpgrade(ac.ClassUpgrade().WithState(after.State).WithMessage(after.Message).WithMac(after.Mac).WithUpgradedMacs(after.UpgradedMacs))
	}
	if status.Equal(class.Status.Upgrade, after) {
		return nil
	}
	return client.IgnoreNotFound(status.ApplyStatus(ctx, r.Client, v1alpha1.ManagerUpgrades, ac.MacClass(class.Name).WithUID(class.UID).WithStatus(said)))
}

// order writes spec.agent of a Mac's MacAssignment, with the resource version that the
// decision was based on: if it has changed since, the decision is repeated. A Mac that has
// none yet is ordered once it has one.
func (r *Reconciler) order(ctx context.Context, assigned []v1alpha1.MacAssignment, mac string, w *v1alpha1.AgentRelease) error {
	i := slices.IndexFunc(assigned, func(a v1alpha1.MacAssignment) bool { return a.Name == mac })
	if i < 0 {
		return nil
	}
	ctrl.LoggerFrom(ctx).Info("Agent upgrade starts", "MacNode", mac, "version", w.Version, "attempt", w.Order().Attempt)
	order, err := status.Convert[ac.AgentOrderApplyConfiguration](w.Order())
	if err != nil {
		return err
	}
	return client.IgnoreNotFound(status.Apply(ctx, r.Client, v1alpha1.ManagerUpgrades,
		ac.MacAssignment(mac).WithUID(assigned[i].UID).WithResourceVersion(assigned[i].ResourceVersion).WithSpec(ac.MacAssignmentSpec().WithAgent(order))))
}

// judge writes the condition AgentCurrent if it changed, and emits an Event on a failure. It reports whether that is for later.
func (r *Reconciler) judge(ctx context.Context, mac turn.Mac, w *v1alpha1.AgentRelease) (later bool, err error) {
	if !mac.DeletionTimestamp.IsZero() {
		return false, nil
	}
	c := turn.Judge(w, mac, r.Version)
	before := status.Pick(mac.Status.Conditions, v1alpha1.ConditionAgentCurrent)
	after := status.Merge(before, 0, r.Clock.Now(), status.Condition{Type: c.Type, Status: c.Status, Reason: c.Reason, Message: c.Message})
	if status.Equal(before, after) {
		return false, nil
	}
	if !r.limits.Allow(mac.Name, r.Clock.Now()) {
		return true, nil
	}
	if c.Reason == v1alpha1.ReasonAgentRolledBack || c.Reason == v1alpha1.ReasonAgentRefused {
		if _, err := upgradeNotice(mac.MacNode, c).Post(ctx, r.Client, r.Clock.Now()); err != nil {
			return false, err
		}
	}
	return false, client.IgnoreNotFound(status.ApplyStatus(ctx, r.Client, v1alpha1.ManagerUpgrades,
		ac.MacNode(mac.Name).WithUID(mac.UID).WithStatus(ac.MacNodeStatus().WithConditions(status.Conditions(after)...))))
}

// upgradeNotice returns the Event of a failed upgrade. Its ID is derived from the attempt,
// so that each attempt has one Event.
func upgradeNotice(mac *v1alpha1.MacNode, c metav1.Condition) notice.Notice {
	up := mac.Status.AgentUpgrade
	return notice.Notice{About: notice.Of("MacNode", mac), ID: fmt.Sprintf("%s %s %d %s", up.To, up.SHA256, up.Attempt, up.Phase),
		Reason: c.Reason, Message: c.Message, Warning: true}
}
