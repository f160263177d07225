// Package identity holds the certificate that authenticates this gateway to Macs, and the
// roots that authenticate Macs to it.
//
// It owns reading one Secret, reloads it without a restart, and decides which connections
// survive a newer one. It rejects a Secret that is incomplete, or whose certificate no Mac
// would accept, and keeps the last valid one.
//
// Start reading at Parse; Watch feeds a Store.
package identity

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/demand"
)

// SecretName is the Secret that the operator creates in its own namespace.
const SecretName = "metalfleet-gateway"

// Keys of the Secret.
const (
	keyCertificate = corev1.TLSCertKey
	keyPrivate     = corev1.TLSPrivateKeyKey
	keyAuthority   = corev1.ServiceAccountRootCAKey // ca.crt
)

// ErrInvalid means that a Secret holds no gateway identity.
var ErrInvalid = errors.New("not a gateway's identity")

// Identity is one version of certificate and roots. It is immutable: equal pointers mean
// equal identities.
type Identity struct {
	certificate tls.Certificate
	roots       *x509.CertPool
	trusted     []string  // fingerprints of the roots
	data        [3]string // the Secret values that it was parsed from
}

// Parse reads the data of the Secret.
func Parse(data map[string][]byte) (*Identity, error) {
	var from [3]string
	for i, key := range []string{keyCertificate, keyPrivate, keyAuthority} {
		if len(data[key]) == 0 {
			return nil, fmt.Errorf("%w: %s is missing", ErrInvalid, key)
		}
		from[i] = string(data[key])
	}
	pair, err := tls.X509KeyPair(data[keyCertificate], data[keyPrivate])
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	if !slices.Contains(pair.Leaf.DNSNames, agentapi.GatewayName) {
		return nil, fmt.Errorf("%w: the certificate is for %v, not for %s", ErrInvalid, pair.Leaf.DNSNames, agentapi.GatewayName)
	}
	roots, trusted, err := agentapi.Roots(data[keyAuthority])
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrInvalid, keyAuthority, err)
	}
	return &Identity{certificate: pair, roots: roots, trusted: trusted, data: from}, nil
}

// Succeeds reports whether connections made under an older identity may continue: every
// root that was trusted then is trusted now. A renewed certificate or an additional root
// closes no connection.
func (i *Identity) Succeeds(older *Identity) bool {
	return !slices.ContainsFunc(older.trusted, func(root string) bool { return !slices.Contains(i.trusted, root) })
}

// ClientTLS returns the TLS configuration for connections to a Mac, whose certificate must
// name mac and the UID of its MacNode.
func (i *Identity) ClientTLS(mac, uid string) *tls.Config {
	return agentapi.RequireUID(agentapi.ClientTLS(func() (*tls.Certificate, error) { return &i.certificate, nil }, i.roots, mac), uid)
}

// OperatorTLS returns the TLS configuration for connections to the operator.
func (i *Identity) OperatorTLS() *tls.Config {
	return demand.ClientTLS(func() (*tls.Certificate, error) { return &i.certificate, nil }, i.roots)
}

type Store struct{ current atomic.Pointer[Identity] }

// Current returns nil until a valid Secret was read.
func (s *Store) Current() *Identity { return s.current.Load() }

// Set replaces the identity, unless the new one was parsed from the same data, and reports
// whether it did. Handshakes from now on use the new one.
func (s *Store) Set(i *Identity) bool {
	if old := s.current.Load(); old != nil && old.data == i.data {
		return false
	}
	s.current.Store(i)
	return true
}

// Kind selects the one Secret that Watch reads.
func Kind(namespace string) cache.ByObject {
	return cache.ByObject{Namespaces: map[string]cache.Config{
		namespace: {FieldSelector: fields.OneTermEqualSelector("metadata.name", SecretName)},
	}}
}

// Watch puts every valid version of the Secret into the store. It returns at once; the
// watch lives as long as the informers.
func Watch(ctx context.Context, informers cache.Informers, s *Store, log logr.Logger) error {
	informer, err := informers.GetInformer(ctx, &corev1.Secret{}, cache.BlockUntilSynced(false))
	if err != nil {
		return fmt.Errorf("watch the Secret %s: %w", SecretName, err)
	}
	set := func(o any) {
		secret, ok := o.(*corev1.Secret)
		if !ok || secret.Name != SecretName {
			return
		}
		identity, err := Parse(secret.Data)
		if err != nil {
			log.Error(err, "The gateway's Secret is invalid; keeping the last valid identity", "Secret", secret.Namespace+"/"+secret.Name)
			return
		}
		if s.Set(identity) {
			log.Info("Identity loaded", "expires", identity.certificate.Leaf.NotAfter, "roots", len(identity.trusted))
		}
	}
	_, err = informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{AddFunc: set, UpdateFunc: func(_, now any) { set(now) }})
	if err != nil {
		return fmt.Errorf("watch the Secret %s: %w", SecretName, err)
	}
	return nil
}
