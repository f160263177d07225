package main

import (
	"fmt"

	"metalfleet.dev/metalfleet/test/bench/peers"
	"metalfleet.dev/metalfleet/test/bench/report"
)

// Bounds besides those of lengths: shares of what the peers do, and what must be
// reached in any case.
const (
	leastOfMLXLM = 0.97
	// with activations of 8 bits
	leastCoarseOfLlama = 0.60
	// with 8 streams, of one stream
	leastOfStreams = 1.7

	leastDecode    = 15.0
	leastPrefill   = 40.0
	mostPerWeights = 1.6
)

// about describes how it was measured.
const about = "`make bench-engine`: SmolLM2-135M-Instruct in 4 bits (the GGUF file in Q4_1; for MLX the same weights as `engine convert`\n" +
	"writes them, with float32 scales, read by both), one stream, two threads. `engine bench` and the peer stay loaded and have run\n" +
	"before. A turn is a prompt and the greedy steps after it: prefill is the time from the prompt to its first token, decode the median of\n" +
	"%d steps. Each round has %d turns with prompts of 64 and 512 and one of 2,000, in changing order. MLX computes on the processor, some\n" +
	"ten tokens a second: there %d tokens are decoded after %d, and the prompt is %d on both sides. Ratios are taken within a turn; those of\n" +
	"ref's options (activations of 8 bits, %d streams in one step, after prompts of %d) have turns of their own, and the rate of several\n" +
	"streams is that of all together. `served` is `engine serve` asked over its socket: prefill is from Admitted to the first token, decode is\n" +
	"between the first and the last token of a story of %d, footprint is Pss_Anon + Pss_Shmem + SwapPss of the process."

// measurements are one figure per turn, except those of the whole process.
type measurements struct {
	lengths         [contextLengths]pair
	coarse, streams pair // ref with activations of 8 bits, and 8 streams of both
	many, one       side // ref with 8 streams and with one
	mlx, mlxLM      side
	withMLX         bool
	versions        []peers.Version
	served          served
}

func newReport() *report.Report {
	return report.New("engine", "The engine on two cores",
		fmt.Sprintf(about, decodeTokens, turnsPerRound, mlxTokens, mlxShortPrompt, mlxPrompt, streamsAtOnce, shortPrompt, answerTokens))
}

// fill adds every figure with its bound.
func (m measurements) fill(r *report.Report) {
	for _, v := range m.versions {
		r.Peer(v.Name, v.Version)
	}
	for i, l := range lengths() {
		p := m.lengths[i]
		compare(r, fmt.Sprintf("decode at %d", l.prompt), "llama.cpp", report.AtLeast(l.leastDecode), p.ref.decode, p.llama.decode)
		if l.leastPrefill > 0 {
			compare(r, fmt.Sprintf("prefill of %d", l.prompt), "llama.cpp", report.AtLeast(l.leastPrefill), p.ref.prefill, p.llama.prefill)
		}
	}
	none := report.Bound{}
	r.Add("ref with 8-bit activations, decode", "tokens/s", none, m.coarse.ref.decode...)
	r.Ratio("decode, ref with 8-bit activations / llama.cpp", report.AtLeast(leastCoarseOfLlama), m.coarse.ref.decode, m.coarse.llama.decode)
	compare(r, fmt.Sprintf("decode of %d streams", streamsAtOnce), "llama.cpp", none, m.streams.ref.decode, m.streams.llama.decode)
	r.Ratio(fmt.Sprintf("decode, ref with %d streams / with one", streamsAtOnce), report.AtLeast(leastOfStreams), m.many.decode, m.one.decode)
	if m.withMLX {
		m.fillMLX(r)
	}
	m.served.fill(r)
}

// compare adds what ref and a peer did, and the ratio of the two.
func compare(r *report.Report, what, peer string, least report.Bound, ours, theirs []float64) {
	r.Add("ref, "+what, "tokens/s", report.Bound{}, ours...)
	r.Add(peer+", "+what, "tokens/s", report.Bound{}, theirs...)
	r.Ratio(what+", ref / "+peer, least, ours, theirs)
}

func (m measurements) fillMLX(r *report.Report) {
	none := report.Bound{}
	r.Add("mlx, decode", "tokens/s", none, m.mlx.decode...)
	r.Add("mlx-lm, decode", "tokens/s", none, m.mlxLM.decode...)
	r.Ratio("decode, mlx / mlx-lm", report.AtLeast(leastOfMLXLM), m.mlx.decode, m.mlxLM.decode)
	r.Add(fmt.Sprintf("mlx, prefill of %d", mlxPrompt), "tokens/s", none, m.mlx.prefill...)
	r.Add(fmt.Sprintf("mlx-lm, prefill of %d", mlxPrompt), "tokens/s", none, m.mlxLM.prefill...)
	r.Ratio("prefill, mlx / mlx-lm", report.AtLeast(leastOfMLXLM), m.mlx.prefill, m.mlxLM.prefill)
}

func (s served) fill(r *report.Report) {
	none := report.Bound{}
	r.Add("served on ref, decode", "tokens/s", report.AtLeast(leastDecode), s.decode...)
	r.Add(fmt.Sprintf("served on ref, prefill of %d", longPrompt), "tokens/s", report.AtLeast(leastPrefill), s.prefill...)
	most := (mostPerWeights*float64(s.weights) + float64(s.kv)) / 1e6
	r.Add("served on ref, footprint while a stream runs", "MB", report.Under(most).Of(fmt.Sprintf("%g x weights + KV", mostPerWeights)), float64(s.footprint)/1e6)
	r.Add("served on ref, weights as loaded", "MB", none, float64(s.weights)/1e6)
	r.Add("served on ref, KV held by the stream", "MB", none, float64(s.kv)/1e6)
	r.Add("served on ref, first token of a chat question", "ms", none, s.firstToken...)
	r.Add("served on ref, start to ready", "ms", none, s.ready)
}
