//go:build !race

package engine_test

import (
	"fmt"
	"path/filepath"
	"testing"

	"metalfleet.dev/metalfleet/metal/backends"
	"metalfleet.dev/metalfleet/metal/engine"
	"metalfleet.dev/metalfleet/metal/quant"
	"metalfleet.dev/metalfleet/metal/tinymodel"
)

// BenchmarkDrafts decodes one answer with and without drafts that are mostly right, of a
// model that is wide enough for its weights to take most of a step.
func BenchmarkDrafts(b *testing.B) {
	c := tinymodel.Default()
	c.Family, c.Layers, c.Hidden, c.FeedForward, c.QueryHeads, c.KVHeads, c.HeadSize, c.Vocabulary, c.Context = tinymodel.Qwen35, 8, 1024, 3072, 8, 2, 128, 8192, 1024
	c.Hybrid = tinymodel.Hybrid{Interval: 4, KeyHeads: 8, KeySize: 64, ValueHeads: 8, ValueSize: 64, Taps: 4, Rotary: 0.25}
	c.Drafts = tinymodel.LikelyDrafts
	path := filepath.Join(b.TempDir(), "model")
	if err := tinymodel.WriteFolder(path, c, tinymodel.Layout{Matrices: quant.DenseOf(quant.Float32)}); err != nil {
		b.Fatal(err)
	}
	for _, kind := range backends.Names() {
		for _, drafts := range []bool{false, true} {
			b.Run(fmt.Sprintf("%s/drafts=%t", kind, drafts), func(b *testing.B) { benchmarkDrafts(b, path, kind, drafts) })
		}
	}
}

func benchmarkDrafts(b *testing.B, path, kind string, drafts bool) {
	const tokens = 64
	backend, err := backends.Open(kind, backends.Options{})
	if err != nil {
		b.Fatal(err)
	}
	e := engine.Start(engine.Options{ModelPath: path, Backend: backend, Drafts: drafts})
	defer func() { _ = e.Wait() }()
	defer stop(e)
	if err := e.AwaitReady(b.Context()); err != nil {
		b.Fatal(err)
	}
	r := greedily(requests())[0]
	r.MaxTokens, r.IgnoreEnd = tokens, true
	for b.Loop() {
		s, err := e.Generate(b.Context(), r)
		if err != nil {
			b.Fatal(err)
		}
		for done := false; !done; {
			ev, err := s.Next(b.Context())
			if err != nil {
				b.Fatal(err)
			}
			done = ev.Finished != nil
		}
	}
	b.ReportMetric(float64(tokens*b.N)/b.Elapsed().Seconds(), "tokens/s")
	if s := e.Status(); s.Drafts > 0 {
		b.ReportMetric(float64(s.RightDrafts)/float64(s.Drafts), "right")
	}
}
