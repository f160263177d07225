package identity

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/internal/status"
)

// Macs keeps the identity of each Mac.
type Macs struct {
	Client client.Client
	Issuer *Issuer
}

// SetupWithManager starts the reconciler with its watches: a Mac that comes or
// goes, and anything made for it that somebody changes or deletes.
func (r *Macs) SetupWithManager(mgr ctrl.Manager, o controller.Options) error {
	b := ctrl.NewControllerManagedBy(mgr).Named("identity-macs").WithOptions(o).
		For(&v1alpha1.MacNode{}, builder.WithPredicates(comesOrGoes()))
	for _, made := range []client.Object{&corev1.Secret{}, &corev1.ServiceAccount{}, &rbacv1.Role{}, &rbacv1.RoleBinding{},
		&rbacv1.ClusterRole{}, &rbacv1.ClusterRoleBinding{}} {
		b = b.Watches(made, handler.EnqueueRequestsFromMapFunc(madeFor))
	}
	// A Lease changes every 10 s; only its end matters here.
	onlyDeleted := predicate.Funcs{CreateFunc: func(event.CreateEvent) bool { return false }, UpdateFunc: func(event.UpdateEvent) bool { return false }}
	return b.Watches(&coordinationv1.Lease{}, handler.EnqueueRequestsFromMapFunc(madeFor), builder.WithPredicates(onlyDeleted)).Complete(r)
}

func comesOrGoes() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		return e.ObjectOld.GetDeletionTimestamp().IsZero() != e.ObjectNew.GetDeletionTimestamp().IsZero() ||
			len(e.ObjectOld.GetFinalizers()) != len(e.ObjectNew.GetFinalizers())
	}}
}

func madeFor(_ context.Context, o client.Object) []reconcile.Request {
	mac := o.GetLabels()[v1alpha1.LabelMac]
	if mac == "" {
		return nil
	}
	return []reconcile.Request{{NamespacedName: client.ObjectKey{Name: mac}}}
}

func channel(c <-chan event.GenericEvent) source.Source {
	return source.Channel(c, &handler.EnqueueRequestForObject{})
}

// Reconcile makes what is missing, or takes everything back when the Mac goes.
func (r *Macs) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	var mac v1alpha1.MacNode
	if err := r.Client.Get(ctx, client.ObjectKey{Name: req.Name}, &mac); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if !mac.DeletionTimestamp.IsZero() {
		return reconcile.Result{}, r.takeBack(ctx, &mac)
	}
	before := mac.DeepCopy()
	if controllerutil.AddFinalizer(&mac, v1alpha1.FinalizerIdentity) {
		if err := r.patch(ctx, &mac, before); err != nil {
			return reconcile.Result{}, client.IgnoreNotFound(err)
		}
	}
	for _, want := range r.objects(mac.Name) {
		if err := r.ensure(ctx, want); err != nil {
			return reconcile.Result{}, err
		}
	}
	left, err := r.Issuer.keep(ctx, v1alpha1.AgentObjectName(mac.Name), labels(mac.Name),
		leaf{dnsName: agentapi.MacServerName(mac.Name), usage: x509.ExtKeyUsageServerAuth})
	// Until the certificate is to be renewed.
	return reconcile.Result{RequeueAfter: left}, err
}

func (r *Macs) patch(ctx context.Context, mac, before *v1alpha1.MacNode) error {
	err := r.Client.Patch(ctx, mac, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}), client.FieldOwner(v1alpha1.ManagerOperator))
	if err != nil {
		return fmt.Errorf("finalizer of Mac %s: %w", mac.Name, err)
	}
	return nil
}

