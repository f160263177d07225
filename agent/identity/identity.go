// Package identity is who this Mac is to gateways: its TLS certificate and
// the authority that gateways are checked against.
//
// It owns the Secret "mac-NAME" as the agent sees it, and a copy on disk of
// mode 0600, so that a Mac serves after a restart while the API is away. It
// takes a renewed certificate without a restart. It refuses a pair that does
// not match, a certificate that is not for this Mac, and one that its own
// authority did not sign, and then keeps what it has. It makes no keys.
//
// Start reading at Parse, then Identity.Run.
package identity

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/agent/register"
	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// ErrNone says that no identity was received yet.
var ErrNone = errors.New("this Mac has no certificate yet")

const fileName = "identity.json"

// material is an identity as it is stored, in PEM.
type material struct {
	Certificate []byte `json:"certificate"`
	Key         []byte `json:"key"`
	Authority   []byte `json:"authority"`
}

func (m material) equal(o material) bool {
	return bytes.Equal(m.Certificate, o.Certificate) && bytes.Equal(m.Key, o.Key) && bytes.Equal(m.Authority, o.Authority)
}

// current is an identity in use.
type current struct {
	material material
	config   *tls.Config
}

// Identity is this Mac's identity, as far as it is known.
type Identity struct {
	mac, path string
	log       logr.Logger
	current   atomic.Pointer[current]
}

// Open takes up the identity on disk in dir, if one is there and any good.
func Open(dir, mac string, log logr.Logger) (*Identity, error) {
	i := &Identity{mac: mac, path: filepath.Join(dir, fileName), log: log}
	b, err := os.ReadFile(i.path)
	if errors.Is(err, fs.ErrNotExist) {
		return i, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read identity: %w", err)
	}
	var m material
	if err = json.Unmarshal(b, &m); err == nil {
		err = i.use(m)
	}
	if err != nil { // the Secret will bring another
		log.Error(err, "The stored identity is not used", "file", i.path)
	}
	return i, nil
}

// Run follows the Secret in namespace until ctx ends.
func (i *Identity) Run(ctx context.Context, c client.WithWatch, namespace string) error {
	key := types.NamespacedName{Namespace: namespace, Name: v1alpha1.AgentObjectName(i.mac)}
	return register.Follow(ctx, c, &corev1.SecretList{}, key, i.log, func(s *corev1.Secret) {
		m := material{Certificate: s.Data[corev1.TLSCertKey], Key: s.Data[corev1.TLSPrivateKeyKey], Authority: s.Data[corev1.ServiceAccountRootCAKey]}
		if err := i.take(m); err != nil {
			i.log.Error(err, "The Secret's identity is not used", "Secret", key)
		}
	})
}

// take uses an identity and stores it.
func (i *Identity) take(m material) error {
	if c := i.current.Load(); c != nil && c.material.equal(m) {
		return nil
	}
	if err := i.use(m); err != nil {
		return err
	}
	i.log.Info("Identity is taken from the Secret")
	b, err := json.Marshal(m)
	if err != nil {
		return fmt.Errorf("encode identity: %w", err)
	}
	return store(i.path, b)
}

// use checks an identity and makes it the current one.
func (i *Identity) use(m material) error {
	cert, roots, err := parse(m, i.mac, time.Now())
	if err != nil {
		return err
	}
	config := agentapi.ServerTLS(func() (*tls.Certificate, error) { return cert, nil }, roots)
	i.current.Store(&current{material: m, config: config})
	return nil
}

// parse refuses what could not serve: gateways would refuse it too, later and
// with less to say.
func parse(m material, mac string, now time.Time) (*tls.Certificate, *x509.CertPool, error) {
	cert, err := tls.X509KeyPair(m.Certificate, m.Key)
	if err != nil {
		return nil, nil, fmt.Errorf("certificate and key: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(m.Authority) {
		return nil, nil, errors.New("the authority holds no certificate")
	}
	intermediates := x509.NewCertPool()
	for _, der := range cert.Certificate[1:] {
		if c, err := x509.ParseCertificate(der); err == nil {
			intermediates.AddCert(c)
		}
	}
	_, err = cert.Leaf.Verify(x509.VerifyOptions{
		DNSName: agentapi.MacServerName(mac), Roots: roots, Intermediates: intermediates,
		CurrentTime: verifyAt(cert.Leaf, now), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	if err != nil {
		return nil, nil, fmt.Errorf("certificate of this Mac: %w", err)
	}
	return &cert, roots, nil
}

// verifyAt moves the check into the time of validity: a Mac's clock may be
// wrong, and who accepts an expired certificate is the gateway's business.
func verifyAt(leaf *x509.Certificate, now time.Time) time.Time {
	if now.Before(leaf.NotBefore) || now.After(leaf.NotAfter) {
		return leaf.NotBefore.Add(leaf.NotAfter.Sub(leaf.NotBefore) / 2)
	}
	return now
}

// Known reports whether there is an identity to serve with.
func (i *Identity) Known() bool { return i.current.Load() != nil }

// ServerTLS is how the agent listens, with the identity of each moment.
func (i *Identity) ServerTLS() *tls.Config {
	now := func() (*tls.Config, error) {
		c := i.current.Load()
		if c == nil {
			return nil, ErrNone
		}
		return c.config, nil
	}
	// The outer configuration never completes a handshake itself; it is as
	// strict as the inner ones in case it did.
	outer := agentapi.ServerTLS(func() (*tls.Certificate, error) { return nil, ErrNone }, x509.NewCertPool())
	outer.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return now() }
	return outer
}

// store writes a file of mode 0600, whole or not at all.
func store(path string, b []byte) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), ".identity-*") // of mode 0600
	if err != nil {
		return fmt.Errorf("store identity: %w", err)
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name())
		}
	}()
	_, err = f.Write(b)
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("store identity: %w", err)
	}
	return nil
}
