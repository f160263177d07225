package main

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/hack/bench/peers"
)

func passing() measurements {
	three := func(v float64) []float64 { return []float64{v, v, v} }
	return measurements{
		ref: side{prefill: three(15), decode: three(25)}, llama: side{prefill: three(100), decode: three(100)},
		mlx: side{prefill: three(9.7), decode: three(9.7)}, mlxLM: side{prefill: three(10), decode: three(10)},
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
	// Two of three rounds miss by a little, one is far ahead.
	missed := func(v float64) []float64 { return []float64{v, v * 0.9999, v * 100} }
	for says, change := range map[string]func(*measurements){
		"decode, ref / llama.cpp":      func(m *measurements) { m.ref.decode = missed(24.99) },
		"prefill, ref / llama.cpp":     func(m *measurements) { m.ref.prefill = missed(14.99) },
		"decode, mlx / mlx-lm":         func(m *measurements) { m.mlx.decode = missed(9.69) },
		"prefill, mlx / mlx-lm":        func(m *measurements) { m.mlx.prefill = missed(9.69) },
		"served on ref, decode":        func(m *measurements) { m.served.decode = []float64{14, 14.9, 99} },
		"served on ref, prefill":       func(m *measurements) { m.served.prefill = []float64{39, 39.9, 99} },
		"served on ref, footprint":     func(m *measurements) { m.served.footprint = 1.6*96e6 + 12e6 },
		"decode, mlx / mlx-lm: not":    func(m *measurements) { m.mlxLM.decode = m.mlxLM.decode[1:] },
		"llama.cpp, decode: not":       func(m *measurements) { m.llama.decode = nil },
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
	ask := func(who string, rate float64) func(context.Context) (figures, error) {
		return func(context.Context) (figures, error) {
			order = append(order, who)
			return figures{rate, 2 * rate}, nil
		}
	}
	var a, b side
	c := contest{name: "a and b", ours: ask("ours", 1), theirs: ask("theirs", 10), a: &a, b: &b}
	for n := range 3 {
		if err := c.round(t.Context(), n); err != nil {
			t.Fatal(err)
		}
	}
	if want := []string{"ours", "theirs", "theirs", "ours", "ours", "theirs"}; !slices.Equal(order, want) {
		t.Errorf("asked %v, want %v", order, want)
	}
	if !slices.Equal(a.prefill, []float64{1, 1, 1}) || !slices.Equal(b.decode, []float64{20, 20, 20}) {
		t.Errorf("figures %+v and %+v", a, b)
	}
	gone := errors.New("gone")
	c.theirs = func(context.Context) (figures, error) { return figures{}, gone }
	if err := c.round(t.Context(), 0); !errors.Is(err, gone) || !strings.Contains(err.Error(), "a and b, round 1") {
		t.Errorf("a peer that is gone: %v", err)
	}
}

func TestWhatTheEngineMeasuredIsHeldAgainstWhatWasAsked(t *testing.T) {
	good := `[{"backend":"ref","streams":1,"promptTokens":64,"tokens":64,"prefillTokensPerSecond":90.5,"decodeTokensPerSecond":30}]`
	if f, err := read([]byte(good), "ref", 64); err != nil || f != (figures{90.5, 30}) {
		t.Errorf("%+v, %v", f, err)
	}
	for says, b := range map[string]string{
		"no JSON":           `decode 12`,
		"no line":           `[]`,
		"two lines":         strings.Replace(good, "[", "["+good[1:len(good)-1]+",", 1),
		"another back end":  strings.Replace(good, "ref", "mlx", 1),
		"another prompt":    strings.Replace(good, `"promptTokens":64`, `"promptTokens":63`, 1),
		"prefill of zero":   strings.Replace(good, "90.5", "0", 1),
		"no decode":         strings.Replace(good, "decodeTokensPerSecond", "decode", 1),
		"prefill is absent": strings.Replace(good, "prefillTokensPerSecond", "prefill", 1),
	} {
		if _, err := read([]byte(b), "ref", 64); err == nil {
			t.Errorf("%s is taken", says)
		}
	}
}
