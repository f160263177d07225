package proxy

import (
	"context"
	"net/http"
	"time"

	"github.com/go-logr/logr"

	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/tracing"
)

// scope holds the logging context of one request. Most requests log nothing.
type scope struct {
	gateway           logr.Logger
	id, route, tenant string
	share             string // owner of its memory: the tenant, or the address without one
	key               string // name of the API key, for the access log
	model             string // the deployment, once it is known
}

type scopeKey struct{}

func (s *scope) log() logr.Logger { return s.gateway.WithValues("requestID", s.id, "route", s.route) }

func (s *scope) in(ctx context.Context) context.Context {
	return context.WithValue(ctx, scopeKey{}, s)
}

// scopeOf returns the scope of a request; outside a request, one without a log.
func scopeOf(ctx context.Context) *scope {
	if s, ok := ctx.Value(scopeKey{}).(*scope); ok {
		return s
	}
	return &scope{gateway: logr.Discard()}
}

// logOf returns the log of a request.
func logOf(ctx context.Context) logr.Logger { return scopeOf(ctx).log() }

// tenantOf returns the tenant of the request's API key.
func tenantOf(ctx context.Context) string { return scopeOf(ctx).tenant }

// access writes the access log line of a finished request. It contains nothing that a
// client wrote: a model is logged as its deployment, or not at all. dropped lines were left out before it.
func (s *scope) access(w *reply, address string, dropped int) {
	log := s.log().WithName("access")
	if dropped > 0 {
		log = log.WithValues("dropped", dropped)
	}
	log.Info("Request ended", "key", s.key, "client", address, "model", s.model,
		"status", w.Status(), "tokens", w.tokens.Sum(), "seconds", time.Since(w.Began()).Seconds())
}

// spanName returns one of a closed set of names: a client may send any method.
func spanName(method string, to target) string {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodDelete, http.MethodOptions:
		return method + " " + to.name
	}
	return to.name
}

// trace ends the span of a finished request, with what the access log has.
func (s *scope) trace(span *tracing.Span, w *reply) {
	if span == nil {
		return
	}
	span.Text(tracing.RequestID, s.id)
	span.Text(tracing.Route, s.route)
	span.Text(tracing.Key, s.key)
	span.Text(tracing.Model, s.model)
	span.Text(tracing.Mac, w.Header().Get(agentapi.HeaderMac))
	span.Number(tracing.Status, int64(w.Status()))
	span.Number(tracing.InputTokens, w.tokens.Prompt)
	span.Number(tracing.OutputTokens, w.tokens.Generated)
	failure := ""
	if w.failed >= http.StatusInternalServerError {
		failure = http.StatusText(w.failed)
	}
	span.End(failure)
}
