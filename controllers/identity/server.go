package identity

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"

	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/demand"
)

// Server is the operator's own certificate, with which it listens for gateways.
// It lies in no Secret: each operator makes one when it is asked.
type Server struct {
	Issuer *Issuer
	// Name in the certificate; empty means that which gateways want.
	Name string

	mu   sync.Mutex // guards held
	held map[string][]byte
}

// TLS lets in gateways alone. Certificate and roots are those of each handshake.
func (s *Server) TLS() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
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

// Certificate is the one of now.
func (s *Server) Certificate(ctx context.Context) (*tls.Certificate, error) {
	certificate, _, err := s.current(ctx)
	return certificate, err
}

// Authority is the bundle of roots by which its certificate is known, in PEM.
func (s *Server) Authority(ctx context.Context) ([]byte, error) {
	ca, err := s.Issuer.load(ctx)
	if err != nil {
		return nil, err
	}
	return ca.bundle, nil
}

// current is the certificate of now, made anew where it is due.
func (s *Server) current(ctx context.Context) (*tls.Certificate, *x509.CertPool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := leaf{dnsName: cmp.Or(s.Name, demand.OperatorName), usage: x509.ExtKeyUsageServerAuth}
	ca, err := s.Issuer.load(ctx)
	if err != nil {
		return nil, nil, err
	}
	now := s.Issuer.Clock.Now()
	if s.held == nil || ca.renewIn(l, s.held, now) == 0 {
		signer, until, err := s.Issuer.signer(ctx, now, s.Issuer.Life)
		if err != nil {
			return nil, nil, err
		}
		if s.held, err = signer.issue(l, now, until); err != nil {
			return nil, nil, err
		}
	}
	pair, err := tls.X509KeyPair(s.held[corev1.TLSCertKey], s.held[corev1.TLSPrivateKeyKey])
	if err != nil {
		return nil, nil, fmt.Errorf("certificate of the operator: %w", err)
	}
	roots, _, err := agentapi.Roots(ca.bundle)
	return &pair, roots, err
}
