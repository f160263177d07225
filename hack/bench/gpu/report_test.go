package main

import (
	"strings"
	"testing"
)

var usual = options{tokens: 64}

// said is a round in which everything is as fast as given.
func said(step, rows16, prefilled float64) round {
	return round{
		ours: map[ask]benched{
			usual.decode(1): {Step: step, WeightBytes: 4 << 30}, usual.decode(8): {Step: 2 * step}, usual.decode(16): {Step: rows16},
			prefill(512): {Prefill: prefilled}, prefill(4096): {Prefill: prefilled},
		},
		peer: map[ask]timed{
			usual.decode(1): {Step: 0.006}, usual.decode(8): {Step: 0.03}, usual.decode(16): {Step: 0.06},
			prefill(512): {Prefill: 0.05}, prefill(4096): {Prefill: 0.4},
		},
	}
}

// withoutRows is a round that measured no steps of several rows.
func withoutRows(r round) round {
	for _, n := range streams()[1:] {
		delete(r.ours, usual.decode(n))
		delete(r.peer, usual.decode(n))
	}
	return r
}

func TestABoundThatIsMissedFails(t *testing.T) {
	for name, c := range map[string]struct {
		rounds []round
		says   string
	}{
		"all met":                 {[]round{said(5, 12, 20000), said(5, 12, 20000), said(5, 12, 20000)}, ""},
		"one bad round of many":   {[]round{said(5, 12, 20000), said(5, 12, 20000), said(50, 120, 20000)}, ""},
		"rows now and then":       {[]round{withoutRows(said(5, 0, 20000)), said(5, 12, 20000), withoutRows(said(5, 0, 20000))}, ""},
		"slow rows, now and then": {[]round{withoutRows(said(5, 0, 20000)), said(5, 13.1, 20000)}, "step of 16 rows"},
		"slow decode":             {[]round{said(7, 14, 20000)}, "decode, 1 stream"},
		"slow prefill":            {[]round{said(5, 12, 900)}, "prefill of 512"},
		"slow rows":               {[]round{said(5, 13.1, 20000)}, "step of 16 rows"},
	} {
		m := model{Shape: "qwen3-8b", options: usual, greeting: greeting{Bandwidth: 3e12}, rounds: c.rounds}
		m.sum()
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
