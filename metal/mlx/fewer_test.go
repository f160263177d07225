//go:build mlx

package mlx

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"metalfleet.dev/metalfleet/metal/quant"
	"metalfleet.dev/metalfleet/metal/tensor"
)

// A GPU reads the first columns of longer rows where they lie, for products of heads and
// for a norm; what was computed before lies by itself.
func TestColumnsAreReadWhereTheyLie(t *testing.T) {
	const heads, size, more, out, vocabulary = 4, 64, 32, 96, 32
	b := open(t, Options{})
	b.SetPrecision(quant.BFloat16)
	rng := rand.New(rand.NewPCG(6, 12))
	packed := quant.AffineOf(4, 64, quant.BFloat16)
	rows := randomMatrix(t, b, rng, quant.DenseOf(quant.BFloat16), vocabulary, heads*(size+more))
	each, matrix := randomMatrix(t, b, rng, packed, heads*out, size), randomMatrix(t, b, rng, packed, out, heads*size)
	weight := randomVector(t, b, rng, heads*size)
	for name, c := range map[string]struct {
		cut     []int
		width   int
		compute func(s tensor.Scope, x tensor.Array) tensor.Array
	}{
		"heads": {[]int{size, more}, heads * out, func(s tensor.Scope, x tensor.Array) tensor.Array { return s.LinearEach(x, each, heads) }},
		"norm":  {[]int{heads * size, heads * more}, out, func(s tensor.Scope, x tensor.Array) tensor.Array { return s.Linear(x, matrix)[0] }},
	} {
		for _, ids := range [][]int32{{3}, {3, 17, 9, 30, 8}} {
			compute := func(apart bool) []float32 {
				s := b.NewScope(t.Context())
				defer s.Close()
				x := s.Split(s.Embed(rows, s.IDs(ids)), c.cut...)[0]
				if name == "norm" {
					x = s.RMSNorm(x, weight, 1e-6)
				}
				if apart {
					s.Read(x, make([]float32, len(ids)*heads*size))
				}
				got := make([]float32, len(ids)*c.width)
				s.Read(c.compute(s, x), got)
				if err := s.Err(); err != nil {
					t.Fatal(err)
				}
				return got
			}
			got := compute(false)
			for i, w := range compute(true) {
				if d := math.Abs(float64(got[i] - w)); !(d <= 0.03*(1+math.Abs(float64(w)))) {
					t.Fatalf("%s of %d rows: value %d is %v, want %v of columns by themselves", name, len(ids), i, got[i], w)
				}
			}
		}
	}
}

// A GPU scores and chooses experts by one kernel, and adds up what they made where it
// norms the sum of that; what was computed before is read as it is.
func TestExpertsInFewerKernelsEqualOperations(t *testing.T) {
	const width, experts, k, vocabulary = 192, 5, 2, 32
	b := open(t, Options{})
	b.SetPrecision(quant.BFloat16)
	rng := rand.New(rand.NewPCG(7, 12))
	rows, router := randomMatrix(t, b, rng, quant.DenseOf(quant.BFloat16), vocabulary, width), randomMatrix(t, b, rng, quant.DenseOf(quant.BFloat16), experts, width)
	matrices := randomMatrix(t, b, rng, quant.AffineOf(4, 64, quant.BFloat16), experts*width, width)
	weight := randomVector(t, b, rng, width)
	ids := []int32{3, 17, 9}
	for name, shared := range map[string]bool{"alone": false, "and one that all tokens use": true} {
		compute := func(apart bool) (chosen []int32, normed []float32) {
			s := b.NewScope(t.Context())
			defer s.Close()
			known := func(a tensor.Array) tensor.Array {
				if apart {
					s.Read(a, make([]float32, len(ids)*a.Shape()[1]))
				}
				return a
			}
			x := s.Embed(rows, s.IDs(ids))
			which, shares := s.Route(known(s.Linear(x, router)[0]), tensor.RouteSpec{K: k, Sigmoid: true, Normalized: true, Scale: 1})
			mixed := known(s.Combine(s.LinearOf(x, which, experts, matrices)[0], shares))
			if shared {
				mixed = s.Add(mixed, x)
			}
			chosen, normed = make([]int32, len(ids)*k), make([]float32, len(ids)*width)
			s.Read(s.RMSNorm(s.Add(x, mixed), weight, 1e-6), normed)
			s.ReadIDs(which, chosen)
			if err := s.Err(); err != nil {
				t.Fatal(err)
			}
			return chosen, normed
		}
		chosen, got := compute(false)
		wantChosen, want := compute(true)
		if !slices.Equal(chosen, wantChosen) {
			t.Fatalf("experts %s: %v are chosen, want %v", name, chosen, wantChosen)
		}
		for i, w := range want {
			if d := math.Abs(float64(got[i] - w)); !(d <= 0.03*(1+math.Abs(float64(w)))) {
				t.Fatalf("experts %s: value %d is %v, want %v by operations one by one", name, i, got[i], w)
			}
		}
	}
}

// randomVector has bfloat16 numbers, and lives as long as the test.
func randomVector(t *testing.T, b *Backend, rng *rand.Rand, n int) tensor.Array {
	t.Helper()
	var raw []byte
	for _, v := range normal(rng, n) {
		raw = binary.LittleEndian.AppendUint16(raw, uint16(math.Float32bits(v)>>16))
	}
	v, err := b.LoadVector(quant.BFloat16, raw)
	if err != nil {
		t.Fatal(err)
	}
	s := b.NewScope(t.Context())
	t.Cleanup(s.Close)
	t.Cleanup(func() { s.Release(v) })
	return v
}
