// Package gateway is the OpenAI-compatible entry point of a fleet: it wires the table of
// replicas, the gateway's identity, the proxy and its three listeners.
//
// It owns the order of start and stop. Health starts first, whether or not an API server
// answers, so that the kubelet can probe. The front accepts requests as soon as its port is
// open and refuses them with 503 until the table, the identity and (if keys are required)
// the API keys were read once. At the end running responses finish first and the watches
// stop last. It refuses no request itself, and writes nothing to the API server except the
// reviews that authorize metrics clients.
//
// Start reading at Run; package proxy documents the path of a request.
package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/api/intake"
	"metalfleet.dev/metalfleet/api/scrape"
	"metalfleet.dev/metalfleet/api/tracing"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/api/watched"
	"metalfleet.dev/metalfleet/gateway/demand"
	"metalfleet.dev/metalfleet/gateway/fairqueue"
	"metalfleet.dev/metalfleet/gateway/identity"
	"metalfleet.dev/metalfleet/gateway/keys"
	"metalfleet.dev/metalfleet/gateway/pick"
	"metalfleet.dev/metalfleet/gateway/proxy"
	"metalfleet.dev/metalfleet/gateway/route"
)

// Options configure a gateway.
type Options struct {
	// REST is the client configuration for the API server.
	REST *rest.Config
	// Namespace of the gateway's identity Secret.
	Namespace string
	// Watch lists the namespaces whose models are served; empty means all.
	Watch []string
	// KeysNamespace is the namespace of the API key Secrets, which must hold no others;
	// empty means that clients need no key.
	KeysNamespace string
	// Front serves clients, Health serves probes, and Metrics serves the clients that
	// package scrape authorizes. Run closes all three.
	Front, Health, Metrics net.Listener
	// Tunnels accepts connections from Macs that the gateway cannot reach; nil accepts
	// none. Run closes it.
	Tunnels net.Listener
	// Logs serves the logs of Macs, on the loopback interface (package maclogs); nil serves
	// none. Run closes it.
	Logs net.Listener
	// Connections is the maximum number of client connections but for addresses with few, and
	// ConnectionsPerAddress the maximum per address; 0 means no limit.
	Connections, ConnectionsPerAddress int
	// Waiting limits the requests that wait for a replica.
	Waiting fairqueue.Limits
	// TryTimeout bounds the time until a replica begins its response, and RequestTimeout
	// the whole request; 0 means no limit.
	TryTimeout, RequestTimeout time.Duration
	// StrictFields rejects requests with fields that have no effect.
	StrictFields bool
	// AccessLog logs one line per finished request, without prompt or completion.
	AccessLog bool
	// Tracer sends the spans of requests; nil sends none.
	Tracer *tracing.Tracer
	// KeepAttribution keeps the attribution block that Anthropic's clients add to prompts.
	KeepAttribution bool
	// Origins of web pages that may call the API from a browser; see proxy.Config.
	Origins []string
	// Operator is the HOST:PORT at which the operator accepts demand reports; empty sends
	// none, and no deployment is scaled by this gateway's load.
	Operator string
	// Pick chooses a replica; nil means pick.Choose.
	Pick pick.Policy
	// Drain is how long running responses may continue after ctx ends.
	Drain time.Duration
	Log   logr.Logger
}

