//go:build mlx

package mlx_test

import (
	"context"
	"math"
	"path/filepath"
	"slices"
	"testing"

	"metalfleet.dev/metalfleet/metal/arch"
	"metalfleet.dev/metalfleet/metal/mlx"
	"metalfleet.dev/metalfleet/metal/quant"
	"metalfleet.dev/metalfleet/metal/tensor"
	"metalfleet.dev/metalfleet/metal/tinymodel"
	"metalfleet.dev/metalfleet/metal/weights"
)

// Blocks are saved in the precision they are held in, two bytes a number except
// for Gemma's float16, which is computed in float32. A restored request
// continues with the same bits, in chunks that end where the state was saved.
func TestRestoredRequestContinuesInHalfPrecision(t *testing.T) {
	window := tinymodel.Default()
	window.Family, window.Layers, window.Window, window.Pattern = tinymodel.Gemma3, 3, 21, 2
	hybrid := tinymodel.Default()
	hybrid.Family = tinymodel.Qwen35
	hybrid.Hybrid = tinymodel.Hybrid{Interval: 2, KeyHeads: 3, KeySize: 8, ValueHeads: 3, ValueSize: 24, Taps: 3, Rotary: 0.5}
	plain := tinymodel.Default()
	plain.Family = tinymodel.Qwen3
	for _, c := range []tinymodel.Config{plain, window, hybrid} {
		for _, typ := range []quant.Type{quant.BFloat16, quant.Float16} {
			t.Run(string(c.Family)+" "+typ.String(), func(t *testing.T) {
				c.Context = 1024
				path := filepath.Join(t.TempDir(), "tiny")
				if err := tinymodel.WriteFolder(path, c, tinymodel.Layout{Matrices: quant.DenseOf(typ)}); err != nil {
					t.Fatal(err)
				}
				restoreAndCompare(t, path)
			})
		}
	}
}

func restoreAndCompare(t *testing.T, path string) {
	t.Helper()
	b := mlx.New(mlx.Options{})
	if err := b.Attach(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}()
	f, err := weights.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b.SetPrecision(f.Precision())
	m, err := arch.Load(context.Background(), b, f, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Release()
	ids := make([]int32, 300)
	for i := range ids {
		ids[i] = int32((i*131 + i*i*7 + 3) % f.Dim.Vocabulary)
	}
	step := func(c tensor.Cache, id tensor.RequestID, from, to int) []float32 {
		t.Helper()
		s := b.NewScope(context.Background())
		defer s.Close()
		out := make([]float32, f.Dim.Vocabulary)
		s.Read(m.Step(s, c, s.IDs(ids[from:to]), []tensor.Segment{{Request: id, Start: from, Length: to - from}}, []int{to - from - 1}), out)
		if err := s.Err(); err != nil {
			t.Fatal(err)
		}
		return out
	}
	computed, restored := fresh(t, b, m), fresh(t, b, m)
	defer computed.Release()
	defer restored.Release()
	step(restored, -1, 0, 1)
	restored.Drop(-1)
	const at = 262
	step(computed, 1, 0, 100)
	step(computed, 1, 100, at)
	spec := m.CacheSpec()
	saved, err := tensor.SavedOf(spec.Kept(f.Precision().Bytes()))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := restored.SliceBytes(1), saved.TokenBytes; got != want || restored.StateBytes(at) != saved.State(at) {
		t.Errorf("a token has %d bytes, want %d; the state has %d, want %d", got, want, restored.StateBytes(at), saved.State(at))
	}
	kv := [][]byte{make([]byte, computed.SliceBytes(spec.BlockTokens)), make([]byte, computed.SliceBytes(at-spec.BlockTokens))}
	state := make([]byte, computed.StateBytes(at))
	for _, err := range []error{
		computed.Save(1, 0, spec.BlockTokens, kv[0]), computed.Save(1, spec.BlockTokens, at, kv[1]), computed.SaveState(1, state), restored.Restore(2, at, kv, state),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, to := range []int{at + 1, at + 9, 299, 300} {
		from := computed.Length(1)
		got, want := step(restored, 2, from, to), step(computed, 1, from, to)
		if !slices.EqualFunc(got, want, func(a, b float32) bool { return math.Float32bits(a) == math.Float32bits(b) }) {
			t.Fatalf("tokens %d to %d: logits differ from those that were computed", from, to)
		}
	}
}

func fresh(t *testing.T, b tensor.Backend, m arch.Model) tensor.Cache {
	t.Helper()
	c, err := b.NewCache(m.CacheSpec())
	if err != nil {
		t.Fatal(err)
	}
	return c
}
