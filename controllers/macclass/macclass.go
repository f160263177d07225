// Package macclass gives each Mac the settings of its MacClass, and reports for each class how
// many of its Macs follow it.
//
// It owns spec.class of every MacAssignment, the condition ClassApplied of every MacNode, and
// the status of every MacClass except its upgrade. A Mac that names a class that does not exist
// keeps its settings.
//
// Start reading at Reconciler.Reconcile, then judge.go.
package macclass

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

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
	"metalfleet.dev/metalfleet/controllers/internal/notice"
	"metalfleet.dev/metalfleet/controllers/internal/status"
)

// +kubebuilder:rbac:groups=metalfleet.dev,resources=macclasses;macnodes,verbs=get;list;watch
// +kubebuilder:rbac:groups=metalfleet.dev,resources=macclasses/status;macnodes/status,verbs=get;patch
// +kubebuilder:rbac:groups=metalfleet.dev,resources=macassignments,verbs=get;list;watch;patch

// Reconciler gives Macs the settings of their classes. It has a single request for the whole
// fleet.
type Reconciler struct {
	Client client.Client
	Clock  clock.PassiveClock

	// limits bound the writes of ClassApplied: a Mac may report other settings all the time.
	limits notice.Limits
}

const (
	reportBurst = 16
	reportEvery = 10 * time.Second
)

// SetupWithManager starts the reconciler with its watches.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager, o controller.Options) error {
	r.limits.Burst, r.limits.Every = reportBurst, reportEvery
	all := handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request {
		return []reconcile.Request{{NamespacedName: client.ObjectKey{Name: "fleet"}}}
	})
	return ctrl.NewControllerManagedBy(mgr).Named("macclass").WithOptions(o).
		Watches(&v1alpha1.MacClass{}, all, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&v1alpha1.MacNode{}, all, builder.WithPredicates(macMatters())).
		Watches(&v1alpha1.MacAssignment{}, all, builder.WithPredicates(predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
			return e.ObjectOld.GetUID() != e.ObjectNew.GetUID() ||
				!status.Equal(e.ObjectOld.(*v1alpha1.MacAssignment).Spec.Class, e.ObjectNew.(*v1alpha1.MacAssignment).Spec.Class)
		}})).
		Complete(r)
}

// macMatters passes what decides the class of a Mac and whether it follows it.
func macMatters() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		old, now := e.ObjectOld.(*v1alpha1.MacNode), e.ObjectNew.(*v1alpha1.MacNode)
		return old.Spec.Class != now.Spec.Class || !status.Equal(old.Labels, now.Labels) || !status.Equal(old.Status.Settings, now.Status.Settings) ||
			!status.Equal(status.Pick(old.Status.Conditions, v1alpha1.ConditionClassApplied), status.Pick(now.Status.Conditions, v1alpha1.ConditionClassApplied))
	}}
}

// Reconcile writes what changed: the class of each Mac, whether the Mac follows it, and the
// status of each class.
func (r *Reconciler) Reconcile(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	var classes v1alpha1.MacClassList
	var macs v1alpha1.MacNodeList
	var assigned v1alpha1.MacAssignmentList
	shared := client.UnsafeDisableDeepCopy // the objects belong to the cache and are only read
	if err := errors.Join(r.Client.List(ctx, &classes, shared), r.Client.List(ctx, &macs, shared), r.Client.List(ctx, &assigned, shared)); err != nil {
		return reconcile.Result{}, fmt.Errorf("read the Macs and their classes: %w", err)
	}
	var res reconcile.Result
	var failed []error
	members := map[string][]member{}
	for i := range macs.Items {
		mac := &macs.Items[i]
		if !mac.DeletionTimestamp.IsZero() {
			continue
		}
		n := slices.IndexFunc(classes.Items, func(c v1alpha1.MacClass) bool { return c.Name == mac.ClassName() })
		var class *v1alpha1.MacClass
		if n >= 0 {
			class = &classes.Items[n]
		}
		m := member{mac, judge(mac, class)}
		members[mac.ClassName()] = append(members[mac.ClassName()], m)
		later, err := r.report(ctx, m)
		if later {
			res.RequeueAfter = reportEvery // until the condition of a Mac may be written again
		}
		failed = append(failed, r.assign(ctx, mac, class, assigned.Items), err)
	}
	for i := range classes.Items {
		failed = append(failed, r.reportClass(ctx, &classes.Items[i], members[classes.Items[i].Name]))
	}
	return res, errors.Join(failed...)
}

