package main

import (
	"fmt"

	"metalfleet.dev/metalfleet/test/bench/peers"
	"metalfleet.dev/metalfleet/test/bench/report"
)

// The bounds of the issues: shares of what the peers do, and what must be
// reached whatever they do.
const (
	leastOfMLXLM        = 0.97
	leastDecodeOfLlama  = 0.40
	leastPrefillOfLlama = 0.35
	// with activations of 8 bits
	leastCoarseOfLlama = 0.60
	// of so many streams at once, beside one
	leastOfStreams = 1.7

	leastDecode    = 15.0
	leastPrefill   = 40.0
	mostPerWeights = 1.6
)

// about says how it was measured.
const about = "`make bench-engine`: SmolLM2-135M-Instruct in 4 bits (the GGUF file in Q4_1; for MLX the same weights as `engine convert`\n" +
	"writes them, with float32 scales, read by both), one stream, two threads. Beside peers, `engine bench` and the peer stay loaded and\n" +
	"have run before. Each round has %d turns of decoding, in changing order: the median step of %d tokens behind a prompt of %d, greedy;\n" +
	"then one prefill: the time from the prompt to its first token. MLX computes on the processor, some ten tokens a second: there %d\n" +
	"tokens are decoded behind %d, and the prompt is %d on both sides. Ratios are taken within a turn; those of ref's options (activations\n" +
	"of 8 bits, %d streams in one step) have turns of their own, and the rate of several streams is that of all together. `served` is `engine serve` asked\n" +
	"over its socket: prefill is from Admitted to the first token, decode is between the first and the last token of a story of %d,\n" +
	"footprint is Pss_Anon + Pss_Shmem + SwapPss of the process."

// measurements are one figure per turn, except those of the whole process.
type measurements struct {
	ref, llama, mlx, mlxLM side
	// coarse is ref with activations of 8 bits, many ref with several streams.
	coarse, llamaBesideCoarse, many, one side
	versions                             []peers.Version
	served                               served
}

func newReport() *report.Report {
	return report.New("engine", "The engine on two cores",
		fmt.Sprintf(about, turnsPerRound, decodeTokens, shortPrompt, mlxTokens, mlxShortPrompt, mlxPrompt, streamsAtOnce, answerTokens))
}

// fill adds every figure with its bound.
func (m measurements) fill(r *report.Report) {
	for _, v := range m.versions {
		r.Peer(v.Name, v.Version)
	}
	none := report.Bound{}
	prefill := func(of string, tokens int) string { return fmt.Sprintf("%s, prefill of %d", of, tokens) }
	r.Add("ref, decode", "tokens/s", none, m.ref.decode...)
	r.Add("llama.cpp, decode", "tokens/s", none, m.llama.decode...)
	r.Ratio("decode, ref / llama.cpp", report.AtLeast(leastDecodeOfLlama), m.ref.decode, m.llama.decode)
	r.Add(prefill("ref", longPrompt), "tokens/s", none, m.ref.prefill...)
	r.Add(prefill("llama.cpp", longPrompt), "tokens/s", none, m.llama.prefill...)
	r.Ratio("prefill, ref / llama.cpp", report.AtLeast(leastPrefillOfLlama), m.ref.prefill, m.llama.prefill)
	r.Add("ref with 8-bit activations, decode", "tokens/s", none, m.coarse.decode...)
	r.Ratio("decode, ref with 8-bit activations / llama.cpp", report.AtLeast(leastCoarseOfLlama), m.coarse.decode, m.llamaBesideCoarse.decode)
	r.Add(fmt.Sprintf("ref, decode of %d streams", streamsAtOnce), "tokens/s", none, m.many.decode...)
	r.Ratio(fmt.Sprintf("decode, ref with %d streams / with one", streamsAtOnce), report.AtLeast(leastOfStreams), m.many.decode, m.one.decode)
	r.Add("mlx, decode", "tokens/s", none, m.mlx.decode...)
	r.Add("mlx-lm, decode", "tokens/s", none, m.mlxLM.decode...)
	r.Ratio("decode, mlx / mlx-lm", report.AtLeast(leastOfMLXLM), m.mlx.decode, m.mlxLM.decode)
	r.Add(prefill("mlx", mlxPrompt), "tokens/s", none, m.mlx.prefill...)
	r.Add(prefill("mlx-lm", mlxPrompt), "tokens/s", none, m.mlxLM.prefill...)
	r.Ratio("prefill, mlx / mlx-lm", report.AtLeast(leastOfMLXLM), m.mlx.prefill, m.mlxLM.prefill)

	s := m.served
	r.Add("served on ref, decode", "tokens/s", report.AtLeast(leastDecode), s.decode...)
	r.Add(prefill("served on ref", longPrompt), "tokens/s", report.AtLeast(leastPrefill), s.prefill...)
	most := (mostPerWeights*float64(s.weights) + float64(s.kv)) / 1e6
	r.Add("served on ref, footprint while a stream runs", "MB", report.Under(most).Of(fmt.Sprintf("%g x weights + KV", mostPerWeights)), float64(s.footprint)/1e6)
	r.Add("served on ref, weights as loaded", "MB", none, float64(s.weights)/1e6)
	r.Add("served on ref, KV held by the stream", "MB", none, float64(s.kv)/1e6)
	r.Add("served on ref, first token of a chat question", "ms", none, s.firstToken...)
	r.Add("served on ref, start to ready", "ms", none, s.ready)
}