// takeBack deletes all that was made, without the help of a garbage collector,
// and lets the MacNode go.
func (r *Macs) takeBack(ctx context.Context, mac *v1alpha1.MacNode) error {
	if !controllerutil.ContainsFinalizer(mac, v1alpha1.FinalizerIdentity) {
		return nil
	}
	key := client.ObjectKey{Namespace: r.Issuer.Namespace, Name: v1alpha1.AgentObjectName(mac.Name)}
	var errs []error
	for _, o := range append(r.objects(mac.Name), secret(key, nil, nil)) {
		if err := r.Client.Delete(ctx, o, client.DisableReadYourWritesConsistency); client.IgnoreNotFound(err) != nil {
			errs = append(errs, fmt.Errorf("delete %T %s: %w", o, o.GetName(), err))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	before := mac.DeepCopy()
	controllerutil.RemoveFinalizer(mac, v1alpha1.FinalizerIdentity)
	return client.IgnoreNotFound(r.patch(ctx, mac, before))
}

// ensure creates an object, or updates it where somebody changed what it is for.
func (r *Macs) ensure(ctx context.Context, want client.Object) error {
	have := want.DeepCopyObject().(client.Object)
	err := r.Client.Get(ctx, client.ObjectKeyFromObject(want), have)
	switch {
	case apierrors.IsNotFound(err):
		err = r.Client.Create(ctx, want, client.FieldOwner(v1alpha1.ManagerOperator))
	case err == nil && !status.Equal(substance(have), substance(want)):
		want.SetResourceVersion(have.GetResourceVersion())
		err = r.Client.Update(ctx, want, client.FieldOwner(v1alpha1.ManagerOperator))
	}
	if err != nil {
		return fmt.Errorf("ensure %T %s: %w", want, want.GetName(), err)
	}
	return nil
}

// substance is what an object is for; the rest may be anybody's.
func substance(o client.Object) any {
	switch x := o.(type) {
	case *rbacv1.Role:
		return x.Rules
	case *rbacv1.ClusterRole:
		return x.Rules
	case *rbacv1.RoleBinding:
		return x.Subjects
	case *rbacv1.ClusterRoleBinding:
		return x.Subjects
	default:
		// A Lease's spec is the agent's, a ServiceAccount has nothing of ours.
		return nil
	}
}

func labels(mac string) map[string]string { return map[string]string{v1alpha1.LabelMac: mac} }

// objects are what a Mac's agent needs in the API, without its Secret.
func (r *Macs) objects(mac string) []client.Object {
	agent := v1alpha1.AgentObjectName(mac)
	local := metav1.ObjectMeta{Namespace: r.Issuer.Namespace, Name: agent, Labels: labels(mac)}
	global := metav1.ObjectMeta{Name: "metalfleet-" + agent, Labels: labels(mac)}
	subjects := []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: r.Issuer.Namespace, Name: agent}}
	rule := func(group, resource, name string, verbs ...string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: []string{resource}, ResourceNames: []string{name}, Verbs: verbs}
	}
	roleRef := func(kind, name string) rbacv1.RoleRef {
		return rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: kind, Name: name}
	}
	fleet := v1alpha1.GroupVersion.Group
	return []client.Object{
		&coordinationv1.Lease{ObjectMeta: local, Spec: coordinationv1.LeaseSpec{LeaseDurationSeconds: ptr.To[int32](v1alpha1.MacSilentSeconds)}},
		&corev1.ServiceAccount{ObjectMeta: local, AutomountServiceAccountToken: ptr.To(false)},
		&rbacv1.ClusterRole{ObjectMeta: global, Rules: []rbacv1.PolicyRule{
			rule(fleet, "macnodes", mac, "get", "list", "watch"),
			rule(fleet, "macnodes/status", mac, "patch", "update"),
		}},
		&rbacv1.ClusterRoleBinding{ObjectMeta: global, Subjects: subjects, RoleRef: roleRef("ClusterRole", global.Name)},
		&rbacv1.Role{ObjectMeta: local, Rules: []rbacv1.PolicyRule{
			rule(coordinationv1.GroupName, "leases", agent, "get", "update", "patch"),
			rule("", "secrets", agent, "get", "list", "watch"),
			rule("", "serviceaccounts/token", agent, "create"),
		}},
		&rbacv1.RoleBinding{ObjectMeta: local, Subjects: subjects, RoleRef: roleRef("Role", local.Name)},
	}
}