// Run serves until ctx ends, and then until the running responses have finished or Drain
// has passed.
func Run(ctx context.Context, o Options) error {
	// The watches outlive ctx: responses still run then.
	watching, stopWatching := context.WithCancel(context.WithoutCancel(ctx))
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stopWatching()

	informers, err := newCache(o)
	if err != nil {
		return o.closeListeners(err)
	}
	table, ids := route.NewTable(), &identity.Store{}
	failed := make(chan error, 6) // one for each goroutine that may fail
	wg.Go(func() {
		if err := informers.Start(watching); err != nil {
			failed <- fmt.Errorf("watch the API server: %w", err)
		}
	})
	if err := identity.Watch(watching, informers, ids, o.Log); err != nil {
		return o.closeListeners(err)
	}
	wg.Go(func() {
		if err := route.Watch(watching, informers, table); err != nil && watching.Err() == nil {
			failed <- err
		}
	})

	registry, requests := newRegistry(), &drainHandler{}
	store, err := watchKeys(watching, o, registry, wg.Go, failed)
	if err != nil {
		return o.closeListeners(err)
	}
	front := proxy.New(proxy.Config{Tracer: o.Tracer, TakesTunnels: o.Tunnels != nil, Table: table, Identity: ids.Current, Keys: store, Registry: registry, Log: o.Log, Pick: o.Pick,
		Waiting: o.Waiting, TryTimeout: o.TryTimeout, RequestTimeout: o.RequestTimeout, StrictFields: o.StrictFields, AccessLog: o.AccessLog, KeepAttribution: o.KeepAttribution,
		Origins: o.Origins, Draining: requests.ending.Load, Begin: requests.begin})
	defer front.Close()
	if o.Operator != "" {
		wg.Go(func() { front.Probe(watching) })
		p := demand.Publisher{Operator: o.Operator, Identity: ids.Current, Fill: front.Demand, Waiting: front.Waiting(), Log: o.Log.WithName("demand")}
		wg.Go(func() { p.Run(watching) }) // until the last response has ended, so that the final report is complete
	}
	if o.Tunnels != nil {
		wg.Go(func() {
			if err := front.Tunnels().Serve(watching, o.Tunnels); err != nil {
				failed <- err
			}
		})
	}
	listener, figures, err := scrape.Serve(o.Metrics, figuresOf(registry, front), o.REST)
	if err != nil {
		return o.closeListeners(err)
	}
	o.Metrics = listener
	o.Front = o.bounded(registry, front.Bodies())
	s := newServers(o, front, figures, front.MacLogs(), requests, func() bool {
		return table.Synced() && ids.Current() != nil && (store == nil || store.Synced())
	})
	s.background = front.Drain
	return s.run(ctx, failed)
}

// figuresOf serves the metrics of the gateway and those of all Macs.
func figuresOf(own prometheus.Gatherer, front *proxy.Proxy) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET "+scrape.Path, promhttp.HandlerFor(own, promhttp.HandlerOpts{}))
	mux.Handle("GET "+scrape.PathMacs, front.MacMetrics())
	return mux
}

// Limits of a request's headers. Each line takes memory besides its bytes.
const maxHeaderBytes, maxHeaderLines = 64 << 10, 200

// maxUnread is how many clients may read too slowly at once: each response then has about
// 170 KiB in the heap, for what its Mac sends ahead, and 128 KiB in the kernel. maxKernel is what the kernel
// may use for all clients; its receive buffers alone, 32 KiB each, take half of that at most.
const (
	maxUnread = 512
	maxKernel = 256 << 20
)

// Turns that take a fifth of a processor's time at most: a request without a key takes about 50 us with its
// connection, and 4 KiB of a body in chunks of one byte, or 64 KiB of another one, 35.
const strangerTurns, bodyTurns = 4000, 4000

// bounded wraps the clients' listener with its connection limits. Headers count against the
// memory of bodies.
func (o Options) bounded(metrics prometheus.Registerer, bodies *intake.Bodies) net.Listener {
	l := &intake.Listener{Listener: o.Front, Total: o.Connections, PerAddress: o.ConnectionsPerAddress, HeadLines: maxHeaderLines, HeadBytes: maxHeaderBytes, Unread: maxUnread, Kernel: maxKernel, Reads: bodyTurns, Bodies: bodies}
	if o.KeysNamespace != "" {
		l.Turns = strangerTurns
	}
	metrics.MustRegister(l)
	return l
}

// closeListeners closes the listeners after a failed start, and joins their errors.
func (o Options) closeListeners(err error) error {
	if o.Tunnels != nil {
		err = errors.Join(err, o.Tunnels.Close())
	}
	if o.Logs != nil {
		err = errors.Join(err, o.Logs.Close())
	}
	return errors.Join(err, o.Front.Close(), o.Health.Close(), o.Metrics.Close())
}

