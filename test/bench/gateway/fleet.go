package gateway

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"

	"metalfleet.dev/metalfleet/agent/serve"
	"metalfleet.dev/metalfleet/api/front"
	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/gateway/fairqueue"
	"metalfleet.dev/metalfleet/gateway/identity"
	"metalfleet.dev/metalfleet/gateway/pick"
	"metalfleet.dev/metalfleet/gateway/proxy"
	"metalfleet.dev/metalfleet/gateway/route"
	"metalfleet.dev/metalfleet/metal/wire"
	"metalfleet.dev/metalfleet/test/bench/scenario"
	"metalfleet.dev/metalfleet/test/bench/served"
	"metalfleet.dev/metalfleet/test/bench/traffic"
)

// fleet is engines, each with an agent's port and a Mac's certificate in front
// of it, and the table by which a gateway knows them.
type fleet struct {
	*scenario.Env
	engines  []*served.Engine
	table    *route.Table
	identity *identity.Identity
}

// newFleet starts the engines at once.
func newFleet(ctx context.Context, e *scenario.Env, model string) (*fleet, error) {
	f := &fleet{Env: e, engines: make([]*served.Engine, replicas), table: route.NewTable()}
	dir, err := e.Scratch()
	if err != nil {
		return nil, err
	}
	var macs []string
	for i := range replicas {
		macs = append(macs, macOf(i))
	}
	certificates, err := newCertificates(filepath.Join(dir, "pki"), macs...)
	if err != nil {
		return nil, err
	}
	data, err := certificates.identity()
	if err != nil {
		return nil, err
	}
	if f.identity, err = identity.Parse(data); err != nil {
		return nil, err
	}
	if err := f.startEngines(ctx, model); err != nil {
		return nil, err
	}
	f.table.SetDeployment(route.Deployment{Key: route.Key{Namespace: "default", Name: "bench"}, UID: "d", Names: "bench"})
	for i := range f.engines {
		if err := f.serve(i, certificates); err != nil {
			return f, err
		}
	}
	f.table.MarkSynced()
	return f, nil
}

// startEngines starts them with one thread each.
func (f *fleet) startEngines(ctx context.Context, model string) error {
	errs := make([]error, len(f.engines))
	var wg sync.WaitGroup
	for i := range f.engines {
		wg.Go(func() {
			f.engines[i], errs[i] = served.Start(ctx, served.Options{Program: f.Engine, Backend: "ref", Model: model, ContextTokens: contextTokens,
				Sequences: sequences, CacheTokens: cacheTokens, PrefixCache: true, Env: []string{"GOMAXPROCS=1"}})
		})
	}
	wg.Wait()
	for _, e := range f.engines {
		if e != nil {
			f.Cleanup(e.Stop)
		}
	}
	return errors.Join(errs...)
}

// serve opens the port of an engine's Mac and adds it to the table.
func (f *fleet) serve(i int, c *certificates) error {
	config, err := c.server(macOf(i))
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	uid := fmt.Sprint("replica-", i)
	handler := serve.NewHandler(serve.Config{Engines: engineOf{f.engines[i].Client, uid}, Mac: macOf(i), Log: logr.Discard()})
	f.Cleanup(serveMac(l, handler, config))
	f.table.SetMac(route.Mac{Name: macOf(i), Address: l.Addr().String(), Open: true})
	f.table.SetReplica(route.Replica{UID: uid, Epoch: 1, Deployment: route.Key{Namespace: "default", Name: "bench"}, DeploymentUID: "d", Mac: macOf(i), Ready: true, Sequences: sequences})
	return nil
}

func (f *fleet) target(i int) traffic.Target { return traffic.Engine{Client: f.engines[i].Client} }

func macOf(n int) string { return fmt.Sprintf("mac-%d", n) }

// engineOf lets an agent's port use one engine that is always there.
type engineOf struct {
	client wire.EngineClient
	uid    string
}

func (e engineOf) Resolve(string) (serve.Target, bool) {
	return serve.Target{ReplicaUID: e.uid, Epoch: 1}, true
}

// Adapters implements serve.Engines: the model has none.
func (engineOf) Adapters(serve.Target) []string { return nil }

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

// gatewayFront is a gateway's front with one policy.
type gatewayFront struct {
	traffic.HTTP
	stop  func() error
	proxy *proxy.Proxy
}

func (f *fleet) open(choose pick.Policy) (*gatewayFront, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := proxy.New(proxy.Config{Table: f.table, Identity: func() *identity.Identity { return f.identity }, Registry: prometheus.NewRegistry(), Log: logr.Discard(),
		Pick: choose, Limits: front.Limits{KeepAlive: time.Hour}, Waiting: fairqueue.Limits{Count: 10_000, Bytes: 1 << 30, Age: 10 * time.Minute}})
	return &gatewayFront{stop: serveMac(l, p, nil), proxy: p, HTTP: traffic.HTTP{Client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 100}},
		URL: "http://" + l.Addr().String(), Model: "bench", Silent: true}}, nil
}

func (f *gatewayFront) close() error {
	f.Client.CloseIdleConnections()
	err := f.stop()
	f.proxy.Close()
	return err
}
