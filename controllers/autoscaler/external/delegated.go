package external

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metrics "k8s.io/metrics/pkg/apis/external_metrics/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/api/agentapi"
)

// The API server's ConfigMap on how it authenticates the requests that it forwards.
const (
	trustNamespace = "kube-system"
	trustName      = "extension-apiserver-authentication"
	keyCA          = "requestheader-client-ca-file"
	keyNames       = "requestheader-allowed-names"
	keyUser        = "requestheader-username-headers"
	keyGroup       = "requestheader-group-headers"
	keyExtra       = "requestheader-extra-headers-prefix"
)

const (
	// trustEach is how long that is cached.
	trustEach = time.Minute
	// retryEach is how long an error is: strangers cause handshakes, each of which would send
	// a request to the API server. Such a request ends after readTimeout.
	retryEach   = time.Second
	readTimeout = 5 * time.Second
	// maxIntermediates is the maximum number of certificates that the API server sends
	// with its own.
	maxIntermediates = 3
)

// Caller is the user of a request, as the API server states it.
type Caller struct {
	name   string
	groups []string
	extra  map[string]authorizationv1.ExtraValue
}

// trust identifies the API server.
type trust struct {
	roots                 *x509.CertPool
	names                 []string
	users, groups, extras []string
}

// peer is the certificate of an API server; its authority may have intermediate ones.
func (t *trust) peer(now time.Time) agentapi.Peer {
	return agentapi.Peer{Roots: t.roots, Usage: x509.ExtKeyUsageClientAuth, Intermediates: maxIntermediates, Now: now}
}

// Vouched accepts only an API server, and trusts what it states about its clients.
type Vouched struct {
	// Live reads from the API server, not from a cache.
	Live client.Reader
	Now  func() time.Time

	mu     sync.Mutex // guards the fields after it
	read   time.Time
	last   *trust
	failed error // of the last read; last is nil then
}

// current returns the current configuration of the API server.
func (v *Vouched) current(ctx context.Context) (*trust, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	age := v.Now().Sub(v.read)
	if v.last != nil && age < trustEach || v.failed != nil && age < retryEach {
		return v.last, v.failed
	}
	// A client that leaves ends its handshake, and not what others wait for.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), readTimeout)
	defer cancel()
	v.last, v.failed = v.load(ctx)
	v.read = v.Now()
	return v.last, v.failed
}

// load reads the configuration from the API server.
func (v *Vouched) load(ctx context.Context) (*trust, error) {
	var c corev1.ConfigMap
	if err := v.Live.Get(ctx, client.ObjectKey{Namespace: trustNamespace, Name: trustName}, &c); err != nil {
		return nil, fmt.Errorf("read the API server's client CA (allowed by the role extension-apiserver-authentication-reader in %s): %w", trustNamespace, err)
	}
	return parseTrust(c.Data)
}

func parseTrust(data map[string]string) (*trust, error) {
	t := &trust{roots: x509.NewCertPool()}
	if !t.roots.AppendCertsFromPEM([]byte(data[keyCA])) {
		return nil, fmt.Errorf("%s/%s has no %s: API aggregation is not configured on this API server (--requestheader-client-ca-file)", trustNamespace, trustName, keyCA)
	}
	for key, into := range map[string]*[]string{keyNames: &t.names, keyUser: &t.users, keyGroup: &t.groups, keyExtra: &t.extras} {
		if data[key] == "" {
			continue
		}
		if err := json.Unmarshal([]byte(data[key]), into); err != nil {
			return nil, fmt.Errorf("%s of %s/%s: %w", key, trustNamespace, trustName, err)
		}
	}
	if len(t.users) == 0 {
		return nil, fmt.Errorf("%s/%s has no %s", trustNamespace, trustName, keyUser)
	}
	return t, nil
}

// TLS requires a client certificate of the API server's front-proxy authority. own returns
// the server certificate.
func (v *Vouched) TLS(own func(context.Context) (*tls.Certificate, error)) *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS12, CurvePreferences: agentapi.Curves(), NextProtos: []string{"h2", "http/1.1"},
		GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			t, err := v.current(hello.Context())
			if err != nil {
				return nil, err
			}
			certificate, err := own(hello.Context())
			if err != nil {
				return nil, err
			}
			return &tls.Config{MinVersion: tls.VersionTLS12, CurvePreferences: agentapi.Curves(), NextProtos: []string{"h2", "http/1.1"}, Certificates: []tls.Certificate{*certificate},
				ClientAuth: tls.RequireAnyClientCert, ClientCAs: t.roots, SessionTicketsDisabled: true, VerifyConnection: t.peer(time.Time{}).VerifyConnection}, nil
		}}
}

// Caller returns the user that the API server states. Its certificate is verified again:
// the authority may have been replaced since the handshake.
func (v *Vouched) Caller(r *http.Request) (Caller, error) {
	t, err := v.current(r.Context())
	if err != nil {
		return Caller{}, err
	}
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return Caller{}, apierrors.NewUnauthorized("only the API server may send requests, with its client certificate")
	}
	leaf := r.TLS.PeerCertificates[0]
	if err = t.peer(v.Now()).Verify(r.TLS.PeerCertificates); err != nil {
		return Caller{}, apierrors.NewUnauthorized("only the API server may send requests: " + err.Error())
	}
	if len(t.names) > 0 && !slices.Contains(t.names, leaf.Subject.CommonName) {
		return Caller{}, apierrors.NewUnauthorized("only the API server may send requests, not " + leaf.Subject.CommonName)
	}
	u := Caller{extra: map[string]authorizationv1.ExtraValue{}}
	for _, h := range t.users {
		if u.name == "" {
			u.name = r.Header.Get(h)
		}
	}
	if u.name == "" {
		return Caller{}, apierrors.NewUnauthorized("the API server does not name the user of the request")
	}
	for _, h := range t.groups {
		u.groups = append(u.groups, r.Header.Values(h)...)
	}
	for _, prefix := range t.extras {
		for name, values := range r.Header {
			if key, ok := cutFold(name, prefix); ok {
				u.extra[key] = append(u.extra[key], values...)
			}
		}
	}
	return u, nil
}

// cutFold removes a prefix regardless of case; the rest keeps the API server's escaping.
func cutFold(name, prefix string) (string, bool) {
	if len(name) <= len(prefix) || !strings.EqualFold(name[:len(prefix)], prefix) {
		return "", false
	}
	key := strings.ToLower(name[len(prefix):])
	if plain, err := url.PathUnescape(key); err == nil {
		key = plain
	}
	return key, true
}

// errReview means that the API server did not decide whether a user may read.
var errReview = errors.New("cannot check authorization with the API server")

// Reviewed asks the API server whether a user may read a metric.
func Reviewed(c client.Client) func(ctx context.Context, u Caller, namespace, metric string) error {
	return func(ctx context.Context, u Caller, namespace, metric string) error {
		review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{User: u.name, Groups: u.groups, Extra: u.extra,
			ResourceAttributes: &authorizationv1.ResourceAttributes{Group: metrics.GroupName, Version: "v1beta1", Resource: metric, Namespace: namespace, Verb: "list"}}}
		if err := c.Create(ctx, review); err != nil {
			return fmt.Errorf("%w: %w", errReview, err)
		}
		if !review.Status.Allowed || review.Status.Denied {
			return apierrors.NewForbidden(metrics.Resource(metric), "", fmt.Errorf("%s may not list it in %s", u.name, namespace))
		}
		return nil
	}
}
