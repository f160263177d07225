// Package namespacerules reports on the NamespaceRules of the cluster: whether each rule can
// have its intended effect, and how much of its limit each namespace uses.
//
// It owns the status of the NamespaceRules. It enforces nothing: an admission policy does when
// a deployment is written, and placement when a replica is placed.
//
// Start reading at Reconciler.Reconcile, then judge in judge.go.
package namespacerules

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
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
	"metalfleet.dev/metalfleet/controllers/internal/status"
)

// +kubebuilder:rbac:groups=metalfleet.dev,resources=namespacerules,verbs=get;list;watch
// +kubebuilder:rbac:groups=metalfleet.dev,resources=namespacerules/status,verbs=get;patch
// +kubebuilder:rbac:groups=metalfleet.dev,resources=macnodes;modelreplicas,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=namespaces,verbs=get;list;watch

// Reconciler writes the status of the NamespaceRules.
type Reconciler struct {
	Client client.Client
	Clock  clock.PassiveClock
}

// SetupWithManager starts the reconciler with its watches.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager, o controller.Options) error {
	rules := handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request {
		return []reconcile.Request{{NamespacedName: client.ObjectKey{Name: v1alpha1.NamespaceRulesName}}}
	})
	return ctrl.NewControllerManagedBy(mgr).Named("namespacerules").WithOptions(o).
		For(&v1alpha1.NamespaceRules{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&v1alpha1.ModelReplica{}, countLater(rules), builder.WithPredicates(replicaMatters())).
		Watches(&v1alpha1.MacNode{}, rules, builder.WithPredicates(macMatters())).
		WatchesMetadata(&corev1.Namespace{}, rules, builder.WithPredicates(predicate.Funcs{UpdateFunc: func(event.UpdateEvent) bool { return false }})).
		Complete(r)
}

// countAfter is how long a pass waits for other changes of replicas: it counts all of them, and writes
// the use of each namespace.
const countAfter = time.Second

func countLater(h handler.EventHandler) handler.EventHandler { return fairqueue.After(h, countAfter) }

// replicaMatters passes what changes the use of a namespace.
func replicaMatters() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		old, now := e.ObjectOld.(*v1alpha1.ModelReplica), e.ObjectNew.(*v1alpha1.ModelReplica)
		return old.Generation != now.Generation || fleet.Released(old) != fleet.Released(now)
	}}
}

// macMatters passes what selects a Mac.
func macMatters() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		old, now := e.ObjectOld.(*v1alpha1.MacNode), e.ObjectNew.(*v1alpha1.MacNode)
		return !status.Equal(old.Labels, now.Labels) || !status.Equal(old.Spec.Taints, now.Spec.Taints)
	}}
}

// Reconcile reads the cluster, judges the rules and writes a status that differs.
func (r *Reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	var rules v1alpha1.NamespaceRules
	if err := r.Client.Get(ctx, req.NamespacedName, &rules); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	seen, err := r.observe(ctx)
	if err != nil {
		return reconcile.Result{}, err
	}
	problem := judge(&rules.Spec, seen)
	condition := status.True(v1alpha1.ConditionAccepted, v1alpha1.ReasonAccepted, "the rules of every namespace are in force")
	if problem.reason != "" {
		condition = status.False(v1alpha1.ConditionAccepted, problem.reason, problem.sentence)
	}
	use := used(&rules.Spec, seen.replicas)
	after := v1alpha1.NamespaceRulesStatus{ObservedGeneration: rules.Generation, Namespaces: use, Summary: summary(use),
		Conditions: status.Merge(rules.Status.Conditions, rules.Generation, r.Clock.Now(), condition)}
	if status.Equal(rules.Status, after) {
		return reconcile.Result{}, nil
	}
	written, err := status.Convert[ac.NamespaceRulesStatusApplyConfiguration](after)
	if err != nil {
		return reconcile.Result{}, err
	}
	return reconcile.Result{}, client.IgnoreNotFound(status.ApplyStatus(ctx, r.Client, v1alpha1.ManagerOperator,
		ac.NamespaceRules(rules.Name).WithUID(rules.UID).WithStatus(written)))
}

// observed is what the rules are compared with.
type observed struct {
	namespaces sets.Set[string]
	macs       []v1alpha1.MacNode
	replicas   []v1alpha1.ModelReplica
}

// observe reads the cluster. The objects belong to the cache and must not be changed.
func (r *Reconciler) observe(ctx context.Context) (observed, error) {
	var macs v1alpha1.MacNodeList
	var replicas v1alpha1.ModelReplicaList
	namespaces := metav1.PartialObjectMetadataList{}
	namespaces.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("NamespaceList"))
	if err := errors.Join(r.Client.List(ctx, &macs, client.UnsafeDisableDeepCopy), r.Client.List(ctx, &replicas, client.UnsafeDisableDeepCopy),
		r.Client.List(ctx, &namespaces, client.UnsafeDisableDeepCopy)); err != nil {
		return observed{}, fmt.Errorf("read what the NamespaceRules are about: %w", err)
	}
	out := observed{namespaces: sets.Set[string]{}, macs: macs.Items, replicas: replicas.Items}
	for i := range namespaces.Items {
		if namespaces.Items[i].DeletionTimestamp.IsZero() {
			out.namespaces.Insert(namespaces.Items[i].Name)
		}
	}
	return out, nil
}
