package proxy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/anthropic"
	"metalfleet.dev/metalfleet/api/front"
	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/api/responses"
	"metalfleet.dev/metalfleet/api/tracing"
	"metalfleet.dev/metalfleet/gateway/dispatch"
	"metalfleet.dev/metalfleet/gateway/upstream"
)

// request is a client's request to a replica, or to the agent of a Mac.
type request struct {
	// Request is the dispatcher's part; empty for a request to an agent.
	dispatch.Request
	client *http.Request
	// readmit refuses a request whose client lost its rights while it waited.
	readmit func() error
	body    *content // nil without one
	// strict makes the agent reject fields that have no effect.
	strict bool
	// background makes the agent send a stream, which is read to its end.
	background bool
	// attribution makes the agent keep the attribution block.
	attribution bool
	// cut is why the Mac's last response ended early.
	cut error
	// sent is the status of the error with which the Mac ended a stream; 0 without one.
	sent int
	// within bounds the time until the response begins, if the forwarder does not bound it more; 0
	// means no limit.
	within time.Duration
}

// maxStatus is the highest status of a response. An agent sends 200 or an error: with some others
// net/http sends no body.
const maxStatus = 599

// userAgent identifies the gateway to agents.
const userAgent = "metalfleet-gateway"

// errTry means that a replica did not begin its response within the time limit of one
// attempt, or did not end a refusal.
var errTry = errors.New("the replica did not begin its response within the try timeout, or did not end a refusal")

// errOfMac is the cause of an error that a Mac sent after a stream was kept open.
var errOfMac = errors.New("the Mac refused the request")

// forwarder sends requests to replicas and their responses to clients.
type forwarder struct {
	dispatcher *dispatch.Dispatcher
	macs       *upstream.Pool
	metrics    *metrics
	// tryTimeout bounds the time until a replica begins its response; 0 means no limit.
	tryTimeout time.Duration
	keepAlive  time.Duration
	// held bounds the memory of buffered parts of responses.
	held *room
	// clients hides addresses from agents, which only distinguish them.
	clients maphash.Seed
}

// forward tries replicas until one responds. It tries no other one after the client
// received the first byte of a response.
func (f *forwarder) forward(ctx context.Context, w *reply, req *request) error {
	var failed *dispatch.Failure
	for {
		if !req.body.recall() {
			e := openai.Overloaded(dispatch.RetryAfter)
			e.Cause = failed.Err
			return e
		}
		waiting, span := tracing.Begin(ctx, "acquire a replica")
		lease, err := f.dispatcher.Acquire(waiting, &req.Request)
		if err != nil {
			span.End("no replica")
			return err
		}
		span.End("")
		if err := req.readmit(); err != nil {
			lease.Release()
			return err
		}
		w.deployment = lease.Model.Key.String()
		if lease.After != nil {
			f.metrics.retries.WithLabelValues(lease.After.Reason).Inc()
		}
		if failed, err = f.observe(ctx, w, req, lease); failed == nil {
			return err
		}
		w.keepAlives.displace()
		lease.Failed(failed)
	}
}

// observe is try, and ends the lease as the request ended at its replica.
func (f *forwarder) observe(ctx context.Context, w *reply, req *request, lease *dispatch.Lease) (failed *dispatch.Failure, err error) {
	err = errIncomplete // if a panic aborts the response
	defer func() {
		how := outcomeOf(cmp.Or(req.sent, w.Status()), failed, err)
		if errors.Is(err, errIncomplete) && req.cut != nil && ctx.Err() == nil && !w.Delayed() {
			how = dispatch.OutcomeFailed
		}
		lease.Observe(how)
	}()
	return f.try(ctx, w, req, lease)
}

// noted notes why a body ends early.
type noted struct {
	io.ReadCloser
	cut *error
}

func (b noted) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		*b.cut = err
	}
	return n, err
}

