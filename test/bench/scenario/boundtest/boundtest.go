// Package boundtest checks that the figures of a scenario are held to their
// bounds.
//
// It owns the comparison of verdicts. It refuses figures that miss a bound
// before anything was changed.
//
// Start reading at Check.
package boundtest

import (
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/test/bench/report"
	"metalfleet.dev/metalfleet/test/bench/scenario"
)

// Values of samples by "turn/value".
type Values map[string][]float64

// Fill turns samples into figures.
type Fill func(scenario.Samples, *report.Report)

// Figures is the Fill of a table.
func Figures(figures ...scenario.Figure) Fill {
	return func(s scenario.Samples, r *report.Report) { s.Fill(r, figures...) }
}

// Verdict of samples of which some were changed; empty if every bound is met.
func Verdict(good, change Values, fill Fill) string {
	samples := scenario.Samples{}
	for key, runs := range good {
		if changed, ok := change[key]; ok {
			runs = changed
		}
		samples.Set(key, runs...)
	}
	r := report.New("x", "", "")
	fill(samples, r)
	if err := r.Judge(); err != nil {
		return err.Error()
	}
	return ""
}

// Check wants good samples to meet every bound, and each change to give a
// verdict that contains its name.
func Check(t *testing.T, good Values, fill Fill, changes map[string]Values) {
	t.Helper()
	if got := Verdict(good, nil, fill); got != "" {
		t.Errorf("good samples: %s", got)
	}
	for want, change := range changes {
		if got := Verdict(good, change, fill); !strings.Contains(got, want) {
			t.Errorf("verdict %q, want %q in it", got, want)
		}
	}
}
