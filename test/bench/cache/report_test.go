package main

import (
	"slices"
	"strings"
	"testing"
)

func TestAKnownPromptIsJudgedByItsMedian(t *testing.T) {
	m := measured{backend: "ref", computed: []float64{1000, 1000, 1000}, saved: []float64{1010, 1000, 1020}, tokenBytes: 4, diskBytes: 5}
	for name, c := range map[string]struct {
		warm, cold []float64
		ok         bool
	}{
		"on the bound":              {[]float64{20, 20, 20}, []float64{100, 100, 100}, true},
		"one slow round":            {[]float64{500, 19, 18}, []float64{90, 900, 80}, true},
		"two slow rounds":           {[]float64{21, 22, 18}, []float64{100, 100, 100}, false},
		"two slow rounds from disk": {[]float64{20, 20, 20}, []float64{101, 102, 1}, false},
		"a round is missing":        {[]float64{1, 1}, []float64{1, 1, 1}, false},
		"one from disk is missing":  {[]float64{1, 1, 1}, []float64{1, 1}, false},
		"nothing was measured":      {nil, nil, false},
	} {
		m.warm, m.cold = c.warm, c.cold
		if err := newReport([]measured{m}).Judge(); (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
	if table := newReport([]measured{m}).Table(); !strings.Contains(table, "ref: known / computed | x") {
		t.Errorf("table:\n%s", table)
	}
}

// TestPromptsShareTheirBlocksWithinARoundAlone, so that no round finds what
// another computed.
func TestPromptsShareTheirBlocksWithinARoundAlone(t *testing.T) {
	a, again, other := prompt(1, 0), prompt(1, 1), prompt(2, 0)
	if !slices.Equal(a[:known], again[:known]) || slices.Equal(a[known:], again[known:]) {
		t.Error("the same prompt with another end is not that")
	}
	if slices.Equal(a[:256], other[:256]) || known%256 != 0 || len(a) != known+fresh {
		t.Error("two rounds begin with the same block")
	}
}

func TestOnAGPUAKnownPromptTakesTwoStepsAndTheCopy(t *testing.T) {
	m := measured{computed: []float64{500}, saved: []float64{510}, step: []float64{4}, cold: []float64{900}, diskBytes: 5, tokenBytes: copied / known / 10} // a tenth of a second
	for warm, ok := range map[float64]bool{107.9: true, 108.1: false} {
		m.warm = []float64{warm}
		if err := newGPUReport("it", m).Judge(); (err == nil) != ok {
			t.Errorf("%v ms: %v", warm, err)
		}
	}
	none := m
	none.warm = nil
	if err := newGPUReport("it", none).Judge(); err == nil {
		t.Error("nothing was measured, and it passes")
	}
	m.warm, m.cold = []float64{100}, nil
	if err := newGPUReport("it", m).Judge(); err == nil {
		t.Error("nothing came from the disk, and it passes")
	}
}
