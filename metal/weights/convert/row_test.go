//go:build !race

package convert

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/metal/quant"
	"metalfleet.dev/metalfleet/metal/tinymodel"
)

func TestMatricesAreQuantised(t *testing.T) {
	for name, source := range map[string]string{
		"from bfloat16":         folderOf(t, small(tinymodel.Qwen3), tinymodel.Layout{Matrices: quant.DenseOf(quant.BFloat16)}),
		"from other bits":       folderOf(t, small(tinymodel.Qwen3), tinymodel.Layout{Matrices: quant.AffineOf(8, 64, quant.BFloat16)}),
		"from blocks of a file": ggufFile(t, small(tinymodel.Qwen3)),
	} {
		t.Run(name, func(t *testing.T) {
			before := open(t, source)
			scales := quant.BFloat16
			if before.Header() != nil {
				scales = quant.Float32
			}
			f := converted(t, source, Options{Plan: Plan{Rest: Affine(6, 32), Again: true}})
			for _, e := range f.Entries() {
				want := quant.AffineOf(6, 32, scales)
				if len(e.Shape) == 1 && e.Format.Quantized() || len(e.Shape) == 2 && e.Format != want {
					t.Errorf("%s of shape %v is %v", e.Path, e.Shape, e.Format)
				}
				was, _ := before.Entry(e.Path)
				old := values(t, before, was)
				for r, row := range values(t, f, e) {
					for i, v := range row {
						if math.Abs(float64(v-old[r][i])) > 0.02*spread(old[r]) {
							t.Fatalf("%s[%d, %d] is %v, was %v", e.Path, r, i, v, old[r][i])
						}
					}
				}
			}
		})
	}
}

func spread(v []float32) float64 { return float64(slices.Max(v) - slices.Min(v)) }

func TestRowsThatAreNotWholeGroupsStay(t *testing.T) {
	c := small(tinymodel.Llama)
	c.FeedForward = 160
	f := converted(t, folderOf(t, c, tinymodel.Layout{Matrices: quant.DenseOf(quant.BFloat16)}), Options{Plan: Plan{Rest: Affine(4, 64), Again: true}})
	for path, want := range map[string]quant.Format{
		"model.layers.0.mlp.down_proj.weight": quant.DenseOf(quant.BFloat16), "model.layers.0.mlp.up_proj.weight": quant.AffineOf(4, 64, quant.BFloat16),
	} {
		if e, _ := f.Entry(path); e.Format != want {
			t.Errorf("%s is %v, want %v", path, e.Format, want)
		}
	}
}

func TestTypesAreCast(t *testing.T) {
	half := quant.Float16
	for name, source := range map[string]string{
		"dense":  folderOf(t, small(tinymodel.Llama), tinymodel.Layout{Matrices: quant.DenseOf(quant.Float32)}),
		"affine": folderOf(t, small(tinymodel.Llama), tinymodel.Layout{Matrices: quant.AffineOf(4, 64, quant.Float32)}),
		"blocks": ggufFile(t, small(tinymodel.Llama)),
	} {
		t.Run(name, func(t *testing.T) {
			before, f := open(t, source), converted(t, source, Options{Type: &half})
			if f.Precision() != half {
				t.Errorf("precision %v", f.Precision())
			}
			for _, e := range f.Entries() {
				if e.Format.Type != half {
					t.Errorf("%s is %v", e.Path, e.Format)
				}
				was, _ := before.Entry(e.Path)
				old := values(t, before, was)
				for r, row := range values(t, f, e) {
					for i, v := range row {
						if math.Abs(float64(v-old[r][i])) > 1e-2*max(1, spread(old[r])) {
							t.Fatalf("%s[%d, %d] is %v, was %v", e.Path, r, i, v, old[r][i])
						}
					}
				}
			}
		})
	}
}

func TestValuesThatATypeCannotHoldAreRefused(t *testing.T) {
	huge := math.Float32bits(1e6)
	for name, c := range map[string]struct {
		layout tinymodel.Layout
		o      Options
		says   string
	}{
		"a weight":              {layout: tinymodel.Layout{Matrices: quant.DenseOf(quant.Float32)}, o: Options{}, says: "1e+06 as float16"},
		"a weight, when packed": {layout: tinymodel.Layout{Matrices: quant.DenseOf(quant.Float32)}, o: Options{Plan: Plan{Rest: Affine(4, 64), Again: true}}, says: "1e+06 as float16"},
		"a scale":               {layout: tinymodel.Layout{Matrices: quant.AffineOf(4, 64, quant.Float32)}, o: Options{}, says: "float16"},
	} {
		t.Run(name, func(t *testing.T) {
			source := folderOf(t, small(tinymodel.Llama), c.layout)
			f := open(t, source)
			path := "model.embed_tokens.weight"
			if c.layout.Matrices.Quantized() {
				path = "model.embed_tokens.scales"
			}
			patch(t, filepath.Join(source, "model.safetensors"), path, binary.LittleEndian.AppendUint32(nil, huge))
			half := quant.Float16
			c.o.Type, c.o.Out = &half, filepath.Join(t.TempDir(), "out")
			_, err := Run(context.Background(), f, c.o)
			if !errors.Is(err, errRange) || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), "embed_tokens") {
				t.Errorf("error %v, want ErrRange saying %q", err, c.says)
			}
			wantEmpty(t, filepath.Dir(c.o.Out))
		})
	}
}

