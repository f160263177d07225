package identity

import (
	"context"
	"fmt"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"metalfleet.dev/metalfleet/api/join"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// Enrolments gives the account of each enrolment token its permissions, and takes them back
// when the token expires or its Secret is deleted. Macs that enrolled stay.
type Enrolments struct {
	Client client.Client
	Issuer *Issuer
}

// SetupWithManager starts the reconciler: it watches the Secrets of enrolments, and what it
// created for them.
func (r *Enrolments) SetupWithManager(mgr ctrl.Manager, o controller.Options) error {
	named := handler.EnqueueRequestsFromMapFunc(func(_ context.Context, o client.Object) []reconcile.Request {
		name := o.GetLabels()[v1alpha1.LabelEnrolment]
		if join.CheckEnrolment(name) != nil {
			return nil
		}
		return []reconcile.Request{{NamespacedName: client.ObjectKey{Name: name}}}
	})
	b := ctrl.NewControllerManagedBy(mgr).Named("identity-enrolments").WithOptions(o)
	for _, made := range []client.Object{&corev1.Secret{}, &corev1.ServiceAccount{}, &rbacv1.ClusterRole{}, &rbacv1.ClusterRoleBinding{}} {
		b = b.Watches(made, named)
	}
	return b.Complete(r)
}

// Reconcile maintains one enrolment.
func (r *Enrolments) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	var anchor corev1.Secret
	err := r.Client.Get(ctx, client.ObjectKey{Namespace: r.Issuer.Namespace, Name: join.EnrolmentAccount(req.Name)}, &anchor)
	if apierrors.IsNotFound(err) || err == nil && !anchor.DeletionTimestamp.IsZero() {
		return reconcile.Result{}, r.takeBack(ctx, req.Name)
	}
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("read enrolment %s: %w", req.Name, err)
	}
	e, err := join.ReadEnrolment(anchor.Data)
	if err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "An enrolment is damaged and admits no Mac; revoke it and create another one", "enrolment", req.Name)
		return reconcile.Result{}, r.takeBack(ctx, req.Name)
	}
	if !e.Expires.IsZero() && !r.Issuer.Clock.Now().Before(e.Expires) {
		if err := r.Client.Delete(ctx, &anchor, client.Preconditions{UID: &anchor.UID}); client.IgnoreNotFound(err) != nil && !apierrors.IsConflict(err) {
			return reconcile.Result{}, fmt.Errorf("delete expired enrolment %s: %w", req.Name, err)
		}
		return reconcile.Result{}, r.takeBack(ctx, req.Name)
	}
	for _, want := range r.objects(req.Name) {
		if err := ensure(ctx, r.Client, want); err != nil {
			return reconcile.Result{}, err
		}
	}
	if e.Expires.IsZero() {
		return reconcile.Result{}, nil // its creator has not completed it yet
	}
	return reconcile.Result{RequeueAfter: e.Expires.Sub(r.Issuer.Clock.Now())}, nil // until it expires
}

// objects are the account of an enrolment, and its permission to make and read the certificate
// requests of its slots. It may not delete them: a person who approves one must not approve
// another one that took its place.
func (r *Enrolments) objects(enrolment string) []client.Object {
	account := join.EnrolmentAccount(enrolment)
	labels := map[string]string{v1alpha1.LabelEnrolment: enrolment}
	slots := make([]string, join.EnrolmentSlots)
	for i := range slots {
		slots[i] = join.EnrolmentRequest(enrolment, i)
	}
	// The operator's cache holds only the ClusterRoles that have LabelMac.
	everywhere := metav1.ObjectMeta{Name: "metalfleet-" + account, Labels: map[string]string{v1alpha1.LabelEnrolment: enrolment, v1alpha1.LabelMac: ""}}
	return []client.Object{
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: r.Issuer.Namespace, Name: account, Labels: labels}, AutomountServiceAccountToken: ptr.To(false)},
		&rbacv1.ClusterRole{ObjectMeta: everywhere, Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{certificatesv1.GroupName}, Resources: []string{"certificatesigningrequests"}, Verbs: []string{"create"}},
			{APIGroups: []string{certificatesv1.GroupName}, Resources: []string{"certificatesigningrequests"}, ResourceNames: slots, Verbs: []string{"get"}},
		}},
		&rbacv1.ClusterRoleBinding{ObjectMeta: everywhere,
			Subjects: []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: userOf(r.Issuer.Namespace, account)}},
			RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: everywhere.Name}},
	}
}

