// Package proxy is the gateway's front: the OpenAI-compatible API, answered by
// forwarding bytes to the agent of a Mac.
//
// It owns the way of a request through the gateway: find the model, choose a
// replica or wait for one, forward, try another one as long as nothing was sent
// to the client, and end every answer exactly once. It keeps the body until the first byte of
// the answer, and what it learned of Macs that failed. It refuses what no
// agent needs to see: unknown routes and models, malformed, oversized and
// compressed bodies, more of them at once than it has room for, models without
// a ready replica; and where API keys are
// asked, whoever has none, or asks more than it allows.
//
// It reads no request beyond its model and changes no answer: the agent's port
// speaks the same API. What it adds are its own errors and the names of Mac
// and request.
//
// Start reading at Proxy.text, then forward.go; wait.go has the waiting room,
// stages.go whom a request is sent to that may be answered by several deployments,
// caller.go and meter.go what concerns keys.
package proxy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"

	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/anthropic"
	"metalfleet.dev/metalfleet/api/dialect"
	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/gateway/identity"
	"metalfleet.dev/metalfleet/gateway/intake"
	"metalfleet.dev/metalfleet/gateway/keys"
	"metalfleet.dev/metalfleet/gateway/pick"
	"metalfleet.dev/metalfleet/gateway/route"
	"metalfleet.dev/metalfleet/gateway/tunnel"
	"metalfleet.dev/metalfleet/gateway/waiting"
)

// ErrShuttingDown is the cause with which requests are cancelled when the
// drain of the gateway is over; their clients are told.
var ErrShuttingDown = errors.New("gateway is shutting down")

// errClientGone says that there is nobody left to answer.
var errClientGone = errors.New("client disconnected")

const (
	// maxTries bounds how many replicas one request is sent to in one round.
	maxTries = 5
	// unreadTime is how long the rest of a body may keep the answer of a request
	// waiting that was refused without it.
	unreadTime = 2 * time.Second
	// maxTimeout is the longest that a client may ask for.
	maxTimeout = 24 * time.Hour
	// noEndpointRetry is what Retry-After says while no replica is ready.
	noEndpointRetry = 2 * time.Second
)

// Config is what the front needs.
type Config struct {
	// Table of names and replicas.
	Table *route.Table
	// Identity with which Macs are dialled; nil until it is known.
	Identity func() *identity.Identity
	// TakesTunnels says that Macs may open connections, which Tunnels takes.
	TakesTunnels bool
	// Keys that clients must bring; nil asks for none.
	Keys *keys.Store
	// Pick chooses among replicas; nil means pick.Choose.
	Pick pick.Policy
	// Registry takes the metrics.
	Registry prometheus.Registerer
	// Log of failures; never of prompts or answers.
	Log logr.Logger
	// MaxBodyBytes bounds a request; 0 means agentapi.MaxBodyBytes.
	MaxBodyBytes int64
	// MaxHeldBytes bounds what is kept of all bodies together; 0 means 256 MiB.
	MaxHeldBytes int64
	// ReadTimeout bounds how long a body may take to arrive; 0 means 30 s.
	ReadTimeout time.Duration
	// WriteTimeout is how long one write waits for a client that does not
	// read; 0 means 30 s.
	WriteTimeout time.Duration
	// Waiting bounds the requests that wait for a replica; without a count nobody
	// waits, and who finds none is refused.
	Waiting waiting.Limits
	// KeepAlive is how long a stream may be idle before an event keeps it open; 0
	// means agentapi.KeepAlive.
	KeepAlive time.Duration
	// TryTimeout is how long one replica may take to begin its answer, and
	// RequestTimeout how long all may take; 0 is without end.
	TryTimeout, RequestTimeout time.Duration
	// StrictFields has agents refuse the fields of requests that have no effect,
	// which they ignore otherwise. A key may ask for the same.
	StrictFields bool
	// KeepAttribution leaves the attribution block of Anthropic's clients in the
	// prompt, where it differs from session to session.
	KeepAttribution bool
	// Origins of web pages that browsers let read responses, from ParseOrigins;
	// without any, browsers let only pages of the gateway's own origin.
	Origins []string
	// AccessLog writes a line for each request that ended: key, client, model,
	// status and tokens, and no text.
	AccessLog bool
	// Draining reports whether the gateway is about to end, for probes; nil means
	// never.
	Draining func() bool
}

