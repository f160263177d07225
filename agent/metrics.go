package agent

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"metalfleet.dev/metalfleet/agent/pool"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// metrics are the agent's series. Labels come from closed sets.
type metrics struct {
	registry *prometheus.Registry
	freed    *prometheus.CounterVec
	reclaims *prometheus.CounterVec
}

func newMetrics() *metrics {
	m := &metrics{
		registry: prometheus.NewRegistry(),
		freed: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "metalfleet_agent_freed_bytes_total", Help: "Bytes that engines held just before their observed exit, measured.",
		}, []string{"reason"}),
		reclaims: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "metalfleet_agent_reclaims_total", Help: "Engines that went.",
		}, []string{"reason", "host_check"}),
	}
	m.registry.MustRegister(m.freed, m.reclaims, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

func (m *metrics) reclaimed(r v1alpha1.Reclaim) {
	m.reclaims.WithLabelValues(string(r.Reason), string(r.HostCheck)).Inc()
	if r.FreedBytes != nil {
		m.freed.WithLabelValues(string(r.Reason)).Add(float64(*r.FreedBytes))
	}
}

// watch adds the gauges, read from the newest snapshot at each scrape.
func (m *metrics) watch(snapshot func() *pool.Snapshot) {
	for term, of := range map[string]func(*v1alpha1.MacMemory) int64{
		"total":     func(m *v1alpha1.MacMemory) int64 { return m.TotalBytes },
		"ceiling":   func(m *v1alpha1.MacMemory) int64 { return m.CeilingBytes },
		"capacity":  func(m *v1alpha1.MacMemory) int64 { return m.CapacityBytes },
		"reserved":  func(m *v1alpha1.MacMemory) int64 { return m.ReservedBytes },
		"footprint": func(m *v1alpha1.MacMemory) int64 { return m.FootprintBytes },
		"foreign":   func(m *v1alpha1.MacMemory) int64 { return m.ForeignBytes },
		"free":      func(m *v1alpha1.MacMemory) int64 { return m.FreeBytes },
	} {
		m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "metalfleet_agent_memory_bytes", Help: "Terms of the memory ledger; reserved is an estimate, footprint is measured.",
			ConstLabels: prometheus.Labels{"term": term},
		}, func() float64 { return float64(of(&snapshot().Memory)) }))
	}
}

// serveMetrics answers scrapes until ctx ends.
func (a *Agent) serveMetrics(ctx context.Context) error {
	if a.Metrics == nil {
		<-ctx.Done()
		return ctx.Err()
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(a.metrics.registry, promhttp.HandlerOpts{}))
	s := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	stop := context.AfterFunc(ctx, func() { _ = s.Close() })
	defer stop()
	if err := s.Serve(a.Metrics); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve metrics: %w", err)
	}
	return ctx.Err()
}
