package main

import (
	"fmt"
	"path/filepath"
	"slices"

	"metalfleet.dev/metalfleet/test/bench/report"
)

const aboutProcessor = "`make bench-batch`: SmolLM2-135M-Instruct in 4 bits, as `engine convert` writes it, served by the engine with MLX and by mlx-lm's server, both on the\n" +
	"processor, both loaded, asked in turns. So many streams begin at once, with prompts of 16 random words and answers of 16 tokens, greedy; a\n" +
	"rate is all tokens of the answers by the time until the last. Then 16 requests arrive at random times (Poisson, the same for both) at 0.5,\n" +
	"0.8 and 1.1 of the requests a second that the peer did with 8 streams; time to the first token counts from the time a request was due.\n" +
	"![Time to the first token, by rate of arrivals](arrivals.svg)"

const aboutGPU = "`test/bench/gpu/run.sh`: random weights of the shape %s in 4 bits, served by the engine over its socket and by mlx-lm's server over HTTP, both on one\n" +
	"NVIDIA GPU, both loaded, asked in turns. So many streams begin at once, with prompts of about 128 tokens and answers of 64, greedy; a rate is\n" +
	"all tokens of the answers by the time until the last. Then 64 requests arrive at random times (Poisson, the same for both) at 1, 2 and 3 times\n" +
	"the requests a second that the peer did with 32 streams; time to the first token counts from the time a request was due.\n" +
	"![Time to the first token, by rate of arrivals](arrivals-gpu.svg)"

func newReport(o options) *report.Report {
	if o.load.suffix != "" {
		return report.New("batch-gpu", "Several streams at once on a GPU", fmt.Sprintf(aboutGPU, filepath.Base(o.model)))
	}
	return report.New("batch", "Several streams at once", aboutProcessor)
}

// fill adds every figure with its bound.
func (m *measurements) fill(r *report.Report) {
	for _, count := range m.o.load.streams {
		for i, name := range names {
			r.Add(fmt.Sprintf("%s, %d streams", name, count), "tokens/s", report.Bound{}, m.speed[i][count]...)
		}
		r.Ratio(fmt.Sprintf("%d streams, ours / mlx-lm's server", count), report.AtLeast(m.o.load.least[count]), m.speed[0][count], m.speed[1][count])
	}
	for i, name := range names {
		for _, a := range m.arrivals[i] {
			at := fmt.Sprintf("%s at %.2f requests/s, ", name, a.Rate)
			r.Add(at+"first token, p50", "ms", report.Bound{}, a.TTFT.P50)
			r.Add(at+"first token, p90", "ms", report.Bound{}, a.TTFT.P90)
			r.Add(at+"inter-token, p90", "ms", report.Bound{}, a.InterToken.P90)
			r.Add(at+"rate", "tokens/s", report.Bound{}, a.TokensPerSecond)
		}
	}
	if least := m.o.load.sooner; least > 0 {
		last := len(m.arrivals[0]) - 1
		r.Ratio("first token at the last rate, p90, mlx-lm's server / ours", report.AtLeast(least), []float64{m.arrivals[1][last].TTFT.P90}, []float64{m.arrivals[0][last].TTFT.P90})
	}
}

func median(of []float64) float64 {
	sorted := slices.Sorted(slices.Values(of))
	return sorted[len(sorted)/2]
}
