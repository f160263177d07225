// Package proxy is the gateway's HTTP front: it serves the OpenAI-compatible API by
// forwarding requests to the agents of Macs.
//
// The path of a request: Proxy.ServeHTTP (proxy.go) admits it by its API key and finds its
// route. inference.serve (inference.go) reads its body and finds its model.
// forwarder.forward (forward.go) acquires a lease of a replica from package dispatch, which
// may queue the request, and sends it to the Mac, or to another one if that fails before
// the client received anything. delivery (deliver.go) sends the response to the client
// through reply (reply.go), which ends every request exactly once.
//
// It owns the client's view of the gateway: routes, errors, headers and keep-alive events,
// and the accounting of tokens against API keys. It rejects unknown routes and models;
// malformed, oversized and compressed bodies; bodies beyond its memory limit; and requests
// without a valid API key or beyond its rate limits, where keys are required.
//
// It parses no more of a request than its model and the prefix of its prompt, and does not
// change responses: agents serve the same API. It adds its own errors, and headers that
// name the Mac and the request.
package proxy

import (
	"context"
	"errors"
	"hash/maphash"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"

	"metalfleet.dev/metalfleet/api/demand"
	"metalfleet.dev/metalfleet/api/dialect"
	"metalfleet.dev/metalfleet/api/front"
	"metalfleet.dev/metalfleet/api/intake"
	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/api/tracing"
	"metalfleet.dev/metalfleet/gateway/dispatch"
	"metalfleet.dev/metalfleet/gateway/fairqueue"
	"metalfleet.dev/metalfleet/gateway/identity"
	"metalfleet.dev/metalfleet/gateway/keys"
	"metalfleet.dev/metalfleet/gateway/maclogs"
	"metalfleet.dev/metalfleet/gateway/macmetrics"
	"metalfleet.dev/metalfleet/gateway/pick"
	"metalfleet.dev/metalfleet/gateway/reach"
	"metalfleet.dev/metalfleet/gateway/route"
	"metalfleet.dev/metalfleet/gateway/tunnel"
	"metalfleet.dev/metalfleet/gateway/upstream"
)

// Config configures the front.
type Config struct {
	// Table of names and replicas.
	Table *route.Table
	// Identity authenticates the gateway to Macs; nil until it is known.
	Identity func() *identity.Identity
	// TakesTunnels lets Macs open connections; see Tunnels.
	TakesTunnels bool
	// Keys that clients must send; nil requires none.
	Keys *keys.Store
	// Pick chooses among replicas; nil means pick.Choose.
	Pick pick.Policy
	// Tracer sends the spans of requests; nil sends none.
	Tracer *tracing.Tracer
	// Registry receives the metrics.
	Registry prometheus.Registerer
	// Log receives failures; never prompts or responses.
	Log logr.Logger
	// Limits of reads from and writes to a client.
	front.Limits
	// MaxHeldBytes bounds the memory of all request bodies; 0 means 256 MiB.
	MaxHeldBytes int64
	// Waiting limits the requests that wait for a replica. With a zero Count none waits,
	// and a request that no replica can take at once is refused.
	Waiting fairqueue.Limits
	// TryTimeout bounds the time until a replica begins its response, and RequestTimeout
	// the whole request; 0 means no limit.
	TryTimeout, RequestTimeout time.Duration
	// StrictFields makes agents reject fields that have no effect, which they ignore
	// otherwise. A key may require the same.
	StrictFields bool
	// KeepAttribution keeps the attribution block that Anthropic's clients add to the
	// prompt, although it differs between sessions.
	KeepAttribution bool
	// Origins of web pages that may read responses, from ParseOrigins; empty allows none
	// but the gateway's own origin.
	Origins []string
	// AccessLog logs one line per finished request: key, client, model, status and tokens,
	// and no text.
	AccessLog bool
	// Draining reports to probes whether the gateway is shutting down; nil means never.
	Draining func() bool
	// Begin is called for each admitted request, and end when that has ended; nil is not called.
	Begin func() (end func())
}

// Proxy is the front as an http.Handler.
type Proxy struct {
	log        logr.Logger
	accessLog  bool
	limits     *limits
	gate       *gate
	routes     *routes
	cors       *cors
	dispatcher *dispatch.Dispatcher
	macs       *upstream.Pool
	background *background
	metrics    *metrics
	prober     *reach.Prober
	tracer     *tracing.Tracer
	pace       *pace
	begin      func() (end func())
	// failures bounds the lines about failed requests: a client can cause any number.
	failures auditor
	// strangers bounds the access log lines of clients without a key where keys are required.
	strangers auditor
}

