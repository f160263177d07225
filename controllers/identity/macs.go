package identity

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
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

	"metalfleet.dev/metalfleet/api/join"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/fleet"
	"metalfleet.dev/metalfleet/controllers/internal/status"
)

// Macs maintains the identity of each Mac.
type Macs struct {
	Client client.Client
	Issuer *Issuer

	// mu guards gone: when the objects of a MacNode that is being deleted were gone, by its name.
	mu   sync.Mutex
	gone map[string]departure

	writes writeLimits
}

type departure struct {
	uid types.UID
	at  time.Time
}

// remembered is how long an API server may accept a token of an account that is gone: the ten
// seconds for which it caches one, and some for its own view of the account.
const remembered = 12 * time.Second

// SetupWithManager starts the reconciler with its watches: MacNodes that are created or
// deleted, and their objects that were changed or deleted.
func (r *Macs) SetupWithManager(mgr ctrl.Manager, o controller.Options) error {
	b := ctrl.NewControllerManagedBy(mgr).Named("identity-macs").WithOptions(o).
		For(&v1alpha1.MacNode{}, builder.WithPredicates(comesOrGoes()))
	for _, made := range []client.Object{&corev1.Secret{}, &corev1.ServiceAccount{}, &rbacv1.Role{}, &rbacv1.RoleBinding{},
		&rbacv1.ClusterRole{}, &rbacv1.ClusterRoleBinding{}} {
		b = b.Watches(made, handler.EnqueueRequestsFromMapFunc(madeFor))
	}
	// A Lease changes every 10 s; only its deletion matters here.
	onlyDeleted := predicate.Funcs{CreateFunc: func(event.CreateEvent) bool { return false }, UpdateFunc: func(event.UpdateEvent) bool { return false }}
	return b.Watches(&coordinationv1.Lease{}, handler.EnqueueRequestsFromMapFunc(madeFor), builder.WithPredicates(onlyDeleted)).
		Watches(&corev1.Secret{}, handler.EnqueueRequestsFromMapFunc(r.all), builder.WithPredicates(rootsChanged(r.Issuer.key()))).
		Watches(&v1alpha1.MacNode{}, r.counted()).
		Watches(&coordinationv1.Lease{}, r.counted()).
		Watches(&certificatesv1.CertificateSigningRequest{}, r.counted()).
		Complete(r)
}

// all returns all Macs: the trusted roots have changed.
func (r *Macs) all(ctx context.Context, _ client.Object) []reconcile.Request {
	var macs v1alpha1.MacNodeList
	if err := r.Client.List(ctx, &macs, client.UnsafeDisableDeepCopy, client.DisableReadYourWritesConsistency); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Cannot list Macs; they receive the roots of the authority later")
		return nil
	}
	out := make([]reconcile.Request, len(macs.Items))
	for i := range macs.Items {
		out[i].Name = macs.Items[i].Name
	}
	return out
}

// rootsChanged passes only changes of the roots in the authority's Secret.
func rootsChanged(authority client.ObjectKey) predicate.Predicate {
	roots := func(o client.Object) [4]string {
		data := o.(*corev1.Secret).Data
		return [4]string{string(data[keyOld]), string(data[corev1.TLSCertKey]), string(data[keyNext]), string(data[keyRevoked])}
	}
	changed := predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool { return roots(e.ObjectOld) != roots(e.ObjectNew) }}
	return predicate.And(changed, predicate.NewPredicateFuncs(func(o client.Object) bool { return client.ObjectKeyFromObject(o) == authority }))
}

func comesOrGoes() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		return e.ObjectOld.GetDeletionTimestamp().IsZero() != e.ObjectNew.GetDeletionTimestamp().IsZero() || lost(e.ObjectOld) != lost(e.ObjectNew) ||
			len(e.ObjectOld.GetFinalizers()) != len(e.ObjectNew.GetFinalizers())
	}}
}

// lost reports whether a person declared a Mac lost: it may be stolen.
func lost(mac client.Object) bool { return mac.GetAnnotations()[v1alpha1.AnnotationLost] == "true" }

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

// Reconcile creates what is missing, or removes everything when the Mac is deleted.
func (r *Macs) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	var mac v1alpha1.MacNode
	if err := r.Client.Get(ctx, client.ObjectKey{Name: req.Name}, &mac); err != nil {
		if apierrors.IsNotFound(err) {
			r.forget(req.Name)
			r.writes.forget(req.Name)
		}
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if fleet.Leaving(&mac) && !lost(&mac) { // it needs its identity until it is drained
		if !controllerutil.ContainsFinalizer(&mac, v1alpha1.FinalizerIdentity) {
			return reconcile.Result{}, nil
		}
		return r.maintain(ctx, &mac)
	}
	if !mac.DeletionTimestamp.IsZero() {
		wait, err := r.takeBack(ctx, &mac)
		return reconcile.Result{RequeueAfter: wait}, err // until no API server accepts its tokens
	}
	before := mac.DeepCopy()
	if controllerutil.AddFinalizer(&mac, v1alpha1.FinalizerIdentity) {
		if err := r.patch(ctx, &mac, before); err != nil {
			return reconcile.Result{}, client.IgnoreNotFound(err)
		}
	}
	return r.maintain(ctx, &mac)
}

