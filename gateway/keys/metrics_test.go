package keys

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
)

func newTestStore(t *testing.T, c *clock) *Store {
	t.Helper()
	return NewStore(Options{Registry: prometheus.NewRegistry(), Log: logr.Discard(), Now: c.now})
}

// values returns the values of a metric family by their first label.
func values(t *testing.T, s *Store, family string) map[string]float64 {
	t.Helper()
	families, err := s.Registry.(*prometheus.Registry).Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, f := range families {
		if f.GetName() == family {
			for _, m := range f.GetMetric() {
				out[m.GetLabel()[0].GetValue()] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return out
}

// labels returns the keys that have a series of requests.
func labels(t *testing.T, s *Store) map[string]bool {
	t.Helper()
	out := map[string]bool{}
	for label := range values(t, s, "metalfleet_gateway_api_key_requests_total") {
		out[label] = true
	}
	return out
}

// An update without changes logs nothing, and no line holds a key or its digest.
func TestAnInvalidSecretIsLoggedOnceWithoutItsKey(t *testing.T) {
	var log bytes.Buffer
	s := NewStore(Options{Registry: prometheus.NewRegistry(), Log: logr.FromSlogHandler(slog.NewTextHandler(&log, nil))})
	secret, token := made(t, "a", Grant{Models: []string{"m"}})
	s.Set(secret)
	broken := secret.DeepCopy()
	broken.Data["models"] = []byte(token + "=")
	for range 3 {
		s.Set(broken)
	}
	s.Delete("a")
	text := log.String()
	if n := strings.Count(text, "Ignoring an invalid API key"); n != 1 || !strings.Contains(text, "Secret=keys/a") || !strings.Contains(text, "models entry 1") {
		t.Errorf("%d refusals in\n%s", n, text)
	}
	if random := token[len("mf_a_"):]; strings.Contains(text, random) || strings.Contains(text, string(secret.Data["sha256"])) {
		t.Errorf("the log contains the key:\n%s", text)
	}
}