// outcomeOf returns how a request ended at its replica. It is unknown for lack of memory that others
// use, here or there, and for a request that the client ended or delayed.
func outcomeOf(status int, failed *dispatch.Failure, err error) dispatch.Outcome {
	var e *openai.Error
	if errors.Is(err, errOfMac) && errors.As(err, &e) {
		status, err = e.Status, nil
	}
	switch {
	case errors.Is(err, errMacsRoom), failed != nil && errors.Is(failed.Err, errMacsRoom):
		return dispatch.OutcomeRejected
	case failed != nil && errors.Is(failed.Err, errNoRoom):
		return dispatch.OutcomeUnknown
	case errors.Is(err, errDelayed), failed != nil && errors.Is(failed.Err, errDelayed):
		return dispatch.OutcomeUnknown
	case failed != nil && failed.Reason == dispatch.ReasonRefused && failed.Refusal.Code != agentapi.CodeEngineLost:
		return dispatch.OutcomeRefused
	case failed != nil:
		return dispatch.OutcomeFailed
	case err != nil && !errors.As(err, &e):
		return dispatch.OutcomeUnknown
	case errors.Is(err, errTooLong): // its client may have caused that
		return dispatch.OutcomeRejected
	case err != nil && e.Code == agentapi.CodeEngineLost: // the response had begun
		return dispatch.OutcomeFailed
	case err != nil && (e.Status < http.StatusBadRequest || e.Status >= http.StatusInternalServerError):
		return dispatch.OutcomeUnknown
	case err != nil:
		return dispatch.OutcomeRejected
	case status == http.StatusInternalServerError || status == http.StatusBadGateway:
		return dispatch.OutcomeFailed
	case status >= http.StatusBadRequest:
		return dispatch.OutcomeRejected
	}
	return dispatch.OutcomeAnswered
}

// try sends the request to one Mac and delivers its response. A failure means that the
// client received nothing. Otherwise the request has ended, with an error if the client has
// not received that.
func (f *forwarder) try(ctx context.Context, w *reply, req *request, lease *dispatch.Lease) (failed *dispatch.Failure, err error) {
	running, cancel := context.WithCancelCause(w.meter.following(ctx, lease.Mac))
	defer cancel(nil) // always, so that the agent notices the end
	out := outgoing(running, req, lease, w.Header().Get(agentapi.HeaderRequestID))
	if w.meter != nil { // else no one reads them, and a transport ends a response after 16 KiB of them
		out.Header.Set(agentapi.HeaderInforms, "true")
	}
	if about := scopeOf(ctx); about.tenant == "" {
		out.Header.Set(agentapi.HeaderClient, strconv.FormatUint(maphash.String(f.clients, cmp.Or(req.Owner, about.share)), 36))
	}
	span := tracing.Call(ctx, out.Header, "request to a replica")
	defer func() { endOfTry(span, lease, failed, err) }()
	if req.Routed {
		w.model = lease.Model.Key.String()
	}
	if w.keepAlives != nil {
		w.keepAlives.model = displayName(req, lease)
		if id := w.keepAlives.place(lease.Mac); id != "" {
			out.Header[agentapi.HeaderResponseID] = []string{id}
		}
		if proof := w.keepAlives.proof(); proof != "" {
			out.Header[agentapi.HeaderResponseProof] = []string{proof}
		}
	}
	begun, idle := f.boundTry(req, cancel), w.keepOpen(ctx, f.keepAlive, cancel)
	resp, err := f.macs.To(lease.Endpoint).RoundTrip(out)
	begun()
	if gone := idle.end(); gone != nil && err == nil {
		err = errors.Join(gone, resp.Body.Close())
	}
	if gone := context.Cause(running); errors.Is(gone, front.ErrClientGone) {
		return nil, gone
	}
	if err != nil {
		if errors.Is(context.Cause(running), errTry) {
			err = errTry
		}
		return failureOf(ctx, fmt.Errorf("request to %s: %w", lease.Mac, err))
	}
	defer resp.Body.Close() //nolint:errcheck // cancelled above, read to its end or broken
	f.dispatcher.Trust(lease.Mac)
	req.cut, req.sent, resp.Body = nil, 0, noted{resp.Body, &req.cut}
	d := delivery{w: w, req: req, resp: trimmed(resp), mac: lease.Mac, forwarder: f}
	if resp.StatusCode != http.StatusOK && resp.StatusCode < http.StatusBadRequest || resp.StatusCode > maxStatus {
		return nil, d.invalid()
	}
	if resp.Header.Get(agentapi.HeaderRetryable) == "true" {
		defer time.AfterFunc(refusalTime, func() { cancel(errTry) }).Stop()
		w.meter.refusedWith(resp.Header)
		return refusal(ctx, running, resp)
	}
	if isEvents(resp.Header.Get("Content-Type")) {
		return d.stream(ctx)
	}
	return d.whole(ctx)
}

