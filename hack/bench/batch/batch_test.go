package main

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/hack/bench/traffic"
)

func measured() *measurements {
	m := &measurements{}
	for i := range m.speed {
		m.speed[i] = map[int][]float64{1: {10}, 4: {20}, 8: {30}}
		m.arrivals[i] = []arrival{{Rate: 1, Figures: traffic.Figures{TTFT: traffic.Spread{P50: 5, P90: 6, P99: 7}, InterToken: traffic.Spread{P90: 3}, TokensPerSecond: 9}}}
	}
	return m
}

func TestEveryNumberOfStreamsIsHeldToTheBound(t *testing.T) {
	judge := func(m *measurements) error {
		r := newReport()
		m.fill(r)
		return r.Judge()
	}
	if err := judge(measured()); err != nil {
		t.Error(err)
	}
	for _, count := range streams {
		m := measured()
		m.speed[0][count][0] *= 0.94
		if err := judge(m); err == nil || !strings.Contains(err.Error(), "ours / mlx-lm's server") {
			t.Errorf("%d streams are slower: %v", count, err)
		}
	}
}

func TestArrivalsAreKeptWithTheirPlot(t *testing.T) {
	m := measured()
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
	m := measured()
	m.o.prompt, m.o.tokens = 4, 2
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
