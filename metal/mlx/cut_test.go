//go:build mlx

package mlx

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
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
	var raw []byte
	for _, v := range normal(rng, heads*size) {
		raw = binary.LittleEndian.AppendUint16(raw, uint16(math.Float32bits(v)>>16))
	}
	weight, err := b.LoadVector(quant.BFloat16, raw)
	if err != nil {
		t.Fatal(err)
	}
	of := b.NewScope(t.Context())
	t.Cleanup(of.Close)
	t.Cleanup(func() { of.Release(weight) })
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