// endOfTry ends the span of a request to one Mac.
func endOfTry(span *tracing.Span, lease *dispatch.Lease, failed *dispatch.Failure, err error) {
	span.Text(tracing.Mac, lease.Mac)
	span.Text(tracing.Replica, lease.Replica)
	switch {
	case failed != nil:
		span.End(failed.Reason)
	case err != nil:
		span.End("the response was not delivered")
	default:
		span.End("")
	}
}

// boundTry cancels an attempt whose response does not begin in time.
func (f *forwarder) boundTry(req *request, cancel context.CancelCauseFunc) (begun func() bool) {
	limit := f.tryTimeout
	if limit <= 0 || req.within > 0 && req.within < limit {
		limit = req.within
	}
	if limit <= 0 {
		return func() bool { return true }
	}
	return time.AfterFunc(limit, func() { cancel(errTry) }).Stop
}

// displayName returns the model name in the response.
func displayName(req *request, lease *dispatch.Lease) string {
	if !req.Routed {
		return req.Name
	}
	return routedName(req, lease)
}

// routedName returns the name, at the deployment that answers, of the model or adapter that
// a request is for.
func routedName(req *request, lease *dispatch.Lease) string {
	if req.Adapter != "" {
		return lease.Model.DisplayName() + ":" + req.Adapter
	}
	return lease.Model.DisplayName()
}

// outgoing returns the request to the agent: the client's bytes, and the gateway's own
// headers. A client's credentials are not sent.
func outgoing(ctx context.Context, req *request, lease *dispatch.Lease, id string) *http.Request {
	r := req.client
	out := &http.Request{Method: r.Method, URL: &url.URL{Scheme: "https", Host: lease.Address, Path: r.URL.Path}, Host: lease.Address,
		Body: bodyReader(req.body.bytes()), ContentLength: int64(len(req.body.bytes())), GetBody: req.body.again,
		Header: http.Header{
			"Content-Type":           {"application/json"},
			"User-Agent":             {userAgent},
			agentapi.HeaderReplica:   {lease.Replica},
			agentapi.HeaderEpoch:     {strconv.FormatInt(lease.Epoch, 10)},
			agentapi.HeaderRequestID: {id},
		}}
	if lease.Model == nil { // the request is for the agent itself
		out.Header.Del(agentapi.HeaderReplica)
		out.Header.Del(agentapi.HeaderEpoch)
		out.URL.RawQuery = safeQuery(r.URL.Query())
	}
	if tenant := tenantOf(ctx); tenant != "" {
		out.Header.Set(agentapi.HeaderTenant, tenant)
	}
	for _, name := range sentHeaders {
		if value := r.Header.Get(name); value != "" {
			out.Header[name] = []string{value[:min(len(value), maxValue)]}
		}
	}
	if req.strict {
		out.Header.Set(agentapi.HeaderStrictFields, "true")
	}
	if req.background {
		out.Header.Set(agentapi.HeaderBackground, "true")
	}
	if req.attribution {
		out.Header.Set(agentapi.HeaderAttribution, agentapi.AttributionKeep)
	}
	if req.Adapter != "" {
		out.Header.Set(agentapi.HeaderAdapter, req.Adapter)
	}
	if req.Routed {
		out.Header.Set(agentapi.HeaderModel, routedName(req, lease))
	}
	return out.WithContext(req.body.sending(ctx))
}

// sentHeaders are the headers of a client that are sent to an agent.
var sentHeaders = []string{anthropic.HeaderVersion, agentapi.HeaderPriority, agentapi.HeaderProgress}

// maxValue bounds each header of a client that is sent to an agent: an agent refuses long
// headers, and that would look like a failure of the Mac.
const maxValue = 64

// safeQuery returns a query without values that the agent does not need, which may be
// secrets such as a key. Their names are kept: the agent refuses unknown parameters by
// name.
func safeQuery(query url.Values) string {
	for name := range query {
		if !slices.Contains(responses.ItemsQuery, name) {
			query[name] = []string{""}
		}
	}
	return query.Encode()
}
