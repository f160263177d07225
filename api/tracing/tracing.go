// Package tracing sends the spans of requests to an OpenTelemetry collector, as OTLP over HTTP.
//
// It owns the flags --traces and --trace-ratio of gateway and agent, the spans' common
// attributes, and the W3C header traceparent, with which client, gateway and agent join one
// trace. A nil Tracer sends nothing. It refuses addresses that are no URL, and drops spans
// that a slow collector does not take: a request never waits for one. Spans have no prompts and
// no answers.
//
// Start reading at Flags.New and Tracer.Serve.
package tracing

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// Bounds of what waits for the collector: spans beyond are dropped.
const (
	queued      = 2048
	batch       = 256
	exportTime  = 10 * time.Second
	attributes  = 32
	events      = 16
	valueLength = 256
)

// Names of attributes, where OpenTelemetry's conventions have one.
const (
	Model        = "gen_ai.request.model"
	InputTokens  = "gen_ai.usage.input_tokens"
	OutputTokens = "gen_ai.usage.output_tokens"
	CachedTokens = "gen_ai.usage.cache_read.input_tokens"
	Status       = "http.response.status_code"
	Route        = "http.route"
	RequestID    = "metalfleet.request_id"
	Mac          = "metalfleet.mac"
	Replica      = "metalfleet.replica"
	Key          = "metalfleet.api_key"
)

// Flags are the flags of a program that traces. The zero value traces nothing.
type Flags struct {
	// Trusted follows the decision of who asks, as agents do with gateways. Else the ratio
	// is for all requests: a client could have all of its own traced, and others' spans dropped.
	Trusted bool
	url     string
	ratio   float64
}

// Bind defines the flags.
func (f *Flags) Bind(set *flag.FlagSet) {
	set.StringVar(&f.url, "traces", "", "`URL` of an OpenTelemetry collector (OTLP over HTTP), such as http://collector:4318; empty sends no traces")
	set.Float64Var(&f.ratio, "trace-ratio", 1, "`part` of the requests that are traced, from 0 to 1")
}

// Check refuses invalid values.
func (f *Flags) Check() error {
	if f.url == "" {
		return nil
	}
	u, err := url.Parse(f.url)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return fmt.Errorf("--traces %q is no URL of a collector; use one like http://collector:4318", f.url)
	}
	if !(f.ratio >= 0 && f.ratio <= 1) {
		return fmt.Errorf("--trace-ratio %g is not from 0 to 1", f.ratio)
	}
	return nil
}

// Tracer begins spans. Its methods are safe for concurrent use; those of nil do nothing.
type Tracer struct {
	provider *sdk.TracerProvider
	tracer   trace.Tracer
}

// New returns a tracer for a service, or nil if the flags name no collector. Close it.
func (f *Flags) New(service, version string, log logr.Logger) (*Tracer, error) {
	if err := f.Check(); err != nil || f.url == "" {
		return nil, err
	}
	u := strings.TrimSuffix(f.url, "/")
	if !strings.HasSuffix(u, "/v1/traces") {
		u += "/v1/traces"
	}
	out, err := otlptracehttp.New(context.Background(), otlptracehttp.WithEndpointURL(u), otlptracehttp.WithTimeout(exportTime))
	if err != nil {
		return nil, fmt.Errorf("exporter of traces: %w", err)
	}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { log.Info("Cannot send traces", "reason", err.Error()) }))
	limits := sdk.NewSpanLimits()
	limits.AttributeValueLengthLimit, limits.AttributeCountLimit, limits.EventCountLimit = valueLength, attributes, events
	p := sdk.NewTracerProvider(
		sdk.WithBatcher(out, sdk.WithMaxQueueSize(queued), sdk.WithMaxExportBatchSize(batch)),
		sdk.WithSampler(f.sampler()),
		sdk.WithRawSpanLimits(limits),
		sdk.WithResource(resource.NewSchemaless(attribute.String("service.name", service), attribute.String("service.version", version))))
	return &Tracer{provider: p, tracer: p.Tracer("metalfleet.dev/metalfleet")}, nil
}

