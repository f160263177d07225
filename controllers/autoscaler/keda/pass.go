package keda

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"math/big"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// Secret in KEDA's namespace by which KEDA proves itself, and knows the operator.
const Secret = "metalfleet-keda"

// keyCA holds the roots by which KEDA knows the operator, beside the pair.
const keyCA = "ca.crt"

const (
	// passLife is long: a stream of KEDA's goes on with the pass that it began with,
	// until KEDA starts anew. A pass ends when its Secret holds another one.
	passLife = 10 * 365 * 24 * time.Hour
	// passEach is how long a pass that was read is believed, and how often the leader
	// looks whether there is one.
	passEach = 30 * time.Second
)

// errNoPass says that nobody can be let in yet.
var errNoPass = errors.New("contains no client certificate yet; the leading operator creates one")

// Pass is the one certificate that KEDA is known by. No authority signs it: it is
// the one in the Secret, or none.
type Pass struct {
	// Client reads and writes that Secret, not through a cache.
	Client client.Client
	// Namespace of KEDA.
	Namespace string
	// Authority that signs the operator's certificate, in PEM.
	Authority func(context.Context) ([]byte, error)
	Clock     clock.WithTicker

	mu   sync.Mutex // guards what follows
	read time.Time
	last []byte
}

func (p *Pass) get(ctx context.Context) (*corev1.Secret, error) {
	s := &corev1.Secret{}
	if err := p.Client.Get(ctx, client.ObjectKey{Namespace: p.Namespace, Name: Secret}, s); err != nil {
		return nil, fmt.Errorf("read Secret %s/%s, which the chart creates (operator.keda): %w", p.Namespace, Secret, err)
	}
	return s, nil
}

// current is the pass of now, in DER.
func (p *Pass) current(ctx context.Context) ([]byte, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.last != nil && p.Clock.Since(p.read) < passEach {
		return p.last, nil
	}
	s, err := p.get(ctx)
	if err != nil {
		return nil, err
	}
	leaf, err := parsePass(s.Data, p.Clock.Now())
	if err != nil {
		return nil, fmt.Errorf("the Secret %s/%s %w: %w", p.Namespace, Secret, errNoPass, err)
	}
	p.last, p.read = leaf.Raw, p.Clock.Now()
	return p.last, nil
}

// check lets in who holds the pass, whose key TLS has seen used.
func (p *Pass) check(pass []byte, raw [][]byte) error {
	if len(raw) == 0 || !bytes.Equal(raw[0], pass) {
		return fmt.Errorf("only KEDA may send requests, with the client certificate of Secret %s/%s", p.Namespace, Secret)
	}
	return nil
}

// keep has the Secret hold a pass, and the authority of now.
func (p *Pass) keep(ctx context.Context) error {
	authority, err := p.Authority(ctx)
	if err != nil {
		return err
	}
	s, err := p.get(ctx)
	if err != nil {
		return err
	}
	data := map[string][]byte{}
	if _, err := parsePass(s.Data, p.Clock.Now()); err != nil {
		if data, err = newPass(p.Clock.Now()); err != nil {
			return err
		}
	}
	data[keyCA] = authority
	before := maps.Clone(s.Data)
	if s.Data == nil {
		s.Data = map[string][]byte{}
	}
	maps.Copy(s.Data, data)
	if maps.EqualFunc(before, s.Data, bytes.Equal) {
		return nil
	}
	if err := p.Client.Update(ctx, s, client.FieldOwner(v1alpha1.ManagerOperator)); err != nil {
		return fmt.Errorf("write Secret %s/%s: %w", p.Namespace, Secret, err)
	}
	return nil
}

// parsePass reads a pass that is good now.
func parsePass(data map[string][]byte, now time.Time) (*x509.Certificate, error) {
	pair, err := tls.X509KeyPair(data[corev1.TLSCertKey], data[corev1.TLSPrivateKeyKey])
	if err != nil {
		return nil, err
	}
	if now.After(pair.Leaf.NotAfter) {
		return nil, fmt.Errorf("it expired at %s", pair.Leaf.NotAfter)
	}
	return pair.Leaf, nil
}

// newPass makes one that nobody has.
func newPass(now time.Time) (map[string][]byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make key: %w", err)
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("make serial: %w", err)
	}
	t := &x509.Certificate{SerialNumber: serial, Subject: pkix.Name{CommonName: Secret}, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(passLife),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, t, t, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("create client certificate: %w", err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("write key: %w", err)
	}
	return map[string][]byte{
		corev1.TLSCertKey:       pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		corev1.TLSPrivateKeyKey: pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}),
	}, nil
}
