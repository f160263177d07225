// Package identity makes what a Mac's agent and the gateways prove themselves
// with, and what lets each of them into the API.
//
// It owns the certificate authority and its rotation, a client certificate for
// the gateways, the signing of what Macs ask for under our signer name, and per
// Mac a Lease, a Secret with the roots to trust, two ServiceAccounts (one for life,
// one that only join tokens speak for) and the RBAC that lets each see what is
// its own, by name. It refuses to replace an authority that it cannot read, and
// to sign anything but the server certificate of the Mac that asks. A Mac's key
// is made on the Mac and never seen here. No certificate is good for both sides.
//
// Start reading at Macs.Reconcile, judge and authority; package rotation decides
// how one root follows another, package jointoken makes join tokens.
package identity

import (
	"bytes"
	"context"
	"crypto/x509"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// +kubebuilder:rbac:groups=metalfleet.dev,resources=macnodes,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=metalfleet.dev,resources=macnodes/status,verbs=get;patch;update
// +kubebuilder:rbac:groups=metalfleet.dev,resources=macnodes/finalizers,verbs=update
// +kubebuilder:rbac:groups=rbac.authorization.k8s.io,resources=clusterroles;clusterrolebindings,verbs=get;list;watch;create;update;delete
// +kubebuilder:rbac:groups=rbac.authorization.k8s.io,resources=roles;rolebindings,namespace=metalfleet-system,verbs=get;list;watch;create;update;delete
// +kubebuilder:rbac:groups="",resources=secrets,namespace=metalfleet-system,verbs=get;list;watch;create;update;delete
// +kubebuilder:rbac:groups="",resources=serviceaccounts,namespace=metalfleet-system,verbs=get;list;watch;create;update;delete
// +kubebuilder:rbac:groups="",resources=serviceaccounts/token,namespace=metalfleet-system,verbs=create
// +kubebuilder:rbac:groups=coordination.k8s.io,resources=leases,namespace=metalfleet-system,verbs=get;list;watch;create;update;patch;delete

// Names of the operator's own Secrets.
const (
	SecretCA      = "metalfleet-ca"
	SecretGateway = "metalfleet-gateway"
)

// Issuer keeps the authority and writes leaves into Secrets.
type Issuer struct {
	Client client.Client
	// Namespace of all Secrets.
	Namespace string
	Clock     clock.PassiveClock
	// Life is the most that a certificate is good for, a Mac's or a gateway's.
	Life time.Duration

	// mu lets one reconciler at a time make the authority, or write how long
	// its certificates live.
	mu sync.Mutex
}

func (i *Issuer) key() client.ObjectKey {
	return client.ObjectKey{Namespace: i.Namespace, Name: SecretCA}
}

// load reads the authority, or makes it the first time. Of two operators that
// make it at once one is told that it exists, and reads it in its next pass.
func (i *Issuer) load(ctx context.Context) (*authority, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	ca, _, err := i.read(ctx)
	return ca, err
}

func (i *Issuer) read(ctx context.Context) (*authority, *corev1.Secret, error) {
	var s corev1.Secret
	err := i.Client.Get(ctx, i.key(), &s)
	if apierrors.IsNotFound(err) {
		return i.create(ctx)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("read authority: %w", err)
	}
	ca, err := parseAuthority(&s, i.Clock.Now())
	return ca, &s, err
}

func (i *Issuer) create(ctx context.Context) (*authority, *corev1.Secret, error) {
	data, err := newAuthority(i.Clock.Now())
	if err != nil {
		return nil, nil, err
	}
	made := secret(i.key(), nil, data)
	if err := i.Client.Create(ctx, made, client.FieldOwner(v1alpha1.ManagerOperator)); err != nil {
		return nil, nil, fmt.Errorf("create authority: %w", err)
	}
	ctrl.LoggerFrom(ctx).Info("Certificate authority created", "Secret", i.key())
	ca, err := parseAuthority(made, i.Clock.Now())
	return ca, made, err
}

// aheadPart of a life is how far the word of when the last certificate ends is
// written ahead, so that not every certificate costs a write.
const aheadPart = 10

// signer is the authority, ready to sign what ends at until and nothing later.
// When its certificates end is written before one is signed: an operator that
// ends in between has said too much, never too little.
func (i *Issuer) signer(ctx context.Context, now time.Time, life time.Duration) (ca *authority, until time.Time, err error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	ca, s, err := i.read(ctx)
	if err != nil {
		return nil, until, err
	}
	until = now.Add(life)
	if until.After(ca.cert.NotAfter) {
		until = ca.cert.NotAfter
	}
	_, said := s.Data[keyIssuedUntil]
	if said && !until.After(ca.state.IssuedUntil) {
		return ca, until, nil
	}
	most := ca.state.IssuedUntil // of an operator of old, if nothing was said
	if ahead := until.Add(life / aheadPart); ahead.After(most) {
		most = ahead
	}
	s = s.DeepCopy()
	s.Data[keyIssuedUntil] = stamp(most)
	if err := i.Client.Update(ctx, s, client.FieldOwner(v1alpha1.ManagerOperator)); err != nil {
		return nil, until, fmt.Errorf("write the latest expiry of certificates: %w", err)
	}
	ca, err = parseAuthority(s, now)
	return ca, until, err
}

// keep holds a leaf in a Secret fresh, and says when to look again.
func (i *Issuer) keep(ctx context.Context, name string, l leaf) (time.Duration, error) {
	ca, err := i.load(ctx)
	if err != nil {
		return 0, err
	}
	var have corev1.Secret
	now, key := i.Clock.Now(), client.ObjectKey{Namespace: i.Namespace, Name: name}
	err = i.Client.Get(ctx, key, &have)
	if client.IgnoreNotFound(err) != nil {
		return 0, fmt.Errorf("read certificate of %s: %w", l.dnsName, err)
	}
	missing := err != nil
	if left := ca.renewIn(l, have.Data, now); left > 0 {
		if bytes.Equal(have.Data[keyCA], ca.bundle) {
			return left, nil
		}
		// Other roots are to be trusted; the certificate is as good as before.
		have.Data[keyCA] = ca.bundle
		return left, i.store(ctx, &have, l.dnsName)
	}
	ca, until, err := i.signer(ctx, now, i.Life)
	if err != nil {
		return 0, err
	}
	data, err := ca.issue(l, now, until)
	if err != nil {
		return 0, err
	}
	if missing {
		err = i.Client.Create(ctx, secret(key, nil, data), client.FieldOwner(v1alpha1.ManagerOperator))
	} else {
		have.Data = data
		err = i.store(ctx, &have, l.dnsName)
	}
	if err != nil {
		return 0, fmt.Errorf("issue certificate of %s: %w", l.dnsName, err)
	}
	ctrl.LoggerFrom(ctx).Info("Certificate issued", "Secret", key, "name", l.dnsName)
	return ca.renewIn(l, data, now), nil
}

func (i *Issuer) store(ctx context.Context, s *corev1.Secret, of string) error {
	if err := i.Client.Update(ctx, s, client.FieldOwner(v1alpha1.ManagerOperator)); err != nil {
		return fmt.Errorf("write Secret of %s: %w", of, err)
	}
	return nil
}

// Revoke has all Macs refuse the grants to a MacNode that is deleted. Its certificate
// is refused by gateways, which see that it is gone; Macs see no MacNode but their own.
func (i *Issuer) Revoke(ctx context.Context, uid string) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	_, s, err := i.read(ctx)
	if err != nil {
		return err
	}
	had, err := agentapi.ReadRevoked(s.Data[keyRevoked])
	if err != nil || had[uid] != 0 {
		return err
	}
	now := i.Clock.Now()
	// A Mac's clock may be as slow as is tolerated for certificates.
	list, err := had.Add(uid, now, now.Add(agentapi.MaxGrantLife+backdate)).Encode()
	if err != nil {
		return err
	}
	s = s.DeepCopy()
	s.Data[keyRevoked] = list
	if err := i.Client.Update(ctx, s, client.FieldOwner(v1alpha1.ManagerOperator)); err != nil {
		return fmt.Errorf("revoke the grants to MacNode %s: %w", uid, err)
	}
	return nil
}

