package ref_test

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"metalfleet.dev/metalfleet/metal/quant"
	"metalfleet.dev/metalfleet/metal/ref"
	"metalfleet.dev/metalfleet/metal/tensor"
)

// everyFormat lists all quantised formats.
func everyFormat() (all []quant.Format) {
	for _, kind := range []quant.Type{quant.Float32, quant.Float16, quant.BFloat16} {
		for _, bits := range quant.Bits() {
			for _, group := range quant.Groups() {
				all = append(all, quant.AffineOf(bits, group, kind))
			}
		}
		all = append(all, quant.SymmetricOf(4, 32, kind), quant.SymmetricOf(8, 32, kind))
	}
	return all
}

// wild are rows with outliers and groups of nothing, and in the last of
// several numbers that are none.
func wild(rng *rand.Rand, tokens, in int) []float32 {
	x := make([]float32, tokens*in)
	for i := range x {
		x[i] = float32(rng.NormFloat64() * math.Exp(2*rng.NormFloat64()))
	}
	clear(x[:32])
	x[40] = 1e-35
	x[100] = 3e38
	if tokens > 1 {
		x[len(x)-in+64] = float32(math.Inf(-1))
		x[len(x)-1] = float32(math.NaN())
	}
	return x
}

// bitsOf reads an array; all that is not a number is the same.
func bitsOf(s tensor.Scope, out tensor.Array, n int) []uint32 {
	values, bits := make([]float32, n), make([]uint32, n)
	s.Read(out, values)
	for i, v := range values {
		if bits[i] = math.Float32bits(v); v != v {
			bits[i] = math.Float32bits(float32(math.NaN()))
		}
	}
	return bits
}

// both are back ends that compute without vectors and with them, where this
// program and this processor have any.
func both(t *testing.T, opts ref.Options) (portable, vectors *ref.Backend) {
	t.Helper()
	if !ref.HasVectors() {
		t.Log("no vectors here: the portable kernels are compared with themselves")
	}
	vectors = ref.New(opts)
	opts.Portable, opts.Threads = true, 1
	portable = ref.New(opts)
	t.Cleanup(func() {
		if err := errors.Join(portable.Close(), vectors.Close()); err != nil {
			t.Error(err)
		}
	})
	return portable, vectors
}

func TestVectorsGiveTheBitsOfTheTables(t *testing.T) {
	const out, in = 269, 384 // a whole tile and 13 rows
	rng := rand.New(rand.NewPCG(11, 12))
	for _, threads := range []int{1, 5} {
		portable, vectors := both(t, ref.Options{Threads: threads})
		for _, f := range everyFormat() {
			for _, tokens := range []int{1, 2, 8, 11} {
				x := wild(rng, tokens, in)
				var bits [2][]uint32
				for i, be := range []tensor.Backend{portable, vectors} {
					m := randomMatrix(t, be, f, out, in)
					s := be.NewScope(context.Background())
					bits[i] = bitsOf(s, s.Linear(s.From(x, tokens, in), m)[0], tokens*out)
					if err := s.Err(); err != nil {
						t.Fatal(err)
					}
					s.Close()
					m.Release()
				}
				if i := slices.IndexFunc(bits[0], func(b uint32) bool { return b != math.Float32bits(float32(math.NaN())) }); i < 0 {
					t.Fatalf("%v: nothing is a number", f)
				}
				for i, want := range bits[0] {
					if got := bits[1][i]; got != want {
						t.Fatalf("%v, %d tokens, %d threads: token %d, row %d is %v with vectors, %v without",
							f, tokens, threads, i/out, i%out, math.Float32frombits(got), math.Float32frombits(want))
					}
				}
			}
		}
	}
}