// maintain creates or restores the objects of a Mac. One that is drained has the rest.
func (r *Macs) maintain(ctx context.Context, mac *v1alpha1.MacNode) (reconcile.Result, error) {
	suspended := r.writes.suspended(mac, r.Issuer.Clock.Now())
	for _, want := range r.objects(mac.Name, suspended.IsZero()) {
		if err := ensure(ctx, r.Client, want); err != nil {
			return reconcile.Result{}, err
		}
	}
	stays := mac.DeletionTimestamp.IsZero()
	if stays || !suspended.IsZero() {
		if err := r.letIn(ctx, mac.Name, suspended.IsZero()); err != nil {
			return reconcile.Result{}, err
		}
	}
	err := r.reportSuspension(ctx, mac, suspended)
	if stays {
		err = errors.Join(err, r.Issuer.publish(ctx, mac.Name))
	}
	if err != nil || suspended.IsZero() {
		return reconcile.Result{}, err
	}
	return reconcile.Result{RequeueAfter: max(time.Second, suspended.Sub(r.Issuer.Clock.Now()))}, nil // until it may write again
}

// letIn grants the permissions of the join account while there is a token and the Mac may write. The API server
// evaluates the bindings of all accounts for each request, so that unused ones have a cost.
func (r *Macs) letIn(ctx context.Context, mac string, writes bool) error {
	err := r.Client.Get(ctx, client.ObjectKey{Namespace: r.Issuer.Namespace, Name: join.Account(mac)}, &corev1.Secret{})
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("read the join token of Mac %s: %w", mac, err)
	}
	for _, o := range r.joinRights(mac) {
		if err == nil && writes {
			if err := ensure(ctx, r.Client, o); err != nil {
				return err
			}
		} else if err := withdraw(ctx, r.Client, o); err != nil {
			return err
		}
	}
	return nil
}

// withdraw deletes an object, if there is one.
func withdraw(ctx context.Context, c client.Client, o client.Object) error {
	err := c.Get(ctx, client.ObjectKeyFromObject(o), o)
	if err == nil {
		uid := o.GetUID()
		err = c.Delete(ctx, o, client.Preconditions{UID: &uid})
	}
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("withdraw %T %s: %w", o, o.GetName(), err)
	}
	return nil
}

func (r *Macs) patch(ctx context.Context, mac, before *v1alpha1.MacNode) error {
	err := r.Client.Patch(ctx, mac, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}), client.FieldOwner(v1alpha1.ManagerOperator))
	if err != nil {
		return fmt.Errorf("finalizer of Mac %s: %w", mac.Name, err)
	}
	return nil
}

// takeBack deletes all objects of a Mac, without a garbage collector, and then releases the
// MacNode. It returns how long to wait with that: permissions name an account without its UID,
// so that a token of this account that an API server remembers would be as good as one of the
// Mac that joins under the name next. A certificate stays valid until it expires, but gateways
// connect only to existing MacNodes, and Macs read in their Secrets that it is revoked.
func (r *Macs) takeBack(ctx context.Context, mac *v1alpha1.MacNode) (time.Duration, error) {
	if !controllerutil.ContainsFinalizer(mac, v1alpha1.FinalizerIdentity) {
		return 0, nil
	}
	if since := r.goneSince(mac); since.IsZero() {
		if err := r.remove(ctx, mac); err != nil {
			return 0, err
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.gone == nil {
			r.gone = map[string]departure{}
		}
		r.gone[mac.Name] = departure{mac.UID, r.Issuer.Clock.Now()}
		return remembered, nil
	} else if wait := remembered - r.Issuer.Clock.Now().Sub(since); wait > 0 {
		return min(wait, remembered), nil
	}
	r.writes.forget(mac.Name) // the next of its name is another
	return 0, client.IgnoreNotFound(status.RemoveFinalizer(ctx, r.Client, v1alpha1.ManagerOperator, mac, v1alpha1.FinalizerIdentity))
}

// goneSince returns when the objects of a MacNode were gone; zero if that is not known, as after
// a start of the operator.
func (r *Macs) goneSince(mac *v1alpha1.MacNode) time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	if d := r.gone[mac.Name]; d.uid == mac.UID {
		return d.at
	}
	return time.Time{}
}

func (r *Macs) forget(mac string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.gone, mac)
}

// remove revokes what a Mac was granted, and deletes its objects.
func (r *Macs) remove(ctx context.Context, mac *v1alpha1.MacNode) error {
	switch err := r.Issuer.Revoke(ctx, string(mac.UID)); {
	case errors.Is(err, errNoAuthority): // a damaged authority must not block a deletion
		ctrl.LoggerFrom(ctx).Error(err, "Cannot revoke the grants to a deleted MacNode; Macs honour them until they expire", "MacNode", mac.Name)
	case err != nil:
		return err
	}
	objects := append(r.objects(mac.Name, true), r.joinRights(mac.Name)...)
	for _, account := range []string{v1alpha1.AgentObjectName(mac.Name), join.Account(mac.Name)} {
		objects = append(objects, secret(client.ObjectKey{Namespace: r.Issuer.Namespace, Name: account}, nil, nil),
			&certificatesv1.CertificateSigningRequest{ObjectMeta: metav1.ObjectMeta{Name: join.RequestName(account)}})
	}
	var errs []error
	for _, o := range objects {
		if err := r.Client.Delete(ctx, o, client.DisableReadYourWritesConsistency); client.IgnoreNotFound(err) != nil {
			errs = append(errs, fmt.Errorf("delete %T %s: %w", o, o.GetName(), err))
		}
	}
	return errors.Join(errs...)
}

