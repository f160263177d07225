package keys

import "github.com/prometheus/client_golang/prometheus"

const (
	// maxLabels is how many keys have metric series of their own; the rest share one.
	maxLabels = 500
	// labelOthers is the label of that shared series. It cannot be the name of a Secret.
	labelOthers = "_others"
	// labelAnonymous is the label for clients without a valid key.
	labelAnonymous = ""
)

// metrics of keys. A key's label is the name of its Secret and is removed with it; no input
// of a client becomes a label.
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

// forget removes the series of a deleted key.
func (m *metrics) forget(label string) {
	of := prometheus.Labels{"key": label}
	m.requests.DeletePartialMatch(of)
	m.refusals.DeletePartialMatch(of)
	m.tokens.DeletePartialMatch(of)
}

// CountRequest counts an admitted request.
func (s *Store) CountRequest(k *Key) {
	s.counted(k, func(label string) { s.metrics.requests.WithLabelValues(label).Inc() })
}

// CountTokens counts the tokens of a request.
func (s *Store) CountTokens(k *Key, n int64) {
	s.counted(k, func(label string) { s.metrics.tokens.WithLabelValues(label).Add(float64(max(0, n))) })
}

// CountRefusal counts a refused request; k is nil if the client has no valid key.
func (s *Store) CountRefusal(k *Key, why Reason) {
	if k == nil {
		s.metrics.refusals.WithLabelValues(labelAnonymous, string(why)).Inc()
		return
	}
	s.counted(k, func(label string) { s.metrics.refusals.WithLabelValues(label, string(why)).Inc() })
}

// counted skips a key that was revoked meanwhile: its series are removed.
func (s *Store) counted(k *Key, count func(label string)) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.keys[k.Name] != nil {
		count(k.label)
	}
}
