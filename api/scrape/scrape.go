// Package scrape lets only those read the metrics of operators and gateways
// whom the cluster allows to.
//
// It owns TLS and the question to the API server: who a bearer token belongs to
// (TokenReview), and whether that account may get /metrics
// (SubjectAccessReview), as the filters of controller-runtime do without the
// dependencies of k8s.io/apiserver. It refuses more questions at once than it
// has room for, so that this port is no way to flood the API server, and keeps half of
// the room for addresses that showed a good token. An address on the loopback interface
// is open: only this machine reaches it.
//
// Start reading at Serve and Gate.
package scrape

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"maps"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"metalfleet.dev/metalfleet/api/intake"
)

const (
	// Path is what is protected, and what the account must be allowed to get.
	Path = "/metrics"
	// PathMacs has the metrics of all Macs, at a gateway. Who may get Path may get it.
	PathMacs = "/metrics/macs"
	// allowedFor and refusedFor are how long an answer of the API server holds.
	allowedFor = time.Minute
	refusedFor = 10 * time.Second
	// knownFor is how long an address is known after its last good token: longer than most
	// tokens live, so that it is known when it shows the next one.
	knownFor = 2 * time.Hour
	// maxAnswers and maxQuestions bound what is remembered, and what is asked at
	// once, by strangers and by addresses that are known.
	maxAnswers, maxQuestions = 256, 2
	// questionTime is how long the API server may take.
	questionTime = 5 * time.Second
	// questionRate bounds the questions of one program, in questions per second.
	questionRate, questionBurst = 10, 20
)

// Open reports whether an address, as HOST:PORT, is on the loopback interface,
// where metrics need neither TLS nor an account.
func Open(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// Serve returns what serves metrics on a listener, with bounded connections: the
// listener itself on the loopback interface, and otherwise one with TLS and a Gate.
func Serve(l net.Listener, metrics http.Handler, config *rest.Config) (net.Listener, http.Handler, error) {
	if Open(l.Addr().String()) {
		return intake.Port(l), metrics, nil
	}
	gate, err := NewGate(config, metrics)
	if err != nil {
		return nil, nil, err
	}
	certificate, err := selfSigned()
	if err != nil {
		return nil, nil, err
	}
	return tls.NewListener(intake.TLSPort(l), &tls.Config{MinVersion: tls.VersionTLS12, CurvePreferences: []tls.CurveID{tls.X25519MLKEM768, tls.X25519, tls.CurveP256}, NextProtos: []string{"http/1.1"}, Certificates: []tls.Certificate{certificate}}), gate, nil
}

// certificateLife is longer than a program runs.
const certificateLife = 10 * 365 * 24 * time.Hour

// selfSigned keeps tokens from being read on the way. It proves no name. Anyone may begin a
// handshake, so its key is of a kind that signs fast.
func selfSigned() (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("key for metrics: %w", err)
	}
	const name = "metalfleet-metrics"
	template := &x509.Certificate{Subject: pkix.Name{CommonName: name}, DNSNames: []string{name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(certificateLife),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("certificate for metrics: %w", err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}

// Gate is a handler that passes requests of allowed accounts on to the next.
type Gate struct {
	next http.Handler
	ask  func(ctx context.Context, token string) (status int, err error)
	now  func() time.Time

	mu      sync.Mutex // guards the fields after it
	answers map[[sha256.Size]byte]answer
	known   map[string]time.Time // until when, by address
	// asking is how many questions of an address run, and strangers and others how many of all.
	asking            map[string]int
	strangers, others int
}

type answer struct {
	status int // http.StatusOK, or the refusal
	until  time.Time
}

// NewGate makes a gate that asks an API server.
func NewGate(config *rest.Config, next http.Handler) (*Gate, error) {
	config = rest.CopyConfig(config)
	config.QPS, config.Burst = questionRate, questionBurst
	clients, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("client for reviews of tokens: %w", err)
	}
	return newGate(func(ctx context.Context, token string) (int, error) { return review(ctx, clients, token) }, time.Now, next), nil
}

func newGate(ask func(context.Context, string) (int, error), now func() time.Time, next http.Handler) *Gate {
	return &Gate{next: next, ask: ask, now: now, answers: map[[sha256.Size]byte]answer{}, known: map[string]time.Time{}, asking: map[string]int{}}
}

// ServeHTTP implements http.Handler.
func (g *Gate) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !ok || token == "" {
		http.Error(w, "metrics need a bearer token of an account that may get "+Path+" (ClusterRole metalfleet-metrics-reader)", http.StatusUnauthorized)
		return
	}
	address, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		address = r.RemoteAddr
	}
	switch status := g.status(r.Context(), address, token); status {
	case http.StatusOK:
		g.next.ServeHTTP(w, r)
	case http.StatusForbidden:
		http.Error(w, "this account may not get "+Path+"; bind it to the ClusterRole metalfleet-metrics-reader", status)
	case http.StatusUnauthorized:
		http.Error(w, "the API server does not know this token", status)
	default:
		http.Error(w, "the API server cannot be asked about this token at the moment", status)
	}
}