func (f *Flags) sampler() sdk.Sampler {
	if f.Trusted {
		return sdk.ParentBased(sdk.TraceIDRatioBased(f.ratio))
	}
	some := sampler(f.ratio)
	return sdk.ParentBased(some, sdk.WithRemoteParentSampled(some))
}

// sampler decides by chance, and not by the id of a trace, which a client may have chosen.
type sampler float64

func (s sampler) ShouldSample(p sdk.SamplingParameters) sdk.SamplingResult {
	r := sdk.SamplingResult{Decision: sdk.Drop, Tracestate: trace.SpanContextFromContext(p.ParentContext).TraceState()}
	if rand.Float64() < float64(s) {
		r.Decision = sdk.RecordAndSample
	}
	return r
}

func (s sampler) Description() string { return fmt.Sprintf("by chance, %g", float64(s)) }

// Close sends what waits, until ctx ends.
func (t *Tracer) Close(ctx context.Context) error {
	if t == nil {
		return nil
	}
	if err := t.provider.Shutdown(ctx); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("send the last traces: %w", err)
	}
	return nil
}

// Span is a part of a request's time. The methods of nil do nothing.
type Span struct {
	tracer *Tracer
	span   trace.Span
}

// Serve begins the span of a request, within the trace that its header names.
func (t *Tracer) Serve(ctx context.Context, header http.Header, name string) (context.Context, *Span) {
	if t == nil {
		return ctx, nil
	}
	ctx = propagation.TraceContext{}.Extract(ctx, parent(header))
	return t.begin(ctx, name, trace.SpanKindServer)
}

// maxState is the most bytes of tracestate that are passed on: those that W3C Trace Context 3.3.1.5 wants
// to be.
const maxState = 512

// parent returns the headers that name a span's parent. They stay until the span is sent, so a long
// tracestate, which only adds to them, is dropped.
func parent(header http.Header) propagation.HeaderCarrier {
	out := http.Header{}
	for _, name := range []string{"Traceparent", "Tracestate"} {
		if v := header.Get(name); v != "" && len(v) <= maxState {
			out.Set(name, strings.Clone(v))
		}
	}
	return propagation.HeaderCarrier(out)
}

func (t *Tracer) begin(ctx context.Context, name string, kind trace.SpanKind) (context.Context, *Span) {
	ctx, span := t.tracer.Start(ctx, name, trace.WithSpanKind(kind))
	s := &Span{tracer: t, span: span}
	return context.WithValue(ctx, spanKey{}, s), s
}

type spanKey struct{}

// Of returns the span of a context, or nil.
func Of(ctx context.Context) *Span {
	s, _ := ctx.Value(spanKey{}).(*Span)
	return s
}

// Begin begins a part of the span of ctx, if there is one.
func Begin(ctx context.Context, name string) (context.Context, *Span) {
	s := Of(ctx)
	if s == nil {
		return ctx, nil
	}
	return s.tracer.begin(ctx, name, trace.SpanKindInternal)
}

// Call begins a request to another program, and adds the trace to its header.
func Call(ctx context.Context, header http.Header, name string) *Span {
	s := Of(ctx)
	if s == nil {
		return nil
	}
	ctx, call := s.tracer.begin(ctx, name, trace.SpanKindClient)
	propagation.TraceContext{}.Inject(ctx, propagation.HeaderCarrier(header))
	return call
}

// Text sets an attribute that is not empty.
func (s *Span) Text(name, value string) {
	if s != nil && value != "" {
		s.span.SetAttributes(attribute.String(name, value))
	}
}

// Number sets an attribute.
func (s *Span) Number(name string, value int64) {
	if s != nil {
		s.span.SetAttributes(attribute.Int64(name, value))
	}
}

// Event adds a point in time.
func (s *Span) Event(name string) {
	if s != nil {
		s.span.AddEvent(name)
	}
}

// End ends a span. A reason means that it failed.
func (s *Span) End(failure string) {
	if s == nil {
		return
	}
	if failure != "" {
		s.span.SetStatus(codes.Error, failure)
	}
	s.span.End()
}
