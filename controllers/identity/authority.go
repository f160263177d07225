package identity

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net/url"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/join"
	"metalfleet.dev/metalfleet/controllers/identity/rotation"
)

// Validity of certificates.
const (
	caLife = 10 * 365 * 24 * time.Hour
	// LongestLife is the maximum for a certificate of a Mac or a gateway.
	LongestLife = 90 * 24 * time.Hour
	// backdate tolerates clocks that are slow compared with the operator's: a Mac whose
	// clock is ten minutes slow accepts a gateway's new certificate at once.
	backdate = 15 * time.Minute
)

// renewPercent of a leaf's validity has passed when it is renewed.
const renewPercent = 70

// keyCA holds the trusted roots in a Secret, next to tls.crt and tls.key.
const keyCA = "ca.crt"

// errNoAuthority means that a Secret holds no usable authority. It is never overwritten:
// every Mac and gateway trusts its roots.
var errNoAuthority = errors.New("contains no usable certificate authority; restore it from a backup, or delete it to create a new one, which all Macs and gateways must then learn")

// root is a self-signed certificate with its key.
type root struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// authority is the operator's CA: the root that signs, and the trusted roots, which are
// more during a rotation.
type authority struct {
	root
	state rotation.State
	// bundle is the trusted roots in PEM, the older root first. A root that begins to sign
	// does not change it.
	bundle []byte
	// trusted are the roots in bundle.
	trusted []*x509.Certificate
	// revoked are the MacNodes whose grants Macs reject, an agentapi.Revoked.
	revoked []byte
}

// newRoot creates a root. It is valid at once by any clock: nothing replaces one that the operator
// created while its clock was ahead, and no peer accepts it before it is valid.
func newRoot(now time.Time) (map[string][]byte, error) {
	t, err := template("metalfleet-ca", now, now.Add(caLife))
	if err != nil {
		return nil, err
	}
	t.NotBefore = now.Add(-caLife)
	t.IsCA, t.BasicConstraintsValid, t.MaxPathLenZero = true, true, true
	t.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageCRLSign
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make key: %w", err)
	}
	der, err := sign(t, t, key.Public(), key)
	if err != nil {
		return nil, err
	}
	return pair(der, key)
}

// newAuthority creates a CA that has signed nothing, as the data of its Secret.
func newAuthority(now time.Time) (map[string][]byte, error) {
	data, err := newRoot(now)
	if err != nil {
		return nil, err
	}
	data[keyIssuedUntil] = stamp(now)
	return data, nil
}

// leaf describes a certificate for a name.
type leaf struct {
	dnsName string
	usage   x509.ExtKeyUsage
}

// issue returns the data of a leaf's Secret, valid until the given time.
func (a *authority) issue(l leaf, now, until time.Time) (map[string][]byte, error) {
	t, err := template(l.dnsName, now, until)
	if err != nil {
		return nil, err
	}
	t.DNSNames = []string{l.dnsName}
	t.KeyUsage = x509.KeyUsageDigitalSignature
	t.ExtKeyUsage = []x509.ExtKeyUsage{l.usage}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make key: %w", err)
	}
	der, err := a.signLeaf(t, key.Public())
	if err != nil {
		return nil, err
	}
	data, err := pair(der, key)
	if err != nil {
		return nil, err
	}
	data[keyCA] = a.bundle
	return data, nil
}

// signLeaf rejects a certificate that would outlive issued-until in the Secret: a retired
// root is dropped at that time.
func (a *authority) signLeaf(t *x509.Certificate, key crypto.PublicKey) ([]byte, error) {
	if t.NotAfter.After(a.state.IssuedUntil) {
		return nil, fmt.Errorf("sign certificate of %s: it would expire at %s, but the authority's Secret allows no expiry after %s", t.Subject.CommonName, t.NotAfter, a.state.IssuedUntil)
	}
	return sign(t, a.cert, key, a.key)
}

