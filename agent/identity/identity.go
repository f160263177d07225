// Package identity is who this Mac is to gateways: its TLS key and certificate,
// and the roots of the authority that gateways are checked against.
//
// It owns the key, which is made here and never leaves the Mac, the requests by
// which the key gets a certificate, and a file of mode 0600 with all three, so
// that a Mac serves after a restart while the API is away. Which roots are
// trusted, and which deleted Macs have grants no more, follows the Secret "mac-NAME"
// at once. The agent reports the former, so that the operator knows when another
// root may sign. Key and certificate are replaced when 70 % of the certificate's life is over, or when no trusted root has
// signed it. Both are read at each handshake: nothing that runs is cut. It
// refuses a pair that does not match, a certificate that is not for this Mac,
// one that no trusted root has signed, and roots that cannot all be read, and
// then keeps what it has.
//
// Start reading at Identity.Run, then Obtain.
package identity

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"

	"metalfleet.dev/metalfleet/api/agentapi"
)

// errNone means that no certificate was received yet.
var errNone = errors.New("this Mac has no certificate yet")

const fileName = "identity.json"

// material is an identity as it is stored, in PEM.
type material struct {
	Certificate []byte `json:"certificate"`
	Key         []byte `json:"key"`
	Authority   []byte `json:"authority"`
	// Revoked are the deleted MacNodes, as the Secret named them last.
	Revoked agentapi.Revoked `json:"revoked,omitempty"`
}

func (m material) equal(o material) bool {
	return bytes.Equal(m.Certificate, o.Certificate) && bytes.Equal(m.Key, o.Key) && bytes.Equal(m.Authority, o.Authority)
}

// trusted are the roots that gateways are checked against.
type trusted struct {
	roots        *x509.CertPool
	fingerprints []string
}

// current is an identity in use.
type current struct {
	material material
	leaf     *x509.Certificate
	config   *tls.Config
	// pair and roots are what config is made of, for other Macs as well.
	pair  *tls.Certificate
	roots *x509.CertPool
	// vouched: a trusted root has signed the certificate.
	vouched bool
	// since is when this process began to use the certificate; fresh: it was
	// issued at that time, and does not come from the disk.
	since time.Time
	fresh bool
}

// Identity is this Mac's identity, as far as it is known.
type Identity struct {
	mac, path string
	log       logr.Logger
	current   atomic.Pointer[current]
	trusted   atomic.Pointer[trusted]
	revoked   atomic.Pointer[agentapi.Revoked]
	wakes     chan struct{}
	changes   chan struct{}

	mu        sync.Mutex // guards authority, and what replaces current
	authority []byte     // what the Secret named last, in PEM
}

// Open takes up the identity on disk in dir, if one is there and any good.
func Open(dir, mac string, log logr.Logger) (*Identity, error) {
	i := &Identity{mac: mac, path: filepath.Join(dir, fileName), log: log,
		wakes: make(chan struct{}, 1), changes: make(chan struct{}, 1)}
	b, err := os.ReadFile(i.path)
	if errors.Is(err, fs.ErrNotExist) {
		return i, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read identity: %w", err)
	}
	var m material
	if err = json.Unmarshal(b, &m); err == nil {
		i.revoked.Store(&m.Revoked)
		err = i.use(m, false)
	}
	if err != nil { // another one is asked for
		log.Error(err, "Ignoring the stored identity", "file", i.path)
	}
	return i, nil
}

// Take uses and stores a key with its certificate and the authority, in PEM.
func (i *Identity) Take(certificate, key, authority []byte) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.take(material{Certificate: certificate, Key: key, Authority: authority})
}

// renewed uses and stores a key with its certificate, under the roots of now.
func (i *Identity) renewed(certificate, key []byte) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.take(material{Certificate: certificate, Key: key, Authority: i.newest()})
}

// take uses an identity and stores it.
func (i *Identity) take(m material) error {
	if c := i.current.Load(); c != nil && c.material.equal(m) {
		return nil
	}
	if err := i.use(m, true); err != nil {
		return err
	}
	i.log.Info("Certificate is in use", "expires", i.current.Load().leaf.NotAfter)
	return i.keep(m)
}

func (i *Identity) keep(m material) error {
	if r := i.revoked.Load(); r != nil {
		m.Revoked = *r
	}
	b, err := json.Marshal(m)
	if err != nil {
		return fmt.Errorf("encode identity: %w", err)
	}
	return store(i.path, b)
}