// patch writes over the beginning of a tensor.
func patch(t *testing.T, file, tensor string, b []byte) {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	n := binary.LittleEndian.Uint64(data)
	var header map[string]struct {
		Offsets []int `json:"data_offsets"`
	}
	if err := json.Unmarshal(data[8:8+n], &header); err != nil {
		t.Fatal(err)
	}
	copy(data[8+int(n)+header[tensor].Offsets[0]:], b)
	if err := os.WriteFile(file, data, 0o644); err != nil {
		t.Fatal(err)
	}
}

func wantEmpty(t *testing.T, dir string) {
	t.Helper()
	left, err := os.ReadDir(dir)
	if err != nil || len(left) > 0 {
		t.Errorf("%v is left in %s (%v)", left, dir, err)
	}
}

// Small floats stay as they are, or become what they mean in another format.
func TestSmallFloatsAreKeptOrReadBeforeTheyChange(t *testing.T) {
	for _, f := range quant.BlockFloats() {
		source := folderOf(t, small(tinymodel.Qwen3MoE), tinymodel.Layout{
			Matrices:  f,
			Overrides: map[string]quant.Format{"model.embed_tokens": quant.AffineOf(8, 64, quant.BFloat16), "model.layers.0.self_attn.q_proj": quant.BlockFloats()[0]},
		})
		want := open(t, source)
		kept := converted(t, source, Options{})
		wantValues(t, want, kept)
		for _, e := range kept.Entries() {
			if before, _ := want.Entry(e.Path); e.Format != before.Format {
				t.Errorf("%v: %s was %v, became %v", f, e.Path, before.Format, e.Format)
			}
		}
		changed := converted(t, source, Options{Plan: Plan{Rest: Affine(8, 32), Again: true}})
		for _, path := range []string{"model.layers.0.mlp.switch_mlp.down_proj.weight", "model.layers.0.self_attn.o_proj.weight"} {
			from, _ := want.Entry(path)
			to, _ := changed.Entry(path)
			if to.Format != quant.AffineOf(8, 32, quant.BFloat16) {
				t.Errorf("%v: %s became %v", f, path, to.Format)
			}
			had, has := values(t, want, from), values(t, changed, to)
			for r := range had {
				for g := 0; g < len(had[r]); g += 32 {
					limit := spread(had[r][g:g+32])/255 + 0.02*max(float64(slices.Max(had[r][g:g+32])), -float64(slices.Min(had[r][g:g+32]))) // half a step, and scales of 8 bits
					for i := g; i < g+32; i++ {
						if d := float64(had[r][i]) - float64(has[r][i]); d > limit || d < -limit {
							t.Fatalf("%v: element %d of row %d of %s is %v, was %v", f, i, r, path, has[r][i], had[r][i])
						}
					}
				}
			}
		}
	}
}

// The biases of experts have as many dimensions as a matrix, and stay what they
// are; the router has bits of its own.
func TestGPTOSSIsConvertedBesideItsBiases(t *testing.T) {
	source := folderOf(t, small(tinymodel.GPTOSS), tinymodel.Layout{Matrices: quant.BlockFloats()[0]})
	want := open(t, source)
	kept := converted(t, source, Options{})
	wantDimensions(t, want.Dim, kept.Dim)
	wantValues(t, want, kept)
	changed := converted(t, source, Options{Plan: Plan{Rest: Affine(4, 32), Again: true}})
	wantDimensions(t, want.Dim, changed.Dim)
	for path, format := range map[string]quant.Format{
		"model.layers.0.mlp.router.weight":            quant.AffineOf(8, 64, quant.BFloat16),
		"model.layers.0.mlp.experts.up_proj.weight":   quant.AffineOf(4, 32, quant.BFloat16),
		"model.layers.0.mlp.experts.up_proj.bias":     quant.DenseOf(quant.BFloat16),
		"model.layers.0.mlp.experts.down_proj.bias":   quant.DenseOf(quant.BFloat16),
		"model.layers.0.self_attn.sinks":              quant.DenseOf(quant.BFloat16),
		"model.layers.0.self_attn.o_proj.bias":        quant.DenseOf(quant.BFloat16),
		"model.layers.0.mlp.router.bias":              quant.DenseOf(quant.BFloat16),
		"model.layers.0.mlp.experts.gate_proj.weight": quant.AffineOf(4, 32, quant.BFloat16),
	} {
		if e, _ := changed.Entry(path); e.Format != format {
			t.Errorf("%s became %v, want %v", path, e.Format, format)
		}
	}
	published := folderOf(t, small(tinymodel.GPTOSS), tinymodel.Layout{Matrices: quant.DenseOf(quant.BFloat16)})
	out := filepath.Join(t.TempDir(), "out")
	if _, err := Run(context.Background(), open(t, published), Options{Out: out}); !errors.Is(err, ErrOptions) || !strings.Contains(err.Error(), "unchanged") {
		t.Errorf("as it was published: error %v, want ErrOptions that explains that it can be loaded unchanged", err)
	}
}
