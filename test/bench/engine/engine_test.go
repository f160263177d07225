package engine

import (
	"slices"
	"testing"

	"metalfleet.dev/metalfleet/test/bench/scenario/boundtest"
)

func three(v float64) []float64 { return []float64{v, v, v} }

// missed is a bad median with one run that is far better.
func missed(v float64) []float64 { return []float64{v, v * 0.9999, v * 100} }

func TestBoundsNextToPeers(t *testing.T) {
	good := boundtest.Values{"coarse/decode": three(60), "llama.cpp next to coarse/decode": three(100), "many/decode": three(170), "one/decode": three(100), "llama.cpp many/decode": three(1000)}
	figures := slices.Clone(refFigures)
	for _, p := range pairs {
		for _, a := range p.asks {
			figures = append(figures, p.figures(a)...)
			for _, key := range []string{"/decode", "/prefill"} {
				good[p.ours(a)+key], good[p.theirs(a)+key] = three(100), three(100)
			}
		}
	}
	boundtest.Check(t, good, boundtest.Figures(figures...), map[string]boundtest.Values{
		"decode at 64, ref / llama.cpp":               {"ref 64/decode": missed(54.99)},
		"decode at 512, ref / llama.cpp":              {"ref 512/decode": missed(99.99)},
		"prefill of 512, ref / llama.cpp":             {"ref 512/prefill": missed(99.99)},
		"decode at 2000, ref / llama.cpp":             {"ref 2000/decode": missed(99.99)},
		"decode, ref with 8-bit":                      {"coarse/decode": missed(59.99)},
		"decode, ref with 8 streams":                  {"many/decode": missed(169.9)},
		"decode at 16, mlx / mlx-lm":                  {"mlx 16/decode": missed(96.9)},
		"prefill of 64, mlx / mlx-lm":                 {"mlx 64/prefill": missed(96.9)},
		"decode at 64, ref / llama.cpp: not measured": {"llama.cpp 64/decode": nil},
	})
}

func TestBoundsOfTheServedEngine(t *testing.T) {
	good := boundtest.Values{"prefill/rate": {50, 60, 55}, "story/decode": {20, 30, 25}, "story/first": {9}, "start/ready": {1},
		"story/footprint": {150e6}, "story/weights": {96e6}, "story/kv": {12e6}}
	boundtest.Check(t, good, fillServed, map[string]boundtest.Values{
		"decode: median":         {"story/decode": {14, 14.9, 99}},
		"prefill of 512: median": {"prefill/rate": {39, 39.9, 99}},
		"footprint while":        {"story/footprint": {1.6*96e6 + 12e6}},
		"weights as loaded: not": {"story/weights": nil},
	})
}

func TestBoundsOfLoading(t *testing.T) {
	good := boundtest.Values{"files/bytes": {4e9}, "plain/rate": {1e9, 2e9, 1e9}, "mlx/placed": {0.9e9, 1.5e9, 0.8e9}, "mlx/ready": {0.1e9},
		"mlx/peak": {4.1e9, 4.4e9, 4.2e9}, "mlx/cpu": {3}}
	boundtest.Check(t, good, boundtest.Figures(loadFigures(4e9, "mlx")...), map[string]boundtest.Values{
		"mlx, in place / plain reading": {"mlx/placed": {0.69e9, 9e9, 0.69e9}},
		"mlx, peak":                     {"mlx/peak": {4.1e9, 4.401e9, 4.2e9}},
		"plain reading: not measured":   {"plain/rate": nil},
	})
	l := loading{bytes: 4e9}
	const want = 4.2e9 + 200e6 + 2<<30
	if l.checkRoom(want) != nil || l.checkRoom(want-1) == nil {
		t.Errorf("a model is loaded into too little memory, or not into enough")
	}
}

func TestBoundsOfTheGPU(t *testing.T) {
	good := boundtest.Values{}
	for _, a := range gpuAsks {
		for key, v := range map[string]float64{"decode": 400, "prefill": 20000, "step": 12, "host": 1, "cpu": 1} {
			good[a.name("ours")+"/"+key], good[a.name("peer")+"/"+key] = three(v), three(v/4)
		}
	}
	good["ours 1 x 128/step"] = three(5)
	boundtest.Check(t, good, boundtest.Figures(gpuFigures(dense)...), map[string]boundtest.Values{
		"decode, 1 streams, ours / mlx-lm":  {"ours 1 x 128/decode": missed(99)},
		"prefill of 4096, ours / mlx-lm":    {"ours 1 x 4096/prefill": missed(4900)},
		"decode, 16 streams, ours / mlx-lm": {"ours 16 x 128/decode": missed(340)},
		"step of 16 rows / step of 1 row":   {"ours 16 x 128/step": three(13.1)},
	})
	slow := boundtest.Values{"ours 16 x 128/decode": missed(340), "ours 16 x 128/step": three(13.1)}
	if got := boundtest.Verdict(good, slow, boundtest.Figures(gpuFigures("qwen3-0.6b")...)); got != "" {
		t.Errorf("another shape is held to the bounds of the dense one: %s", got)
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
