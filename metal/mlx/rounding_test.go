//go:build mlx

package mlx_test

import (
	"context"
	"encoding/json"
	"math"
	"os"
	"testing"

	"metalfleet.dev/metalfleet/hack/tinymodel"
	"metalfleet.dev/metalfleet/metal/arch"
	"metalfleet.dev/metalfleet/metal/mlx"
	"metalfleet.dev/metalfleet/metal/tensor"
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
	worst := 0.0
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
}

// logits behind a prompt that is computed in one step.
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
