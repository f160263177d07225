package main

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/test/bench/traffic"
)

func measured(l load) *measurements {
	m := &measurements{o: options{load: l}, words: func(tokens int) int { return tokens }}
	for i := range m.speed {
		m.speed[i] = map[int][]float64{}
		for _, count := range l.streams {
			m.speed[i][count] = []float64{10}
			if i == 0 {
				m.speed[i][count][0] *= l.least[count]
			}
		}
		m.arrivals[i] = []arrival{{Rate: 1, Figures: traffic.Figures{TTFT: traffic.Spread{P50: 5, P90: 6, P99: 7}, InterToken: traffic.Spread{P90: 3}, TokensPerSecond: 9}}}
	}
	m.arrivals[1][0].TTFT.P90 *= 2
	return m
}

func TestEveryNumberOfStreamsIsHeldToTheBound(t *testing.T) {
	judge := func(m *measurements) error {
		r := newReport(m.o)
		m.fill(r)
		return r.Judge()
	}
	for name, l := range map[string]load{"processor": onProcessor, "GPU": onGPU} {
		if err := judge(measured(l)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for _, count := range l.streams {
			m := measured(l)
			m.speed[0][count][0] *= 0.99
			if err := judge(m); err == nil || !strings.Contains(err.Error(), "ours / mlx-lm's server") {
				t.Errorf("%s: %d streams are slower: %v", name, count, err)
			}
		}
	}
	m := measured(onGPU)
	m.arrivals[1][0].TTFT.P90 *= 0.99
	if err := judge(m); err == nil || !strings.Contains(err.Error(), "first token at the last rate") {
		t.Errorf("the peer holds the last rate as well: %v", err)
	}
}

func TestArrivalsAreKeptWithTheirPlot(t *testing.T) {
	m := measured(onProcessor)
	m.o.out = t.TempDir()
	if err := m.keep(); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(filepath.Join(m.o.out, "arrivals.json"))
	if err != nil {
		t.Fatal(err)
	}
	var got map[string][]arrival
	if err := json.Unmarshal(b, &got); err != nil || got["ours"][0].Rate != 1 || got["ours"][0].TTFT.P90 != 6 {
		t.Errorf("%s: %v", b, err)
	}
	if svg, err := os.ReadFile(filepath.Join(m.o.out, "arrivals.svg")); err != nil || !strings.Contains(string(svg), "mlx-lm&#39;s server") {
		t.Errorf("%s: %v", svg, err)
	}
}

// quick answers at once and notes who was asked.
type quick struct {
	name  string
	order *[]string
}

func (q quick) Ask(_ context.Context, r traffic.Request, each func()) (int, int, error) {
	*q.order = append(*q.order, q.name)
	each()
	return 1, r.MaxTokens, nil
}

func TestBothAreAskedTheSameAndTheFirstChanges(t *testing.T) {
	m := measured(onProcessor)
	var order []string
	targets := [2]traffic.Target{quick{"ours", &order}, quick{"theirs", &order}}
	for n := range 3 {
		if err := m.turn(t.Context(), targets, n, 1); err != nil {
			t.Fatal(err)
		}
	}
	if want := []string{"ours", "theirs", "theirs", "ours", "ours", "theirs"}; !slices.Equal(order, want) {
		t.Errorf("asked %v, want %v", order, want)
	}
	if len(m.speed[0][1]) != 4 || len(m.speed[1][1]) != 4 {
		t.Errorf("kept %v", m.speed)
	}
}