// status asks about a token that has no answer yet, or no longer.
func (g *Gate) status(ctx context.Context, address, token string) int {
	key := sha256.Sum256([]byte(token))
	g.mu.Lock()
	known, ok := g.answers[key]
	g.mu.Unlock()
	if ok && g.now().Before(known.until) {
		return known.status
	}
	end := g.begin(address)
	if end == nil {
		return http.StatusServiceUnavailable
	}
	defer end()
	ctx, cancel := context.WithTimeout(ctx, questionTime)
	defer cancel()
	status, err := g.ask(ctx, token)
	if err != nil {
		return http.StatusServiceUnavailable
	}
	g.keep(address, key, status)
	return status
}

// begin takes a place for a question, until the returned function is called; nil if there is none. A
// stranger gets one place at a time.
func (g *Gate) begin(address string) (end func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	running := &g.others
	if !g.now().Before(g.known[address]) {
		if running = &g.strangers; g.asking[address] > 0 {
			return nil
		}
	}
	if *running == maxQuestions {
		return nil
	}
	*running++
	g.asking[address]++
	return func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		*running--
		if g.asking[address]--; g.asking[address] == 0 {
			delete(g.asking, address)
		}
	}
}

// keep remembers an answer. Refusals, which anyone can cause, displace no good answer.
func (g *Gate) keep(address string, key [sha256.Size]byte, status int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.now()
	maps.DeleteFunc(g.known, func(_ string, until time.Time) bool { return !now.Before(until) })
	if len(g.answers) >= maxAnswers {
		maps.DeleteFunc(g.answers, func(_ [sha256.Size]byte, a answer) bool { return a.status != http.StatusOK || !now.Before(a.until) })
	}
	if len(g.answers) >= maxAnswers {
		clear(g.answers)
	}
	fresh := answer{status, now.Add(refusedFor)}
	if status == http.StatusOK {
		fresh.until = now.Add(allowedFor)
		if _, known := g.known[address]; known || len(g.known) < maxAnswers {
			g.known[address] = now.Add(knownFor)
		}
	}
	g.answers[key] = fresh
}

// review has the API server say whose token it is, and what that account may.
func review(ctx context.Context, clients kubernetes.Interface, token string) (int, error) {
	who, err := clients.AuthenticationV1().TokenReviews().Create(ctx,
		&authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}, metav1.CreateOptions{})
	if err != nil {
		return 0, fmt.Errorf("review a token: %w", err)
	}
	if !who.Status.Authenticated {
		return http.StatusUnauthorized, nil
	}
	user := who.Status.User
	extra := map[string]authorizationv1.ExtraValue{}
	for k, v := range user.Extra {
		extra[k] = authorizationv1.ExtraValue(v)
	}
	may, err := clients.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: user.Username, UID: user.UID, Groups: user.Groups, Extra: extra,
		NonResourceAttributes: &authorizationv1.NonResourceAttributes{Path: Path, Verb: "get"},
	}}, metav1.CreateOptions{})
	if err != nil {
		return 0, fmt.Errorf("review access to %s: %w", Path, err)
	}
	if !may.Status.Allowed {
		return http.StatusForbidden, nil
	}
	return http.StatusOK, nil
}
