package main

import (
	"os"
	"runtime"
	"strings"
	"testing"
)

func passing() measurements {
	return measurements{prefill: []float64{50, 60, 55}, decode: []float64{20, 30, 25}, firstToken: []float64{9}, loadMilliseconds: 1,
		footprint: 150e6, weights: 96e6, kv: 12e6}
}

func TestJudgeWantsEveryBound(t *testing.T) {
	if err := newReport(passing()).judge(); err != nil {
		t.Errorf("all bounds hold: %v", err)
	}
	for says, change := range map[string]func(*measurements){
		"decode":    func(m *measurements) { m.decode = []float64{14, 14.9, 99} },
		"prefill":   func(m *measurements) { m.prefill = []float64{39, 39.9, 99} },
		"footprint": func(m *measurements) { m.footprint = 1.6*96e6 + 12e6 },
	} {
		m := passing()
		change(&m)
		if err := newReport(m).judge(); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s misses its bound: %v", says, err)
		}
	}
}

func TestFootprintOfThisProcess(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the benchmark reads /proc, which only Linux has")
	}
	n, err := footprint(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if n < 1<<20 {
		t.Errorf("this process holds %d bytes", n)
	}
	if _, err := footprint(-1); err == nil {
		t.Error("a process that is not there has a footprint")
	}
}
