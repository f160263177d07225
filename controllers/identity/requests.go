package identity

import (
	"context"
	"crypto/ecdsa"
	"fmt"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"metalfleet.dev/metalfleet/api/join"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/internal/notice"
)

// +kubebuilder:rbac:groups=certificates.k8s.io,resources=certificatesigningrequests,verbs=get;list;watch;create;delete
// +kubebuilder:rbac:groups=certificates.k8s.io,resources=certificatesigningrequests/approval;certificatesigningrequests/status,verbs=update
// +kubebuilder:rbac:groups=certificates.k8s.io,resources=signers,resourceNames=metalfleet.dev/agent,verbs=approve;sign

// collectWithin is how long a certificate is available to a Mac that joins. The agent
// deletes its request earlier, once it has everything.
const collectWithin = 2 * time.Minute

// Requests approves and signs the certificate requests of Macs, and invalidates used join
// tokens.
type Requests struct {
	Client client.Client
	// Live reads past the cache: a denial is final, so it must not result from a stale
	// cache.
	Live   client.Reader
	Issuer *Issuer

	// limits bound the requests of each Mac, by their names.
	limits notice.Limits
}

// An agent requests a certificate when it starts and once a day. Each costs about seven calls to
// the API server, and its requester may delete it and create another.
const (
	requestBurst = 32
	requestEvery = 10 * time.Second
)

// SetupWithManager starts the reconciler. It watches requests, and the Secrets of join
// tokens, which it maps to the requests of their accounts.
func (r *Requests) SetupWithManager(mgr ctrl.Manager, o controller.Options) error {
	r.limits.Burst, r.limits.Every = requestBurst, requestEvery
	anchors := handler.EnqueueRequestsFromMapFunc(func(_ context.Context, o client.Object) []reconcile.Request {
		mac := o.GetLabels()[v1alpha1.LabelMac]
		if mac == "" || o.GetName() != join.Account(mac) {
			return nil
		}
		return []reconcile.Request{{NamespacedName: types.NamespacedName{Name: join.RequestName(o.GetName())}}}
	})
	ours := predicate.NewPredicateFuncs(func(o client.Object) bool {
		_, enrols := join.CutEnrolmentRequest(o.GetName())
		return !enrols && o.(*certificatesv1.CertificateSigningRequest).Spec.SignerName == join.Signer
	})
	return ctrl.NewControllerManagedBy(mgr).Named("identity-requests").WithOptions(o).
		For(&certificatesv1.CertificateSigningRequest{}, builder.WithPredicates(ours)).
		Watches(&corev1.Secret{}, anchors).
		Complete(r)
}

// Reconcile completes one request, and its join token.
func (r *Requests) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	var csr certificatesv1.CertificateSigningRequest
	err := r.Client.Get(ctx, req.NamespacedName, &csr)
	switch {
	case apierrors.IsNotFound(err):
		return r.burnUseless(ctx, req.Name)
	case err != nil:
		return reconcile.Result{}, fmt.Errorf("read request %s: %w", req.Name, err)
	case csr.Spec.SignerName != join.Signer || has(&csr, certificatesv1.CertificateDenied) || has(&csr, certificatesv1.CertificateFailed):
		return reconcile.Result{}, nil
	case len(csr.Status.Certificate) > 0:
		return r.burnCollected(ctx, &csr)
	}
	if !r.limits.Allow(csr.Name, r.Issuer.Clock.Now()) {
		return reconcile.Result{RequeueAfter: requestEvery}, nil // until its Mac may request another
	}
	p, err := r.gather(ctx, &csr)
	if err != nil {
		return reconcile.Result{}, err
	}
	key, no := judge(p)
	if no != nil {
		return reconcile.Result{}, r.Issuer.refuse(ctx, &csr, *no)
	}
	if err := r.grant(ctx, p, key); err != nil {
		return reconcile.Result{}, err
	}
	if !p.from.joins {
		return reconcile.Result{}, nil
	}
	// Until a Mac that does not confirm has surely collected what it needs.
	return reconcile.Result{RequeueAfter: collectWithin}, nil
}

// gather reads everything that the judgement of a request needs.
func (r *Requests) gather(ctx context.Context, csr *certificatesv1.CertificateSigningRequest) (petition, error) {
	p := petition{request: csr}
	p.from, p.known = requesterOf(r.Issuer.Namespace, csr.Spec.Username)
	if !p.known {
		return p, nil
	}
	mac, account, anchor := &v1alpha1.MacNode{}, &corev1.ServiceAccount{}, &corev1.Secret{}
	here := func(name string) client.ObjectKey {
		return client.ObjectKey{Namespace: r.Issuer.Namespace, Name: name}
	}
	for _, read := range []struct {
		key  client.ObjectKey
		into client.Object
		keep func()
	}{
		{client.ObjectKey{Name: p.from.mac}, mac, func() { p.mac = mac }},
		{here(p.from.account), account, func() { p.account = account }},
		{here(join.Account(p.from.mac)), anchor, func() { p.anchor = anchor }},
	} {
		err := r.Live.Get(ctx, read.key, read.into)
		if client.IgnoreNotFound(err) != nil {
			return p, fmt.Errorf("read %T %s for a request: %w", read.into, read.key.Name, err)
		}
		if err == nil {
			read.keep()
		}
	}
	return p, nil
}

