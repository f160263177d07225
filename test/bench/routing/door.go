package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"

	"metalfleet.dev/metalfleet/agent/serve"
	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/gateway/identity"
	"metalfleet.dev/metalfleet/gateway/pick"
	"metalfleet.dev/metalfleet/gateway/proxy"
	"metalfleet.dev/metalfleet/gateway/route"
	"metalfleet.dev/metalfleet/gateway/waiting"
	"metalfleet.dev/metalfleet/metal/wire"
	"metalfleet.dev/metalfleet/test/bench/served"
	"metalfleet.dev/metalfleet/test/pki"
)

// fleet is 8 engines, each behind an agent's port with its own certificate.
type fleet struct {
	engines  []*served.Engine
	ports    []*http.Server
	table    *route.Table
	identity *identity.Identity
	dir      string
}

func newFleet(ctx context.Context, program, model string) (f *fleet, err error) {
	f = &fleet{table: route.NewTable()}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.stop())
		}
	}()
	if f.dir, err = os.MkdirTemp("", "mf-routing-"); err != nil {
		return f, err
	}
	leaf := func(name, dns string) pki.Leaf {
		return pki.Leaf{Name: name, Subject: pkix.Name{CommonName: dns}, DNS: []string{dns}}
	}
	leaves := []pki.Leaf{leaf("gateway", agentapi.GatewayName)}
	for i := range replicas {
		leaves = append(leaves, leaf(macOf(i), agentapi.MacServerName(macOf(i))))
	}
	authority, err := pki.New(filepath.Join(f.dir, "pki"), leaves...)
	if err != nil {
		return f, err
	}
	if err := f.know(authority); err != nil {
		return f, err
	}
	if f.engines, err = engines(ctx, program, model); err != nil {
		return f, err
	}
	f.table.SetDeployment(route.Deployment{Key: route.Key{Namespace: "default", Name: "bench"}, UID: "d", Names: "bench"})
	for i := range f.engines {
		if err := f.serve(i, authority); err != nil {
			return f, err
		}
	}
	f.table.MarkSynced()
	return f, nil
}

// know reads the gateway's identity.
func (f *fleet) know(authority *pki.Authority) error {
	data := map[string][]byte{}
	for name, file := range map[string]string{"tls.crt": "gateway.crt", "tls.key": "gateway.key", "ca.crt": "ca.crt"} {
		b, err := os.ReadFile(authority.File(file))
		if err != nil {
			return err
		}
		data[name] = b
	}
	var err error
	f.identity, err = identity.Parse(data)
	return err
}

// serve opens the port of an engine's Mac, and has the table know it.
func (f *fleet) serve(i int, authority *pki.Authority) error {
	pair, err := tls.LoadX509KeyPair(authority.File(macOf(i)+".crt"), authority.File(macOf(i)+".key"))
	if err != nil {
		return err
	}
	root, err := os.ReadFile(authority.File("ca.crt"))
	if err != nil {
		return err
	}
	roots, _, err := agentapi.Roots(root)
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	uid := fmt.Sprint("replica-", i)
	s := &http.Server{Handler: serve.NewHandler(serve.Config{Engines: engineOf{f.engines[i].Client, uid}, Mac: macOf(i), Log: logr.Discard()}), ReadHeaderTimeout: 10 * time.Second,
		TLSConfig: agentapi.ServerTLS(func() (*tls.Certificate, error) { return &pair, nil }, roots), HTTP2: &http.HTTP2Config{MaxConcurrentStreams: 1000}}
	f.ports = append(f.ports, s)
	go func() { _ = s.ServeTLS(l, "", "") }() // until stop closes it
	f.table.SetMac(route.Mac{Name: macOf(i), Address: l.Addr().String(), Open: true})
	f.table.SetReplica(route.Replica{UID: uid, Epoch: 1, Deployment: route.Key{Namespace: "default", Name: "bench"}, DeploymentUID: "d", Mac: macOf(i), Ready: true, Sequences: sequences})
	return nil
}