// Proxy is the front as a handler.
type Proxy struct {
	Config
	book       *book
	macs       macs
	bodies     intake.Bodies
	metrics    *metrics
	cors       *cors
	background *background
	// finding bounds the searches for responses whose ids name no Mac.
	finding *searches
}

// New makes a front. Close it when no request runs.
func New(c Config) *Proxy {
	if c.MaxBodyBytes == 0 {
		c.MaxBodyBytes = agentapi.MaxBodyBytes
	}
	if c.MaxHeldBytes == 0 {
		c.MaxHeldBytes = intake.DefaultBodyBytes
	}
	if c.ReadTimeout == 0 {
		c.ReadTimeout = 30 * time.Second
	}
	if c.WriteTimeout == 0 {
		c.WriteTimeout = 30 * time.Second
	}
	if c.KeepAlive == 0 {
		c.KeepAlive = agentapi.KeepAlive
	}
	if c.Pick == nil {
		c.Pick = pick.Choose
	}
	if c.Draining == nil {
		c.Draining = func() bool { return false }
	}
	b := newBook(c.Waiting)
	b.pick = c.Pick
	p := &Proxy{Config: c, book: b, macs: macs{identity: c.Identity}, bodies: intake.Bodies{Most: c.MaxHeldBytes}, metrics: newMetrics(c.Registry), cors: newCORS(c.Origins),
		finding: newSearches(maxFinds), background: newBackground()}
	c.Registry.MustRegister(&census{b}, &p.bodies)
	p.macs.lost = func(mac string) { p.distrust(p.Log, mac, errSilent) }
	b.has = p.macs.has
	c.Table.OnGone(p.macs.drop)
	if c.TakesTunnels {
		p.macs.tunnels = tunnel.New(tunnel.Options{UID: c.Table.UID, Identity: c.Identity, HTTP2: watched, Wrap: func(c net.Conn) net.Conn { return gather(c) },
			Changed: func(string) { b.wakeAll() }, Log: c.Log.WithName("tunnel")})
		c.Registry.MustRegister(newTunnels(p.macs.tunnels))
	}
	return p
}

// Tunnels takes connections of Macs; nil where none are taken.
func (p *Proxy) Tunnels() *tunnel.Hub { return p.macs.tunnels }

// Close ends responses in the background, and idle connections to Macs.
func (p *Proxy) Close() {
	p.background.end(ErrShuttingDown)
	p.background.runs.Wait()
	p.macs.close()
}

// ServeHTTP answers one request, exactly once.
func (p *Proxy) ServeHTTP(plain http.ResponseWriter, r *http.Request) {
	r = dialect.CanonicalRequest(r)
	to := p.route(r)
	id := agentapi.RequestID(r.Header.Get(agentapi.HeaderRequestID))
	w := newReply(plain, p.WriteTimeout)
	w.dialect, w.metrics = dialect.Of(r.URL.Path), p.metrics
	if asksAnthropic(r) {
		w.dialect = dialect.Anthropic
	}
	w.Header().Set(agentapi.HeaderRequestID, id)
	if w.dialect == dialect.Anthropic {
		w.Header().Set(anthropic.HeaderRequestID, id)
	}
	p.cors.mark(w.Header(), r)
	ended := p.metrics.observe(to.name)
	about := &scope{gateway: p.Log, id: id, route: to.name}
	defer func() {
		w.meter.settle(w.status)
		ended(w.status, w.firstByte)
		p.access(about, w, r.RemoteAddr)
	}()

	err := p.serve(context.WithValue(r.Context(), scopeKey{}, about), to, w, r)
	if err == nil {
		return
	}
	log := about.log()
	if errors.Is(err, errClientGone) {
		log.V(1).Info("Client disconnected before its response ended")
		return
	}
	e := openai.AsError(err)
	if e.Cause != nil && e.Status >= http.StatusInternalServerError {
		log.Info("Request failed", "status", e.Status, "reason", e.Error())
	}
	if err := w.refuse(e); err != nil {
		log.V(1).Info("Client disconnected before the error was sent")
	}
}

