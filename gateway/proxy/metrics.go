package proxy

import (
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics of the gateway. Labels come from closed sets: routes, statuses,
// reasons.
type metrics struct {
	requests  *prometheus.CounterVec
	firstByte *prometheus.HistogramVec
	duration  *prometheus.HistogramVec
	inFlight  prometheus.Gauge
	retries   *prometheus.CounterVec
	broken    prometheus.Counter
	suspected prometheus.Counter
}

var seconds = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600}

func newMetrics(r prometheus.Registerer) *metrics {
	const prefix = "metalfleet_gateway_"
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: prefix + "requests_total",
			Help: "Requests that ended, by route and status."}, []string{"route", "status"}),
		firstByte: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: prefix + "time_to_first_byte_seconds",
			Help: "Time until the first byte of an answer was sent, by route.", Buckets: seconds}, []string{"route"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: prefix + "request_duration_seconds",
			Help: "Time until a request ended, by route.", Buckets: seconds}, []string{"route"}),
		inFlight: prometheus.NewGauge(prometheus.GaugeOpts{Name: prefix + "requests_in_flight",
			Help: "Requests that run now."}),
		retries: prometheus.NewCounterVec(prometheus.CounterOpts{Name: prefix + "retries_total",
			Help: "Tries of another replica, by the reason the one before failed: connection, stream, refused."}, []string{"reason"}),
		broken: prometheus.NewCounter(prometheus.CounterOpts{Name: prefix + "answers_broken_off_total",
			Help: "Answers that had begun and ended with an error."}),
		suspected: prometheus.NewCounter(prometheus.CounterOpts{Name: prefix + "macs_suspected_total",
			Help: "Times a Mac was left alone because its connection failed."}),
	}
	r.MustRegister(m.requests, m.firstByte, m.duration, m.inFlight, m.retries, m.broken, m.suspected)
	m.begin()
	return m
}

// begin has the series of ordinary use begin at 0: rate() and increase() do not
// count the value that a series begins with. Other statuses begin with their
// first request.
func (m *metrics) begin() {
	for _, route := range []string{pathChat, pathCompletions, pathModels} {
		m.requests.WithLabelValues(route, strconv.Itoa(http.StatusOK))
		m.duration.WithLabelValues(route)
		m.firstByte.WithLabelValues(route)
	}
	for _, reason := range []string{reasonConnection, reasonStream, reasonRefused} {
		m.retries.WithLabelValues(reason)
	}
}

// observe counts one request from its beginning; the function it returns is
// called at its end with the status that was sent.
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
