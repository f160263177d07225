package proxy

import (
	"context"
	"errors"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"metalfleet.dev/metalfleet/api/front"
	"metalfleet.dev/metalfleet/gateway/dispatch"
	"metalfleet.dev/metalfleet/gateway/route"
)

func TestSeriesOfOrdinaryUseBeginAtZero(t *testing.T) {
	registry := prometheus.NewRegistry()
	newMetrics(registry, route.NewTable())
	dispatch.New(dispatch.Config{Registry: registry})
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
	for name, want := range map[string]int{"requests_total": 11, "request_duration_seconds": 11, "time_to_first_byte_seconds": 11, "retries_total": 4, "waits_total": 6, "fallbacks_total": 3, "answers_broken_off_total": 1} {
		if got := series["metalfleet_gateway_"+name]; got != want {
			t.Errorf("%s has %d series before the first request, want %d", name, got, want)
		}
	}
}

// The official Python client closes the connection when it has read [DONE], which may be
// before the Mac's stream has ended.
func TestAClientThatLeavesBreaksNothingOff(t *testing.T) {
	for name, c := range map[string]struct {
		cause error
		want  float64
	}{
		"the client left":   {cause: context.Canceled, want: 0},
		"the gateway ends":  {cause: front.ErrShuttingDown, want: 1},
		"the Mac broke off": {want: 1},
	} {
		f := &forwarder{metrics: newMetrics(prometheus.NewRegistry(), route.NewTable())}
		ctx, cancel := context.WithCancelCause(t.Context())
		if c.cause != nil {
			cancel(c.cause)
		}
		if err := f.breakOff(ctx, "mac-1", errCut); err == nil || (errors.Is(err, front.ErrClientGone) != (c.want == 0)) {
			t.Errorf("%s: %v", name, err)
		}
		var m dto.Metric
		if err := f.metrics.broken.Write(&m); err != nil || m.GetCounter().GetValue() != c.want {
			t.Errorf("%s: %v answers were broken off, want %v (%v)", name, m.GetCounter().GetValue(), c.want, err)
		}
		cancel(nil)
	}
}
