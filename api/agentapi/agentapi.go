// Package agentapi is the contract between the gateway and the agents: TLS
// identities, paths, headers and the codes by which an agent says that another
// Mac may be tried.
//
// It owns who may speak to whom: an agent proves with a server certificate
// that it is the Mac of that name; a gateway proves with a client certificate
// that it is a gateway; no certificate is good for both. What Macs copy from one
// another has a protocol of its own, and needs the operator's grant. It refuses nothing
// itself: the standard library's TLS does, with the configurations made here.
// The bodies on this port are those of package openai.
//
// Start reading at ServerTLS and ClientTLS, then Grant.
package agentapi

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// DefaultPort is the agent's one port.
const DefaultPort = 7443

// Headers between gateway and agent.
const (
	// HeaderReplica carries the UID of the replica that the gateway picked.
	HeaderReplica = "X-Metalfleet-Replica"
	// HeaderEpoch carries its epoch; an agent that holds another one refuses.
	HeaderEpoch = "X-Metalfleet-Epoch"
	// HeaderMac on an answer names the Mac that served it.
	HeaderMac = "X-Metalfleet-Mac"
	// HeaderRequestID follows a request through gateway, agent and engine.
	HeaderRequestID = "X-Request-Id"
	// HeaderRetryable on an error answer says that nothing was done and another
	// replica may be tried: "true" or absent.
	HeaderRetryable = "X-Metalfleet-Retryable"
	// HeaderModel on a request to an agent is what its answer is to call the model,
	// where its client asked for the names of another deployment; on a client's
	// answer it is the deployment that answered then, as NAMESPACE/NAME.
	HeaderModel = "X-Metalfleet-Model"
	// HeaderQueuePosition and HeaderQueueETA (seconds) on an answer say where its
	// request stood in the gateway's waiting room when it entered, and how long
	// that was thought to take; HeaderQueueSeconds how long it took.
	HeaderQueuePosition = "X-Metalfleet-Queue-Position"
	HeaderQueueETA      = "X-Metalfleet-Queue-Eta"
	HeaderQueueSeconds  = "X-Metalfleet-Queue-Seconds"
	// HeaderTimeout on a client's request says in how many seconds its answer must
	// have ended.
	HeaderTimeout = "X-Metalfleet-Timeout"
	// HeaderOwner names whose a request is, by the API key that the gateway let in;
	// without it, it is everybody's.
	HeaderOwner = "X-Metalfleet-Owner"
	// HeaderPriority is the most urgent priority that the request may have, and
	// its own where its body names none: that of the client's API key.
	HeaderPriority = "X-Metalfleet-Priority"
	// HeaderTokens on a whole answer, and in the trailer of a stream, counts its
	// prompt and its text, as "12+34", whether the client asked for usage or not.
	HeaderTokens = "X-Metalfleet-Tokens"
)

// maxTokens of a prompt or an answer; a header that says more is not believed.
const maxTokens = 1 << 31

// SetTokens says what an answer used, under a header of that name.
func SetTokens(h http.Header, name string, prompt, text int) {
	h.Set(name, fmt.Sprintf("%d+%d", prompt, text))
}

// Tokens is the sum that HeaderTokens says; ok is false where it says none.
func Tokens(h http.Header) (sum int64, ok bool) {
	prompt, text, _ := strings.Cut(h.Get(HeaderTokens), "+")
	for _, part := range []string{prompt, text} {
		n, err := strconv.ParseUint(part, 10, 63)
		if err != nil || n > maxTokens {
			return 0, false
		}
		sum += int64(n)
	}
	return sum, true
}

// PathHealth answers 204 on the agent's port while it takes requests.
const PathHealth = "/metalfleet/v1/health"

// MaxBodyBytes bounds a request body at the gateway and at the agent alike: the
// longest context of text, with room for escapes, far below one wire message.
const MaxBodyBytes = 16 << 20

// Error codes of an agent that are not the model's own answer. All of them come
// before the first byte of a body and with HeaderRetryable.
const (
	// CodeReplicaNotHere: this Mac does not hold that replica and epoch (503).
	CodeReplicaNotHere = "replica_not_here"
	// CodeReplicaNotReady: it is loading, draining or backing off (503).
	CodeReplicaNotReady = "replica_not_ready"
	// CodeEngineLost: the engine ended while the request waited (502).
	CodeEngineLost = "engine_lost"
	// CodeQueueFull: too many requests wait there (503).
	CodeQueueFull = "queue_full"
)