// issueMac signs, in PEM, the server certificate of a Mac for the Mac's key and the UID of
// its MacNode. Nothing but the key is from the requester.
func (a *authority) issueMac(key *ecdsa.PublicKey, mac string, uid types.UID, now, until time.Time) ([]byte, error) {
	t, err := template(mac, now, until)
	if err != nil {
		return nil, err
	}
	t.Subject.Organization = []string{join.Organization}
	t.DNSNames = []string{agentapi.MacServerName(mac)}
	t.URIs = []*url.URL{agentapi.MacURI(string(uid))}
	t.KeyUsage = x509.KeyUsageDigitalSignature
	t.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	der, err := a.signLeaf(t, key)
	if err != nil {
		return nil, err
	}
	return certificatePEM(der), nil
}

// renewIn returns how long until a leaf's Secret is to be renewed: 0 if it is due, damaged,
// signed by an untrusted root or for another name, or not valid yet, because the clock of the
// operator that signed it was ahead. A new signing root does not make
// certificates of the other one due.
func (a *authority) renewIn(l leaf, data map[string][]byte, now time.Time) time.Duration {
	cert, _, err := parse(data)
	if err != nil || !a.vouches(cert) || cert.NotBefore.After(now) ||
		!slices.Equal(cert.DNSNames, []string{l.dnsName}) || !slices.Equal(cert.ExtKeyUsage, []x509.ExtKeyUsage{l.usage}) {
		return 0
	}
	life := cert.NotAfter.Sub(cert.NotBefore)
	return max(0, cert.NotBefore.Add(life*renewPercent/100).Sub(now))
}

// vouches reports whether a trusted root has signed the certificate.
func (a *authority) vouches(cert *x509.Certificate) bool {
	return slices.ContainsFunc(a.trusted, func(r *x509.Certificate) bool { return cert.CheckSignatureFrom(r) == nil })
}

func template(name string, now, until time.Time) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, fmt.Errorf("make serial number: %w", err)
	}
	// The common name is informative, verification uses the DNS name; it has at most 64
	// characters.
	return &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: name[:min(len(name), 64)]},
		NotBefore: now.Add(-backdate), NotAfter: until,
	}, nil
}

// sign returns the certificate of t for key, in DER.
func sign(t, parent *x509.Certificate, key crypto.PublicKey, parentKey *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.CreateCertificate(rand.Reader, t, parent, key, parentKey)
	if err != nil {
		return nil, fmt.Errorf("sign certificate of %s: %w", t.Subject.CommonName, err)
	}
	return der, nil
}

func certificatePEM(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// pair returns a certificate with its key as a Secret holds them.
func pair(der []byte, key *ecdsa.PrivateKey) (map[string][]byte, error) {
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode key: %w", err)
	}
	return map[string][]byte{
		corev1.TLSCertKey:       certificatePEM(der),
		corev1.TLSPrivateKeyKey: pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw}),
	}, nil
}

// parse parses a certificate and its key.
func parse(data map[string][]byte) (*x509.Certificate, *ecdsa.PrivateKey, error) {
	return parsePair(data, corev1.TLSCertKey, corev1.TLSPrivateKeyKey)
}

func parsePair(data map[string][]byte, certName, keyName string) (*x509.Certificate, *ecdsa.PrivateKey, error) {
	cert, err := parseCertificate(data, certName)
	if err != nil {
		return nil, nil, err
	}
	block, _ := pem.Decode(data[keyName])
	if block == nil {
		return nil, nil, fmt.Errorf("%s is not a PEM block", keyName)
	}
	any, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", keyName, err)
	}
	key, ok := any.(*ecdsa.PrivateKey)
	if !ok || !key.PublicKey.Equal(cert.PublicKey) {
		return nil, nil, fmt.Errorf("%s does not belong to %s", keyName, certName)
	}
	return cert, key, nil
}

func parseCertificate(data map[string][]byte, name string) (*x509.Certificate, error) {
	block, rest := pem.Decode(data[name])
	if block == nil || len(bytes.TrimSpace(rest)) > 0 {
		return nil, fmt.Errorf("%s is not one PEM block", name)
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return cert, nil
}
