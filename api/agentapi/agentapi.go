// Package agentapi is the contract between the gateway and the agents: TLS
// identities, paths, headers, and the error codes that allow a retry on another
// Mac.
//
// It owns the authentication rules: an agent proves with a server certificate
// that it is the Mac of that name; a gateway proves with a client certificate
// that it is a gateway; no certificate serves both purposes. Copying weights
// between Macs uses a separate protocol and requires a grant from the operator.
// The standard library's TLS rejects peers, with the configurations made here, which
// verify certificates by Peer. The request bodies on this port are those of
// package openai.
//
// Start reading at ServerTLS, ClientTLS and Peer, then Grant.
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
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// DefaultPort is the agent's only port.
const DefaultPort = 7443

// MaxHeaderBytes is the maximum size of the headers of a request to a Mac, and
// MaxAnswerHeaderBytes that of its response, which a gateway keeps until it ends: an agent
// sends less than 3 KiB.
const MaxHeaderBytes, MaxAnswerHeaderBytes = 64 << 10, 16 << 10

// Headers between gateway and agent.
const (
	// HeaderReplica carries the UID of the replica that the gateway picked.
	HeaderReplica = "X-Metalfleet-Replica"
	// HeaderEpoch carries the epoch of the replica; an agent with another epoch
	// refuses the request.
	HeaderEpoch = "X-Metalfleet-Epoch"
	// HeaderMac on a response names the Mac that served it.
	HeaderMac = "X-Metalfleet-Mac"
	// HeaderRequestID identifies a request in the gateway, the agent and the
	// engine.
	HeaderRequestID = "X-Request-Id"
	// HeaderRetryable with the value "true" on an error response marks a
	// request that had no effect and may be retried on another replica.
	HeaderRetryable = "X-Metalfleet-Retryable"
	// HeaderModel on a request to an agent is the model name to use in the
	// response, when the client addressed another deployment. On a response to
	// a client it is the deployment that answered, as NAMESPACE/NAME.
	HeaderModel = "X-Metalfleet-Model"
	// HeaderAdapter on a request to an agent is the adapter of the replica's model
	// that answers; without it the model alone does. On a request without
	// HeaderReplica the name in the body selects one.
	HeaderAdapter = "X-Metalfleet-Adapter"
	// HeaderQueuePosition and HeaderQueueETA (seconds) on a response are the
	// position of the request when it entered the gateway's queue, and the
	// estimated wait. HeaderQueueSeconds is the actual wait.
	HeaderQueuePosition = "X-Metalfleet-Queue-Position"
	HeaderQueueETA      = "X-Metalfleet-Queue-Eta"
	HeaderQueueSeconds  = "X-Metalfleet-Queue-Seconds"
	// HeaderTimeout on a client's request is the time, in seconds, within which
	// the response must be complete.
	HeaderTimeout = "X-Metalfleet-Timeout"
	// HeaderTenant is the tenant of the API key that the gateway accepted. Stored
	// responses and cached prompts are found by requests of the same tenant only.
	// Without the header, all requests are of one tenant. Its name is older than
	// tenants, so that agents and gateways of different versions keep them apart.
	HeaderTenant = "X-Metalfleet-Owner"
	// HeaderClient on a request to an agent without HeaderTenant differs between clients that the
	// gateway distinguishes, so that they share memory, sequences and turns as tenants do.
	HeaderClient = "X-Metalfleet-Client"
	// HeaderPriority is the highest priority that the request may have, and its
	// default: that of the client's API key.
	HeaderPriority = "X-Metalfleet-Priority"
	// HeaderResponseID on a request to an agent is the id of a streamed response:
	// the gateway may have sent it to the client already, in an event that kept
	// the stream open.
	HeaderResponseID = "X-Metalfleet-Response-Id"
	// HeaderResponseProof on a request to an agent proves that it was sent the request with
	// this HeaderResponseID. The agent repeats it on the response to HEAD for the stored
	// response.
	HeaderResponseProof = "X-Metalfleet-Response-Proof"
	// HeaderProgress on a client's request, with the value "true", asks for events
	// that report the progress of the prompt.
	HeaderProgress = "X-Metalfleet-Progress"
	// HeaderTokens on a complete response, and in the trailer of a stream, is
	// the number of prompt and output tokens, in the form "12+34". It is sent
	// even when the client did not request usage, and with an error after a part
	// was computed. Informational responses have it
	// before a complete response.
	HeaderTokens = "X-Metalfleet-Tokens"
	// HeaderInforms on a request to an agent, with the value "true", asks for
	// informational responses with HeaderTokens before a complete response.
	HeaderInforms = "X-Metalfleet-Informs"
	// HeaderIgnored on a response lists the fields of the request that were
	// ignored, as openai.Decoder names them.
	HeaderIgnored = "X-Metalfleet-Ignored"
	// HeaderStrictFields on a request to an agent, with the value "true", makes it reject
	// fields that it would otherwise ignore. The gateway sets it.
	HeaderStrictFields = "X-Metalfleet-Strict-Fields"
	// HeaderBackground on a request to an agent, with the value "true", reports that
	// the gateway reads the response to its end even if the client leaves. The
	// response is then a stream of events.
	HeaderBackground = "X-Metalfleet-Background"
	// HeaderAttribution on a request to an agent, with the value AttributionKeep, leaves the
	// attribution block of Anthropic's clients in the prompt. The gateway sets it.
	HeaderAttribution = "X-Metalfleet-Attribution"
	// HeaderCalls with the value CallsText, on a complete response and in the
	// trailer of a stream, marks a response whose text contains what began as a
	// tool call and is none.
	HeaderCalls = "X-Metalfleet-Calls"
)

