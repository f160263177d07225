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
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/join"
)

// Lives of certificates. A leaf is renewed when renewAt of its life is over.
const (
	caLife   = 10 * 365 * 24 * time.Hour
	leafLife = 30 * 24 * time.Hour
	// backdate tolerates clocks that run behind the operator's.
	backdate = 5 * time.Minute
)

// renewPercent of a leaf's life is over when it is renewed.
const renewPercent = 70

// keyCA holds the authority's certificate in a Secret beside tls.crt and tls.key.
const keyCA = "ca.crt"

// errNoAuthority says that a Secret holds no usable authority. It is never
// overwritten: every Mac and gateway trusts what was in it.
var errNoAuthority = errors.New("holds no usable certificate authority; restore it from a backup, or delete it to make a new one, which every Mac and gateway then has to learn")

// authority is the operator's CA.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

// newAuthority makes a CA and the data of its Secret.
func newAuthority(now time.Time) (map[string][]byte, error) {
	t, err := template("metalfleet-ca", now, caLife)
	if err != nil {
		return nil, err
	}
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

// parseAuthority reads the CA out of its Secret.
func parseAuthority(s *corev1.Secret) (*authority, error) {
	cert, key, err := parse(s.Data)
	if err == nil && !cert.IsCA {
		err = errors.New("certificate is not a CA's")
	}
	if err != nil {
		return nil, fmt.Errorf("secret %s/%s %w (%w)", s.Namespace, s.Name, errNoAuthority, err)
	}
	return &authority{cert: cert, key: key, pem: s.Data[corev1.TLSCertKey]}, nil
}

// leaf is a certificate that somebody proves a name with.
type leaf struct {
	dnsName string
	usage   x509.ExtKeyUsage
}

// issue makes the data of a leaf's Secret.
func (a *authority) issue(l leaf, now time.Time) (map[string][]byte, error) {
	t, err := template(l.dnsName, now, leafLife)
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
	der, err := sign(t, a.cert, key.Public(), a.key)
	if err != nil {
		return nil, err
	}
	data, err := pair(der, key)
	if err != nil {
		return nil, err
	}
	data[keyCA] = a.pem
	return data, nil
}

// issueMac signs, in PEM, the server certificate of a Mac for a key that the
// Mac holds. Nothing but the key is the requester's.
func (a *authority) issueMac(key *ecdsa.PublicKey, mac string, now time.Time, life time.Duration) ([]byte, error) {
	t, err := template(mac, now, life)
	if err != nil {
		return nil, err
	}
	t.Subject.Organization = []string{join.Organization}
	t.DNSNames = []string{agentapi.MacServerName(mac)}
	t.KeyUsage = x509.KeyUsageDigitalSignature
	t.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	der, err := sign(t, a.cert, key, a.key)
	if err != nil {
		return nil, err
	}
	return certificatePEM(der), nil
}

// renewIn says how long a leaf's Secret is good for yet: 0 when it is to be
// issued now, because it is old, damaged, of another authority or another name.
func (a *authority) renewIn(l leaf, data map[string][]byte, now time.Time) time.Duration {
	cert, _, err := parse(data)
	if err != nil || !bytes.Equal(data[keyCA], a.pem) || cert.CheckSignatureFrom(a.cert) != nil ||
		!slices.Equal(cert.DNSNames, []string{l.dnsName}) || !slices.Equal(cert.ExtKeyUsage, []x509.ExtKeyUsage{l.usage}) {
		return 0
	}
	life := cert.NotAfter.Sub(cert.NotBefore)
	return max(0, cert.NotBefore.Add(life*renewPercent/100).Sub(now))
}

func template(name string, now time.Time, life time.Duration) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, fmt.Errorf("make serial number: %w", err)
	}
	// The common name is for people, who verify uses the DNS name; it has at most 64 characters.
	return &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: name[:min(len(name), 64)]},
		NotBefore: now.Add(-backdate), NotAfter: now.Add(life),
	}, nil
}

// sign gives the certificate of t for key, in DER.
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

// pair is a certificate with its key as a Secret holds them.
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

// parse reads a certificate and the key that belongs to it.
func parse(data map[string][]byte) (*x509.Certificate, *ecdsa.PrivateKey, error) {
	block, _ := pem.Decode(data[corev1.TLSCertKey])
	keyBlock, _ := pem.Decode(data[corev1.TLSPrivateKeyKey])
	if block == nil || keyBlock == nil {
		return nil, nil, errors.New("tls.crt or tls.key is no PEM block")
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, nil, fmt.Errorf("tls.crt: %w", err)
	}
	any, err := x509.ParsePKCS8PrivateKey(keyBlock.Bytes)
	if err != nil {
		return nil, nil, fmt.Errorf("tls.key: %w", err)
	}
	key, ok := any.(*ecdsa.PrivateKey)
	if !ok || !key.PublicKey.Equal(cert.PublicKey) {
		return nil, nil, errors.New("tls.key does not belong to tls.crt")
	}
	return cert, key, nil
}
