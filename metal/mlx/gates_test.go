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

// A GPU computes products of which one gates the other by one kernel, where it has one
// for those products; the others are products that were computed before the unit gates.
func TestGatedProductsByOneKernelEqualOperations(t *testing.T) {
	const in, out, experts, vocabulary = 192, 96, 5, 32
	b := open(t, Options{Join: true})
	b.SetPrecision(quant.BFloat16)
	rng := rand.New(rand.NewPCG(5, 12))
	packed := quant.AffineOf(4, 64, quant.BFloat16)
	rows := randomMatrix(t, b, rng, quant.DenseOf(quant.BFloat16), vocabulary, in)
	gate, up := randomMatrix(t, b, rng, packed, out, in), randomMatrix(t, b, rng, packed, out, in)
	gates, ups := randomMatrix(t, b, rng, packed, experts*out, in), randomMatrix(t, b, rng, packed, experts*out, in)
	ids, chosen := []int32{3, 17, 9, 30}, []int32{4, 0, 2, 3}
	for kind, multiply := range map[string]func(s tensor.Scope) []tensor.Array{
		"halves": func(s tensor.Scope) []tensor.Array { return s.Linear(s.Embed(rows, s.IDs(ids)), gate, up) },
		"experts": func(s tensor.Scope) []tensor.Array {
			return s.LinearOf(s.Embed(rows, s.IDs(ids)), s.IDs(chosen), experts, gates, ups)
		},
	} {
		for name, unit := range map[string]tensor.GLU{"SwiGLU": tensor.SwiGLU{}, "GeGLU": tensor.GeGLU{}} {
			compute := func(apart bool) []float32 {
				s := b.NewScope(t.Context())
				defer s.Close()
				both := multiply(s)
				for _, a := range both {
					if apart {
						s.Read(a, make([]float32, len(ids)*out))
					}
				}
				got := make([]float32, len(ids)*out)
				s.Read(s.GLU(both[0], both[1], unit), got)
				if err := s.Err(); err != nil {
					t.Fatal(err)
				}
				return got
			}
			got := compute(false)
			for i, w := range compute(true) {
				if d := math.Abs(float64(got[i] - w)); !(d <= 0.03*(1+math.Abs(float64(w)))) {
					t.Fatalf("%s of %s: value %d is %v, want %v by operations one by one", name, kind, i, got[i], w)
				}
			}
		}
	}
}

// randomMatrix has small numbers, packed or not.
func randomMatrix(t *testing.T, b *Backend, rng *rand.Rand, f quant.Format, out, in int) tensor.Matrix {
	t.Helper()
	row, err := f.NewRow(in)
	if err != nil {
		t.Fatal(err)
	}
	numbers := [][]byte{row.Raw}
	if f.Quantized() {
		numbers = [][]byte{row.Scales, row.Biases}
	}
	m, err := b.LoadMatrix(f, out, in, func(put func(int, quant.Row) error) error {
		for r := range out {
			for i := range row.Raw {
				row.Raw[i] = byte(rng.Uint32())
			}
			for _, to := range numbers {
				for i, v := range normal(rng, len(to)/2) {
					binary.LittleEndian.PutUint16(to[2*i:], uint16(math.Float32bits(v/8)>>16))
				}
			}
			if err := put(r, row); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Release)
	return m
}