// scope is what log lines of one request begin with. Most requests write none.
type scope struct {
	gateway           logr.Logger
	id, route, tenant string
	key               string // its name, for the access log
	model             string // deployment that was asked for, once it is known
}

type scopeKey struct{}

func (s *scope) log() logr.Logger { return s.gateway.WithValues("requestID", s.id, "route", s.route) }

// logOf is the log of a request.
func logOf(ctx context.Context) logr.Logger {
	if s, ok := ctx.Value(scopeKey{}).(*scope); ok {
		return s.log()
	}
	return logr.Discard()
}

// tenantOf is the tenant of the key that a request was admitted with.
func tenantOf(ctx context.Context) string {
	if s, ok := ctx.Value(scopeKey{}).(*scope); ok {
		return s.tenant
	}
	return ""
}

// handle answers one route. An error is for the client, which was not told of
// it yet.
type handle func(context.Context, caller, *reply, *http.Request) error

// serve lets a request in, and has it answered. The server reads on for a while
// where a body was left unread, and until readBody says more it has little time.
// Where there is no body the server reads already, to hear of a client that leaves:
// a time that ends there ends this request, and all that come after it.
func (p *Proxy) serve(ctx context.Context, to target, w *reply, r *http.Request) error {
	if r.Body != http.NoBody {
		if err := w.rc.SetReadDeadline(time.Now().Add(min(unreadTime, p.ReadTimeout))); err != nil {
			return fmt.Errorf("bound the time of an unread body: %w", err)
		}
	}
	if to.open {
		return to.handle(ctx, caller{address: r.RemoteAddr}, w, r)
	}
	c, err := p.admit(ctx, w, r)
	if err != nil {
		return err
	}
	if s, ok := ctx.Value(scopeKey{}).(*scope); ok {
		s.tenant, s.key = c.tenant(), c.name()
	}
	return to.handle(ctx, c, w, r)
}

// ready refuses requests until table and identity were read once: before that
// an unknown name means nothing.
func (p *Proxy) ready() error {
	if p.Table.Synced() && p.Identity() != nil {
		return nil
	}
	return notYet()
}

func notYet() error {
	return &openai.Error{Status: http.StatusServiceUnavailable, Type: openai.TypeUnavailable, Code: openai.CodeNoEndpoint,
		RetryAfter: noEndpointRetry, Message: "The gateway has just started and has not loaded its models yet. Try again."}
}

// lookup finds the model behind a name. One that the caller may not ask is as
// if it did not exist: names are nobody else's to find out.
func (p *Proxy) lookup(ctx context.Context, c caller, name string) (*route.Model, error) {
	if err := p.ready(); err != nil {
		return nil, err
	}
	m, known := p.Table.Lookup(name)
	if known && c.may(name, m) {
		if s, ok := ctx.Value(scopeKey{}).(*scope); ok {
			s.model = m.Key.String()
		}
		return m, nil
	}
	why := keys.ReasonModelUnknown
	if known {
		why = keys.ReasonModel
	}
	p.denied(ctx, c, why, name)
	return nil, openai.ModelNotFound(name)
}

// text forwards a request of a text route.
func (p *Proxy) text(ctx context.Context, c caller, w *reply, r *http.Request) error {
	body, release, err := p.readBody(c, w, r)
	if err != nil {
		// Else the server waits for more of a body before it answers, and a client that sends none learns nothing.
		w.Header().Set("Connection", "close")
		return err
	}
	asked, err := openai.DecodeEnvelope(body)
	answer := func(ctx context.Context, w *reply) error {
		defer release()
		if asked.Stream {
			w.keepAlives = newKeepAlives(r.URL.Path, asked.Model, body)
		}
		return p.ask(ctx, c, w, r, asked, body)
	}
	if err == nil && asked.Background && r.URL.Path == dialect.PathResponses {
		r = r.Clone(context.WithoutCancel(ctx)) // it outlives its handler
		return p.detach(ctx, w, asked, answer)
	}
	if err != nil {
		release()
		return err
	}
	return answer(ctx, w)
}

