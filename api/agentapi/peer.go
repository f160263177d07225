package agentapi

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"time"
)

const (
	// maxCertificateBytes is the maximum size of a certificate: those of a fleet have
	// less than 1 KiB.
	maxCertificateBytes = 8 << 10
	// maxECDSABits and maxRSABits are the maximum sizes of a key in a certificate. A
	// check of a signature by a larger one takes milliseconds.
	maxECDSABits, maxRSABits = 384, 4096
)

// Peer describes the certificate that a peer has to present. TLS configurations use it
// in place of the library's own verification, which tries up to 100 signatures of
// authorities that a peer without any right makes up: a third of a second of processor
// time for a chain of 39 KB.
type Peer struct {
	// Roots, one of which has to have signed it.
	Roots *x509.CertPool
	// Usage is the purpose it has to be for.
	Usage x509.ExtKeyUsage
	// Name is a DNS name in it; empty compares none.
	Name string
	// Intermediates is the maximum number of certificates of authorities that come with
	// it. The authority of a fleet signs the certificates of its members itself: 0.
	Intermediates int
	// Now is the time at which it has to be valid; zero is the current time.
	Now time.Time
}

// VerifyConnection is for tls.Config. It verifies the peer of a connection, and returns a
// tls.CertificateVerificationError.
func (p Peer) VerifyConnection(s tls.ConnectionState) error {
	if err := p.Verify(s.PeerCertificates); err != nil {
		return &tls.CertificateVerificationError{UnverifiedCertificates: s.PeerCertificates, Err: err}
	}
	return nil
}

// Verify checks the certificates that a peer presented, its own first. Their number, sizes
// and keys are checked before any signature is.
func (p Peer) Verify(certs []*x509.Certificate) error {
	if p.Roots == nil { // the library would trust those of the system
		return errors.New("there are no trusted roots")
	}
	if len(certs) == 0 {
		return errors.New("the peer sent no certificate")
	}
	if most := 1 + p.Intermediates; len(certs) > most {
		return fmt.Errorf("the peer sent %d certificates, at most %d are allowed", len(certs), most)
	}
	between := x509.NewCertPool()
	for i, c := range certs {
		if err := affordable(c); err != nil {
			return err
		}
		if i > 0 {
			between.AddCert(c)
		}
	}
	_, err := certs[0].Verify(x509.VerifyOptions{Roots: p.Roots, Intermediates: between, DNSName: p.Name, CurrentTime: p.Now, KeyUsages: []x509.ExtKeyUsage{p.Usage}})
	return err
}

// affordable rejects a certificate whose verification, or that of a signature by its key,
// would take long.
func affordable(c *x509.Certificate) error {
	if n := len(c.Raw); n > maxCertificateBytes {
		return fmt.Errorf("a certificate has %d bytes, at most %d are allowed", n, maxCertificateBytes)
	}
	switch key := c.PublicKey.(type) {
	case ed25519.PublicKey:
		return nil
	case *ecdsa.PublicKey:
		if n := key.Curve.Params().BitSize; n > maxECDSABits {
			return fmt.Errorf("a certificate has an ECDSA key of %d bits, at most %d are allowed", n, maxECDSABits)
		}
		return nil
	case *rsa.PublicKey:
		if n := key.N.BitLen(); n > maxRSABits {
			return fmt.Errorf("a certificate has an RSA key of %d bits, at most %d are allowed", n, maxRSABits)
		}
		return nil
	}
	return fmt.Errorf("a certificate has a key of type %T, which is not supported", c.PublicKey)
}

// now returns the time of a configuration; zero if it has none of its own.
func now(c *tls.Config) (t time.Time) {
	if c.Time != nil {
		t = c.Time()
	}
	return t
}

// Also makes a TLS configuration check the certificate of the peer after its own checks.
func Also(c *tls.Config, check func(*x509.Certificate) error) *tls.Config {
	verify := c.VerifyConnection
	c.VerifyConnection = func(s tls.ConnectionState) error {
		if verify != nil {
			if err := verify(s); err != nil {
				return err
			}
		}
		if len(s.PeerCertificates) == 0 {
			return errors.New("the peer sent no certificate")
		}
		return check(s.PeerCertificates[0])
	}
	return c
}
