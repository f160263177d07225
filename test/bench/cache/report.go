package main

import (
	"fmt"

	"metalfleet.dev/metalfleet/test/bench/report"
)

// warmBound is the most that a known prompt may take, as a part of computing it.
const warmBound = 0.02

// coldBound is that of a prompt whose blocks lie on the disk.
const coldBound = 0.1

var about = fmt.Sprintf("`make bench-cache`: the time from the call to the first token of prompts of %d tokens, whole blocks, and %d behind them,\n"+
	"through the engine's own socket: computed by an engine without a cache, computed and saved by one with a cache, and asked\n"+
	"again with another end; and of an engine that was loaded since, whose blocks had left the kernel's memory too. ref: SmolLM2-135M in Q4_1; mlx, without a GPU: a random model of 4 layers, 256 wide, in 4 bits.", known, fresh)

// newReport judges the median of each back end's ratios.
func newReport(all []measured) *report.Report {
	r := report.New("cache", "The first token of a known prompt", about)
	for _, m := range all {
		r.Add(m.backend+": computed, no cache", "ms", report.Bound{}, m.computed...)
		r.Add(m.backend+": computed and saved", "ms", report.Bound{}, m.saved...)
		r.Add(m.backend+": known, in memory", "ms", report.Bound{}, m.warm...)
		r.Add(m.backend+": known, on disk, after a load", "ms", report.Bound{}, m.cold...)
		r.Ratio(m.backend+": known, on disk / computed", report.AtMost(coldBound), m.cold, m.computed)
		r.Ratio(m.backend+": known / computed", report.AtMost(warmBound), m.warm, m.computed)
		r.Ratio(m.backend+": computed and saved / computed", report.Bound{}, m.saved, m.computed)
		r.Add(m.backend+": a cached token", "bytes", report.Bound{}, m.tokenBytes)
		r.Add(m.backend+": read from the disk for a prompt", "bytes", report.Bound{}, m.diskBytes)
	}
	return r
}

// copied is the least speed, in bytes a second, at which what is known comes
// back to a GPU: half of what a PCIe link of the third generation moves.
const copied = 8e9

const aboutGPU = "`test/bench/gpu/run.sh`: the time from the call to the first token of prompts of %d tokens, whole blocks, and %d behind them, through the\n" +
	"engine's own socket: computed by an engine without a cache, computed and saved by one with a cache in memory, and asked again with another end;\n" +
	"and of an engine that was loaded since, whose blocks had left the kernel's memory too. MLX on an NVIDIA GPU, random weights of the shape %s in 4 bits. The bound is two steps of decoding and the copy of what is known at %g GB/s."

// newGPUReport judges the median of the known prompts beside steps of decoding.
func newGPUReport(shape string, m measured) *report.Report {
	r := report.New("cache-gpu", "The first token of a known prompt on a GPU", fmt.Sprintf(aboutGPU, known, fresh, shape, copied/1e9))
	bytes := m.tokenBytes * known
	r.Add("computed, no cache", "ms", report.Bound{}, m.computed...)
	r.Add("computed and saved", "ms", report.Bound{}, m.saved...)
	r.Add("a step of decoding", "ms", report.Bound{}, m.step...)
	r.Add("known, in memory", "ms", report.Bound{}, m.warm...)
	var copies, rates []float64
	if len(m.step) == len(m.warm) {
		for i, warm := range m.warm {
			beyond := warm - 2*m.step[i]
			copies, rates = append(copies, beyond), append(rates, bytes/1e6/max(beyond, 1e-3))
		}
	}
	r.Add("known, beyond two steps", "ms", report.AtMost(1000*bytes/copied), copies...)
	r.Add("that is a copy at", "GB/s", report.Bound{}, rates...)
	r.Ratio("known / computed", report.Bound{}, m.warm, m.computed)
	r.Add("known, on disk, after a load", "ms", report.Bound{}, m.cold...)
	r.Ratio("known, on disk / computed", report.Bound{}, m.cold, m.computed)
	var read []float64
	for _, took := range m.cold {
		read = append(read, m.diskBytes/1e6/took)
	}
	r.Add("read from the disk for a prompt", "bytes", report.Bound{}, m.diskBytes)
	r.Add("that is, first token included", "GB/s", report.Bound{}, read...)
	r.Add("a cached token", "bytes", report.Bound{}, m.tokenBytes)
	return r
}
