package proxy

import (
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/dialect"
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
	ejected   prometheus.Counter
	waits     *prometheus.CounterVec
	waited    prometheus.Histogram
	passed    *prometheus.CounterVec
	ignored   *prometheus.CounterVec
	// fieldLabel is the label of an ignored field.
	fieldLabel func(name string) string
}

var seconds = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600}

func newMetrics(r prometheus.Registerer) *metrics {
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
		suspected: prometheus.NewCounter(prometheus.CounterOpts{Name: prefix + "macs_suspected_total",
			Help: "Times the gateway stopped preferring a Mac because its connection failed."}),
		ejected: prometheus.NewCounter(prometheus.CounterOpts{Name: prefix + "replicas_ejected_total",
			Help: "Times the gateway stopped preferring a replica because its requests failed."}),
		waits: prometheus.NewCounterVec(prometheus.CounterOpts{Name: prefix + "waits_total",
			Help: "Waits for a replica that ended, by outcome: served, full, share, late, left, gone."}, []string{"outcome"}),
		waited: prometheus.NewHistogram(prometheus.HistogramOpts{Name: prefix + "wait_seconds",
			Help: "Time that queued requests waited for a replica.", Buckets: seconds}),
		passed: prometheus.NewCounterVec(prometheus.CounterOpts{Name: prefix + "fallbacks_total",
			Help: "Requests passed on to the next deployment of a route, by the reason why the previous one could not answer: none_ready, refused, busy."}, []string{"reason"}),
		ignored: prometheus.NewCounterVec(prometheus.CounterOpts{Name: prefix + "ignored_fields_total",
			Help: "Answered requests with a field that was ignored, by the name of the field; other for fields that no API documents."}, []string{"field"}),
		fieldLabel: dialect.FieldLabels(),
	}
	r.MustRegister(m.ignored, m.passed, m.ejected, m.waits, m.waited, m.requests, m.firstByte, m.duration, m.inFlight, m.retries, m.broken, m.suspected)
	m.begin()
	return m
}

// begin has the series of ordinary use begin at 0: rate() and increase() do not
// count the value that a series begins with. Other statuses begin with their
// first request.
func (m *metrics) begin() {
	for _, route := range append(slices.Clone(forwarded), dialect.PathModels) {
		m.requests.WithLabelValues(route, strconv.Itoa(http.StatusOK))
		m.duration.WithLabelValues(route)
		m.firstByte.WithLabelValues(route)
	}
	for _, reason := range []string{reasonConnection, reasonStream, reasonRefused, reasonTimeout} {
		m.retries.WithLabelValues(reason)
	}
	for _, outcome := range []string{waitServed, waitFull, waitShare, waitLate, waitLeft, waitGone} {
		m.waits.WithLabelValues(outcome)
	}
	for _, reason := range []string{passedNone, passedRefused, passedBusy} {
		m.passed.WithLabelValues(reason)
	}
	m.ignored.WithLabelValues(dialect.OtherField)
}

// countIgnored counts the fields that an agent's answer names as ignored, each
// once.
func (m *metrics) countIgnored(h http.Header) {
	var counted []string
	for _, name := range agentapi.Ignored(h) {
		if label := m.fieldLabel(name); !slices.Contains(counted, label) {
			counted = append(counted, label)
			m.ignored.WithLabelValues(label).Inc()
		}
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

// census counts requests by model when it is asked. Its labels are names of
// deployments that this gateway was asked for. Autoscaling reads it; the names
// of the first two are those of vLLM, which other tools know.
type census struct{ *book }

var (
	runningDesc = prometheus.NewDesc("vllm:num_requests_running", "Requests that this gateway has sent to replicas and that have not finished, by deployment.", []string{"model_name"}, nil)
	waitingDesc = prometheus.NewDesc("vllm:num_requests_waiting", "Requests that wait at this gateway for a replica, by deployment.", []string{"model_name"}, nil)
	oldestDesc  = prometheus.NewDesc("metalfleet_gateway_queue_oldest_seconds", "Waiting time of the request that has waited longest, by deployment.", []string{"model_name"}, nil)
)

// Describe implements prometheus.Collector.
func (census) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{runningDesc, waitingDesc, oldestDesc} {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (c census) Collect(to chan<- prometheus.Metric) {
	for name, f := range c.figures() {
		to <- prometheus.MustNewConstMetric(runningDesc, prometheus.GaugeValue, float64(f.running), name)
		to <- prometheus.MustNewConstMetric(waitingDesc, prometheus.GaugeValue, float64(f.waiting), name)
		to <- prometheus.MustNewConstMetric(oldestDesc, prometheus.GaugeValue, f.oldest.Seconds(), name)
	}
}

type modelFigures struct {
	running, waiting int
	oldest           time.Duration
}

// figures of every model that this gateway was asked for.
func (b *book) figures() map[string]modelFigures {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.now()
	out := map[string]modelFigures{}
	for key, l := range b.models {
		out[key.String()] = modelFigures{running: l.inFlight}
	}
	for _, q := range b.room.Queues() {
		f := out[q.Model]
		f.waiting, f.oldest = q.Count, now.Sub(q.Oldest)
		out[q.Model] = f
	}
	return out
}
