//go:build !race

package convert

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/metal/quant"
	"metalfleet.dev/metalfleet/metal/tinymodel"
	"metalfleet.dev/metalfleet/metal/weights"
)

// hybrids of both families, with and without experts and eyes.
func hybrids() map[string]func() (tinymodel.Config, tinymodel.Layout) {
	f32 := quant.DenseOf(quant.Float32)
	return map[string]func() (tinymodel.Config, tinymodel.Layout){
		"Qwen3-Next": func() (tinymodel.Config, tinymodel.Layout) {
			return small(tinymodel.Qwen3Next), tinymodel.Layout{Matrices: f32}
		},
		"modern Qwen3-Next": func() (tinymodel.Config, tinymodel.Layout) {
			return small(tinymodel.Qwen3Next), tinymodel.Layout{Matrices: f32, Modern: true}
		},
		"Qwen3.5 with eyes": func() (tinymodel.Config, tinymodel.Layout) {
			return small(tinymodel.Qwen35), tinymodel.Layout{Matrices: f32, Extras: true}
		},
		"Qwen3.5 of experts": func() (tinymodel.Config, tinymodel.Layout) {
			c := small(tinymodel.Qwen35)
			c.Experts = small(tinymodel.Qwen3Next).Experts
			return c, tinymodel.Layout{Matrices: f32}
		},
	}
}

// TestAHybridIsWrittenAsMLXLMStoresIt: convolutions turned round, norms as they
// are meant, the text alone, and what scores experts in 8 bits.
func TestAHybridIsWrittenAsMLXLMStoresIt(t *testing.T) {
	for name, make := range hybrids() {
		t.Run(name, func(t *testing.T) {
			c, l := make()
			source := open(t, folderOf(t, c, l))
			if !source.NormsLessOne() {
				t.Fatal("the source holds its norms as they are meant")
			}
			same := converted(t, folderOf(t, c, l), Options{})
			if same.NormsLessOne() {
				t.Error("norms are still less one")
			}
			wantDimensions(t, source.Dim, same.Dim)
			wantMeant(t, source, same)
			wantWords(t, same, "")
			packed := converted(t, folderOf(t, c, l), Options{Plan: Plan{Rest: Affine(4, 32), Again: true}})
			wantDimensions(t, source.Dim, packed.Dim)
			wantFormats(t, packed)
			again := converted(t, packed.Folder().Path(), Options{})
			wantValues(t, packed, again)
			wantDimensions(t, packed.Dim, again.Dim)
		})
	}
}

// wantMeant wants every tensor to hold what it held, and norms one more.
func wantMeant(t *testing.T, source, got *weights.File) {
	t.Helper()
	for _, e := range source.Entries() {
		g, ok := got.Entry(e.Path)
		if !ok {
			t.Fatalf("no %s", e.Path)
		}
		more := float32(0)
		if strings.HasSuffix(e.Path, "norm.weight") && !strings.Contains(e.Path, ".linear_attn.") {
			more = 1
		}
		a, b := values(t, source, e), values(t, got, g)
		for r := range a {
			for i := range a[r] {
				if b[r][i] != a[r][i]+more {
					t.Fatalf("row %d of %s holds %v, want %v", r, e.Path, b[r][i], a[r][i]+more)
				}
			}
		}
	}
}

// wantFormats wants matrices quantised, scores of experts in 8 bits, and taps
// never.
func wantFormats(t *testing.T, f *weights.File) {
	t.Helper()
	for _, e := range f.Entries() {
		want := quant.DenseOf(quant.Float32)
		switch {
		case strings.HasSuffix(e.Path, ".mlp.gate.weight"), strings.HasSuffix(e.Path, ".mlp.shared_expert_gate.weight"):
			want = quant.AffineOf(8, 64, quant.Float32)
		case len(e.Shape) > 1 && !strings.HasSuffix(e.Path, "conv1d.weight"):
			want = quant.AffineOf(4, 32, quant.Float32)
		}
		if e.Format != want {
			t.Errorf("%s is %v, want %v", e.Path, e.Format, want)
		}
	}
	wantWords(t, f, "language_model.")
}

// wantWords wants config.json to be one that mlx-lm reads: flat, with the
// names that it has for layers.
func wantWords(t *testing.T, f *weights.File, prefix string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(f.Folder().Path(), configFile))
	if err != nil {
		t.Fatal(err)
	}
	cfg := map[string]any{}
	if err := json.Unmarshal(text, &cfg); err != nil {
		t.Fatal(err)
	}
	kind, _ := cfg["model_type"].(string)
	if cfg["text_config"] != nil || cfg["vision_config"] != nil || strings.HasSuffix(kind, "_text") || cfg["partial_rotary_factor"] == nil {
		t.Errorf("config.json is %s", text)
	}
	if kind == "qwen3_next" {
		for _, key := range []string{"rope_theta", "mlp_only_layers", "decoder_sparse_step", "shared_expert_intermediate_size"} {
			if cfg[key] == nil {
				t.Errorf("config.json has no %s", key)
			}
		}
		prefix = ""
	} else if params, _ := cfg["rope_parameters"].(map[string]any); params["rope_theta"] == nil || params["partial_rotary_factor"] == nil {
		t.Errorf("rope_parameters are %v", params)
	}
	layers, _ := cfg["quantization"].(map[string]any)
	for path := range layers {
		if strings.Contains(path, ".") && !strings.HasPrefix(path, prefix+"model.layers.") {
			t.Errorf("a layer is named %s", path)
		}
	}
}
