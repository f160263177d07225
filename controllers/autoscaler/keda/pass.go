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

// Secret in KEDA's namespace with KEDA's client certificate and the operator's roots.
const Secret = "metalfleet-keda"

// keyCA holds the roots that authenticate the operator to KEDA, next to the pair.
const keyCA = "ca.crt"

const (
	// passLife is long: a stream of KEDA's keeps the certificate that it started with,
	// until KEDA restarts. A certificate is invalid once its Secret holds another one.
	passLife = 10 * 365 * 24 * time.Hour
	// passEach is how long a certificate that was read is cached, and how often the leader
	// checks the Secret.
	passEach = 30 * time.Second
	// retryEach is how long an error of that is: strangers cause handshakes, each of which
	// would send a request to the API server. Such a request ends after readTimeout.
	retryEach   = time.Second
	readTimeout = 5 * time.Second
)

// errNoPass means that no client can be accepted yet.
var errNoPass = errors.New("contains no client certificate yet; the leading operator creates one")

// Pass is the one client certificate that KEDA uses. No authority signs it: it is compared
// with the one in the Secret.
type Pass struct {
	// Client reads and writes that Secret, not through a cache.
	Client client.Client
	// Namespace of KEDA.
	Namespace string
	// Authority that signs the operator's certificate, in PEM.
	Authority func(context.Context) ([]byte, error)
	Clock     clock.WithTicker

	mu     sync.Mutex // guards the fields after it
	read   time.Time
	last   []byte
	failed error // of the last read; last is nil then
}

func (p *Pass) get(ctx context.Context) (*corev1.Secret, error) {
	s := &corev1.Secret{}
	if err := p.Client.Get(ctx, client.ObjectKey{Namespace: p.Namespace, Name: Secret}, s); err != nil {
		return nil, fmt.Errorf("read Secret %s/%s, which the chart creates (operator.keda): %w", p.Namespace, Secret, err)
	}
	return s, nil
}

// current returns the current certificate in DER.
func (p *Pass) current(ctx context.Context) ([]byte, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	age := p.Clock.Since(p.read)
	if p.last != nil && age < passEach || p.failed != nil && age < retryEach {
		return p.last, p.failed
	}
	// A client that leaves ends its handshake, and not what others wait for.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), readTimeout)
	defer cancel()
	p.last, p.failed = p.load(ctx)
	p.read = p.Clock.Now()
	return p.last, p.failed
}

// load reads the certificate from KEDA's Secret.
func (p *Pass) load(ctx context.Context) ([]byte, error) {
	s, err := p.get(ctx)
	if err != nil {
		return nil, err
	}
	leaf, err := parsePass(s.Data, p.Clock.Now())
	if err != nil {
		return nil, fmt.Errorf("the Secret %s/%s %w: %w", p.Namespace, Secret, errNoPass, err)
	}
	return leaf.Raw, nil
}

// check accepts the holder of the certificate; TLS has verified the possession of its key.
func (p *Pass) check(pass []byte, raw [][]byte) error {
	if len(raw) == 0 || !bytes.Equal(raw[0], pass) {
		return fmt.Errorf("only KEDA may send requests, with the client certificate of Secret %s/%s", p.Namespace, Secret)
	}
	return nil
}

// keep ensures that the Secret holds a certificate, and the current roots.
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
	p.mu.Lock()
	defer p.mu.Unlock()
	p.failed = nil // there is one to read now
	return nil
}

// parsePass parses a certificate that is valid now.
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

// newPass creates a new certificate.
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
