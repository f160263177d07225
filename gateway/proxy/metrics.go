package proxy

import (
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/dialect"
	"metalfleet.dev/metalfleet/gateway/dispatch"
	"metalfleet.dev/metalfleet/gateway/route"
)

// metrics of the gateway. Labels come from closed sets: routes, statuses, reasons.
type metrics struct {
	requests  *prometheus.CounterVec
	firstByte *prometheus.HistogramVec
	duration  *prometheus.HistogramVec
	inFlight  prometheus.Gauge
	retries   *prometheus.CounterVec
	broken    prometheus.Counter
	ignored   *prometheus.CounterVec
	models    *modelMetrics
	// fieldLabel returns the label of an ignored field.
	fieldLabel func(name string) string
}

var seconds = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600}

func newMetrics(r prometheus.Registerer, table *route.Table) *metrics {
	const prefix = "metalfleet_gateway_"
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: prefix + "requests_total",
			Help: "Finished requests, by route and status."}, []string{"route", "status"}),
		firstByte: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: prefix + "time_to_first_byte_seconds",
			Help: "Time until the first byte of the response was sent, by route.", Buckets: seconds}, []string{"route"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: prefix + "request_duration_seconds",
			Help: "Time until a request finished, by route.", Buckets: seconds}, []string{"route"}),
		inFlight: prometheus.NewGauge(prometheus.GaugeOpts{Name: prefix + "requests_in_flight",
			Help: "Requests that are running."}),
		retries: prometheus.NewCounterVec(prometheus.CounterOpts{Name: prefix + "retries_total",
			Help: "Retries on another replica, by the reason why the previous try failed: connection, stream, refused, timeout."}, []string{"reason"}),
		broken: prometheus.NewCounter(prometheus.CounterOpts{Name: prefix + "answers_broken_off_total",
			Help: "Responses that failed after they had begun."}),
		ignored: prometheus.NewCounterVec(prometheus.CounterOpts{Name: prefix + "ignored_fields_total",
			Help: "Answered requests with a field that was ignored, by the name of the field; other for fields that no API documents."}, []string{"field"}),
		fieldLabel: dialect.FieldLabels(),
		models:     newModelMetrics(r, table),
	}
	r.MustRegister(m.ignored, m.requests, m.firstByte, m.duration, m.inFlight, m.retries, m.broken)
	m.begin()
	return m
}

// begin starts the usual series at 0: rate() and increase() ignore the first value of a
// series. Other statuses start with their first request.
func (m *metrics) begin() {
	for _, route := range append(slices.Clone(forwarded), dialect.PathModels) {
		m.requests.WithLabelValues(route, strconv.Itoa(http.StatusOK))
		m.duration.WithLabelValues(route)
		m.firstByte.WithLabelValues(route)
	}
	for _, reason := range []string{dispatch.ReasonConnection, dispatch.ReasonStream, dispatch.ReasonRefused, dispatch.ReasonTimeout} {
		m.retries.WithLabelValues(reason)
	}
	m.ignored.WithLabelValues(dialect.OtherField)
}

// countIgnored counts the fields that an agent reports as ignored, each once.
func (m *metrics) countIgnored(h http.Header) {
	var counted []string
	for _, name := range agentapi.Ignored(h) {
		if label := m.fieldLabel(name); !slices.Contains(counted, label) {
			counted = append(counted, label)
			m.ignored.WithLabelValues(label).Inc()
		}
	}
}

// observe counts a request as in flight; the returned function ends that with the status
// that was sent.
func (m *metrics) observe(route string) (ended func(status int, firstByte time.Time)) {
	begun := time.Now()
	m.inFlight.Inc()
	return func(status int, firstByte time.Time) {
		m.inFlight.Dec()
		label := "none" // the client left before there was one
		if status != 0 {
			label = strconv.Itoa(status)
		}
		m.requests.WithLabelValues(route, label).Inc()
		m.duration.WithLabelValues(route).Observe(time.Since(begun).Seconds())
		if !firstByte.IsZero() {
			m.firstByte.WithLabelValues(route).Observe(firstByte.Sub(begun).Seconds())
		}
	}
}
