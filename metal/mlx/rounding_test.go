//go:build mlx

package mlx_test

import (
	"context"
	"encoding/json"
	"math"
	"os"
	"testing"

	"metalfleet.dev/metalfleet/metal/arch"
	"metalfleet.dev/metalfleet/metal/mlx"
	"metalfleet.dev/metalfleet/metal/quant"
	"metalfleet.dev/metalfleet/metal/tensor"
	"metalfleet.dev/metalfleet/metal/tinymodel"
	"metalfleet.dev/metalfleet/metal/weights"
)

// recorded is what hack/mlx/rounding.sh wrote.
type recorded struct {
	MadeBy string
	Stride int
	Cases  []struct {
		Name, SHA256, Type string
		Logits             []float64
	}
}

// In the types that a model's weights promote to, rounding hides a difference
// of a tenth of a logit. So the rounding itself must be that of mlx-lm: the
// same operations in the same types give the same bits on the same framework,
// and a multiplication that happens elsewhere, or in float32, shows.
func TestHalfPrecisionRoundsWhereMLXLMRounds(t *testing.T) {
	b, err := os.ReadFile("testdata/rounding.json")
	if err != nil {
		t.Fatal(err)
	}
	var want recorded
	if err := json.Unmarshal(b, &want); err != nil {
		t.Fatal(err)
	}
	if len(want.Cases) < 20 {
		t.Fatalf("%d cases are recorded: was the file read?", len(want.Cases))
	}
	cases := map[string]tinymodel.Case{}
	for _, c := range tinymodel.Cases() {
		cases[c.Name] = c
	}
	// Seen on amd64: 4e-6, the digits of the record. Other processors may add in
	// another order.
	const tolerance = 2e-3
	worst, families, wide := 0.0, map[string]bool{}, inFloat32(t)
	for _, w := range want.Cases {
		t.Run(w.Name, func(t *testing.T) {
			path, err := cases[w.Name].Write(t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			if sum, err := tinymodel.Digest(path); err != nil || sum != w.SHA256 {
				t.Fatalf("mlx-lm read another model (%v); run hack/mlx/rounding.sh", err)
			}
			got := logits(t, path, cases[w.Name].Prompts()[0])
			c := cases[w.Name].Config
			families[string(c.Family)] = true
			if c.Hybrid.Interval > 0 {
				wantAsNear(t, got, w.Logits, want.Stride, wide[w.Name])
				return
			}
			top := 0.0
			for _, v := range w.Logits {
				top = max(top, math.Abs(v))
			}
			for i, v := range w.Logits {
				d := math.Abs(float64(got[i*want.Stride])-v) / top
				if !(d <= tolerance) {
					t.Fatalf("logit %d is %v, want %v (off by %.2g of the largest)", i*want.Stride, got[i*want.Stride], v, d)
				}
				worst = max(worst, d)
			}
		})
	}
	t.Logf("off by %.1e of the largest logit at most", worst)
	if t.Failed() || len(families) < 2 { // or one alone was asked for
		return
	}
	for family := range tinyFamilies() {
		if !families[family] {
			t.Errorf("of %s no rounding is recorded; run hack/mlx/rounding.sh", family)
		}
	}
}

// inFloat32 returns the logits after the first prompt of each case, as mlx-lm
// computes them without rounding.
func inFloat32(t *testing.T) map[string][]float64 {
	t.Helper()
	b, err := os.ReadFile("../arch/testdata/mlx-lm.json")
	if err != nil {
		t.Fatal(err)
	}
	var record struct {
		Cases []struct {
			Name   string
			Logits [][]float64
		}
	}
	if err := json.Unmarshal(b, &record); err != nil {
		t.Fatal(err)
	}
	out := map[string][]float64{}
	for _, c := range record.Cases {
		out[c.Name] = c.Logits[0]
	}
	return out
}

// wantAsNear is for hybrids: here a recurrent layer computes in float32 and in
// blocks, where mlx-lm's convolution and gates round to the model's type, token by
// token. So the logits are not those of mlx-lm, but as near to float32's as they
// are, in the root mean square.
func wantAsNear(t *testing.T, got []float32, theirs []float64, stride int, exact []float64) {
	t.Helper()
	if len(exact) != len(got) {
		t.Fatalf("%d logits in float32, want %d", len(exact), len(got))
	}
	const fromFloat32 = 1.25 // seen: 0.43 to 1.09
	var we, they float64
	for i, v := range theirs {
		we += math.Pow(float64(got[i*stride])-exact[i*stride], 2)
		they += math.Pow(v-exact[i*stride], 2)
	}
	ratio := math.Sqrt(we / they)
	t.Logf("as far from float32 as mlx-lm times %.2f", ratio)
	if !(ratio <= fromFloat32) {
		t.Errorf("logits are %.2f times as far from float32 as those of mlx-lm, want %v at most", ratio, fromFloat32)
	}
}

// tinyFamilies are those that have a folder in half precision.
func tinyFamilies() map[string]bool {
	out := map[string]bool{}
	for _, c := range tinymodel.Cases() {
		if c.Layout != nil && c.Layout.Matrices.Quantized() && c.Layout.Matrices.Type != quant.Float32 {
			out[string(c.Config.Family)] = true
		}
	}
	return out
}

// logits returns the logits after a prompt that is computed in one step.
func logits(t *testing.T, path string, prompt []int32) []float32 {
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
	if b.GPU() {
		t.Skip("the record is of a processor, and this is a GPU: its sums have another order")
	}
	f, err := weights.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	m, err := arch.Load(context.Background(), b, f, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Release()
	cache, err := b.NewCache(m.CacheSpec())
	if err != nil {
		t.Fatal(err)
	}
	defer cache.Release()
	s := b.NewScope(context.Background())
	defer s.Close()
	out := make([]float32, f.Dim.Vocabulary)
	s.Read(m.Step(s, cache, s.IDs(prompt), []tensor.Segment{{Request: 1, Length: len(prompt)}}, []int{len(prompt) - 1}), out)
	if err := s.Err(); err != nil {
		t.Fatal(err)
	}
	return out
}
