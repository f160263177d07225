package demand_test

import (
	"fmt"
	"testing"
	"time"

	api "metalfleet.dev/metalfleet/api/demand"
)

// TestASumCostsNothingForOtherDeployments: each deployment with autoscaling is judged each second.
func TestASumCostsNothingForOtherDeployments(t *testing.T) {
	cost := func(deployments int) time.Duration {
		r := newRoom(t)
		r.l.Listen()
		report := &api.Report{Gateway: "a", UpMillis: 1}
		for i := range deployments {
			report.Models = append(report.Models, api.Model{Namespace: "ns", Name: fmt.Sprint("m", i), Begun: 1})
		}
		if _, err := r.l.Take("10.0.0.1", report); err != nil {
			t.Fatal(err)
		}
		least := time.Hour
		for range 5 {
			began := time.Now()
			for range 200 {
				r.l.Whole(1)
			}
			least = min(least, time.Since(began))
		}
		return least
	}
	few, many := cost(10), cost(10_000)
	if many > 50*few {
		t.Errorf("with a thousand times as many deployments a sum takes %.0f times as long", float64(many)/float64(few))
	}
}
