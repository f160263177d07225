// Package tracetest is a collector of traces for tests: it takes OTLP over HTTP on loopback and
// remembers the spans.
//
// Start reading at New.
package tracetest

import (
	"encoding/hex"
	"flag"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"github.com/go-logr/logr"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	"google.golang.org/protobuf/proto"

	"metalfleet.dev/metalfleet/api/tracing"
)

// Span is a span as it was sent.
type Span struct {
	Service, Name, Trace, ID, Parent string
	Attributes                       map[string]any // string or int64
	Events                           []string
	// Failure is the description of a failed span.
	Failure string
}

// Collector remembers the spans that it was sent.
type Collector struct {
	t   testing.TB
	URL string

	mu    sync.Mutex // guards spans
	spans []Span
}

// New starts a collector that ends with the test.
func New(t testing.TB) *Collector {
	c := &Collector{t: t}
	s := httptest.NewServer(c)
	t.Cleanup(s.Close)
	c.URL = s.URL
	return c
}

// Tracer returns a tracer that sends to the collector, and what sends everything now.
func (c *Collector) Tracer(service string, args ...string) (t *tracing.Tracer, flush func()) {
	c.t.Helper()
	f := tracing.Flags{Trusted: service == "agent"}
	set := flag.NewFlagSet(service, flag.ContinueOnError)
	f.Bind(set)
	if err := set.Parse(append([]string{"--traces=" + c.URL}, args...)); err != nil {
		c.t.Fatal(err)
	}
	t, err := f.New(service, "v1", logr.Discard())
	if err != nil {
		c.t.Fatal(err)
	}
	return t, func() {
		if err := t.Close(c.t.Context()); err != nil {
			c.t.Error(err)
		}
	}
}

// ServeHTTP implements http.Handler.
func (c *Collector) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	var request collector.ExportTraceServiceRequest
	if err != nil || r.URL.Path != "/v1/traces" || proto.Unmarshal(body, &request) != nil {
		http.Error(w, "no traces", http.StatusBadRequest)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, of := range request.GetResourceSpans() {
		service, _ := attributes(of.GetResource().GetAttributes())["service.name"].(string)
		for _, scope := range of.GetScopeSpans() {
			for _, s := range scope.GetSpans() {
				span := Span{Service: service, Name: s.GetName(), Trace: hex.EncodeToString(s.GetTraceId()), ID: hex.EncodeToString(s.GetSpanId()),
					Parent: hex.EncodeToString(s.GetParentSpanId()), Attributes: attributes(s.GetAttributes()), Failure: s.GetStatus().GetMessage()}
				for _, e := range s.GetEvents() {
					span.Events = append(span.Events, e.GetName())
				}
				c.spans = append(c.spans, span)
			}
		}
	}
}

func attributes(all []*common.KeyValue) map[string]any {
	out := map[string]any{}
	for _, kv := range all {
		switch v := kv.GetValue().GetValue().(type) {
		case *common.AnyValue_StringValue:
			out[kv.GetKey()] = v.StringValue
		case *common.AnyValue_IntValue:
			out[kv.GetKey()] = v.IntValue
		}
	}
	return out
}

// Spans returns the spans so far, in the order in which they ended.
func (c *Collector) Spans() []Span {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]Span(nil), c.spans...)
}

// Named returns the only span of a name, which has to be there.
func (c *Collector) Named(name string) Span {
	c.t.Helper()
	var found []Span
	for _, s := range c.Spans() {
		if s.Name == name {
			found = append(found, s)
		}
	}
	if len(found) != 1 {
		c.t.Fatalf("%d spans are called %q, of %+v", len(found), name, c.Spans())
	}
	return found[0]
}