// stop ends ports and engines.
func (f *fleet) stop() error {
	var errs []error
	for _, s := range f.ports {
		errs = append(errs, s.Close())
	}
	for _, e := range f.engines {
		if e != nil {
			errs = append(errs, e.Stop())
		}
	}
	return errors.Join(append(errs, os.RemoveAll(f.dir))...)
}

// engineOf lets an agent's port ask one engine that is always there.
type engineOf struct {
	client wire.EngineClient
	uid    string
}

func (e engineOf) Resolve(string) (serve.Target, bool) {
	return serve.Target{ReplicaUID: e.uid, Epoch: 1}, true
}
func (e engineOf) Models() []openai.Model { return nil }
func (e engineOf) Model(name string) (openai.Model, bool) {
	return openai.NewModel(name, 0, "default"), true
}
func (e engineOf) Release() {}
func (e engineOf) Acquire(_ context.Context, t serve.Target) (serve.Hold, error) {
	if t.ReplicaUID != e.uid {
		return nil, serve.ErrNotHere
	}
	return e, nil
}
func (e engineOf) Generate(ctx context.Context, r *wire.GenerateRequest) (serve.Stream, error) {
	return e.client.Generate(ctx, r)
}
func (e engineOf) Embed(ctx context.Context, r *wire.EmbedRequest) (*wire.EmbedResponse, error) {
	return e.client.Embed(ctx, r)
}
func (e engineOf) Rerank(ctx context.Context, r *wire.RerankRequest) (*wire.RerankResponse, error) {
	return e.client.Rerank(ctx, r)
}

// door is a gateway's front under one policy.
type door struct {
	url    string
	server *http.Server
	proxy  *proxy.Proxy
	client *http.Client
}

func (f *fleet) open(choose pick.Policy) (*door, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := proxy.New(proxy.Config{Table: f.table, Identity: func() *identity.Identity { return f.identity }, Registry: prometheus.NewRegistry(), Log: logr.Discard(),
		Pick: choose, KeepAlive: time.Hour /* so that every head says which Mac it is of */, Waiting: waiting.Limits{Count: 10_000, Bytes: 1 << 30, Age: 10 * time.Minute}})
	d := &door{url: "http://" + l.Addr().String(), server: &http.Server{Handler: p, ReadHeaderTimeout: 10 * time.Second}, proxy: p,
		client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 100}}}
	go func() { _ = d.server.Serve(l) }() // until close
	return d, nil
}

func (d *door) close() error {
	d.client.CloseIdleConnections()
	err := d.server.Close()
	d.proxy.Close()
	return err
}

// answer is what one request came to.
type answer struct {
	first          time.Duration
	prompt, cached int
	replica        int
	err            error
}

// ask sends a request when it is due and reads its stream to the end.
func (d *door) ask(ctx context.Context, body []byte, due time.Time) (a answer) {
	timer := time.NewTimer(time.Until(due))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		return answer{err: ctx.Err()}
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, d.url+"/v1/chat/completions", bytes.NewReader(body))
	if err != nil {
		return answer{err: err}
	}
	resp, err := d.client.Do(r)
	if err != nil {
		return answer{err: err}
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 1000))
		return answer{err: fmt.Errorf("%s: %s", resp.Status, text)}
	}
	if a.replica, a.err = replicaOf(resp.Header.Get(agentapi.HeaderMac)); a.err != nil {
		return a
	}
	a.err = a.read(openai.NewEventReader(resp.Body), due)
	return a
}

func (a *answer) read(events *openai.EventReader, due time.Time) error {
	for {
		var chunk struct {
			Usage *openai.Usage `json:"usage"`
		}
		err := events.NextChunk(&chunk)
		switch {
		case err == io.EOF && a.prompt == 0:
			return errors.New("the answer says nothing of its prompt")
		case err == io.EOF:
			return nil
		case err != nil:
			return err
		}
		if a.first == 0 {
			a.first = time.Since(due)
		}
		if u := chunk.Usage; u != nil {
			a.prompt = u.PromptTokens
			if u.PromptTokensDetails != nil {
				a.cached = u.PromptTokensDetails.CachedTokens
			}
		}
	}
}
