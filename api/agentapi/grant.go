package agentapi

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"
)

// Macs copy weights from their peers over connections with a protocol of their
// own. A Mac's certificate opens no other connection to a Mac's port, such a
// connection serves only weights, and other connections serve no weights.
const (
	// ProtoWeights is the ALPN protocol that a Mac offers to copy weights; the
	// protocol inside is HTTP/1.1.
	ProtoWeights = "metalfleet-weights/1"
	// PathWeights is the prefix of the path of a file; see WeightsPath.
	PathWeights = "/metalfleet/v1/weights/"
	// HeaderGrant carries the operator's grant.
	HeaderGrant = "X-Metalfleet-Grant"
	// HeaderFetched on a refusal (503) is the number of bytes that a download
	// in progress has completed.
	HeaderFetched = "X-Metalfleet-Fetched"
)

// WeightsPath returns the path of the file with that SHA-256 digest (hex) in
// the weights with that digest.
func WeightsPath(digest, sha256 string) string { return PathWeights + digest + "/" + sha256 }

// CutWeightsPath parses a path that WeightsPath returned.
func CutWeightsPath(path string) (digest, sha256 string, ok bool) {
	rest, ok := strings.CutPrefix(path, PathWeights)
	if !ok {
		return "", "", false
	}
	digest, sha256, ok = strings.Cut(rest, "/")
	return digest, sha256, ok && digest != "" && sha256 != "" && !strings.Contains(sha256, "/")
}

// MaxGrantLife is the maximum validity of a grant; a longer one is rejected.
const MaxGrantLife = 2 * time.Hour

// maxGrant is the maximum length of a grant, in characters.
const maxGrant = 2048

// grantContext precedes the signed data. A root of the authority also signs
// certificates, which begin with another byte.
const grantContext = "metalfleet weights grant v1\n"

// Grant is the operator's permission for one Mac to read weights from another.
type Grant struct {
	// Server is the Mac that serves the weights, Client the one that may read
	// them.
	Server string `json:"giver"`
	Client string `json:"asker"`
	// ClientUID is the UID of the MacNode that may read them: a Mac that takes over
	// the name is another one.
	ClientUID string `json:"clientUID"`
	// Digest identifies the weights, and Source is where they must have been
	// downloaded from: knowing a digest, or naming it at another source, is not
	// enough to read them. TokenRef names the credential that must have been used,
	// unless none was; empty for none.
	Digest   string `json:"digest"`
	Source   string `json:"source"`
	TokenRef string `json:"tokenRef,omitempty"`
	// Issued and Expires are in seconds since 1970.
	Issued  int64 `json:"issued"`
	Expires int64 `json:"expires"`
}

// Same reports whether two grants differ only in their times.
func (g Grant) Same(o Grant) bool {
	g.Issued, g.Expires = o.Issued, o.Expires
	return g == o
}

// ErrGrantTooLong is returned for a grant that no Mac would accept, because its
// source is too long.
var ErrGrantTooLong = errors.New("the grant is too long")

// Sign encodes the grant and signs it with the key of a root.
func (g Grant) Sign(key *ecdsa.PrivateKey) (string, error) {
	var payload bytes.Buffer
	enc := json.NewEncoder(&payload)
	enc.SetEscapeHTML(false) // the & of a query would take six bytes
	if err := enc.Encode(g); err != nil {
		return "", fmt.Errorf("encode grant: %w", err)
	}
	text := base64.RawURLEncoding.EncodeToString(bytes.TrimSpace(payload.Bytes()))
	sum := sha256.Sum256([]byte(grantContext + text))
	signature, err := ecdsa.SignASN1(rand.Reader, key, sum[:])
	if err != nil {
		return "", fmt.Errorf("sign grant: %w", err)
	}
	if text += "." + base64.RawURLEncoding.EncodeToString(signature); len(text) > maxGrant {
		return "", fmt.Errorf("%w: it has %d characters, at most %d are allowed", ErrGrantTooLong, len(text), maxGrant)
	}
	return text, nil
}