// New returns a front. Close it when no request runs.
func New(c Config) *Proxy {
	c.Limits = c.Limits.WithDefaults()
	if c.MaxHeldBytes == 0 {
		c.MaxHeldBytes = intake.DefaultBodyBytes
	}
	if c.Draining == nil {
		c.Draining = func() bool { return false }
	}
	if c.Begin == nil {
		c.Begin = func() func() { return func() {} }
	}
	m := newMetrics(c.Registry, c.Table)
	bodies := &intake.Bodies{Max: c.MaxHeldBytes, SendBuffer: sendBuffer, ReceiveBuffer: intake.BodyBuffer, Keyed: c.Keys != nil}
	c.Registry.MustRegister(bodies)
	p := &Proxy{log: c.Log, tracer: c.Tracer, accessLog: c.AccessLog, pace: newPace(), begin: c.Begin, metrics: m, cors: newCORS(c.Origins), background: newBackground(c.WriteTimeout, m, bodies),
		limits: &limits{Limits: c.Limits, bodies: bodies, total: c.RequestTimeout, decoding: newDecoding()}, gate: &gate{keys: c.Keys, table: c.Table, identity: c.Identity}}
	p.dispatcher = dispatch.New(dispatch.Config{Queue: c.Waiting, Pick: c.Pick, KeepAlive: c.KeepAlive, Registry: c.Registry,
		CanReach: func(e route.Endpoint) bool { return p.macs.CanReach(e) }})
	p.macs = upstream.New(upstream.Options{Table: c.Table, Identity: c.Identity, TakesTunnels: c.TakesTunnels, Changed: p.dispatcher.Notify,
		Lost: func(mac string, cause error) { p.dispatcher.Avoid(c.Log, mac, cause) }, Registry: c.Registry, Log: c.Log.WithName("tunnel")})
	p.prober = &reach.Prober{Macs: c.Table.Macs, To: p.toMac, NotReached: upstream.NotReached}
	f := &forwarder{dispatcher: p.dispatcher, macs: p.macs, metrics: m, tryTimeout: c.TryTimeout, keepAlive: c.KeepAlive, held: newRoom(heldBytes), clients: maphash.MakeSeed()}
	s := &stored{gate: p.gate, limits: p.limits, table: c.Table, forwarder: f, searches: newTurns(maxSearches, searchesEach), reads: newReads(maxReads, readsEach)}
	p.routes = &routes{gate: p.gate, stored: s, cors: p.cors, draining: c.Draining, catalog: &catalog{gate: p.gate, limits: p.limits, turns: newListTurns()},
		inference: &inference{gate: p.gate, limits: p.limits, table: c.Table, stored: s, background: p.background, forwarder: f,
			strict: c.StrictFields, keepAttribution: c.KeepAttribution}}
	return p
}

// Bodies bounds the memory of the requests of all clients.
func (p *Proxy) Bodies() *intake.Bodies { return p.limits.bodies }

// Tunnels returns the connections that Macs opened; nil if none are accepted.
func (p *Proxy) Tunnels() *tunnel.Hub { return p.macs.Tunnels() }

// MacMetrics serves the metrics of the agents.
func (p *Proxy) MacMetrics() http.Handler {
	return &macmetrics.Handler{Macs: p.gate.table.Macs, To: p.toMac}
}

// MacLogs serves the logs of the Macs.
func (p *Proxy) MacLogs() http.Handler { return maclogs.New(p.gate.table.Macs, p.toMac) }

// Probe checks until ctx ends whether this gateway can connect to each Mac.
func (p *Proxy) Probe(ctx context.Context) { p.prober.Run(ctx) }

// toMac returns the transport to a Mac, for requests to the agent itself.
func (p *Proxy) toMac(m route.Mac) http.RoundTripper { return p.macs.To(dispatch.LeaseOf(m).Endpoint) }

// Demand fills in a report for the operator: a consistent snapshot of running and waiting
// requests, and the Macs that this gateway reaches.
func (p *Proxy) Demand(r *demand.Report) {
	p.dispatcher.Demand(r)
	p.prober.Report(r)
}

