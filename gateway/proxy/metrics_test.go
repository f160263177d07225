package proxy

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

func TestSeriesOfOrdinaryUseBeginAtZero(t *testing.T) {
	registry := prometheus.NewRegistry()
	newMetrics(registry)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	series := map[string]int{}
	for _, f := range families {
		series[f.GetName()] = len(f.GetMetric())
		for _, m := range f.GetMetric() {
			if m.GetCounter().GetValue() != 0 || m.GetHistogram().GetSampleCount() != 0 {
				t.Errorf("%s begins with %v", f.GetName(), m)
			}
		}
	}
	for name, want := range map[string]int{"requests_total": 3, "request_duration_seconds": 3, "time_to_first_byte_seconds": 3, "retries_total": 3, "answers_broken_off_total": 1} {
		if got := series["metalfleet_gateway_"+name]; got != want {
			t.Errorf("%s has %d series before the first request, want %d", name, got, want)
		}
	}
}
