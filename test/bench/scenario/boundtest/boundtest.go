// Package boundtest checks that the figures of a scenario are held to their
// bounds.
//
// It owns the comparison of verdicts. It refuses figures that miss a bound
// before anything was changed.
//
// Start reading at Check.
package boundtest

import (
	"maps"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/test/bench/report"
	"metalfleet.dev/metalfleet/test/bench/scenario"
)

// Values of samples by "turn/value".
type Values map[string][]float64

// Verdict of figures whose samples are 1 except for those given; empty if every
// bound is met.
func Verdict(figures []scenario.Figure, given ...Values) string {
	values := Values{}
	for _, f := range figures {
		values[f.Of], values[f.Over], values[f.Less] = []float64{1}, []float64{1}, []float64{1}
	}
	for _, v := range given {
		maps.Copy(values, v)
	}
	samples := scenario.Samples{}
	for key, runs := range values {
		samples.Set(key, runs...)
	}
	r := report.New("x", "", "")
	samples.Fill(r, figures...)
	if err := r.Judge(); err != nil {
		return err.Error()
	}
	return ""
}

// Check wants good samples to meet every bound, and each change of them to give
// a verdict that contains its name.
func Check(t *testing.T, figures []scenario.Figure, good Values, changes map[string]Values) {
	t.Helper()
	if got := Verdict(figures, good); got != "" {
		t.Errorf("good samples: %s", got)
	}
	for want, change := range changes {
		if got := Verdict(figures, good, change); !strings.Contains(got, want) {
			t.Errorf("verdict %q, want %q in it", got, want)
		}
	}
}
