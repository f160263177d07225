package main

import (
	"runtime"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/hack/bench/served"
)

func TestTheBoundHoldsForEveryModelBothWays(t *testing.T) {
	at := func(name string, total int64) measured {
		return measured{name: name, estimate: estimated{Total: total}, peak: 1000}
	}
	good := []measured{at("exact", 1000), at("a quarter more", 1250)}
	if err := newReport(good).Judge(); err != nil {
		t.Errorf("all bounds hold: %v", err)
	}
	for _, bad := range []measured{at("too little", 999), at("too much", 1251)} {
		if err := newReport(append(good, bad)).Judge(); err == nil || !strings.Contains(err.Error(), bad.name) {
			t.Errorf("%s: %v", bad.name, err)
		}
	}
	if err := newReport(nil).Judge(); err == nil {
		t.Error("nothing was measured, and it passed")
	}
}

func TestAProcessThatWasNeverSeenWasNotMeasured(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the benchmark reads /proc, which only Linux has")
	}
	if err := new(watching).stop(); err == nil {
		t.Error("nothing ran, and it has a peak")
	}
	var w watching
	w.start(&served.Engine{PID: -1})
	if err := w.stop(); err == nil || w.peak.Load() != 0 {
		t.Errorf("a process that is not there: peak %d, %v", w.peak.Load(), err)
	}
}

// None may end its turn before the context is full, and every head size that
// kernels tell apart is there.
func TestRandomModelsFillTheirContext(t *testing.T) {
	sizes := map[int]bool{}
	for _, w := range random() {
		if !w.config.Endless || w.config.Untied {
			t.Errorf("%s ends its turn by itself", w.config.Name)
		}
		for _, p := range []promise{w.quick, w.slow} {
			if p.tokens > w.config.Context || p.sequences > 2 || p.sequences > 1 && p.tokens/leastChunk+2*lead >= 256 {
				t.Errorf("%s: a promise of %+v is not filled", w.config.Name, p)
			}
		}
		sizes[w.config.HeadSize] = true
	}
	for _, s := range []int{64, 80, 96, 128, 256} {
		if !sizes[s] {
			t.Errorf("no model has heads of %d", s)
		}
	}
}
