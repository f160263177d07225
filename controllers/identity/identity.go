// Package identity issues the credentials of agents and gateways, and their permissions in
// the API.
//
// It owns the certificate authority and its rotation, a client certificate for the
// gateways, signing the requests of Macs under our signer name, and per Mac a Lease, a
// Secret with the trusted roots, two ServiceAccounts (a permanent one, and one for join
// tokens only) and the RBAC that lets each see its own objects, by name. It admits Macs that
// enrol with a token for many, and counts them. It never replaces
// an authority that it cannot read, and signs nothing but the server certificate of the Mac
// that requests it. A Mac's key is created on the Mac and never leaves it. No certificate
// is valid for both client and server.
//
// Start reading at Macs.Reconcile, judge, judgeEnrolment and authority; package rotation decides how one
// root follows another, package jointoken creates join tokens.
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

// +kubebuilder:rbac:groups=metalfleet.dev,resources=macnodes,verbs=create;get;list;watch;patch
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

// Issuer maintains the authority and writes leaves into Secrets.
type Issuer struct {
	Client client.Client
	// Namespace of all Secrets.
	Namespace string
	Clock     clock.PassiveClock
	// Life is the maximum validity of a certificate of a Mac or a gateway.
	Life time.Duration

	// mu serializes creating the authority and writing issued-until.
	mu sync.Mutex
}

func (i *Issuer) key() client.ObjectKey {
	return client.ObjectKey{Namespace: i.Namespace, Name: SecretCA}
}

// load reads the authority, or creates it the first time. If two operators create it
// concurrently, one gets an AlreadyExists error, and reads it in its next pass.
func (i *Issuer) load(ctx context.Context) (*authority, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	ca, _, err := i.read(ctx)
	return ca, err
}

// version returns the version of the authority's Secret; it is empty if there is none.
func (i *Issuer) version(ctx context.Context) (string, error) {
	var s corev1.Secret
	if err := i.Client.Get(ctx, i.key(), &s); client.IgnoreNotFound(err) != nil {
		return "", fmt.Errorf("read authority: %w", err)
	} else if err != nil {
		return "", nil
	}
	return string(s.UID) + "/" + s.ResourceVersion, nil
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

// aheadPart is the fraction of a certificate's validity by which issued-until is written
// ahead, so that not every certificate costs a write.
const aheadPart = 10

// signer returns the authority for signing certificates that end at until or earlier.
// issued-until is written before a certificate is signed: an operator that stops in between
// has recorded too late a time, never too early.
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
	most := ca.state.IssuedUntil // written by an old operator, if it is missing
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

// keep renews a leaf in a Secret if needed, and returns when to check again.
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
		// The trusted roots have changed; the certificate remains valid.
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

// Revoke makes all Macs reject the grants of a MacNode that is deleted. Gateways reject its
// certificate, because they see that the MacNode is gone; Macs see no MacNode but their
// own.
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
	// A Mac's clock may be slow by as much as is tolerated for certificates.
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

// publish maintains the trusted roots in a Mac's Secret, which authenticate gateways to it,
// and the MacNodes whose grants it must reject. Other keys are kept: they may be download
// credentials.
func (i *Issuer) publish(ctx context.Context, mac string) error {
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
		// The Secret of an old operator, which created the Mac's key; the type is
		// immutable. The deletion triggers another pass.
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

// lookAgain is how often the certificate of the gateways is compared with the clock: no Mac accepts
// one that is not valid yet.
const lookAgain = time.Minute

// Gateway maintains the client certificate of the gateways.
type Gateway struct{ Issuer *Issuer }

// SetupWithManager starts the reconciler. It watches its Secret and the authority, and runs
// once at the start, when there may be neither.
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

// Reconcile maintains the one certificate, for any request.
func (g *Gateway) Reconcile(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	left, err := g.Issuer.keep(ctx, SecretGateway, leaf{dnsName: agentapi.GatewayName, usage: x509.ExtKeyUsageClientAuth})
	// Until the certificate is due, or not valid any more because the clock was set back.
	return reconcile.Result{RequeueAfter: min(left, lookAgain)}, err
}
