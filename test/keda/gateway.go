package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/demand"
)

// gateway tells the operator what it is told to, each second, as gateways do.
type gateway struct {
	url    string
	client *http.Client
	end    context.CancelFunc
	done   chan struct{}

	mu   sync.Mutex // guards what follows
	asks map[string]int
}

// startGateway begins to tell, once the operator has made its certificate.
func (w *world) startGateway(ctx context.Context) error {
	var s corev1.Secret
	err := w.until(ctx, func(ctx context.Context) error {
		return w.Get(ctx, client.ObjectKey{Namespace: ownNamespace, Name: "metalfleet-gateway"}, &s)
	})
	if err != nil {
		return err
	}
	pair, err := tls.X509KeyPair(s.Data[corev1.TLSCertKey], s.Data[corev1.TLSPrivateKeyKey])
	if err != nil {
		return err
	}
	roots, _, err := agentapi.Roots(s.Data["ca.crt"])
	if err != nil {
		return err
	}
	own, end := context.WithCancel(context.WithoutCancel(ctx))
	g := &gateway{url: "https://" + w.at("demand") + demand.Path, end: end, done: make(chan struct{}), asks: map[string]int{},
		client: &http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: demand.ClientTLS(func() (*tls.Certificate, error) { return &pair, nil }, roots)}}}
	w.gateway = g
	go g.tell(own)
	return nil
}

func (g *gateway) stop() {
	g.end()
	<-g.done
}

// tell reports until it is stopped. A report that was not taken is followed by the
// next one; the verdict is the deployment's.
func (g *gateway) tell(ctx context.Context) {
	defer close(g.done)
	tick := time.NewTicker(demand.Every / 2)
	defer tick.Stop()
	for {
		_ = g.report(ctx, g.of("gateway"))
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// of is a report of a gateway that has run for an hour.
func (g *gateway) of(name string) demand.Report {
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

func (g *gateway) report(ctx context.Context, r demand.Report) error {
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

// ask has the gateway count so many requests of a deployment that wait.
func (w *world) ask(name string, n int) {
	w.gateway.mu.Lock()
	defer w.gateway.mu.Unlock()
	w.gateway.asks[name] = n
}

// other is a gateway that says one thing and is silent, or that it ends.
func (w *world) other(ctx context.Context, last bool) error {
	return w.gateway.report(ctx, demand.Report{Gateway: "other", UpMillis: time.Hour.Milliseconds(), Last: last})
}
