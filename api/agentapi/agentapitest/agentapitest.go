// Package agentapitest creates short-lived certificates for tests of the
// agents' port.
//
// It owns a certificate authority that exists for one test. Keys stay in memory
// and certificates expire after an hour, except those that a test forges.
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
	"net/url"
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

// PEM is a leaf certificate and its key as a Secret stores them.
type PEM struct {
	Certificate, Key, CA []byte
}

// NewCA creates an authority.
func NewCA(tb testing.TB) *CA {
	tb.Helper()
	c := &CA{tb: tb}
	template := &x509.Certificate{Subject: pkix.Name{CommonName: "test-ca"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	der, key := c.make(template)
	c.key = key
	var err error
	if c.cert, err = x509.ParseCertificate(der); err != nil {
		tb.Fatal(err)
	}
	c.pem = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return c
}

// make issues template for a new key; the authority's own certificate is
// self-signed.
func (c *CA) make(template *x509.Certificate) ([]byte, *ecdsa.PrivateKey) {
	c.tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		c.tb.Fatal(err)
	}
	return c.sign(template, key.Public(), key), key
}

func (c *CA) sign(template *x509.Certificate, public any, own *ecdsa.PrivateKey) []byte {
	c.tb.Helper()
	var err error
	if template.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120)); err != nil {
		c.tb.Fatal(err)
	}
	if template.NotAfter.IsZero() {
		template.NotBefore, template.NotAfter = time.Now().Add(-time.Minute), time.Now().Add(time.Hour)
	}
	parent, signer := c.cert, c.key
	if parent == nil {
		parent, signer = template, own
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, public, signer)
	if err != nil {
		c.tb.Fatal(err)
	}
	return der
}

// Roots returns a pool that trusts this authority.
func (c *CA) Roots() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(c.cert)
	return pool
}

// Gateway issues a gateway's client certificate.
func (c *CA) Gateway() PEM { return c.leaf(agentapi.GatewayName, x509.ExtKeyUsageClientAuth) }

// Server issues a server certificate for a DNS name.
func (c *CA) Server(dns string) PEM { return c.leaf(dns, x509.ExtKeyUsageServerAuth) }

// Forged issues a gateway's client certificate after change has modified it.
func (c *CA) Forged(change func(*x509.Certificate)) PEM {
	t := template(agentapi.GatewayName, x509.ExtKeyUsageClientAuth)
	change(t)
	return c.issue(t)
}

// Mac issues the server certificate of the Mac called name, whose MacNode has the UID
// that UID returns.
func (c *CA) Mac(name string) PEM { return c.MacOfUID(name, UID(name)) }

// UID is that of the MacNode of a Mac in tests.
func UID(name string) string { return "uid-of-" + name }

// MacOfUID issues the server certificate of a Mac whose MacNode has another UID.
func (c *CA) MacOfUID(name, uid string) PEM {
	t := template(agentapi.MacServerName(name), x509.ExtKeyUsageServerAuth)
	t.URIs = []*url.URL{agentapi.MacURI(uid)}
	return c.issue(t)
}

// MacFor issues, in PEM, the certificate of the Mac called name for the Mac's
// key.
func (c *CA) MacFor(name string, key *ecdsa.PublicKey) []byte {
	c.tb.Helper()
	t := template(agentapi.MacServerName(name), x509.ExtKeyUsageServerAuth)
	t.URIs = []*url.URL{agentapi.MacURI(UID(name))}
	der := c.sign(t, key, nil)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// PEM returns the authority's certificate.
func (c *CA) PEM() []byte { return c.pem }

func template(dns string, usage x509.ExtKeyUsage) *x509.Certificate {
	return &x509.Certificate{Subject: pkix.Name{CommonName: dns}, DNSNames: []string{dns},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{usage}}
}

func (c *CA) leaf(dns string, usage x509.ExtKeyUsage) PEM { return c.issue(template(dns, usage)) }

func (c *CA) issue(t *x509.Certificate) PEM {
	c.tb.Helper()
	der, key := c.make(t)
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

// Pair returns the leaf certificate for use with TLS.
func (p PEM) Pair(tb testing.TB) func() (*tls.Certificate, error) {
	tb.Helper()
	pair, err := tls.X509KeyPair(p.Certificate, p.Key)
	if err != nil {
		tb.Fatal(err)
	}
	return func() (*tls.Certificate, error) { return &pair, nil }
}

// Grant signs a grant that allows one Mac to read weights from another. It is
// valid for an hour unless it sets its own times.
func (c *CA) Grant(g agentapi.Grant) string {
	c.tb.Helper()
	if g.ClientUID == "" {
		g.ClientUID = UID(g.Client)
	}
	if g.Expires == 0 {
		g.Issued, g.Expires = time.Now().Unix(), time.Now().Add(time.Hour).Unix()
	}
	text, err := g.Sign(c.key)
	if err != nil {
		c.tb.Fatal(err)
	}
	return text
}

// Certificates returns the authority's certificates.
func (c *CA) Certificates() []*x509.Certificate { return []*x509.Certificate{c.cert} }
