//go:build stories

package keda_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/demand"
)

// gateway reports the demand that the test sets to the operator, as gateways do.
type gateway struct {
	url    string
	client *http.Client

	mu   sync.Mutex // guards asks
	asks map[string]int
}

// startGateway starts the reports, once the operator has created the certificate.
func (w *world) startGateway(t *testing.T) {
	t.Helper()
	var s corev1.Secret
	w.until(t, "the operator has made the gateways' certificate", func(ctx context.Context) error {
		return w.Get(ctx, client.ObjectKey{Namespace: ownNamespace, Name: "metalfleet-gateway"}, &s)
	})
	pair, roots, err := credentialsOf(&s)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	g := &gateway{url: "https://" + w.at("demand") + demand.Path, asks: map[string]int{},
		client: &http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: demand.ClientTLS(func() (*tls.Certificate, error) { return &pair, nil }, roots)}}}
	w.gateway = g
	var wg sync.WaitGroup
	wg.Go(func() { // a rejected report is followed by the next
		for tick := time.Tick(demand.Every / 2); ctx.Err() == nil; {
			_ = g.send(ctx, g.report("gateway"))
			select {
			case <-ctx.Done():
			case <-tick:
			}
		}
	})
	t.Cleanup(func() { stop(); wg.Wait() })
}

// credentialsOf reads a certificate and the roots from a Secret.
func credentialsOf(s *corev1.Secret) (tls.Certificate, *x509.CertPool, error) {
	pair, err := tls.X509KeyPair(s.Data[corev1.TLSCertKey], s.Data[corev1.TLSPrivateKeyKey])
	if err != nil {
		return pair, nil, err
	}
	roots, _, err := agentapi.Roots(s.Data["ca.crt"])
	return pair, roots, err
}

// report returns the report of a gateway that has run for an hour.
func (g *gateway) report(name string) demand.Report {
	g.mu.Lock()
	defer g.mu.Unlock()
	r := demand.Report{Gateway: name, UpMillis: time.Hour.Milliseconds()}
	for of, n := range g.asks {
		if n > 0 {
			r.Models = append(r.Models, demand.Model{Namespace: namespace, Name: of, Waiting: n})
		}
	}
	return r
}

func (g *gateway) send(ctx context.Context, r demand.Report) error {
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	q, err := http.NewRequestWithContext(ctx, http.MethodPost, g.url, bytes.NewReader(b))
	if err != nil {
		return err
	}
	answer, err := g.client.Do(q)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	said, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusNoContent {
		err = fmt.Errorf("%s: %s", answer.Status, said)
	}
	return err
}

// ask sets the waiting requests of a deployment to n.
func (w *world) ask(name string, n int) {
	w.gateway.mu.Lock()
	defer w.gateway.mu.Unlock()
	w.gateway.asks[name] = n
}

// other sends one report of another gateway; its last one if it stops.
func (w *world) other(t *testing.T, last bool) {
	t.Helper()
	if err := w.gateway.send(t.Context(), demand.Report{Gateway: "other", UpMillis: time.Hour.Milliseconds(), Last: last}); err != nil {
		t.Fatal(err)
	}
}