// takeBack deletes the account of an enrolment that ended, its permissions and its requests.
func (r *Enrolments) takeBack(ctx context.Context, enrolment string) error {
	for _, o := range r.objects(enrolment) {
		if err := withdraw(ctx, r.Client, o); err != nil {
			return err
		}
	}
	var requests certificatesv1.CertificateSigningRequestList
	if err := r.Client.List(ctx, &requests); err != nil {
		return fmt.Errorf("list requests of enrolment %s: %w", enrolment, err)
	}
	for k := range requests.Items {
		csr := &requests.Items[k]
		if of, ok := join.CutEnrolmentRequest(csr.Name); !ok || of != enrolment || len(csr.Status.Certificate) > 0 {
			continue // one that was signed is collected first
		}
		if err := r.Client.Delete(ctx, csr, client.Preconditions{UID: &csr.UID}); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("delete request %s: %w", csr.Name, err)
		}
	}
	return nil
}

// accountSoon is the pause until the account of a new Mac is looked for again.
const accountSoon = 100 * time.Millisecond

// EnrolmentRequests admits Macs that enrol: it judges their certificate requests one at a
// time, counts them, creates their MacNodes and signs.
type EnrolmentRequests struct {
	Client client.Client
	// Live reads past the cache: a denial is final.
	Live   client.Reader
	Issuer *Issuer
}

// SetupWithManager starts the reconciler. Requests are handled one at a time, so that the count of a token is exact.
func (r *EnrolmentRequests) SetupWithManager(mgr ctrl.Manager, o controller.Options) error {
	o.MaxConcurrentReconciles = 1
	ours := predicate.NewPredicateFuncs(func(o client.Object) bool {
		_, enrols := join.CutEnrolmentRequest(o.GetName())
		return enrols && o.(*certificatesv1.CertificateSigningRequest).Spec.SignerName == join.Signer
	})
	return ctrl.NewControllerManagedBy(mgr).Named("identity-enrolment-requests").WithOptions(o).
		For(&certificatesv1.CertificateSigningRequest{}, builder.WithPredicates(ours)).
		Complete(r)
}

// Reconcile completes one request.
func (r *EnrolmentRequests) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	var csr certificatesv1.CertificateSigningRequest
	if err := r.Live.Get(ctx, req.NamespacedName, &csr); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if has(&csr, certificatesv1.CertificateDenied) || has(&csr, certificatesv1.CertificateFailed) || len(csr.Status.Certificate) > 0 {
		return r.freeSlot(ctx, &csr)
	}
	a, err := r.gather(ctx, &csr)
	if err != nil {
		return reconcile.Result{}, err
	}
	who, no := judgeEnrolment(a)
	if no != nil {
		if err := r.Issuer.refuse(ctx, &csr, *no); err != nil {
			return reconcile.Result{}, err
		}
		return r.freeSlot(ctx, &csr)
	}
	if who.enrolment.Approval && !has(&csr, certificatesv1.CertificateApproved) {
		return reconcile.Result{}, nil // until a person approves it, or the token ends
	}
	return r.admit(ctx, a, who)
}

// freeSlot deletes a request some time after it was decided.
func (r *EnrolmentRequests) freeSlot(ctx context.Context, csr *certificatesv1.CertificateSigningRequest) (reconcile.Result, error) {
	if left := collectable(csr, r.Issuer.Clock.Now()); left > 0 {
		return reconcile.Result{RequeueAfter: left}, nil // until the Mac has surely read it
	}
	err := r.Client.Delete(ctx, csr, client.Preconditions{UID: &csr.UID})
	if client.IgnoreNotFound(err) != nil && !apierrors.IsConflict(err) {
		return reconcile.Result{}, fmt.Errorf("delete request %s: %w", csr.Name, err)
	}
	return reconcile.Result{}, nil
}