// errGrant is returned for a grant that this fleet's operator did not sign.
var errGrant = errors.New("the grant is not signed by a trusted root")

// ReadGrant returns a grant that one of the roots signed and that is valid now.
// The caller must check what the grant permits.
func ReadGrant(text string, roots []*x509.Certificate, now time.Time) (Grant, error) {
	var g Grant
	payload, signature, cut := strings.Cut(text, ".")
	mark, err := base64.RawURLEncoding.DecodeString(signature)
	if len(text) > maxGrant || !cut || err != nil {
		return g, errGrant
	}
	sum := sha256.Sum256([]byte(grantContext + payload))
	if !slices.ContainsFunc(roots, func(r *x509.Certificate) bool {
		key, is := r.PublicKey.(*ecdsa.PublicKey)
		return is && r.IsCA && ecdsa.VerifyASN1(key, sum[:], mark)
	}) {
		return g, errGrant
	}
	raw, err := base64.RawURLEncoding.DecodeString(payload)
	if err == nil {
		err = json.Unmarshal(raw, &g)
	}
	if err != nil {
		return Grant{}, fmt.Errorf("grant: %w", err)
	}
	expires := time.Unix(g.Expires, 0)
	switch {
	case expires.Sub(time.Unix(g.Issued, 0)) > MaxGrantLife:
		return g, fmt.Errorf("the grant is valid for longer than %s", MaxGrantLife)
	case !now.Before(expires):
		return g, fmt.Errorf("the grant expired at %s", expires.UTC().Format(time.RFC3339))
	}
	return g, nil
}

const macDomain = ".mac.metalfleet.dev"

// macOf returns the Mac that a certificate names, and no other name.
func macOf(c *x509.Certificate) (string, bool) {
	if len(c.DNSNames) != 1 {
		return "", false
	}
	name, ok := strings.CutSuffix(c.DNSNames[0], macDomain)
	return name, ok && name != "" && !strings.Contains(name, ".")
}

func isMac(c *x509.Certificate) bool {
	_, ok := macOf(c)
	return ok
}

// WeightsServerTLS returns the TLS configuration of an agent's listener for
// other Macs, which offer ProtoWeights: TLS 1.3 and certificates of Macs, not
// of gateways. A Mac's certificate is a server certificate.
func WeightsServerTLS(getCertificate func() (*tls.Certificate, error), roots *x509.CertPool) *tls.Config {
	c := ServerTLS(getCertificate, roots)
	c.NextProtos = []string{"http/1.1"}
	c.VerifyConnection = func(s tls.ConnectionState) error {
		if err := (Peer{Roots: roots, Usage: x509.ExtKeyUsageServerAuth, Now: now(c)}).VerifyConnection(s); err != nil {
			return err
		}
		if leaf := s.PeerCertificates[0]; !isMac(leaf) {
			return fmt.Errorf("certificate of %q is not a Mac's", leaf.Subject.CommonName)
		}
		return nil
	}
	return c
}

// WeightsClientTLS returns the TLS configuration for dialing the peer called
// mac.
func WeightsClientTLS(getCertificate func() (*tls.Certificate, error), roots *x509.CertPool, mac string) *tls.Config {
	c := ClientTLS(getCertificate, roots, mac)
	c.NextProtos = []string{ProtoWeights, "http/1.1"}
	return c
}

// OverWeights reports whether a request came from another Mac, and returns its
// name: only the handshake of WeightsServerTLS accepts a Mac's certificate.
func OverWeights(r *http.Request) (mac string, ok bool) {
	if r.TLS == nil {
		return "", false
	}
	return MacOf(*r.TLS)
}

// MacOf returns the name of the Mac that authenticated as the client of a connection; ok is
// false if the client is none.
func MacOf(s tls.ConnectionState) (mac string, ok bool) {
	if len(s.PeerCertificates) == 0 {
		return "", false
	}
	return macOf(s.PeerCertificates[0])
}
