package intake

import "github.com/prometheus/client_golang/prometheus"

const prefix = "metalfleet_gateway_"

var (
	connectionsDesc = prometheus.NewDesc(prefix+"connections", "Connections of clients.", nil, nil)
	endedDesc       = prometheus.NewDesc(prefix+"connections_ended_total",
		"Connections that were closed to stay within the limits, by reason: replaced (incomplete request or unread response, for a newer one), unread (the clients of too many read too slowly), memory (the kernel used too much for all), total or address (refused, because the others are in use), head (a request had too many or too long headers).", []string{"reason"}, nil)
	bytesDesc   = prometheus.NewDesc(prefix+"body_bytes", "Memory of the buffers of request bodies and of long headers.", nil, nil)
	crowdedDesc = prometheus.NewDesc(prefix+"bodies_crowded_total", "Requests that were refused for want of memory for their bodies or headers.", nil, nil)
)

// Describe implements prometheus.Collector.
func (l *Listener) Describe(to chan<- *prometheus.Desc) { to <- connectionsDesc; to <- endedDesc }

// Collect implements prometheus.Collector.
func (l *Listener) Collect(to chan<- prometheus.Metric) {
	l.mu.Lock()
	defer l.mu.Unlock()
	to <- prometheus.MustNewConstMetric(connectionsDesc, prometheus.GaugeValue, float64(l.count))
	for reason := range refusals {
		to <- prometheus.MustNewConstMetric(endedDesc, prometheus.CounterValue, float64(l.ended[reason]), string(reason))
	}
}

// Describe implements prometheus.Collector.
func (b *Bodies) Describe(to chan<- *prometheus.Desc) { to <- bytesDesc; to <- crowdedDesc }

// Collect implements prometheus.Collector.
func (b *Bodies) Collect(to chan<- prometheus.Metric) {
	b.mu.Lock()
	defer b.mu.Unlock()
	to <- prometheus.MustNewConstMetric(bytesDesc, prometheus.GaugeValue, float64(b.held))
	to <- prometheus.MustNewConstMetric(crowdedDesc, prometheus.CounterValue, float64(b.crowded))
}