// gather reads everything that the judgement of a request needs.
func (r *EnrolmentRequests) gather(ctx context.Context, csr *certificatesv1.CertificateSigningRequest) (application, error) {
	a := application{request: csr, namespace: r.Issuer.Namespace, now: r.Issuer.Clock.Now()}
	a.enrolment, _ = join.CutEnrolmentRequest(csr.Name)
	at := client.ObjectKey{Namespace: r.Issuer.Namespace, Name: join.EnrolmentAccount(a.enrolment)}
	account, anchor, mac := &corev1.ServiceAccount{}, &corev1.Secret{}, &v1alpha1.MacNode{}
	read := func(key client.ObjectKey, into client.Object, keep func()) error {
		err := r.Live.Get(ctx, key, into)
		if err == nil {
			keep()
		}
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("read %T %s for a request: %w", into, key.Name, err)
		}
		return nil
	}
	if err := read(at, account, func() { a.account = account }); err != nil {
		return a, err
	}
	if err := read(at, anchor, func() { a.anchor = anchor }); err != nil {
		return a, err
	}
	name, err := join.RequestMac(csr.Spec.Request)
	if err != nil {
		return a, nil // which the judgement finds
	}
	return a, read(client.ObjectKey{Name: name}, mac, func() { a.mac = mac })
}

// admit counts the Mac, creates what it needs, and signs. Each step can be repeated: a use is
// recorded with the request that it is for, before anything is created.
func (r *EnrolmentRequests) admit(ctx context.Context, a application, who entrant) (reconcile.Result, error) {
	if _, counted := who.enrolment.Uses[who.mac]; !counted {
		who.enrolment.Uses[who.mac] = join.Use{Key: who.fingerprint, Request: string(a.request.UID)}
		a.anchor.Data = who.enrolment.Data()
		// A conflict means that the token was revoked or replaced: it is judged again.
		if err := r.Client.Update(ctx, a.anchor, client.FieldOwner(v1alpha1.ManagerOperator)); err != nil {
			return reconcile.Result{}, fmt.Errorf("count Mac %s in enrolment %s: %w", who.mac, a.enrolment, err)
		}
	}
	if a.mac == nil {
		a.mac = &v1alpha1.MacNode{ObjectMeta: metav1.ObjectMeta{Name: who.mac,
			Labels:      map[string]string{v1alpha1.LabelEnrolment: a.enrolment},
			Annotations: map[string]string{v1alpha1.AnnotationEnrolledKey: who.fingerprint}}}
		// If another one was created meanwhile, the request is judged again and denied.
		if err := r.Client.Create(ctx, a.mac, client.FieldOwner(v1alpha1.ManagerOperator)); err != nil {
			return reconcile.Result{}, fmt.Errorf("create MacNode %s: %w", who.mac, err)
		}
	}
	return r.sign(ctx, a, who)
}

// sign waits for the Mac's account, which another reconciler creates.
func (r *EnrolmentRequests) sign(ctx context.Context, a application, who entrant) (reconcile.Result, error) {
	sealed, err := r.Issuer.firstAccess(ctx, who.mac, a.request, who.key)
	if apierrors.IsNotFound(err) {
		return reconcile.Result{RequeueAfter: accountSoon}, nil // until its account exists
	}
	if err != nil {
		return reconcile.Result{}, err
	}
	if err := r.Issuer.approve(ctx, a.request, "Mac "+who.mac+" enrols with the token "+a.enrolment); err != nil {
		return reconcile.Result{}, err
	}
	r.Issuer.setCondition(a.request, join.ConditionAccess, join.ReasonIssued, join.EncodeAccess(sealed))
	if _, err := r.Issuer.signRequest(ctx, a.request, who.key, a.mac); err != nil {
		return reconcile.Result{}, err
	}
	ctrl.LoggerFrom(ctx).Info("A Mac enrolled", "MacNode", who.mac, "enrolment", a.enrolment, "key", who.fingerprint, "left", who.enrolment.Left())
	return reconcile.Result{RequeueAfter: collectWithin}, nil // until the Mac has surely read it
}
