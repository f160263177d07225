package main

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/test/bench/peers"
)

func passing() measurements {
	three := func(v float64) []float64 { return []float64{v, v, v} }
	llama := side{prefill: three(100), decode: three(100)}
	return measurements{
		lengths: [contextLengths]pair{
			{ref: side{prefill: three(1), decode: three(55)}, llama: llama},
			{ref: side{prefill: three(100), decode: three(100)}, llama: llama},
			{ref: side{prefill: three(1), decode: three(100)}, llama: llama},
		},
		coarse: pair{ref: side{decode: three(60)}, llama: llama}, streams: pair{ref: side{decode: three(1)}, llama: llama},
		many: side{decode: three(68)}, one: side{decode: three(40)},
		mlx: side{prefill: three(9.7), decode: three(9.7)}, mlxLM: side{prefill: three(10), decode: three(10)}, withMLX: true,
		versions: []peers.Version{{Name: "mlx-lm", Version: "1.2.3"}},
		served: served{prefill: []float64{50, 60, 55}, decode: []float64{20, 30, 25}, firstToken: []float64{9}, ready: 1,
			footprint: 150e6, weights: 96e6, kv: 12e6},
	}
}

func judge(m measurements) error {
	r := newReport()
	m.fill(r)
	return r.Judge()
}

func TestJudgeWantsEveryBound(t *testing.T) {
	if err := judge(passing()); err != nil {
		t.Errorf("all bounds hold: %v", err)
	}
	without := passing()
	without.withMLX, without.mlx, without.mlxLM = false, side{}, side{}
	if err := judge(without); err != nil {
		t.Errorf("MLX is left out: %v", err)
	}
	// Two of three rounds miss by a little, one is far ahead.
	missed := func(v float64) []float64 { return []float64{v, v * 0.9999, v * 100} }
	for says, change := range map[string]func(*measurements){
		"decode at 64, ref / llama":    func(m *measurements) { m.lengths[0].ref.decode = missed(54.99) },
		"decode at 512, ref / llama":   func(m *measurements) { m.lengths[1].ref.decode = missed(99.99) },
		"decode at 2000, ref / llama":  func(m *measurements) { m.lengths[2].ref.decode = missed(99.99) },
		"prefill of 512, ref / llama":  func(m *measurements) { m.lengths[1].ref.prefill = missed(99.99) },
		"decode, ref with 8-bit":       func(m *measurements) { m.coarse.ref.decode = missed(59.99) },
		"decode, ref with 8 streams":   func(m *measurements) { m.many.decode = missed(67.99) },
		"decode, mlx / mlx-lm":         func(m *measurements) { m.mlx.decode = missed(9.69) },
		"prefill, mlx / mlx-lm":        func(m *measurements) { m.mlx.prefill = missed(9.69) },
		"served on ref, decode":        func(m *measurements) { m.served.decode = []float64{14, 14.9, 99} },
		"served on ref, prefill":       func(m *measurements) { m.served.prefill = []float64{39, 39.9, 99} },
		"served on ref, footprint":     func(m *measurements) { m.served.footprint = 1.6*96e6 + 12e6 },
		"decode, mlx / mlx-lm: not":    func(m *measurements) { m.mlxLM.decode = m.mlxLM.decode[1:] },
		"llama.cpp, decode at 64: not": func(m *measurements) { m.lengths[0].llama.decode = nil },
		"8 streams, ref / llama.cpp":   func(m *measurements) { m.streams.llama.decode = nil },
		"mlx-lm, prefill of 64: not":   func(m *measurements) { m.mlxLM.prefill = nil },
		"served on ref, start to read": func(m *measurements) { m.served.ready /= 0 * m.served.ready },
	} {
		m := passing()
		change(&m)
		if err := judge(m); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s misses its bound: %v", says, err)
		}
	}
}

func TestEachRoundAsksBothAndTheFirstChanges(t *testing.T) {
	var order []string
	ask := func(who string, rate float64) func() (figures, error) {
		return func() (figures, error) {
			order = append(order, who)
			return figures{rate, 2 * rate}, nil
		}
	}
	var a, b side
	c := contest{name: "a and b", keep: func(s *side, f figures) { s.addPrefill(f); s.addDecode(f) }, ours: ask("ours", 1), theirs: ask("theirs", 10), a: &a, b: &b}
	want := []string{"ours", "theirs", "theirs", "ours", "ours", "theirs"}
	for turns, rounds := range map[int]int{1: 3, 3: 1} {
		order, a, b, c.turns = nil, side{}, side{}, turns
		for n := range rounds {
			if err := c.round(n); err != nil {
				t.Fatal(err)
			}
		}
		if !slices.Equal(order, want) {
			t.Errorf("asked %v, want %v", order, want)
		}
	}
	if !slices.Equal(a.prefill, []float64{1, 1, 1}) || !slices.Equal(b.decode, []float64{20, 20, 20}) {
		t.Errorf("figures %+v and %+v", a, b)
	}
	gone := errors.New("gone")
	c.theirs = func() (figures, error) { return figures{}, gone }
	if err := c.round(0); !errors.Is(err, gone) || !strings.Contains(err.Error(), "a and b, round 1") {
		t.Errorf("a peer that is gone: %v", err)
	}
}

func TestWhatTheEngineMeasuredIsHeldAgainstWhatWasAsked(t *testing.T) {
	good := benched{Backend: "ref", Streams: 8, PromptTokens: 64, PrefillTokensPerSec: 90.5, DecodeTokensPerSec: 30}
	if f, err := good.figures("ref", 8, 64); err != nil || f != (figures{90.5, 30}) {
		t.Errorf("%+v, %v", f, err)
	}
	for says, change := range map[string]func(*benched){
		"another back end": func(b *benched) { b.Backend = "mlx" },
		"fewer streams":    func(b *benched) { b.Streams = 7 },
		"another prompt":   func(b *benched) { b.PromptTokens = 63 },
		"prefill of zero":  func(b *benched) { b.PrefillTokensPerSec = 0 },
		"no decode":        func(b *benched) { b.DecodeTokensPerSec = 0 },
	} {
		b := good
		change(&b)
		if _, err := b.figures("ref", 8, 64); err == nil {
			t.Errorf("%s is taken", says)
		}
	}
}
