package join

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"

	"metalfleet.dev/metalfleet/api/agentapi"
)

const requestType = "CERTIFICATE REQUEST"

// subjectAltName is the only extension that a request may have.
var subjectAltName = asn1.ObjectIdentifier{2, 5, 29, 17}

// NewKey generates a Mac's key, which never leaves the Mac.
func NewKey() (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make key: %w", err)
	}
	return key, nil
}

// NewRequest returns a request, in PEM, for the certificate of the Mac called
// mac.
func NewRequest(mac string, key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject: subject(mac), DNSNames: []string{agentapi.MacServerName(mac)},
	}, key)
	if err != nil {
		return nil, fmt.Errorf("make request: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: requestType, Bytes: der}), nil
}

// RequestKey returns the public key of any certificate request.
func RequestKey(request []byte) (*ecdsa.PublicKey, error) {
	r, err := parseRequest(request)
	if err != nil {
		return nil, err
	}
	return keyOf(r)
}

// RequestMac returns the name of the MacNode in a request: a claim, which CheckRequest
// with that name checks.
func RequestMac(request []byte) (string, error) {
	r, err := parseRequest(request)
	if err != nil {
		return "", err
	}
	return r.Subject.CommonName, CheckMac(r.Subject.CommonName)
}

// CheckRequest returns the key of a request that asks for exactly what
// NewRequest asks for, and is signed with that key. Callers must use nothing
// else from the request: the certificate is built from the Mac's name.
func CheckRequest(request []byte, mac string) (*ecdsa.PublicKey, error) {
	r, err := parseRequest(request)
	if err != nil {
		return nil, err
	}
	if err := checkNames(r, mac); err != nil {
		return nil, err
	}
	key, err := keyOf(r)
	if err != nil {
		return nil, err
	}
	if err := r.CheckSignature(); err != nil {
		return nil, fmt.Errorf("it is not signed with its own key: %w", err)
	}
	return key, nil
}

func parseRequest(request []byte) (*x509.CertificateRequest, error) {
	block, rest := pem.Decode(request)
	if block == nil || block.Type != requestType || len(bytes.TrimSpace(rest)) > 0 {
		return nil, errors.New("it is not one PEM block " + requestType)
	}
	r, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("it cannot be read: %w", err)
	}
	return r, nil
}

func keyOf(r *x509.CertificateRequest) (*ecdsa.PublicKey, error) {
	key, ok := r.PublicKey.(*ecdsa.PublicKey)
	if !ok || key.Curve != elliptic.P256() {
		return nil, fmt.Errorf("its key is %s, want ECDSA on P-256", r.PublicKeyAlgorithm)
	}
	return key, nil
}

// checkNames compares the subject byte by byte, because parsers may disagree
// about equal-looking names.
func checkNames(r *x509.CertificateRequest, mac string) error {
	want, err := asn1.Marshal(subject(mac).ToRDNSequence())
	if err != nil {
		return fmt.Errorf("encode subject: %w", err)
	}
	if !bytes.Equal(r.RawSubject, want) {
		return fmt.Errorf("its subject is %q, want %q", r.Subject, subject(mac))
	}
	name := agentapi.MacServerName(mac)
	if !slices.Equal(r.DNSNames, []string{name}) || len(r.EmailAddresses)+len(r.IPAddresses)+len(r.URIs) > 0 {
		return fmt.Errorf("its names are %q and %d others, want only %q", r.DNSNames, len(r.EmailAddresses)+len(r.IPAddresses)+len(r.URIs), name)
	}
	if slices.ContainsFunc(r.Extensions, func(e pkix.Extension) bool { return !e.Id.Equal(subjectAltName) }) {
		return errors.New("it requests more than a name: subjectAltName must be the only extension")
	}
	return nil
}