// Waiting receives a value when a request begins to wait.
func (p *Proxy) Waiting() <-chan struct{} { return p.dispatcher.Arrivals() }

// Drain waits until no background response runs. Those that still run when ctx ends are
// cancelled. No request may begin after it.
func (p *Proxy) Drain(ctx context.Context) { p.background.drain(ctx) }

// Close cancels background responses, and closes idle connections to Macs.
func (p *Proxy) Close() {
	p.background.end(front.ErrShuttingDown)
	p.background.runs.Wait()
	p.macs.Close()
}

// ServeHTTP responds to one request, exactly once.
func (p *Proxy) ServeHTTP(plain http.ResponseWriter, r *http.Request) {
	r = dialect.CanonicalRequest(r)
	to := p.routes.of(r)
	of := dialect.Of(r.URL.Path)
	ctx, span := p.tracer.Serve(r.Context(), r.Header, spanName(r.Method, to))
	if asksAnthropic(r) {
		of = dialect.Anthropic
	}
	w := newReply(plain, p.limits.WriteTimeout, of, p.metrics)
	w.MinRate = minRate
	id := front.RequestID(w.Header(), r.Header, of == dialect.Anthropic)
	p.cors.mark(w.Header(), r)
	ended := p.metrics.observe(to.name)
	about := &scope{gateway: p.log, id: id, route: to.name}
	defer func() {
		w.finish()
		ended(w.Status(), w.FirstWrite())
		if p.accessLog {
			p.logAccess(about, w, r.RemoteAddr)
		}
		about.trace(span, w)
	}()

	err := p.serve(about.in(ctx), to, w, r)
	if err == nil {
		return
	}
	log := about.log()
	if errors.Is(err, front.ErrClientGone) {
		log.V(1).Info("Client disconnected before its response ended")
		return
	}
	e := openai.AsError(err)
	if e.Cause != nil && e.Status >= http.StatusInternalServerError {
		if dropped, ok := p.failures.admit(about.tenant, r.RemoteAddr, time.Now()); ok {
			log.Info("Request failed", "status", e.Status, "reason", e.Error(), "dropped", dropped)
		}
	}
	if err := w.refuse(e); err != nil {
		log.V(1).Info("Client disconnected before the error was sent")
	}
}

// logAccess writes the access log line of a finished request. Any number of lines of clients without
// a key would displace those of others.
func (p *Proxy) logAccess(about *scope, w *reply, address string) {
	dropped, ok := 0, true
	if p.gate.keys != nil && about.tenant == "" {
		dropped, ok = p.strangers.admit("", address, time.Now())
	}
	if ok {
		about.access(w, address, dropped)
	}
}

// await waits until a request may begin: those with a key for their tenant's pace, others where one is required
// for their turn.
func (p *Proxy) await(ctx context.Context, c caller, admitted, open bool, r *http.Request) error {
	if p.gate.keys != nil && c.tenant() == "" {
		err := intake.Turn(r)
		if errors.Is(err, net.ErrClosed) {
			err = front.Gone(err)
		}
		return err
	}
	if admitted && c.tenant() != "" {
		intake.Know(r.Context())
	}
	return p.pace.await(ctx, c.share(), open, r)
}

// serve admits a request, and runs the handler of its route.
func (p *Proxy) serve(ctx context.Context, to target, w *reply, r *http.Request) error {
	if err := p.limits.boundUnread(w, r); err != nil {
		return err
	}
	c, refused := caller{address: r.RemoteAddr}, error(nil)
	if !to.open {
		if c, refused = p.gate.admit(ctx, w, r); refused == nil {
			defer p.begin()()
		}
	}
	if err := p.await(ctx, c, refused == nil, to.open, r); err != nil {
		return err
	}
	switch {
	case refused != nil:
		return refused
	case strings.Count(r.URL.RawQuery, "&") >= maxParameters:
		return openai.Invalid("", "The query string after '?' has more than %d parameters.", maxParameters)
	case to.open:
		return to.handle(ctx, c, w, r)
	}
	about := scopeOf(ctx)
	about.tenant, about.share, about.key = c.tenant(), c.share(), c.name()
	if about.tenant != "" {
		if err := intake.Own(r.Context(), about.tenant); err != nil {
			return err
		}
	}
	return to.handle(ctx, c, w, r)
}
