package fleet

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// Metrics reads an endpoint of metrics, by name.
func Metrics(ctx context.Context, url string) (map[string]*dto.MetricFamily, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	defer resp.Body.Close()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(resp.Body)
	if err != nil {
		return nil, fmt.Errorf("metrics of %s: %w", url, err)
	}
	return families, nil
}

// Metric is the sum of a counter or gauge over its labels; 0 if it has no value
// yet.
func (g *Gateway) Metric(ctx context.Context, name string) (float64, error) {
	families, err := Metrics(ctx, g.MetricsURL())
	sum := 0.0
	for _, m := range families[name].GetMetric() {
		sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
	}
	return sum, err
}

// WaitMetric waits until a metric of the gateway has a value.
func (g *Gateway) WaitMetric(ctx context.Context, name string, want float64) error {
	ctx, cancel := context.WithTimeoutCause(ctx, Ready, errors.New("it took too long"))
	defer cancel()
	return Poll(ctx, 10*time.Millisecond, fmt.Sprintf("%s of %s is %v", name, g.Name, want), func(ctx context.Context) error {
		got, err := g.Metric(ctx, name)
		if err == nil && got != want {
			err = fmt.Errorf("it is %v", got)
		}
		return err
	})
}

// WaitInFlight waits until the gateway holds that many requests.
func (g *Gateway) WaitInFlight(ctx context.Context, want int) error {
	return g.WaitMetric(ctx, "metalfleet_gateway_requests_in_flight", float64(want))
}

// MetricsURL is the endpoint of the gateway's metrics.
func (g *Gateway) MetricsURL() string { return g.metrics }
