//go:build !race

package weights_test

import (
	"path/filepath"
	"testing"

	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/metal/quant"
	"metalfleet.dev/metalfleet/metal/tinymodel"
	"metalfleet.dev/metalfleet/metal/weights"
)

func factsOf(t *testing.T, c tinymodel.Config, l *tinymodel.Layout) model.Facts {
	t.Helper()
	path := filepath.Join(t.TempDir(), "model.gguf")
	var err error
	if l == nil {
		err = tinymodel.Write(path, c)
	} else {
		err = tinymodel.WriteFolder(path, c, *l)
	}
	if err != nil {
		t.Fatal(err)
	}
	f, err := weights.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	facts, err := f.Facts()
	if err != nil {
		t.Fatal(err)
	}
	return facts
}

// A network entirely in one half precision computes and caches in it; any other
// uses float32.
func TestKVPrecisionFollowsTheNetwork(t *testing.T) {
	for name, c := range map[string]struct {
		format    quant.Format
		overrides map[string]quant.Format
		want      int64
	}{
		"bfloat16":                  {format: quant.DenseOf(quant.BFloat16), want: 2},
		"float16":                   {format: quant.DenseOf(quant.Float16), want: 2},
		"float32":                   {format: quant.DenseOf(quant.Float32), want: 4},
		"4 bits, bfloat16 scales":   {format: quant.AffineOf(4, 32, quant.BFloat16), want: 2},
		"4 bits, float32 scales":    {format: quant.AffineOf(4, 32, quant.Float32), want: 4},
		"scales of two half widths": {format: quant.AffineOf(4, 32, quant.BFloat16), overrides: map[string]quant.Format{"model.layers.0.mlp.down_proj": quant.AffineOf(4, 32, quant.Float16)}, want: 4},
	} {
		f := factsOf(t, tinymodel.Default(), &tinymodel.Layout{Matrices: c.format, Overrides: c.overrides})
		if f.KeyValueElementBytes != c.want {
			t.Errorf("%s: %d bytes an element, want %d", name, f.KeyValueElementBytes, c.want)
		}
		if f.WideWeightBytes != 0 {
			t.Errorf("%s: a folder's weights are %d bytes and %d where they are wide, want the same", name, f.WeightBytes, f.WideWeightBytes)
		}
	}
}

// GGUF implies float32, and some of its formats have no bias, which an affine
// back end adds.
func TestGGUFGrowsWhenConvertedToAffine(t *testing.T) {
	for kind, times := range map[weights.Type]float64{
		weights.F32: 0, weights.F16: 2, weights.BF16: 2, weights.Q4_0: 24.0 / 18, weights.Q4_1: 24.0 / 20, weights.Q8_0: 40.0 / 34,
	} {
		c := tinymodel.Default()
		c.Type = kind
		f := factsOf(t, c, nil)
		norms := int64((2*c.Layers + 1) * c.Hidden * 4)
		want := int64(float64(f.WeightBytes-norms)*times) + norms
		if times == 0 {
			want = 0
		}
		if f.WideWeightBytes != want || f.KeyValueElementBytes != 4 {
			t.Errorf("%v: %d bytes, wide %d, want %d; an element has %d", kind, f.WeightBytes, f.WideWeightBytes, want, f.KeyValueElementBytes)
		}
	}
}

func TestWindowedLayersDoNotGrow(t *testing.T) {
	c := tinymodel.Default()
	c.Family, c.Window = tinymodel.Mistral, 16
	f := factsOf(t, c, &tinymodel.Layout{Matrices: quant.DenseOf(quant.BFloat16)})
	if f.GrowingLayers != 0 || f.WindowLayers != f.Layers || f.WindowTokens != 16 {
		t.Errorf("facts are %+v", f)
	}
	c.Family, c.Window = tinymodel.Llama, 0
	f = factsOf(t, c, &tinymodel.Layout{Matrices: quant.DenseOf(quant.BFloat16)})
	if f.GrowingLayers != f.Layers || f.WindowLayers != 0 || f.WindowTokens != 0 {
		t.Errorf("facts are %+v", f)
	}
}