// CallsText is the value of HeaderCalls.
const CallsText = "text"

// AttributionKeep is the value of HeaderAttribution.
const AttributionKeep = "keep"

// ignoredSeparator separates the names in HeaderIgnored.
const ignoredSeparator = ", "

// SetIgnored writes HeaderIgnored under the given header name, unless there are
// no names.
func SetIgnored(h http.Header, name string, ignored []string) {
	if len(ignored) > 0 {
		h.Set(name, strings.Join(ignored, ignoredSeparator))
	}
}

// Ignored returns the names in HeaderIgnored.
func Ignored(h http.Header) []string {
	list := h.Get(HeaderIgnored)
	if list == "" {
		return nil
	}
	return strings.Split(list, ignoredSeparator)
}

// maxTokens is the maximum number of tokens of a prompt or an output; a header
// with more is ignored.
const maxTokens = 1 << 31

// SetTokens writes HeaderTokens under the given header name.
func SetTokens(h http.Header, name string, prompt, text int) {
	h.Set(name, TokensValue(prompt, text))
}

// TokensValue is the value of HeaderTokens.
func TokensValue(prompt, text int) string { return fmt.Sprintf("%d+%d", prompt, text) }

// TokenCount is how many tokens a request used.
type TokenCount struct{ Prompt, Generated int64 }

// Sum returns all tokens of the request.
func (c TokenCount) Sum() int64 { return c.Prompt + c.Generated }

// Tokens returns the counts in HeaderTokens; ok is false when the header is missing or
// invalid.
func Tokens(h http.Header) (count TokenCount, ok bool) {
	prompt, generated, _ := strings.Cut(h.Get(HeaderTokens), "+")
	if count.Prompt, ok = parseTokens(prompt); !ok {
		return TokenCount{}, false
	}
	if count.Generated, ok = parseTokens(generated); !ok {
		return TokenCount{}, false
	}
	return count, true
}

func parseTokens(text string) (int64, bool) {
	n, err := strconv.ParseUint(text, 10, 63)
	return int64(n), err == nil && n <= maxTokens
}

// PathHealth returns 204 on the agent's port while it accepts requests.
const PathHealth = "/metalfleet/v1/health"

// PathMetrics returns the agent's metrics in Prometheus' text format to gateways.
const PathMetrics = "/metalfleet/v1/metrics"

