//go:build mlx

package arch_test

import (
	"maps"
	"path/filepath"
	"testing"

	"metalfleet.dev/metalfleet/metal/footprint"
	"metalfleet.dev/metalfleet/metal/mlx"
	"metalfleet.dev/metalfleet/metal/nn"
	"metalfleet.dev/metalfleet/metal/tinymodel"
	"metalfleet.dev/metalfleet/metal/weights"
)

// The vision tower of every family on MLX, which the engine waits for after each layer: at
// most the estimate, at least five sevenths of it. Scores decide for many patches, values for few.
func TestAnImageOnMLXTakesItsEstimatedFootprint(t *testing.T) {
	none := map[string]any{"deepstack_visual_indexes": []int{}}
	heads := func(size int, clipped bool) map[string]any {
		return map[string]any{"head_dim": size, "use_clipped_linears": clipped}
	}
	for _, c := range []struct {
		name, modelType    string
		hidden, wide, head int
		rows, columns      int
		change             map[string]any
	}{
		{"heads of 64", "qwen3_vl", 384, 1536, 6, 32, 32, nil},
		{"few patches", "qwen3_vl", 384, 1536, 6, 16, 16, nil},
		{"one layer's tokens", "qwen3_vl", 384, 1536, 6, 32, 32, none},
		{"heads that are filled", "qwen3_vl", 432, 1728, 6, 32, 32, nil},
		{"wide feed-forward", "qwen3_vl", 128, 2048, 1, 32, 32, none},
		{"heads of 64", "gemma3", 384, 1536, 6, 32, 32, nil},
		{"few patches", "gemma3", 384, 1536, 6, 16, 16, nil},
		{"heads that are filled", "gemma3", 432, 1728, 6, 32, 32, nil},
		{"wide feed-forward", "gemma3", 128, 2048, 1, 32, 32, nil},
		{"clipped", "gemma4", 384, 1536, 6, 30, 36, heads(64, true)},
		{"not clipped", "gemma4", 384, 1536, 6, 30, 36, heads(64, false)},
		{"few patches", "gemma4", 384, 1536, 6, 15, 15, heads(64, false)},
		{"heads that are filled", "gemma4", 384, 1536, 6, 30, 36, heads(72, true)},
		{"wide feed-forward", "gemma4", 128, 2048, 1, 30, 36, heads(128, true)},
		{"wide feed-forward, not clipped", "gemma4", 128, 2048, 1, 30, 36, heads(128, false)},
	} {
		t.Run(c.modelType+", "+c.name, func(t *testing.T) {
			const patch = 8
			m := tinymodel.Seeing(c.modelType)
			vision := m.Config["vision_config"].(map[string]any)
			maps.Copy(vision, map[string]any{
				"depth": 3, "num_hidden_layers": 3, "hidden_size": c.hidden, "intermediate_size": c.wide, "num_heads": c.head, "num_attention_heads": c.head, "num_key_value_heads": c.head,
				"patch_size": patch, "image_size": c.rows * patch,
			})
			maps.Copy(vision, c.change)
			m.Images["patch_size"] = patch
			m.Config["mm_tokens_per_image"] = 64
			dir := filepath.Join(t.TempDir(), "model")
			if err := m.Write(dir); err != nil {
				t.Fatal(err)
			}
			imageOnMLX(t, dir, c.rows, c.columns)
		})
	}
}

// imageOnMLX measures an image of rows x columns patches.
func imageOnMLX(t *testing.T, dir string, rows, columns int) {
	t.Helper()
	f, err := weights.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if f.Tower() == nil {
		t.Fatalf("no tower: %v", f.Dim.TowerFault)
	}
	d := *f.Dim.Tower
	want, err := footprint.ImagePeak(towerFacts(d, rows*columns), footprint.KernelsOf(footprint.MLXCPU), int64(rows*columns))
	if err != nil {
		t.Fatal(err)
	}
	b := mlx.New(mlx.Options{})
	if err := b.Attach(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}()
	tower, err := nn.LoadTower(t.Context(), nn.NewLoader(b, f.Tower(), nil), d)
	if err != nil {
		t.Fatal(err)
	}
	defer tower.Release()
	before := b.Memory().Active()
	s := b.NewScope(t.Context())
	defer s.Close()
	for e, more := tower.Begin(s, patchesOf(0, [2]int{rows, columns}, d.PatchWidth())), true; more; {
		more = e.Next()
		e.Wait()
	}
	if err := s.Err(); err != nil {
		t.Fatal(err)
	}
	got := b.Peak() - before
	t.Logf("an image takes %.1f MB, the estimate is %.2f of it", float64(got)/1e6, float64(want)/float64(got))
	if got > want || got < want*5/7 {
		t.Errorf("an image takes %d bytes, the estimate says %d", got, want)
	}
}