// tell holds the roots to trust in the Secret of a Mac, which knows gateways by
// them, and the MacNodes whose grants it must refuse. Other keys stay: they may be download credentials.
func (i *Issuer) tell(ctx context.Context, mac string) error {
	ca, err := i.load(ctx)
	if err != nil {
		return err
	}
	var have corev1.Secret
	key := client.ObjectKey{Namespace: i.Namespace, Name: v1alpha1.AgentObjectName(mac)}
	err = i.Client.Get(ctx, key, &have)
	switch {
	case apierrors.IsNotFound(err):
		made := secret(key, labels(mac), map[string][]byte{keyCA: ca.bundle, keyRevoked: ca.revoked})
		made.Type = corev1.SecretTypeOpaque
		err = i.Client.Create(ctx, made, client.FieldOwner(v1alpha1.ManagerOperator))
	case err != nil:
	case have.Type != corev1.SecretTypeOpaque:
		// Of an operator that still made the Mac's key; a type cannot be changed.
		// The deletion calls us again.
		err = i.Client.Delete(ctx, &have, client.Preconditions{UID: &have.UID})
	case !bytes.Equal(have.Data[keyCA], ca.bundle) || !bytes.Equal(have.Data[keyRevoked], ca.revoked):
		if have.Data == nil {
			have.Data = map[string][]byte{}
		}
		have.Data[keyCA], have.Data[keyRevoked] = ca.bundle, ca.revoked
		err = i.Client.Update(ctx, &have, client.FieldOwner(v1alpha1.ManagerOperator))
	}
	if err != nil {
		return fmt.Errorf("write the authority to the Secret of Mac %s: %w", mac, err)
	}
	return nil
}

func secret(key client.ObjectKey, labels map[string]string, data map[string][]byte) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name, Labels: labels},
		Type:       corev1.SecretTypeTLS,
		Data:       data,
	}
}

// Gateway keeps the client certificate of the gateways.
type Gateway struct{ Issuer *Issuer }

// SetupWithManager starts the reconciler. It is told of its Secret and of the
// authority, and once at the start, when there may be neither.
func (g *Gateway) SetupWithManager(mgr ctrl.Manager, o controller.Options) error {
	ours := predicate.NewPredicateFuncs(func(o client.Object) bool {
		return o.GetNamespace() == g.Issuer.Namespace && (o.GetName() == SecretCA || o.GetName() == SecretGateway)
	})
	start := make(chan event.GenericEvent, 1)
	start <- event.GenericEvent{Object: secret(client.ObjectKey{Namespace: g.Issuer.Namespace, Name: SecretGateway}, nil, nil)}
	return ctrl.NewControllerManagedBy(mgr).Named("identity-gateway").WithOptions(o).
		For(&corev1.Secret{}, builder.WithPredicates(ours)).
		WatchesRawSource(channel(start)).
		Complete(g)
}

// Reconcile keeps the one certificate, whatever it is called for.
func (g *Gateway) Reconcile(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	left, err := g.Issuer.keep(ctx, SecretGateway, leaf{dnsName: agentapi.GatewayName, usage: x509.ExtKeyUsageClientAuth})
	// Until the certificate is to be renewed.
	return reconcile.Result{RequeueAfter: left}, err
}
