//go:build !race

package engine

import (
	"slices"
	"testing"

	"metalfleet.dev/metalfleet/test/bench/scenario/boundtest"
)

func TestBoundsNextToPeers(t *testing.T) {
	figures := slices.Clone(refFigures)
	for _, p := range pairs {
		for _, a := range p.asks {
			figures = append(figures, p.figures(a)...)
		}
	}
	boundtest.Check(t, figures, boundtest.Values{"many/decode": {1.7}}, map[string]boundtest.Values{
		"decode at 64, ref / llama.cpp":               {"ref 64/decode": {0.5499}},
		"decode at 512, ref / llama.cpp":              {"ref 512/decode": {0.999}},
		"prefill of 512, ref / llama.cpp":             {"ref 512/prefill": {0.999}},
		"decode at 2000, ref / llama.cpp":             {"ref 2000/decode": {0.999}},
		"decode, ref with 8-bit":                      {"coarse/decode": {0.599}},
		"decode, ref with 8 streams":                  {"many/decode": {1.699}},
		"decode at 16, mlx / mlx-lm":                  {"mlx 16/decode": {0.969}},
		"prefill of 64, mlx / mlx-lm":                 {"mlx 64/prefill": {0.969}},
		"decode at 64, ref / llama.cpp: not measured": {"llama.cpp 64/decode": nil},
	})
}

func TestBoundsOfTheServedEngine(t *testing.T) {
	good := boundtest.Values{"prefill/rate": {40}, "story/decode": {15}, "story/footprint": {150e6}}
	boundtest.Check(t, servedFigures(96e6, 12e6), good, map[string]boundtest.Values{
		"decode: median":         {"story/decode": {14.9}},
		"prefill of 512: median": {"prefill/rate": {39.9}},
		"footprint while":        {"story/footprint": {1.6*96e6 + 12e6}},
	})
}

func TestBoundsOfLoading(t *testing.T) {
	boundtest.Check(t, loadFigures(4e9, "mlx"), boundtest.Values{"mlx/peak": {4.1e9, 4.4e9, 4.2e9}}, map[string]boundtest.Values{
		"mlx, in place / plain reading": {"mlx/placed": {0.69}},
		"mlx, peak":                     {"mlx/peak": {4.1e9, 4.401e9, 4.2e9}},
	})
	l := loading{bytes: 4e9}
	const want = 4.2e9 + 200e6 + 2<<30
	if l.checkRoom(want) != nil || l.checkRoom(want-1) == nil {
		t.Errorf("a model is loaded into too little memory, or not into enough")
	}
}

func TestBoundsOfTheGPU(t *testing.T) {
	good := boundtest.Values{"ours 8 x 128/decode": {2}, "ours 16 x 128/decode": {3.5}}
	changes := map[string]boundtest.Values{
		"decode, 1 streams, ours / mlx-lm": {"ours 1 x 128/decode": {0.99}},
		"prefill of 4096, ours / mlx-lm":   {"ours 1 x 4096/prefill": {0.99}},
	}
	dependent := map[string]boundtest.Values{
		"decode, 16 streams, ours / mlx-lm": {"ours 16 x 128/decode": {3.4}},
		"step of 16 rows / step of 1 row":   {"ours 16 x 128/step": {2.7}},
	}
	boundtest.Check(t, gpuFigures(dense), good, changes)
	boundtest.Check(t, gpuFigures(dense), good, dependent)
	boundtest.Check(t, gpuFigures("qwen3-0.6b"), good, changes)
	boundtest.Check(t, gpuFigures(sparse[0]), good, map[string]boundtest.Values{
		"decode, 1 streams, ours / mlx-lm": {"ours 1 x 128/decode": {0.99}},
		"prefill of 512, ours / mlx-lm":    {"ours 1 x 512/prefill": {0.99}},
		"decode, 8 streams, ours / mlx-lm": {"ours 8 x 128/decode": {1.99}},
	})
	for name, change := range dependent {
		if got := boundtest.Verdict(gpuFigures("qwen3-0.6b"), good, change); got != "" {
			t.Errorf("another shape is held to %s: %s", name, got)
		}
	}
}

func TestTheEngineHasToMeasureWhatItWasAsked(t *testing.T) {
	good := line{Backend: "ref", Streams: 8, PromptTokens: 64, Prefill: 90.5, Decode: 30}
	if v, err := good.values("ref", 8, 64); err != nil || v["prefill"] != 90.5 || v["decode"] != 30 {
		t.Errorf("%+v, %v", v, err)
	}
	for name, l := range map[string]line{
		"another back end": {Backend: "mlx", Streams: 8, PromptTokens: 64, Prefill: 90.5, Decode: 30},
		"fewer streams":    {Backend: "ref", Streams: 7, PromptTokens: 64, Prefill: 90.5, Decode: 30},
		"another prompt":   {Backend: "ref", Streams: 8, PromptTokens: 63, Prefill: 90.5, Decode: 30},
		"no prefill":       {Backend: "ref", Streams: 8, PromptTokens: 64, Decode: 30},
		"no decode":        {Backend: "ref", Streams: 8, PromptTokens: 64, Prefill: 90.5},
	} {
		if _, err := l.values("ref", 8, 64); err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
}