// ensure creates an object, or restores its relevant part.
func ensure(ctx context.Context, c client.Client, want client.Object) error {
	have := want.DeepCopyObject().(client.Object)
	err := c.Get(ctx, client.ObjectKeyFromObject(want), have)
	switch {
	case apierrors.IsNotFound(err):
		err = c.Create(ctx, want, client.FieldOwner(v1alpha1.ManagerOperator))
	case err == nil && !status.Equal(substance(have), substance(want)):
		want.SetResourceVersion(have.GetResourceVersion())
		err = c.Update(ctx, want, client.FieldOwner(v1alpha1.ManagerOperator))
	}
	if err != nil {
		return fmt.Errorf("ensure %T %s: %w", want, want.GetName(), err)
	}
	return nil
}

// substance returns the relevant part of an object; the rest may belong to others.
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
		// A Lease's spec is the agent's; a ServiceAccount has no fields of ours.
		return nil
	}
}

func labels(mac string) map[string]string { return map[string]string{v1alpha1.LabelMac: mac} }

// objects returns what a Mac's agent needs in the API, without its Secret. One that may not write only reads.
func (r *Macs) objects(mac string, writes bool) []client.Object {
	own, group := v1alpha1.AgentObjectName(mac), v1alpha1.GroupVersion.Group
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: r.Issuer.Namespace, Name: own, Labels: labels(mac)},
		Spec: coordinationv1.LeaseSpec{LeaseDurationSeconds: ptr.To[int32](v1alpha1.MacSilentSeconds)}}
	global := []rbacv1.PolicyRule{
		rule(group, "macnodes", mac, "get", "list", "watch"),
		rule(group, "macassignments", mac, "get", "list", "watch"),
	}
	local := []rbacv1.PolicyRule{
		rule(coordinationv1.GroupName, "leases", own, "get"),
		rule("", "secrets", own, "get", "list", "watch"),
		rule("", "serviceaccounts/token", own, "create"),
	}
	if writes {
		global = append(append(global, rule(group, "macnodes/status", mac, "patch", "update")), requests(own)...)
		local[0].Verbs = append(local[0].Verbs, "update", "patch")
	}
	objects := []client.Object{lease, r.account(mac, own), r.account(mac, join.Account(mac))}
	return append(objects, r.rights(mac, own, global, local)...)
}

// joinRights returns the permissions of the join account of a Mac.
func (r *Macs) joinRights(mac string) []client.Object {
	joins := join.Account(mac)
	return r.rights(mac, joins, requests(joins), []rbacv1.PolicyRule{rule("", "secrets", joins, "get")})
}

// requests returns the rules for certificate requests. RBAC cannot restrict create to a
// name; the admission policy and judge do that.
func requests(account string) []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{
		{APIGroups: []string{certificatesv1.GroupName}, Resources: []string{"certificatesigningrequests"}, Verbs: []string{"create"}},
		rule(certificatesv1.GroupName, "certificatesigningrequests", join.RequestName(account), "get", "delete"),
	}
}

func rule(group, resource, name string, verbs ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: []string{resource}, ResourceNames: []string{name}, Verbs: verbs}
}

func (r *Macs) account(mac, name string) client.Object {
	return &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: r.Issuer.Namespace, Name: name, Labels: labels(mac)}, AutomountServiceAccountToken: ptr.To(false)}
}

// rights returns the cluster-wide and namespaced permissions of an account. The binding
// names it as a user, which the API server compares faster than namespace and name, for
// each binding and request.
func (r *Macs) rights(mac, account string, global, local []rbacv1.PolicyRule) []client.Object {
	here := metav1.ObjectMeta{Namespace: r.Issuer.Namespace, Name: account, Labels: labels(mac)}
	everywhere := metav1.ObjectMeta{Name: "metalfleet-" + account, Labels: labels(mac)}
	subjects := []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: userOf(here.Namespace, account)}}
	roleRef := func(kind, name string) rbacv1.RoleRef {
		return rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: kind, Name: name}
	}
	return []client.Object{
		&rbacv1.ClusterRole{ObjectMeta: everywhere, Rules: global},
		&rbacv1.ClusterRoleBinding{ObjectMeta: everywhere, Subjects: subjects, RoleRef: roleRef("ClusterRole", everywhere.Name)},
		&rbacv1.Role{ObjectMeta: here, Rules: local},
		&rbacv1.RoleBinding{ObjectMeta: here, Subjects: subjects, RoleRef: roleRef("Role", here.Name)},
	}
}
