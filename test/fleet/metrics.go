package fleet

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// GatewayMetric is the sum of a counter or gauge of the gateway over its
// labels; 0 where it was never counted.
func (f *Fleet) GatewayMetric(ctx context.Context, name string) (float64, error) {
	url := strings.TrimSuffix(f.gatewayHealth, "/readyz") + "/metrics"
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, fmt.Errorf("metrics: %w", err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, fmt.Errorf("metrics: %w", err)
	}
	defer resp.Body.Close()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(resp.Body)
	if err != nil {
		return 0, fmt.Errorf("metrics of %s: %w", url, err)
	}
	sum := 0.0
	for _, m := range families[name].GetMetric() {
		sum += value(m)
	}
	return sum, nil
}

func value(m *dto.Metric) float64 { return m.GetCounter().GetValue() + m.GetGauge().GetValue() }

// WaitGatewayInFlight waits until the gateway holds that many requests.
func (f *Fleet) WaitGatewayInFlight(ctx context.Context, want int) error {
	ctx, cancel := context.WithTimeoutCause(ctx, Ready, errors.New("it took too long"))
	defer cancel()
	return Poll(ctx, 10*time.Millisecond, fmt.Sprintf("%d requests are in flight", want), func(ctx context.Context) error {
		got, err := f.GatewayMetric(ctx, "metalfleet_gateway_requests_in_flight")
		if err == nil && int(got) != want {
			err = fmt.Errorf("%v in flight", got)
		}
		return err
	})
}
