// Package uninstall guards the installation: without an operator, the engines of
// ModelDeployments would stay on the Macs.
//
// It owns one ConfigMap, which exists while ModelDeployments exist. The chart has an
// admission policy that refuses to delete it, and a hook whose first step is to delete it.
// Helm does so before it records that an uninstall has begun, so a refused uninstall leaves
// the release as it was. A Job as a hook could check the same, but when it fails, the release
// stays in the state uninstalling and cannot be upgraded.
//
// Start reading at Reconciler.
package uninstall

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

const (
	// Name of the ConfigMap.
	Name = "metalfleet-uninstall-guard"
	// Key of its data that lists the ModelDeployments; only the operator's ConfigMap has it.
	Key = "modelDeployments"
	// shown is how many ModelDeployments it names.
	shown = 5
)

// +kubebuilder:rbac:groups=metalfleet.dev,resources=modeldeployments,verbs=get;list;watch
// +kubebuilder:rbac:groups="",namespace=metalfleet-system,resources=configmaps,verbs=get;list;watch
// +kubebuilder:rbac:groups="",namespace=metalfleet-system,resources=configmaps,resourceNames=metalfleet-uninstall-guard,verbs=create;patch;delete

// Reconciler keeps the ConfigMap in the operator's namespace.
type Reconciler struct {
	Client    client.Client
	Namespace string
}

// SetupWithManager starts the reconciler with its watches.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager, o controller.Options) error {
	key := reconcile.Request{NamespacedName: client.ObjectKey{Namespace: r.Namespace, Name: Name}}
	one := func(context.Context, client.Object) []reconcile.Request { return []reconcile.Request{key} }
	named := predicate.NewPredicateFuncs(func(o client.Object) bool { return o.GetName() == Name })
	return ctrl.NewControllerManagedBy(mgr).Named("uninstall").WithOptions(o).
		For(&corev1.ConfigMap{}, builder.WithPredicates(named)).
		Watches(&v1alpha1.ModelDeployment{}, handler.EnqueueRequestsFromMapFunc(one), builder.WithPredicates(existence())).
		Complete(r)
}

// existence passes the creation and the deletion of an object: the ConfigMap lists names, which
// never change.
func existence() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(event.UpdateEvent) bool { return false }}
}

// Reconcile makes the ConfigMap list the ModelDeployments, or deletes it if there are none.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	var all v1alpha1.ModelDeploymentList
	if err := r.Client.List(ctx, &all, client.UnsafeDisableDeepCopy); err != nil {
		return ctrl.Result{}, fmt.Errorf("list ModelDeployments: %w", err)
	}
	var have corev1.ConfigMap
	if err := r.Client.Get(ctx, req.NamespacedName, &have); client.IgnoreNotFound(err) != nil {
		return ctrl.Result{}, fmt.Errorf("read ConfigMap %s: %w", Name, err)
	}
	want := list(all.Items)
	if have.Data[Key] == want {
		return ctrl.Result{}, nil
	}
	if want == "" {
		if err := r.Client.Delete(ctx, &have, client.Preconditions{UID: &have.UID}); client.IgnoreNotFound(err) != nil {
			return ctrl.Result{}, fmt.Errorf("delete ConfigMap %s: %w", Name, err)
		}
		return ctrl.Result{}, nil
	}
	next := applycorev1.ConfigMap(Name, r.Namespace).WithData(map[string]string{Key: want})
	if err := r.Client.Apply(ctx, next, client.FieldOwner(v1alpha1.ManagerOperator), client.ForceOwnership); err != nil {
		return ctrl.Result{}, fmt.Errorf("write ConfigMap %s: %w", Name, err)
	}
	return ctrl.Result{}, nil
}

// list names ModelDeployments; it is empty if there are none.
func list(all []v1alpha1.ModelDeployment) string {
	var names []string
	for i := range all {
		names = append(names, all[i].Namespace+"/"+all[i].Name)
	}
	slices.Sort(names)
	if more := len(names) - shown; more > 0 {
		names = append(names[:shown], fmt.Sprintf("and %d more", more))
	}
	return strings.Join(names, ", ")
}
