package keys

import "github.com/prometheus/client_golang/prometheus"

const (
	// maxLabels is how many keys have series of their own; those beyond share
	// one.
	maxLabels = 500
	// labelOthers is theirs. It is no name of a Secret.
	labelOthers = "_others"
	// labelNobody is of requests whose client holds no key.
	labelNobody = ""
)

// metrics of keys. A key's label is the name of its Secret, and goes with it;
// nothing that a client sent becomes one.
type metrics struct {
	keys     *prometheus.GaugeVec
	requests *prometheus.CounterVec
	refusals *prometheus.CounterVec
	tokens   *prometheus.CounterVec
}

func newMetrics(r prometheus.Registerer) *metrics {
	const prefix = "metalfleet_gateway_api_key"
	m := &metrics{
		keys: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: prefix + "s",
			Help: "Secrets of API keys, by state: good, refused."}, []string{"state"}),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: prefix + "_requests_total",
			Help: "Requests with a valid key that were within its rate limit, by key."}, []string{"key"}),
		refusals: prometheus.NewCounterVec(prometheus.CounterOpts{Name: prefix + "_refusals_total",
			Help: "Requests refused because of their key, by key and reason; without a key if the client sent none."}, []string{"key", "reason"}),
		tokens: prometheus.NewCounterVec(prometheus.CounterOpts{Name: prefix + "_tokens_total",
			Help: "Tokens counted against a key, prompt and response together; an estimate if no Mac reported the number."}, []string{"key"}),
	}
	r.MustRegister(m.keys, m.requests, m.refusals, m.tokens)
	m.count(0, 0)
	return m
}

func (m *metrics) count(good, refused int) {
	m.keys.WithLabelValues("good").Set(float64(good))
	m.keys.WithLabelValues("refused").Set(float64(refused))
}

// forget drops the series of a key that is gone.
func (m *metrics) forget(label string) {
	of := prometheus.Labels{"key": label}
	m.requests.DeletePartialMatch(of)
	m.refusals.DeletePartialMatch(of)
	m.tokens.DeletePartialMatch(of)
}

// CountRequest counts a request that was let in.
func (s *Store) CountRequest(k *Key) {
	s.counted(k, func(label string) { s.metrics.requests.WithLabelValues(label).Inc() })
}

// CountTokens counts what a request used.
func (s *Store) CountTokens(k *Key, n int64) {
	s.counted(k, func(label string) { s.metrics.tokens.WithLabelValues(label).Add(float64(max(0, n))) })
}

// CountRefusal counts a request that was not let in; k is nil where the client
// holds no key.
func (s *Store) CountRefusal(k *Key, why Reason) {
	if k == nil {
		s.metrics.refusals.WithLabelValues(labelNobody, string(why)).Inc()
		return
	}
	s.counted(k, func(label string) { s.metrics.refusals.WithLabelValues(label, string(why)).Inc() })
}

// counted leaves out a key that was revoked meanwhile: its series are gone.
func (s *Store) counted(k *Key, count func(label string)) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.keys[k.Name] != nil {
		count(k.label)
	}
}