// PathLogs returns the end of the agent's log to gateways, as text, and PathLogs/NAME that of
// the log of an engine, where NAME is v1alpha1.EngineFile. The query parameter bytes is the
// number of bytes, at most MaxLogBytes.
const PathLogs = "/metalfleet/v1/logs"

// MaxLogBytes is how much of a log an agent returns.
const MaxLogBytes = 1 << 20

// KeepAlive is how long a stream may be idle before an event keeps it open. Clients
// are promised one every ten seconds, delays on the way included.
const KeepAlive = 9 * time.Second

// MaxBodyBytes is the maximum size of a request body at the gateway and at the
// agent: the longest context as text, with room for escapes, and much smaller
// than the maximum message size of the wire protocol.
const MaxBodyBytes = 16 << 20

// ChoicesAtOnce is how many choices of one request the agent runs at a time: the others
// wait there and not in the engine's queue, where they would delay other requests.
const ChoicesAtOnce = 4

// Error codes of an agent, as opposed to errors of the model. The agent sends
// them before the first byte of a body, together with HeaderRetryable.
const (
	// CodeReplicaNotHere: this Mac does not hold that replica and epoch (503).
	CodeReplicaNotHere = "replica_not_here"
	// CodeReplicaNotReady: the replica is loading, draining or backing off
	// (503).
	CodeReplicaNotReady = "replica_not_ready"
	// CodeEngineLost: the engine ended while the request waited (502).
	CodeEngineLost = "engine_lost"
	// CodeQueueFull: the replica's queue is full (503).
	CodeQueueFull = "queue_full"
)

// GatewayName is the DNS name in a gateway's client certificate.
const GatewayName = "gateway.metalfleet.dev"

// MacServerName returns the DNS name in the certificate of the Mac called name.
func MacServerName(name string) string { return name + macDomain }

// ServerTLS returns the TLS configuration of an agent's listener: TLS 1.3, the
// agent's certificate for clients that name this Mac, and client certificates
// under roots that identify a gateway. It refuses TunnelProtocol on connections
// other than those of Tunnel. getCertificate is called for every handshake, so
// that a renewed certificate takes effect without a restart.
func ServerTLS(getCertificate func() (*tls.Certificate, error), roots *x509.CertPool) *tls.Config {
	c := &tls.Config{
		MinVersion:       tls.VersionTLS13,
		CurvePreferences: Curves(),
		NextProtos:       []string{"h2", "http/1.1"},
		GetCertificate: func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
			c, err := getCertificate()
			if err != nil {
				return nil, err
			}
			return c, errors.Join(meant(hello, c), notRelayed(hello))
		},
		ClientAuth: tls.RequireAnyClientCert, // verified here, see Peer
		ClientCAs:  roots,
		// A resumed session would outlive the authority that signed its
		// certificate.
		SessionTicketsDisabled: true,
	}
	c.VerifyConnection = func(s tls.ConnectionState) error {
		if err := (Peer{Roots: roots, Usage: x509.ExtKeyUsageClientAuth, Now: now(c)}).VerifyConnection(s); err != nil {
			return err
		}
		if !slices.Contains(s.PeerCertificates[0].DNSNames, GatewayName) {
			return fmt.Errorf("client certificate of %q is not a gateway's", s.PeerCertificates[0].Subject.CommonName)
		}
		return nil
	}
	return c
}

// meant accepts only clients that name the Mac of the certificate. A client
// that names another Mac, or none, would receive responses of the wrong Mac.
func meant(hello *tls.ClientHelloInfo, c *tls.Certificate) error {
	if hello.ServerName == "" {
		return errors.New("client does not name a Mac (TLS server name)")
	}
	if err := hello.SupportsCertificate(c); err != nil {
		return fmt.Errorf("client requests Mac %q: %w", hello.ServerName, err)
	}
	return nil
}

// Curves returns the key exchanges of servers that anyone may begin a handshake with: P-384 and P-521, which no
// common client needs, take 10 to 30 times as long, and the client chooses.
func Curves() []tls.CurveID { return []tls.CurveID{tls.X25519MLKEM768, tls.X25519, tls.CurveP256} }

