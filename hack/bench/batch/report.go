package main

import (
	"fmt"
	"slices"

	"metalfleet.dev/metalfleet/hack/bench/report"
)

// leastOfPeer is the bound of the issue on a processor.
const leastOfPeer = 0.95

const about = "`make bench-batch`: SmolLM2-135M-Instruct in 4 bits, as `engine convert` writes it, served by the engine with MLX and by mlx-lm's server, both on the\n" +
	"processor, both loaded, asked in turns. So many streams begin at once, with prompts of 16 random words and answers of 16 tokens, greedy; a\n" +
	"rate is all tokens of the answers by the time until the last. Then 16 requests arrive at random times (Poisson, the same for both) at 0.5,\n" +
	"0.8 and 1.1 of the requests a second that the peer did with 8 streams; time to the first token counts from the time a request was due.\n" +
	"![Time to the first token, by rate of arrivals](arrivals.svg)"

func newReport() *report.Report {
	return report.New("batch", "Several streams at once", about)
}

// fill adds every figure with its bound.
func (m *measurements) fill(r *report.Report) {
	for _, count := range streams {
		for i, name := range names {
			r.Add(fmt.Sprintf("%s, %d streams", name, count), "tokens/s", report.Bound{}, m.speed[i][count]...)
		}
		r.Ratio(fmt.Sprintf("%d streams, ours / mlx-lm's server", count), report.AtLeast(leastOfPeer), m.speed[0][count], m.speed[1][count])
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
}

func median(of []float64) float64 {
	sorted := slices.Sorted(slices.Values(of))
	return sorted[len(sorted)/2]
}