// assign writes the class of a Mac if it changed, with the resource version that the decision
// was based on. A Mac without a MacAssignment gets its class once it has one.
func (r *Reconciler) assign(ctx context.Context, mac *v1alpha1.MacNode, class *v1alpha1.MacClass, assigned []v1alpha1.MacAssignment) error {
	i := slices.IndexFunc(assigned, func(a v1alpha1.MacAssignment) bool { return a.Name == mac.Name })
	if i < 0 || class == nil && mac.Spec.Class != "" {
		return nil
	}
	var want *v1alpha1.AssignedClass
	if class != nil {
		want = &v1alpha1.AssignedClass{Name: class.Name, Generation: class.Generation, Settings: class.Spec.Settings}
	}
	if status.Equal(assigned[i].Spec.Class, want) {
		return nil
	}
	a := ac.MacAssignment(mac.Name).WithUID(assigned[i].UID).WithResourceVersion(assigned[i].ResourceVersion)
	if want != nil {
		applied, err := status.Convert[ac.AssignedClassApplyConfiguration](want)
		if err != nil {
			return err
		}
		a.WithSpec(ac.MacAssignmentSpec().WithClass(applied))
	}
	return client.IgnoreNotFound(status.Apply(ctx, r.Client, v1alpha1.ManagerClasses, a))
}

// report writes whether a Mac follows its class, if that changed. A Mac without a class has no
// such condition. It reports whether that is for later.
func (r *Reconciler) report(ctx context.Context, m member) (later bool, err error) {
	before := status.Pick(m.mac.Status.Conditions, v1alpha1.ConditionClassApplied)
	said := ac.MacNodeStatus()
	if m.verdict.Type == "" {
		if len(before) == 0 {
			return false, nil
		}
	} else {
		after := status.Merge(before, 0, r.Clock.Now(), m.verdict)
		if status.Equal(before, after) {
			return false, nil
		}
		said.WithConditions(status.Conditions(after)...)
	}
	if !r.limits.Allow(m.mac.Name, r.Clock.Now()) {
		return true, nil
	}
	return false, client.IgnoreNotFound(status.ApplyStatus(ctx, r.Client, v1alpha1.ManagerClasses, ac.MacNode(m.mac.Name).WithUID(m.mac.UID).WithStatus(said)))
}

// reportClass writes the status of a class if it changed. Its upgrade has another writer.
func (r *Reconciler) reportClass(ctx context.Context, class *v1alpha1.MacClass, members []member) error {
	after := v1alpha1.MacClassStatus{ObservedGeneration: class.Generation, Macs: int32(len(members)), Upgrade: class.Status.Upgrade}
	for _, m := range members {
		if m.verdict.Status == "True" {
			after.CurrentMacs++
		}
	}
	after.Conditions = status.Merge(class.Status.Conditions, class.Generation, r.Clock.Now(), accepted(class, members), applied(members))
	if status.Equal(class.Status, after) {
		return nil
	}
	after.Upgrade = nil
	written, err := status.Convert[ac.MacClassStatusApplyConfiguration](after)
	if err != nil {
		return err
	}
	return client.IgnoreNotFound(status.ApplyStatus(ctx, r.Client, v1alpha1.ManagerClasses, ac.MacClass(class.Name).WithUID(class.UID).WithStatus(written)))
}
