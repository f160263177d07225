package main

import (
	"fmt"

	"metalfleet.dev/metalfleet/test/bench/report"
)

// The bounds of the issue.
const (
	leastOfPlain = 0.7
	mostWeights  = 1.05
	mostBeside   = 200e6
)

// mostMemory is the most that an engine may ever hold of a model.
func mostMemory(weights int64) int64 { return int64(mostWeights*float64(weights) + mostBeside) }

// about says how it was measured.
const about = "`make bench-load`: a random Llama of about 4 GB in MLX's layout (4 bits by 64, bfloat16 scales), its pages dropped from the\n" +
	"page cache before each reading (fsync, POSIX_FADV_DONTNEED, and mincore finds at most %g %% of them). Plain reading is read(2) of\n" +
	"1 MiB after 1 MiB. An engine's time is from the start of its process: `in place` until the last byte of weights is where it is\n" +
	"computed with, and the bound is on that; `ready` is until it serves, after one token went through all of them, which says how fast\n" +
	"a processor computes (on `mlx` it takes longer than the load and is measured once). Each round does all of them in changing order,\n" +
	"and ratios are taken within a round. The peak is VmHWM of the process: all that was ever resident, program and libraries included."

func newReport() *report.Report {
	return report.New("load", "Loading four gigabytes", fmt.Sprintf(about, 100*mostLeft))
}

// fill adds every figure with its bound.
func (m *measurements) fill(r *report.Report) {
	none, speed := report.Bound{}, report.AtLeast(leastOfPlain)
	peak := report.AtMost(float64(mostMemory(m.model.bytes)) / 1e6).Every().Of(fmt.Sprintf("%g x weights + %g MB", mostWeights, mostBeside/1e6))
	r.Add("files of weights", "MB", none, float64(m.model.bytes)/1e6)
	r.Add("plain reading", "MB/s", none, mega(m.plain)...)
	for _, b := range []struct {
		name string
		loaded
		plain []float64 // in the rounds that waited until it was ready
	}{{"ref", m.ref, m.plain}, {"mlx", m.mlx, m.plain[:min(1, len(m.plain))]}} {
		r.Add(b.name+", in place", "MB/s", none, mega(b.placed)...)
		r.Ratio(b.name+", in place / plain reading", speed, b.placed, m.plain)
		r.Add(b.name+", ready", "MB/s", none, mega(b.ready)...)
		r.Ratio(b.name+", ready / plain reading", none, b.ready, b.plain)
		r.Add(b.name+", processor time", "s", none, b.busy...)
		r.Add(b.name+", peak", "MB", peak, mega(b.peak)...)
	}
}

// mega shows a million as one.
func mega(runs []float64) []float64 {
	out := make([]float64, len(runs))
	for i, v := range runs {
		out[i] = v / 1e6
	}
	return out
}
