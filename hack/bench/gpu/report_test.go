package main

import (
	"strings"
	"testing"
)

// said is a round in which everything is as fast as given.
func said(step, rows16, prefill float64) round {
	r := round{ours: map[int]benched{}, peers: peer{Step: 0.006, Bandwidth: 3e12, Prefill: map[string]float64{"512": 0.05, "4096": 0.4}, Rows: map[string]float64{"8": 0.03, "16": 0.06}}}
	r.ours[key(128, 1)] = benched{Step: step, WeightBytes: 4 << 30}
	r.ours[key(128, 8)] = benched{Step: 2 * step}
	r.ours[key(128, 16)] = benched{Step: rows16}
	r.ours[key(512, 1)] = benched{Prefill: prefill}
	r.ours[key(4096, 1)] = benched{Prefill: prefill}
	return r
}

func TestABoundThatIsMissedFails(t *testing.T) {
	for name, c := range map[string]struct {
		rounds []round
		says   string
	}{
		"all met":               {[]round{said(5, 12, 20000), said(5, 12, 20000), said(5, 12, 20000)}, ""},
		"one bad round of many": {[]round{said(5, 12, 20000), said(5, 12, 20000), said(50, 120, 20000)}, ""},
		"slow decode":           {[]round{said(7, 14, 20000)}, "decode, 1 stream"},
		"slow prefill":          {[]round{said(5, 12, 900)}, "prefill of 512"},
		"slow rows":             {[]round{said(5, 13.1, 20000)}, "step of 16 rows"},
	} {
		m := model{Shape: "qwen3-8b", rounds: c.rounds}
		m.sum(0)
		r := report{Models: []model{m}}
		err := r.verdict()
		if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: verdict %v, want it to say %q", name, err, c.says)
		}
		if err := r.write(t.TempDir()); err != nil {
			t.Errorf("%s: write: %v", name, err)
		}
	}
}
