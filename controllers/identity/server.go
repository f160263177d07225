package identity

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/demand"
)

// Server is the operator's own certificate for its listeners. It is in no Secret: each
// operator issues one when it needs it.
type Server struct {
	Issuer *Issuer
	// Name in the certificate; empty means the name that gateways expect.
	Name string

	mu   sync.Mutex // guards the fields after it
	held map[string][]byte
	last *parsed // nil before the first handshake
}

// parsed is what handshakes use. Strangers cause handshakes, so that it is parsed once for
// each version of the authority, and when the certificate is due.
type parsed struct {
	version     string
	due         time.Time
	certificate *tls.Certificate
	roots       *x509.CertPool
}

// TLS accepts only gateways. Each handshake uses the current certificate and roots.
func (s *Server) TLS() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13, CurvePreferences: agentapi.Curves(),
		NextProtos: []string{"h2", "http/1.1"},
		GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			certificate, roots, err := s.current(hello.Context())
			if err != nil {
				return nil, err
			}
			return demand.ServerTLS(func() (*tls.Certificate, error) { return certificate, nil }, roots), nil
		},
	}
}

// Certificate returns the current one.
func (s *Server) Certificate(ctx context.Context) (*tls.Certificate, error) {
	certificate, _, err := s.current(ctx)
	return certificate, err
}

// Authority returns the roots that authenticate the certificate, in PEM.
func (s *Server) Authority(ctx context.Context) ([]byte, error) {
	ca, err := s.Issuer.load(ctx)
	if err != nil {
		return nil, err
	}
	return ca.bundle, nil
}

// current returns the current certificate, renewed if it is due, and the trusted roots.
func (s *Server) current(ctx context.Context) (*tls.Certificate, *x509.CertPool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	version, err := s.Issuer.version(ctx)
	if err != nil {
		return nil, nil, err
	}
	now := s.Issuer.Clock.Now()
	if s.last == nil || s.last.version != version || !now.Before(s.last.due) || s.last.certificate.Leaf.NotBefore.After(now) {
		if s.last, err = s.parse(ctx, now); err != nil {
			return nil, nil, err
		}
		s.last.version = version
	}
	return s.last.certificate, s.last.roots, nil
}

// parse reads the authority, and issues a certificate if there is none or it is due.
func (s *Server) parse(ctx context.Context, now time.Time) (*parsed, error) {
	l := leaf{dnsName: cmp.Or(s.Name, demand.OperatorName), usage: x509.ExtKeyUsageServerAuth}
	ca, err := s.Issuer.load(ctx)
	if err != nil {
		return nil, err
	}
	left := ca.renewIn(l, s.held, now)
	if left == 0 {
		signer, until, err := s.Issuer.signer(ctx, now, s.Issuer.Life)
		if err != nil {
			return nil, err
		}
		if s.held, err = signer.issue(l, now, until); err != nil {
			return nil, err
		}
		left = signer.renewIn(l, s.held, now)
	}
	pair, err := tls.X509KeyPair(s.held[corev1.TLSCertKey], s.held[corev1.TLSPrivateKeyKey])
	if err != nil {
		return nil, fmt.Errorf("certificate of the operator: %w", err)
	}
	roots, _, err := agentapi.Roots(ca.bundle)
	if err != nil {
		return nil, err
	}
	return &parsed{due: now.Add(left), certificate: &pair, roots: roots}, nil
}
