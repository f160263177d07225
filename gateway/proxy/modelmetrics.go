package proxy

import (
	"cmp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"metalfleet.dev/metalfleet/gateway/route"
)

const (
	// maxModelLabels is how many models have metric series of their own; the rest share one.
	// If there are more, each namespace has as many as any other that has more models.
	maxModelLabels = 500
	// otherModels is the label of that shared series. It cannot be a deployment.
	otherModels = "_others"
)

// modelMetrics are the metrics of finished requests by model. The label is the deployment,
// as NAMESPACE/NAME, never a client's input.
type modelMetrics struct {
	table *route.Table

	mu     sync.Mutex
	labels map[string]map[string]bool // by namespace; guarded by mu
	count  int                        // of labels; guarded by mu

	requests   *prometheus.CounterVec
	firstToken *prometheus.HistogramVec
	duration   *prometheus.HistogramVec
	prompt     *prometheus.CounterVec
	generated  *prometheus.CounterVec
}

func newModelMetrics(r prometheus.Registerer, t *route.Table) *modelMetrics {
	of := []string{"model_name"}
	m := &modelMetrics{table: t, labels: map[string]map[string]bool{},
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "metalfleet_gateway_model_requests_total",
			Help: "Finished requests, by deployment and class of status: 2xx, 4xx, 5xx; none if the client disconnected before there was one."}, []string{"model_name", "class"}),
		firstToken: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "metalfleet_gateway_model_time_to_first_token_seconds",
			Help: "Time from the arrival of a request until the first token of its stream was sent, by deployment. Responses that are not streamed do not count.", Buckets: seconds}, of),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "metalfleet_gateway_model_request_duration_seconds",
			Help: "Time until a successful request finished, by deployment.", Buckets: seconds}, of),
		prompt: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "metalfleet_gateway_model_prompt_tokens_total",
			Help: "Prompt tokens, as the Macs counted them, by deployment."}, of),
		generated: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "metalfleet_gateway_model_generated_tokens_total",
			Help: "Generated tokens, as the Macs counted them, by deployment."}, of),
	}
	r.MustRegister(m)
	return m
}

// modelCollector is a collector of which the series of one model can be removed.
type modelCollector interface {
	prometheus.Collector
	DeletePartialMatch(prometheus.Labels) int
}

// series are all collectors of the models.
func (m *modelMetrics) series() []modelCollector {
	return []modelCollector{m.requests, m.firstToken, m.duration, m.prompt, m.generated}
}

// Describe implements prometheus.Collector.
func (m *modelMetrics) Describe(to chan<- *prometheus.Desc) {
	for _, s := range m.series() {
		s.Describe(to)
	}
}

// Collect implements prometheus.Collector. It removes the series of deleted deployments.
func (m *modelMetrics) Collect(to chan<- prometheus.Metric) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for namespace, labels := range m.labels {
		for label := range labels {
			if d, ok := m.table.Lookup(label); !ok || d.Key.String() != label {
				m.remove(namespace, label)
			}
		}
	}
	for _, s := range m.series() {
		s.Collect(to)
	}
}

// finished counts a finished request; one that names no known model is not counted.
func (m *modelMetrics) finished(w *reply) {
	if w.deployment == "" {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	label := m.label(w.deployment)
	m.requests.WithLabelValues(label, w.class()).Inc()
	if !w.firstToken.IsZero() {
		m.firstToken.WithLabelValues(label).Observe(w.firstToken.Sub(w.Began()).Seconds())
	}
	if w.class() == "2xx" {
		m.duration.WithLabelValues(label).Observe(time.Since(w.Began()).Seconds())
	}
	m.prompt.WithLabelValues(label).Add(float64(w.tokens.Prompt))
	m.generated.WithLabelValues(label).Add(float64(w.tokens.Generated))
}

// remove removes the series of a deployment. The caller holds mu.
func (m *modelMetrics) remove(namespace, label string) {
	m.count--
	if delete(m.labels[namespace], label); len(m.labels[namespace]) == 0 {
		delete(m.labels, namespace)
	}
	for _, s := range m.series() {
		s.DeletePartialMatch(prometheus.Labels{"model_name": label})
	}
}

// label returns the label of a deployment. Its series begin at 0 with its first request:
// rate() and increase() ignore the first value of a series. The caller holds mu.
func (m *modelMetrics) label(deployment string) string {
	namespace, _, _ := strings.Cut(deployment, "/")
	label := deployment
	switch {
	case m.labels[namespace][deployment]:
	case m.count < maxModelLabels || m.makeRoom(len(m.labels[namespace])):
		if m.labels[namespace] == nil {
			m.labels[namespace] = map[string]bool{}
		}
		m.labels[namespace][deployment] = true
		m.count++
	default:
		label = otherModels
	}
	for _, class := range []string{"2xx", "5xx"} {
		m.requests.WithLabelValues(label, class)
	}
	return label
}

// makeRoom removes the series of a model of the namespace with the most, for a namespace that
// still has fewer with one more. The caller holds mu.
func (m *modelMetrics) makeRoom(has int) bool {
	most := ""
	for namespace, labels := range m.labels {
		if len(labels) > len(m.labels[most]) {
			most = namespace
		}
	}
	if len(m.labels[most]) <= has+1 {
		return false
	}
	for label := range m.labels[most] {
		m.remove(most, label)
		return true
	}
	return false
}

// class returns the class of the status of a finished request. A stream that ended with an
// error event has the class of the error, although another status was sent before.
func (w *reply) class() string {
	status := cmp.Or(w.failed, w.Status())
	if status == 0 {
		return "none"
	}
	return strconv.Itoa(status/100) + "xx"
}