// ClientTLS returns the TLS configuration for dialing the Mac called mac at any
// address: it accepts only a certificate with that Mac's name under roots. Further checks
// are added with Also: in place of VerifyConnection they would verify nothing else.
func ClientTLS(getCertificate func() (*tls.Certificate, error), roots *x509.CertPool, mac string) *tls.Config {
	c := &tls.Config{
		MinVersion:       tls.VersionTLS13,
		CurvePreferences: Curves(),
		NextProtos:       []string{"h2"},
		RootCAs:          roots,
		ServerName:       MacServerName(mac),
		// The library's own verification is left out for that of VerifyConnection, which
		// is as strict and allows no chain: see Peer.
		InsecureSkipVerify: true,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return getCertificate()
		},
	}
	c.VerifyConnection = func(s tls.ConnectionState) error {
		if s.ServerName == "" {
			return errors.New("the TLS configuration does not name the server")
		}
		return Peer{Roots: roots, Usage: x509.ExtKeyUsageServerAuth, Name: s.ServerName, Now: now(c)}.VerifyConnection(s)
	}
	return c
}

// macURI begins the URI in a Mac's certificate that names its MacNode by UID.
const macURI = "urn:metalfleet:macnode:"

// MacURI returns the URI in the certificate of the Mac whose MacNode has a UID. A
// name may be used again; a UID is not.
func MacURI(uid string) *url.URL {
	return &url.URL{Scheme: "urn", Opaque: strings.TrimPrefix(macURI, "urn:") + uid}
}

// UIDOf returns the UID that a Mac's certificate names; empty if it names none, or
// several.
func UIDOf(c *x509.Certificate) string {
	if len(c.URIs) != 1 {
		return ""
	}
	uid, ok := strings.CutPrefix(c.URIs[0].String(), macURI)
	if !ok {
		return ""
	}
	return uid
}

// ErrReplaced is returned for the certificate of a MacNode that does not exist any
// more, for example because another Mac has its name now.
var ErrReplaced = errors.New("the certificate is of another MacNode of that name")

// RequireUID has a client accept only the Mac whose MacNode has a UID, in addition
// to its name. An empty UID, which no API server gives, compares nothing.
func RequireUID(c *tls.Config, uid string) *tls.Config {
	if uid == "" {
		return c
	}
	return Also(c, func(leaf *x509.Certificate) error {
		if UIDOf(leaf) != uid {
			return ErrReplaced
		}
		return nil
	})
}

// maxRoots is the maximum number of trusted roots: two during a rotation, and
// some room.
const maxRoots = 8

// Roots parses the trusted roots in PEM and returns them with their
// fingerprints. It rejects a bundle that is empty or contains anything else,
// because a client that trusts only a part of the intended roots would fail
// later, one server at a time.
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

// RootCertificates returns the certificates that Roots parses, without
// duplicates.
func RootCertificates(bundle []byte) ([]*x509.Certificate, error) {
	var certs []*x509.Certificate
	for rest := bytes.TrimSpace(bundle); len(rest) > 0; rest = bytes.TrimSpace(rest) {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil || block.Type != "CERTIFICATE" {
			return nil, errors.New("the trusted roots contain something other than certificates")
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("parse trusted root: %w", err)
		}
		if !slices.ContainsFunc(certs, cert.Equal) {
			certs = append(certs, cert)
		}
	}
	if n := len(certs); n == 0 || n > maxRoots {
		return nil, fmt.Errorf("there are %d trusted roots, want 1 to %d", n, maxRoots)
	}
	return certs, nil
}

// Fingerprint returns the SHA-256 digest of a certificate, in hex.
func Fingerprint(c *x509.Certificate) string {
	sum := sha256.Sum256(c.Raw)
	return hex.EncodeToString(sum[:])
}

// RequestID returns the id of a request: the one that the sender provided, if
// it is fit for logs and headers, or else a new one.
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
