package agentapi

import (
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

// What one Mac copies from another, its neighbour, goes over connections of
// their own protocol. A Mac's certificate opens no other connection to a Mac's
// port, nothing but weights is to be had over one, and no weights over another.
const (
	// ProtoWeights is offered in the handshake (ALPN) by a Mac that means it; what
	// is spoken then is HTTP/1.1.
	ProtoWeights = "metalfleet-weights/1"
	// PathWeights begins the path of a file; WeightsPath has the rest.
	PathWeights = "/metalfleet/v1/weights/"
	// HeaderGrant carries the operator's grant.
	HeaderGrant = "X-Metalfleet-Grant"
	// HeaderFetched on a refusal (503) says how many bytes of the weights are here:
	// they are being fetched.
	HeaderFetched = "X-Metalfleet-Fetched"
)

// WeightsPath is where a Mac gives the file of that SHA-256 (hex) among the
// weights of that digest.
func WeightsPath(digest, sha256 string) string { return PathWeights + digest + "/" + sha256 }

// CutWeightsPath is its reverse.
func CutWeightsPath(path string) (digest, sha256 string, ok bool) {
	rest, ok := strings.CutPrefix(path, PathWeights)
	if !ok {
		return "", "", false
	}
	digest, sha256, ok = strings.Cut(rest, "/")
	return digest, sha256, ok && digest != "" && sha256 != "" && !strings.Contains(sha256, "/")
}

// MaxGrantLife is the longest that a grant is good for; one that says more is
// refused.
const MaxGrantLife = 24 * time.Hour

// maxGrant is the most characters of a grant that is looked at.
const maxGrant = 2048

// grantContext stands before what is signed. A root of the authority signs
// certificates too, which begin with another byte.
const grantContext = "metalfleet weights grant v1\n"

// Grant is the operator's word that one Mac may read weights of another.
type Grant struct {
	// Giver is the Mac that is asked, Asker the one that may ask.
	Giver string `json:"giver"`
	Asker string `json:"asker"`
	// Digest of the weights, and the Source that they must have come from: who
	// only knows a digest, or names it at a source of his own, gets nothing.
	Digest string `json:"digest"`
	Source string `json:"source"`
	// Issued and Expires in seconds since 1970.
	Issued  int64 `json:"issued"`
	Expires int64 `json:"expires"`
}

// Same says that two grants differ in their times alone.
func (g Grant) Same(o Grant) bool {
	g.Issued, g.Expires = o.Issued, o.Expires
	return g == o
}

// Sign writes the grant down with the key of a root.
func (g Grant) Sign(key *ecdsa.PrivateKey) (string, error) {
	payload, err := json.Marshal(g)
	if err != nil {
		return "", fmt.Errorf("encode grant: %w", err)
	}
	text := base64.RawURLEncoding.EncodeToString(payload)
	sum := sha256.Sum256([]byte(grantContext + text))
	signature, err := ecdsa.SignASN1(rand.Reader, key, sum[:])
	if err != nil {
		return "", fmt.Errorf("sign grant: %w", err)
	}
	if text += "." + base64.RawURLEncoding.EncodeToString(signature); len(text) > maxGrant {
		return "", fmt.Errorf("grant has %d characters, want at most %d", len(text), maxGrant)
	}
	return text, nil
}

// errGrant says that a grant is not one of this fleet's operator.
var errGrant = errors.New("the grant was not signed by a root that is trusted here")

// ReadGrant wants a grant that one of the roots signed and that is good now.
// What it is good for is the caller's to compare.
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
		return g, fmt.Errorf("the grant is for longer than %s", MaxGrantLife)
	case !now.Before(expires):
		return g, fmt.Errorf("the grant ended at %s", expires.UTC().Format(time.RFC3339))
	}
	return g, nil
}

const macDomain = ".mac.metalfleet.dev"

// MacOf is the Mac that a certificate names, and nothing beside it.
func MacOf(c *x509.Certificate) (string, bool) {
	if len(c.DNSNames) != 1 {
		return "", false
	}
	name, ok := strings.CutSuffix(c.DNSNames[0], macDomain)
	return name, ok && name != "" && !strings.Contains(name, ".")
}

// VerifyMac wants the certificate of a Mac that one of the roots signed, and
// says which one it is.
func VerifyMac(c *x509.Certificate, roots *x509.CertPool) (string, error) {
	name, ok := MacOf(c)
	if !ok {
		return "", fmt.Errorf("certificate of %q is no Mac's", c.Subject.CommonName)
	}
	if _, err := c.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}); err != nil {
		return "", fmt.Errorf("certificate of Mac %s: %w", name, err)
	}
	return name, nil
}

// WeightsServerTLS is how an agent listens for other Macs, those that offer
// ProtoWeights: TLS 1.3 and their own certificates, and no gateway's.
func WeightsServerTLS(getCertificate func() (*tls.Certificate, error), roots *x509.CertPool) *tls.Config {
	c := ServerTLS(getCertificate, roots)
	c.NextProtos = []string{"http/1.1"}
	// A Mac's certificate is a server's, which the library's own look refuses.
	c.ClientAuth = tls.RequireAnyClientCert
	c.VerifyConnection = func(s tls.ConnectionState) error {
		if len(s.PeerCertificates) == 0 {
			return errors.New("client sent no certificate")
		}
		_, err := VerifyMac(s.PeerCertificates[0], roots)
		return err
	}
	return c
}

// WeightsClientTLS is how a Mac dials its neighbour called mac.
func WeightsClientTLS(getCertificate func() (*tls.Certificate, error), roots *x509.CertPool, mac string) *tls.Config {
	c := ClientTLS(getCertificate, roots, mac)
	c.NextProtos = []string{ProtoWeights, "http/1.1"}
	return c
}

// OverWeights says that a request came from another Mac, and from which: its
// certificate passes no handshake but that of WeightsServerTLS.
func OverWeights(r *http.Request) (mac string, ok bool) {
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return "", false
	}
	return MacOf(r.TLS.PeerCertificates[0])
}
