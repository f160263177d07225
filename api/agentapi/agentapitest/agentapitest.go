// Package agentapitest makes throw-away certificates for tests of what speaks
// on the agents' port.
//
// It owns a certificate authority that lives as long as a test. It refuses to
// be used for anything else: keys stay in memory and certificates last an hour.
//
// Start reading at NewCA.
package agentapitest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/api/agentapi"
)

// CA issues certificates to gateways and Macs.
type CA struct {
	tb   testing.TB
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

// PEM is a leaf as a Secret holds it.
type PEM struct {
	Certificate, Key, CA []byte
}

// NewCA makes an authority.
func NewCA(tb testing.TB) *CA {
	tb.Helper()
	c := &CA{tb: tb}
	template := &x509.Certificate{Subject: pkix.Name{CommonName: "test-ca"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	der, key := c.sign(template)
	c.key = key
	var err error
	if c.cert, err = x509.ParseCertificate(der); err != nil {
		tb.Fatal(err)
	}
	c.pem = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return c
}

// sign issues template; the authority's own is signed with its own key.
func (c *CA) sign(template *x509.Certificate) ([]byte, *ecdsa.PrivateKey) {
	c.tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		c.tb.Fatal(err)
	}
	if template.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120)); err != nil {
		c.tb.Fatal(err)
	}
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Minute), time.Now().Add(time.Hour)
	parent, signer := c.cert, c.key
	if parent == nil {
		parent, signer = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	if err != nil {
		c.tb.Fatal(err)
	}
	return der, key
}

// Roots trust this authority.
func (c *CA) Roots() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(c.cert)
	return pool
}

// Gateway issues a gateway's client certificate.
func (c *CA) Gateway() PEM { return c.leaf(agentapi.GatewayName, x509.ExtKeyUsageClientAuth) }

// Mac issues the server certificate of the Mac called name.
func (c *CA) Mac(name string) PEM {
	return c.leaf(agentapi.MacServerName(name), x509.ExtKeyUsageServerAuth)
}

func (c *CA) leaf(dns string, usage x509.ExtKeyUsage) PEM {
	c.tb.Helper()
	der, key := c.sign(&x509.Certificate{Subject: pkix.Name{CommonName: dns}, DNSNames: []string{dns},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{usage}})
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		c.tb.Fatal(err)
	}
	return PEM{
		Certificate: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		Key:         pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw}),
		CA:          c.pem,
	}
}

// Pair is the leaf as TLS takes it.
func (p PEM) Pair(tb testing.TB) func() (*tls.Certificate, error) {
	tb.Helper()
	pair, err := tls.X509KeyPair(p.Certificate, p.Key)
	if err != nil {
		tb.Fatal(err)
	}
	return func() (*tls.Certificate, error) { return &pair, nil }
}