// GatewayName is the DNS name in a gateway's client certificate.
const GatewayName = "gateway.metalfleet.dev"

// MacServerName is the DNS name in the certificate of the Mac called name.
func MacServerName(name string) string { return name + macDomain }

// ServerTLS is how an agent listens: TLS 1.3, its own certificate for clients
// that mean this Mac, and client certificates of roots that name a gateway.
// getCertificate is asked at every handshake, so that a renewed certificate
// needs no restart.
func ServerTLS(getCertificate func() (*tls.Certificate, error), roots *x509.CertPool) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		NextProtos: []string{"h2", "http/1.1"},
		GetCertificate: func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
			c, err := getCertificate()
			if err != nil {
				return nil, err
			}
			return c, meant(hello, c)
		},
		ClientAuth: tls.RequireAndVerifyClientCert,
		ClientCAs:  roots,
		// A session taken up again would outlive the authority that vouched for it.
		SessionTicketsDisabled: true,
		VerifyConnection: func(s tls.ConnectionState) error {
			if len(s.PeerCertificates) == 0 {
				return errors.New("client sent no certificate")
			}
			if !slices.Contains(s.PeerCertificates[0].DNSNames, GatewayName) {
				return fmt.Errorf("client certificate of %q is not a gateway's", s.PeerCertificates[0].Subject.CommonName)
			}
			return nil
		},
	}
}

// meant wants a client that names the Mac of the certificate: who means another
// one, or does not say whom, would get answers of the wrong Mac.
func meant(hello *tls.ClientHelloInfo, c *tls.Certificate) error {
	if hello.ServerName == "" {
		return errors.New("client does not say which Mac it means")
	}
	if err := hello.SupportsCertificate(c); err != nil {
		return fmt.Errorf("client means %q: %w", hello.ServerName, err)
	}
	return nil
}

// ClientTLS is how a gateway dials the Mac called mac, whatever its address:
// only a certificate with that Mac's name under roots is accepted.
func ClientTLS(getCertificate func() (*tls.Certificate, error), roots *x509.CertPool, mac string) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		NextProtos: []string{"h2"},
		RootCAs:    roots,
		ServerName: MacServerName(mac),
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return getCertificate()
		},
	}
}

// MaxRoots is how many roots anybody trusts at a time: two while one takes over
// from another, with room.
const MaxRoots = 8

// Roots reads the roots to trust, in PEM, with the fingerprints by which they
// are told apart. A bundle that holds anything else, or nothing, is refused: who
// trusts a part of what was meant would refuse others later, one by one.
func Roots(bundle []byte) (*x509.CertPool, []string, error) {
	certs, err := RootCertificates(bundle)
	if err != nil {
		return nil, nil, err
	}
	pool, fingerprints := x509.NewCertPool(), []string(nil)
	for _, c := range certs {
		pool.AddCert(c)
		fingerprints = append(fingerprints, Fingerprint(c))
	}
	return pool, fingerprints, nil
}

// RootCertificates are the roots of Roots themselves, each once.
func RootCertificates(bundle []byte) ([]*x509.Certificate, error) {
	var certs []*x509.Certificate
	for rest := bytes.TrimSpace(bundle); len(rest) > 0; rest = bytes.TrimSpace(rest) {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil || block.Type != "CERTIFICATE" {
			return nil, errors.New("the roots to trust hold something that is no certificate")
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("a root to trust: %w", err)
		}
		if !slices.ContainsFunc(certs, cert.Equal) {
			certs = append(certs, cert)
		}
	}
	if n := len(certs); n == 0 || n > MaxRoots {
		return nil, fmt.Errorf("there are %d roots to trust, want 1 to %d", n, MaxRoots)
	}
	return certs, nil
}

// Fingerprint is the SHA-256 of a certificate, in hex.
func Fingerprint(c *x509.Certificate) string {
	sum := sha256.Sum256(c.Raw)
	return hex.EncodeToString(sum[:])
}

// RequestID is the id that a request travels with: the one that its sender
// gave, where it is fit for logs and headers, or else a new one.
func RequestID(given string) string {
	if len(given) > 0 && len(given) <= 128 && strings.IndexFunc(given, unfit) < 0 {
		return given
	}
	return "req-" + rand.Text()
}

func unfit(r rune) bool {
	switch {
	case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '-', r == '_', r == '.', r == ':', r == '/':
		return false
	}
	return true
}