// use checks an identity and makes it the current one.
func (i *Identity) use(m material, fresh bool) error {
	cert, err := tls.X509KeyPair(m.Certificate, m.Key)
	if err != nil {
		return fmt.Errorf("certificate and key: %w", err)
	}
	roots, fingerprints, err := agentapi.Roots(m.Authority)
	if err != nil {
		return err
	}
	if err := verify(&cert, roots, i.mac, time.Now()); err != nil {
		return err
	}
	i.set(&current{material: m, leaf: cert.Leaf, config: serverTLS(&cert, roots), pair: &cert, roots: roots, vouched: true, since: time.Now(), fresh: fresh})
	i.trust(roots, fingerprints)
	return nil
}

// set makes an identity the current one; a certificate that stays keeps its age.
func (i *Identity) set(next *current) {
	if c := i.current.Load(); c != nil && bytes.Equal(c.material.Certificate, next.material.Certificate) {
		next.since, next.fresh = c.since, c.fresh
	}
	i.current.Store(next)
}

func serverTLS(cert *tls.Certificate, roots *x509.CertPool) *tls.Config {
	return agentapi.ServerTLS(func() (*tls.Certificate, error) { return cert, nil }, roots)
}

// trust sets the roots that are trusted from now on.
func (i *Identity) trust(roots *x509.CertPool, fingerprints []string) {
	slices.Sort(fingerprints)
	if old := i.trusted.Swap(&trusted{roots: roots, fingerprints: fingerprints}); old != nil && slices.Equal(old.fingerprints, fingerprints) {
		return
	}
	select {
	case i.changes <- struct{}{}:
	default:
	}
}

// TrustedRoots are the fingerprints of the roots that gateways are checked
// against at the next handshake.
func (i *Identity) TrustedRoots() []string {
	if t := i.trusted.Load(); t != nil {
		return slices.Clone(t.fingerprints)
	}
	return nil
}

// Trusts reports whether the root under which a connection of a gateway was opened is still
// trusted. A certificate that has expired since does not matter.
func (i *Identity) Trusts(s *tls.ConnectionState) bool {
	t := i.trusted.Load()
	if t == nil || s == nil || len(s.PeerCertificates) == 0 {
		return false
	}
	at := verifyAt(s.PeerCertificates[0], time.Now())
	return agentapi.Peer{Roots: t.roots, Usage: x509.ExtKeyUsageClientAuth, Now: at}.Verify(s.PeerCertificates) == nil
}

// Revoked reports whether the MacNode with that UID was deleted. Its certificate and
// grants may still be valid then.
func (i *Identity) Revoked(uid string) bool {
	r := i.revoked.Load()
	return r != nil && (*r)[uid] != 0
}

// Changed receives after other roots are trusted.
func (i *Identity) Changed() <-chan struct{} { return i.changes }

// verify refuses what could not serve: gateways would refuse it too, later and
// with less to say.
func verify(cert *tls.Certificate, roots *x509.CertPool, mac string, now time.Time) error {
	certs := []*x509.Certificate{cert.Leaf}
	for _, der := range cert.Certificate[1:] {
		c, err := x509.ParseCertificate(der)
		if err != nil {
			return fmt.Errorf("certificate of this Mac: %w", err)
		}
		certs = append(certs, c)
	}
	err := agentapi.Peer{Roots: roots, Usage: x509.ExtKeyUsageServerAuth, Name: agentapi.MacServerName(mac), Now: verifyAt(cert.Leaf, now)}.Verify(certs)
	if err != nil {
		return fmt.Errorf("certificate of this Mac: %w", err)
	}
	return nil
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
	now := func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		c := i.current.Load()
		if c == nil {
			return nil, errNone
		}
		if slices.Contains(hello.SupportedProtos, agentapi.ProtoWeights) {
			return agentapi.WeightsServerTLS(c.certificate, c.roots), nil
		}
		return c.config, nil
	}
	// The outer configuration never completes a handshake itself; it is as
	// strict as the inner ones in case it did.
	outer := agentapi.ServerTLS(func() (*tls.Certificate, error) { return nil, errNone }, x509.NewCertPool())
	outer.GetConfigForClient = now
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