// watchKeys reads API keys with informers of their own, so that none of their Secrets can
// be mistaken for the gateway's identity. It returns nil if no keys are required.
func watchKeys(ctx context.Context, o Options, r prometheus.Registerer, run func(func()), failed chan<- error) (*keys.Store, error) {
	if o.KeysNamespace == "" {
		return nil, nil
	}
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		return nil, err
	}
	informers, err := cache.New(o.REST, cache.Options{Scheme: scheme, Mapper: mapper(), ReaderFailOnMissingInformer: true,
		ByObject: map[client.Object]cache.ByObject{&corev1.Secret{}: keys.Kind(o.KeysNamespace)}})
	if err != nil {
		return nil, fmt.Errorf("watch API keys: %w", err)
	}
	store := keys.NewStore(keys.Options{Registry: r, Log: o.Log})
	run(func() {
		if err := informers.Start(ctx); err != nil {
			failed <- fmt.Errorf("watch API keys: %w", err)
		}
	})
	run(func() {
		if err := keys.Watch(ctx, informers, store); err != nil && ctx.Err() == nil {
			failed <- err
		}
	})
	return store, nil
}

func newCache(o Options) (cache.Cache, error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(v1alpha1.AddToScheme(scheme), corev1.AddToScheme(scheme)); err != nil {
		return nil, err
	}
	kinds := route.Kinds(o.Watch...)
	kinds[client.Object(&corev1.Secret{})] = identity.Kind(o.Namespace)
	informers, err := watched.NewCache(o.REST, cache.Options{Scheme: scheme, Mapper: mapper(), ByObject: kinds, ReaderFailOnMissingInformer: true}, o.Watch...)
	if err != nil {
		return nil, fmt.Errorf("watch the API server: %w", err)
	}
	return informers, nil
}

// mapper lists the scope of the kinds that gateways watch, so that no discovery is needed:
// the gateway starts while the API server is away, and its watches keep retrying.
func mapper() meta.RESTMapper {
	m := meta.NewDefaultRESTMapper([]schema.GroupVersion{v1alpha1.GroupVersion, corev1.SchemeGroupVersion})
	m.Add(v1alpha1.GroupVersion.WithKind("ModelDeployment"), meta.RESTScopeNamespace)
	m.Add(v1alpha1.GroupVersion.WithKind("ModelReplica"), meta.RESTScopeNamespace)
	m.Add(v1alpha1.GroupVersion.WithKind("MacNode"), meta.RESTScopeRoot)
	m.Add(corev1.SchemeGroupVersion.WithKind("Secret"), meta.RESTScopeNamespace)
	return m
}

func newRegistry() *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}

// servers are the HTTP servers of the three listeners.
type servers struct {
	Options
	front, health, metrics, logs *http.Server
	// background waits for the responses that run without a client, until ctx ends.
	background     func(context.Context)
	requests       *drainHandler
	cancelRequests context.CancelCauseFunc
}

func newServers(o Options, front, figures, logs http.Handler, requests *drainHandler, ready func() bool) *servers {
	running, cancel := context.WithCancelCause(context.Background())
	s := &servers{Options: o, requests: requests, cancelRequests: cancel,
		background: func(context.Context) {}}
	requests.next = front
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if !ready() || requests.ending.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	errorLog := slog.NewLogLogger(logr.ToSlogHandler(o.Log.WithName("http")), slog.LevelDebug)
	s.front = &http.Server{Handler: intake.Guard(s.requests), ConnContext: intake.Context, DisableGeneralOptionsHandler: true, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute,
		MaxHeaderBytes: maxHeaderBytes, ErrorLog: errorLog,
		BaseContext: func(net.Listener) context.Context { return running }}
	s.health, s.metrics, s.logs = intake.PortServer(mux, errorLog), intake.PortServer(figures, errorLog), intake.PortServer(logs, errorLog)
	return s
}

// run serves until ctx ends or a goroutine failed, then drains.
func (s *servers) run(ctx context.Context, failed chan error) error {
	defer s.cancelRequests(nil)
	var wg sync.WaitGroup
	serve := func(h *http.Server, l net.Listener) {
		wg.Go(func() {
			if err := h.Serve(l); !errors.Is(err, http.ErrServerClosed) {
				select {
				case failed <- fmt.Errorf("serve on %s: %w", l.Addr(), err):
				default: // an earlier failure is already stopping the gateway
				}
			}
		})
	}
	serve(s.health, intake.Port(s.Health))
	serve(s.metrics, s.Metrics)
	serve(s.front, s.Front)
	if s.Logs != nil {
		serve(s.logs, intake.Port(s.Logs))
	}
	var err error
	select {
	case <-ctx.Done():
	case err = <-failed:
	}
	s.requests.ending.Store(true)
	s.drain()
	err = errors.Join(err, s.logs.Close(), s.metrics.Close(), s.health.Close())
	wg.Wait()
	return err
}
