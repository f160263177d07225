package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"metalfleet.dev/metalfleet/agent/peer"
	"metalfleet.dev/metalfleet/api/intake"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// metrics are the agent's series. Labels come from closed sets, except the
// replicas of this Mac, of which there are at most 64. Counters are kept here;
// gauges.go reads the rest from the pool at each scrape.
type metrics struct {
	registry *prometheus.Registry
	freed    *prometheus.CounterVec
	reclaims *prometheus.CounterVec
	// collected and collections count evicted weights.
	collected, collections *prometheus.CounterVec
	fetched                *prometheus.CounterVec
	// given counts what peers copied from here, and blamed why a peer gave
	// nothing.
	given  prometheus.Counter
	blamed *prometheus.CounterVec
	// textCalls are tool calls that were returned as text.
	textCalls prometheus.Counter
}

func newMetrics() *metrics {
	m := &metrics{
		registry: prometheus.NewRegistry(),
		freed: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "metalfleet_agent_freed_bytes_total", Help: "Bytes that engines held just before they exited, as measured.",
		}, []string{"reason"}),
		reclaims: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "metalfleet_agent_reclaims_total", Help: "Engines that ended.",
		}, []string{"reason", "host_check"}),
		collected: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "metalfleet_agent_weights_collected_bytes_total", Help: "Bytes of unused weights removed from the disk.",
		}, []string{"reason"}),
		collections: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "metalfleet_agent_weights_collected_total", Help: "Unused models removed from the disk.",
		}, []string{"reason"}),
		fetched: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "metalfleet_agent_weights_fetched_bytes_total", Help: "Bytes of weights downloaded over the network, by kind of source.",
		}, []string{"source"}),
		given: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "metalfleet_agent_weights_given_bytes_total", Help: "Bytes of weights that other Macs copied from this one.",
		}),
		blamed: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "metalfleet_agent_neighbour_failures_total", Help: "Copies that another Mac failed to provide, by reason: lied, slow, refused, gone.",
		}, []string{"reason"}),
	}
	m.textCalls = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "metalfleet_agent_tool_calls_text_total", Help: "Tool calls of models that were malformed and returned as text.",
	})
	for _, r := range peer.Reasons() {
		m.blamed.WithLabelValues(r)
	}
	m.registry.MustRegister(m.textCalls, m.given, m.blamed, m.freed, m.reclaims, m.collected, m.collections, m.fetched, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

func (m *metrics) reclaimed(r v1alpha1.Reclaim) {
	m.reclaims.WithLabelValues(string(r.Reason), string(r.HostCheck)).Inc()
	if r.FreedBytes != nil {
		m.freed.WithLabelValues(string(r.Reason)).Add(float64(*r.FreedBytes))
	}
}

func (m *metrics) collect(c v1alpha1.Collection) {
	m.collections.WithLabelValues(string(c.Reason)).Inc()
	m.collected.WithLabelValues(string(c.Reason)).Add(float64(c.Bytes))
}

// fetch counts bytes of a source by its scheme, one of those that the store
// knows.
func (m *metrics) fetch(scheme string, n int) { m.fetched.WithLabelValues(scheme).Add(float64(n)) }

// textCall counts tool calls that were returned as text.
func (m *metrics) textCall(n int) { m.textCalls.Add(float64(n)) }

// give counts bytes that a peer copied, and blame a peer that gave none.
func (m *metrics) give(n int)          { m.given.Add(float64(n)) }
func (m *metrics) blame(reason string) { m.blamed.WithLabelValues(reason).Inc() }

func (m *metrics) handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{MaxRequestsInFlight: 4})
}

// serveMetrics serves scrapes until ctx ends.
func (a *Agent) serveMetrics(ctx context.Context) error {
	if a.Metrics == nil {
		<-ctx.Done()
		return ctx.Err()
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", a.metrics.handler())
	s := intake.PortServer(mux, slog.NewLogLogger(logr.ToSlogHandler(a.Log.WithName("metrics")), slog.LevelDebug))
	stop := context.AfterFunc(ctx, func() { _ = s.Close() })
	defer stop()
	if err := s.Serve(intake.Port(a.Metrics)); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve metrics: %w", err)
	}
	return ctx.Err()
}