// ask forwards a request whose body was read.
func (p *Proxy) ask(ctx context.Context, c caller, w *reply, r *http.Request, asked openai.Envelope, body []byte) error {
	model, err := p.lookup(ctx, c, asked.Model)
	if err != nil {
		return err
	}
	c.rank(r.Header)
	if w.meter, err = p.meter(ctx, c, w, asked.Model, body); err != nil {
		return err
	}
	ctx, cancel, deadline, err := p.bound(ctx, r)
	if err != nil {
		return err
	}
	defer cancel()
	q := &query{name: asked.Model, body: body, prefix: p.prefixOf(asked, c.tenant()), key: c.name(), deadline: deadline, strict: p.StrictFields || c.strict(),
		attribution: p.KeepAttribution, background: asked.Background && r.URL.Path == dialect.PathResponses}
	all, routed := p.stages(model, q)
	if q.only, all, err = p.keeper(ctx, asked, all); err != nil {
		return err
	}
	if w.keepAlives != nil {
		w.keepAlives.home = q.only
	}
	q.begin(all, routed)
	return p.forward(ctx, w, r, q)
}

// bound limits how long a request may take in all, as the gateway is told and as
// its client asks. Without a limit there is no deadline.
func (p *Proxy) bound(ctx context.Context, r *http.Request) (bounded context.Context, cancel context.CancelFunc, deadline time.Time, err error) {
	most := p.RequestTimeout
	if text := r.Header.Get(agentapi.HeaderTimeout); text != "" {
		seconds, err := strconv.ParseFloat(text, 64)
		if err != nil || !(seconds > 0 && seconds <= maxTimeout.Seconds()) {
			return nil, nil, time.Time{}, &openai.Error{Status: http.StatusBadRequest, Type: openai.TypeInvalidRequest, Code: openai.CodeInvalidValue,
				Message: fmt.Sprintf("The header %s must be a number of seconds above 0 and at most %d, not %q.", agentapi.HeaderTimeout, int(maxTimeout.Seconds()), openai.Shorten(text))}
		}
		if asked := time.Duration(seconds * float64(time.Second)); most == 0 || asked < most {
			most = asked
		}
	}
	if most == 0 {
		return ctx, func() {}, time.Time{}, nil
	}
	deadline = time.Now().Add(most)
	bounded, cancel = context.WithDeadlineCause(ctx, deadline, errTotal)
	return bounded, cancel, deadline, nil
}

// readBody reads a request body, whose memory counts until release.
func (p *Proxy) readBody(c caller, w *reply, r *http.Request) (body []byte, release func(), err error) {
	if err := openai.PlainBody(r.Header); err != nil {
		return nil, nil, err
	}
	if r.ContentLength > p.MaxBodyBytes {
		return nil, nil, openai.BodyTooLarge(p.MaxBodyBytes)
	}
	if err := w.rc.SetReadDeadline(time.Now().Add(p.ReadTimeout)); err != nil {
		return nil, nil, fmt.Errorf("bound the time of a request body: %w", err)
	}
	interrupt := func() { _ = w.rc.SetReadDeadline(time.Unix(1, 0)) } // fails with the connection
	body, release, err = p.bodies.Read(r.Body, c.share(), r.ContentLength, p.MaxBodyBytes, interrupt)
	if err != nil {
		return nil, nil, err
	}
	intake.Arrived(r.Context())
	if err := w.rc.SetReadDeadline(time.Time{}); err != nil {
		release()
		return nil, nil, fmt.Errorf("bound the time of a request body: %w", err)
	}
	return body, release, nil
}