// grant approves and signs. The join token is claimed first: of two requests with the same
// token, one gets a conflict, and is denied when it is judged again.
func (r *Requests) grant(ctx context.Context, p petition, key *ecdsa.PublicKey) error {
	if p.from.joins {
		if err := r.claim(ctx, p, key); err != nil {
			return err
		}
	}
	if err := r.Issuer.approve(ctx, p.request, "requested by the account of Mac "+p.from.mac); err != nil {
		return err
	}
	life, err := r.Issuer.signRequest(ctx, p.request, key, p.mac)
	if err != nil {
		return err
	}
	ctrl.LoggerFrom(ctx).Info("Certificate issued", "MacNode", p.from.mac, "joins", p.from.joins, "life", life.String())
	return nil
}

// claim binds the join token to this request, and stores what the Mac needs afterwards: the
// first token of its own account, sealed to the request's key.
func (r *Requests) claim(ctx context.Context, p petition, key *ecdsa.PublicKey) error {
	if len(p.anchor.Data[join.KeyAccess]) > 0 {
		return nil // by an earlier pass, for this request: judge checked that
	}
	sealed, err := r.Issuer.firstAccess(ctx, p.from.mac, p.request, key)
	if err != nil {
		return err
	}
	p.anchor.Data[join.KeyRequest], p.anchor.Data[join.KeyAccess] = []byte(p.request.UID), sealed
	if err := r.Client.Update(ctx, p.anchor, client.FieldOwner(v1alpha1.ManagerOperator)); err != nil {
		return fmt.Errorf("claim the join token of Mac %s: %w", p.from.mac, err)
	}
	return nil
}

// burnUseless deletes the Secret of a join token that was used or has expired; its request
// is deleted already.
func (r *Requests) burnUseless(ctx context.Context, request string) (reconcile.Result, error) {
	anchor, err := r.anchorOf(ctx, request)
	if anchor == nil || err != nil {
		return reconcile.Result{}, err
	}
	if len(anchor.Data[join.KeyRequest]) > 0 {
		return reconcile.Result{}, r.burn(ctx, anchor)
	}
	ends, err := time.Parse(time.RFC3339, string(anchor.Data[join.KeyExpires]))
	if err != nil {
		return reconcile.Result{}, nil // its creator has not completed it yet
	}
	if left := ends.Sub(r.Issuer.Clock.Now()); left > 0 {
		return reconcile.Result{RequeueAfter: left}, nil // until the token expires
	}
	return reconcile.Result{}, r.burn(ctx, anchor)
}

// burnCollected deletes it some time after the certificate was issued.
func (r *Requests) burnCollected(ctx context.Context, csr *certificatesv1.CertificateSigningRequest) (reconcile.Result, error) {
	anchor, err := r.anchorOf(ctx, csr.Name)
	if anchor == nil || err != nil || string(anchor.Data[join.KeyRequest]) != string(csr.UID) {
		return reconcile.Result{}, err
	}
	if left := collectable(csr, r.Issuer.Clock.Now()); left > 0 {
		return reconcile.Result{RequeueAfter: left}, nil // until it is surely collected
	}
	return reconcile.Result{}, r.burn(ctx, anchor)
}

// anchorOf returns the Secret for the request of a join account; nil if there is none.
func (r *Requests) anchorOf(ctx context.Context, request string) (*corev1.Secret, error) {
	var anchor corev1.Secret
	mac, ok := cutRequest(request)
	if !ok {
		return nil, nil
	}
	err := r.Live.Get(ctx, client.ObjectKey{Namespace: r.Issuer.Namespace, Name: join.Account(mac)}, &anchor)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read join token of Mac %s: %w", mac, err)
	}
	return &anchor, nil
}

func (r *Requests) burn(ctx context.Context, anchor *corev1.Secret) error {
	err := r.Client.Delete(ctx, anchor, client.Preconditions{UID: &anchor.UID})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) { // a newer one is not ours
		return fmt.Errorf("revoke join token %s: %w", anchor.Name, err)
	}
	ctrl.LoggerFrom(ctx).Info("Join token revoked", "Secret", client.ObjectKeyFromObject(anchor))
	return nil
}
